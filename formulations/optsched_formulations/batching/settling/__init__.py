"""Settling every number of batches by itself: the stages of `optsched_formulations.batching.layer_search`."""

"""Formulations of batch assignment with KV-cache eviction on one replica."""

"""Prefix caches: the radix tree of cached blocks, its evictors, vLLM's block pool, and the cache of one machine."""

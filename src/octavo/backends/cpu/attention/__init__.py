"""Attention over the paged KV cache, rope, and how keys and values lie in each type of cache. Begin with `kernel`."""

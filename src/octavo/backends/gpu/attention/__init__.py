"""Attention over a paged KV cache, and what goes into it.

In: queries, pages of keys and values. Out: a row for each head. Begin with `launch`: prefill goes through `kernel` or
a kernel for Hopper, decode is split over the keys and combined; `rope_*` rotates and writes the cache.
"""

"""Weights as products read them: 16 rows side by side, packed once.

In: stored tensors. Out: tiles of 16 rows in `layout`, and what a kernel decodes them with. Begin with `layout` and
`pack`; `probe` and `scale_map` find out where a format keeps its bits by asking its unpack function.
"""

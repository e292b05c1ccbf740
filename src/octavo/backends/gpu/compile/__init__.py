"""Kernels made ready: compiled ahead of their first launch, in processes of their own, and kept on disk.

In: launches that a plan will make. Out: machine code, from the cache or from Triton. Begin with `warm_up`; `gluon`
says which kernels the installed Triton can compile at all.
"""

"""Kernels compiled at run time, for all that has some.

`kernel_cache` keeps compiled kernels on disk and `clock` counts what compiling takes, whatever compiles them. The rest
is for kernels in Numba: `simd` has vector values and the operations on them, `compile` makes kernels for constants,
`program` runs them in all threads.
"""

"""Bound calls: a kernel with its grid and arguments, and a step of them as one captured CUDA graph.

In: kernels and the values of a plan. Out: calls that run again and again. Begin with `call`; `arguments` has what
kernels take, by name, `context` what the calls of a plan share, `device_values` what on a device is more than a tensor.
"""

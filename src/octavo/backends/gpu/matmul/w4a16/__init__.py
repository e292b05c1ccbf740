"""Weights of 4 bits and other blocks made float16 in registers, and multiplied with float16 activations.

In: packed weights, float16 activations. Out: float16 or float32. Begin with `launch`; `hopper_kernel` is the plain
one, the two `streamk` kernels divide all steps of all tiles evenly (stream-K, arXiv 2301.03598).
"""

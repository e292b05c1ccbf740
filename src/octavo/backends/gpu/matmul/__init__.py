"""Products of weights and activations.

In: weights in a layout, activations as floats or 8-bit codes. Out: calls. Begin with `launch`, which says which
kernel for how many tokens, and `dispatch`, in which shape; a folder for each family of kernels.
"""

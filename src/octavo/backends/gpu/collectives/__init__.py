"""What ranks with a GPU each add up and gather, between kernels of a step and in its captured graph.

In: a value of each rank. Out: the same on all. Begin with `communicator`, which takes `all_reduce_kernel` for small
sums and NCCL for the others.
"""

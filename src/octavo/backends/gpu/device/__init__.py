"""What there is to run on: torch, Triton and a card, or Triton's interpreter.

In: nothing but the machine. Out: the target that kernels are compiled for, free memory, what the driver says without
torch, and how fast memory is read. Begin with `torch_device`.
"""

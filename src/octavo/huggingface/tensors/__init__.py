"""The tensors of a checkpoint under GGUF's names: renamed, reordered, stacked, each loaded when its turn comes.

Begin with `tensors`.
"""

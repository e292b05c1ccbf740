"""Architectures with attention in some layers and states in others: a file each. Begin with `lfm2`."""

"""Architectures with states alone: a file each. Begin with `mamba2`."""

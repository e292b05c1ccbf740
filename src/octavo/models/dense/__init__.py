"""Architectures whose tokens go through all weights: a file each, named as GGUF names them. Begin with `llama`."""

"""Architectures with a mixture of experts: a file each, named as GGUF names them. Begin with `qwen3moe`."""

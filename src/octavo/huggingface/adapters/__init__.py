"""LoRA adapters as PEFT saves them, under GGUF's names. Begin with `adapter`."""

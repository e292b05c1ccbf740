"""Products of experts (mul_mat_id), tokens sorted by expert for prompts. Begin with `launch`."""

"""How other tools lay out quantized checkpoints: a file for each layout, from tensors and configuration to stored rows.

`layout_table` picks the layout by what the configuration says; the rest of the package sees tensors by name.
"""

"""Methods: GPTQ and Qronos (`gptq/`), scales of channels (SmoothQuant, AWQ, QQQ, RPTQ), and clipping.

Comes in: weights and samples of what they are multiplied with. Goes out: codes, or scales with which rounded products
err less. Begin with `channel_scales.py`: roundings, the search, and the methods by name.
"""

"""Static scales of the KV cache, from statistics of a text.

Comes in: a model and its statistics. Goes out: the model's file, or its folder, once more with the scales. Begin with
`scales.py`; `clips.py` says where int8 numbers are best cut off.
"""

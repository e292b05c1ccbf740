"""Checkpoints in a scheme: a model's linear layers quantized, written as compressed-tensors, GPTQ, AWQ or QQQ.

Comes in: a GGUF file or a checkpoint folder, and what a method made of it. Goes out: a new folder, read once more when
it is written. Begin with `checkpoint_folder.py`; `scheme_tensors.py` goes through the tensors.
"""

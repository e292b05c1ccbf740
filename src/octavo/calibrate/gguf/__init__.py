"""GPTQ and Qronos into GGUF's formats, stage by stage over a text.

Comes in: a job of `octavo.quantizers.job` and a text. Goes out: packed rows of the tensors whose formats have levels,
and errors before and after; encoders make the others. Begin with `gguf_method.py`; `gguf_weights.py` makes a stage's
weights, and rows that are looked up.
"""

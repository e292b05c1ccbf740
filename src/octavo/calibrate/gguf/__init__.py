"""GPTQ and Qronos into GGUF's formats, stage by stage over a text.

Comes in: a job of `octavo.quantizers.job` and a text. Goes out: packed rows of the tensors whose formats have levels,
and errors before and after; encoders make the others. All of it is in `gguf_method.py`.
"""

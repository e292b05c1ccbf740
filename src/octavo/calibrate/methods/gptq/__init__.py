"""GPTQ: codes of a row whose errors cancel where inputs of a product go together; Qronos corrects the weights first.

Comes in: weights [N, K], a Hessian [K, K], a format. Goes out: codes and scales, with errors before and after. Begin
with `gptq_quantize.py`; `sweep.py` goes through columns, by `columns_kernel.py` on the CPU and `torch_sweep.py` on a
device; `gptq_schemes.py` does so for schemes of checkpoints.
"""

from octavo.calibrate.methods.gptq.gptq_quantize import DAMP, GptqRows, gptq

__all__ = ["DAMP", "GptqRows", "gptq"]

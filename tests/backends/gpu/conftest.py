"""Kernels run in Triton's interpreter, which has to be asked for before Triton is imported.

With TRITON_INTERPRET=0 they run on this machine's GPU, and so does `test_on_gpu.py`, which needs one.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from typing import Any

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_with_index(tensor: Any, scope: Any) -> None:
    """Triton 3.6 takes int() of an array of one element for the bounds of a loop, which NumPy 2.4 refuses."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_with_index
INTERPRETED = os.environ["TRITON_INTERPRET"] == "1"
collect_ignore = ["test_on_gpu.py"] if INTERPRETED else ["test_bench.py", "test_device.py"]

"""What the functions take and return, for type checkers: NumPy arrays or torch tensors, one kind in a call.

Nothing here imports torch: its types are named as text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array = TypeVar("Array", "npt.NDArray[Any]", "torch.Tensor")
"""NumPy arrays, or torch tensors of one device: the arguments of a call, and its results."""

Scale: TypeAlias = "npt.NDArray[Any] | torch.Tensor | np.float32"
"""float32 numbers, of the kind that the other arguments are; one alone may be NumPy's scalar."""

AnyTensor: TypeAlias = "npt.NDArray[Any] | torch.Tensor"

OutDTypeLike: TypeAlias = (
    "Literal['f32', 'f16', 'bf16', 'float32', 'float16', 'bfloat16'] | np.dtype[Any] | type[Any] | torch.dtype"
)
"""The type of a result: by one of its names, or as NumPy, ml_dtypes or torch have it."""

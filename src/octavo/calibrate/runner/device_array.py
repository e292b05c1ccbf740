"""Values that stay in the memory of a device, and are read by the host where it asks for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from octavo.formats.spec import AnyArray


class DeviceArray:
    """A tensor of torch that is indexed as an array of NumPy, and becomes one where it is asked to (`np.asarray`)."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    @property
    def size(self) -> int:
        return self.tensor.numel()

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, at: slice | AnyArray) -> DeviceArray:
        """Some of the first dimension, by a slice or numbers, or what a mask of the first dimensions picks."""
        index: Any = at if isinstance(at, slice) else torch.from_numpy(at).to(self.tensor.device)
        return DeviceArray(self.tensor[index])

    def __setitem__(self, at: slice, values: AnyArray | torch.Tensor) -> None:
        source = values if isinstance(values, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(values))
        self.tensor[at].copy_(source)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        return np.asarray(self.tensor.cpu().numpy(), dtype)

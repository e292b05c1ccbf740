"""Where an array is: of NumPy on the host, or a tensor of torch, on a device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from octavo.formats.spec import AnyArray

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeIs


VALUES = 1 << 27
"""Values of rows that are worked on together on a device, at most, or those of a row: counted in float32."""


def is_tensor(x: object) -> TypeIs[Tensor]:
    """Whether x is a tensor of torch, which is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def on_host(x: AnyArray | Tensor) -> AnyArray:
    """An array of the host with the numbers of x."""
    if is_tensor(x):
        found: AnyArray = x.cpu().numpy()
        return found
    return x

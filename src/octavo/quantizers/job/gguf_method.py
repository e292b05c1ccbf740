"""Tensors in their formats before the file is written, made by a method where encoders go tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from octavo.formats import BlockFormat, QTensor
from octavo.formats.spec import U8
from octavo.quantizers.job.method_run import MethodRun
from octavo.quantizers.job.undersampled import UndersampledExpert
from octavo.quantizers.statistics.outliers import OutlierChannels


@dataclass(frozen=True, eq=False)
class GgufWeight:
    """A tensor in its format.

    data    packed rows, uint8 [N, bytes] or [experts, N, bytes]
    error   the root of sum |E x|^2 / sum |W x|^2 over the inputs x that were seen
    before  the same of what the format's encoder alone makes
    channels  of the inputs
    starved  experts that met fewer tokens than they have inputs, and are the encoder's
    """

    data: U8
    error: float
    before: float
    channels: OutlierChannels | None = None
    starved: tuple[UndersampledExpert, ...] = ()

    def tensor(self, fmt: BlockFormat, shape: tuple[int, ...]) -> QTensor:
        """As a tensor of the format that it was made in."""
        return QTensor(fmt, shape, self.data)


class GgufResult(NamedTuple):
    """Tensors that a method has made, by name, and what its run was.

    end  is to be called when the file is written, or is not going to be: with the error then, else None
    """

    tensors: Mapping[str, GgufWeight]
    about: MethodRun
    end: Callable[[BaseException | None], None] = lambda error: None

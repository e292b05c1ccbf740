"""Weights of a torch model by what its layers are given: GPTQ and Qronos, layer after layer as they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from octavo.errors import UsageError
from octavo.formats.spec import F32
from octavo.huggingface.coded import Coded
from octavo.huggingface.schemes import checkpoint_scheme
from octavo.quantizers.calibration import CrossHessian
from octavo.quantizers.compensation.coded import compensated, compensated_row

METHODS = ("rtn", "gptq", "qronos")


class _Enough(Exception):  # noqa: N818 - it is no error: all that is wanted of a batch was seen
    """Ends a run of the module."""


def require_method(scheme: str, method: str, calibration: Any) -> list[Any]:
    """The batches of a method, of any iterable of them; none of "rtn".

    Raises UsageError for a method that is not there, that a scheme has nothing for, or that has no batches, and for
    batches of no method.
    """
    if method not in METHODS:
        raise UsageError(f"method {method!r} (allowed: {', '.join(METHODS)})")
    if method == "rtn":
        if calibration is not None:
            raise UsageError("calibration with method rtn, which runs no batches (allowed: with gptq, qronos)")
        return []
    kind = checkpoint_scheme(scheme)
    if compensated_row(kind, 4 * kind.multiple) is None:
        raise UsageError(f"method {method} for {scheme}, whose errors are not made up for (allowed: rtn)")
    batches = _batches(calibration)
    if not batches:
        raise UsageError(f"method {method} without batches (allowed: calibration=[batch, ...], one or more)")
    return batches


def _batches(calibration: Any) -> list[Any]:
    """All batches of an iterable. Raises UsageError for what is none, and for batches that a module can't be called
    with."""
    if calibration is None:
        return []
    if isinstance(calibration, (Tensor, Mapping, str, bytes)) or not isinstance(calibration, Iterable):
        allowed = "a list, DataLoader, generator or other iterable of batches; [batch] for a single one"
        raise UsageError(f"calibration is a {type(calibration).__name__} (allowed: {allowed})")
    batches = list(calibration)
    for i, batch in enumerate(batches):
        if not isinstance(batch, (Tensor, tuple, list, Mapping)):
            allowed = "a tensor, or a tuple, list or dict of the module's arguments"
            raise UsageError(f"batch {i} of calibration is a {type(batch).__name__} (allowed: {allowed})")
    return batches


def layers_in_order(module: nn.Module, layers: Iterable[nn.Linear], batch: Any) -> dict[nn.Linear, int]:
    """The layers that a batch goes through, in the order in which they are first called, and how often they are.

    Raises UsageError for layers that it does not go through.
    """
    wanted = list(dict.fromkeys(layers))
    calls: dict[nn.Linear, int] = {}

    def count(layer: nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        calls[layer] = calls.get(layer, 0) + 1

    with _hooked(wanted, count):
        _call(module, batch)
    if len(calls) < len(wanted):
        names = {layer: name for name, layer in module.named_modules()}
        missing = ", ".join(names.get(layer, "a layer") for layer in wanted if layer not in calls)
        raise UsageError(f"no batch goes through {missing} (allowed: skip these, or other batches)")
    return calls


def inputs_of(module: nn.Module, layer: nn.Linear, calls: int, batch: Any) -> list[Tensor]:
    """What a layer is given in each of its calls for a batch; what comes after the last one is not run."""
    found: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        found.append(given[0].detach())
        if len(found) == calls:
            raise _Enough

    with _hooked([layer], keep), suppress(_Enough):
        _call(module, batch)
    return found


class Calibrator:
    """Makes weights of layers that are quantized one after the other.

    module   the model, in which layers before are quantized already
    method   "gptq" or "qronos", which also corrects for what layers before err
    batches  each a tensor, or a tuple or dict of arguments of the module
    """

    def __init__(self, module: nn.Module, scheme: str, method: str, batches: Sequence[Any]) -> None:
        self._module, self._scheme, self._batches = module, checkpoint_scheme(scheme), batches
        self._original = deepcopy(module) if method == "qronos" else None

    def weight(self, layer: nn.Linear, name: str, calls: int) -> Coded:
        """The layer's weight in the scheme. Raises NonFiniteError where it is given NaN or Inf."""
        cross = CrossHessian(layer.in_features, name)
        original = None if self._original is None else self._original.get_submodule(name)
        for batch in self._batches:
            now = inputs_of(self._module, layer, calls, batch)
            then = now
            if self._original is not None:
                assert isinstance(original, nn.Linear)
                then = inputs_of(self._original, original, calls, batch)
            for x, y in zip(now, then, strict=True):
                cross.add(_rows(x), _rows(y))
        values = layer.weight.detach().float().cpu().numpy()
        matrix = None if self._original is None else cross.cross()
        return compensated(self._scheme, values, cross.hessian.matrix(), cross=matrix)


def _rows(x: Tensor) -> F32:
    rows: F32 = np.ascontiguousarray(x.reshape(-1, x.shape[-1]).float().cpu().numpy())
    return rows


@contextmanager
def _hooked(layers: Iterable[nn.Module], hook: Callable[[nn.Module, tuple[Any, ...]], None]) -> Iterator[None]:
    handles = [layer.register_forward_pre_hook(hook) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """No dropout and no updates of running means, as when the model is used; each part is as it was afterwards.

    Nor does an encoder layer of torch read weights past its layers, which it does in this mode.
    """
    modes, past = {part: part.training for part in module.modules()}, torch.backends.mha.get_fastpath_enabled()
    for part in modes:
        part.training = False
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(past)
        for part, mode in modes.items():
            part.training = mode


def _call(module: nn.Module, batch: Any) -> None:
    with torch.no_grad(), _evaluating(module):
        if isinstance(batch, Mapping):
            module(**batch)
        elif isinstance(batch, (tuple, list)):
            module(*batch)
        else:
            module(batch)

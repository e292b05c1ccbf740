"""Runs of a torch module over batches, and what its layers are given in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from octavo.errors import UsageError
from octavo.formats.spec import F32


class _Enough(Exception):  # noqa: N818 - not an error: all that is wanted of a batch was seen
    """Ends a run of the module."""


def batches_of(calibration: Any) -> list[Any]:
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

    with hooked(wanted, count):
        outputs_of(module, batch)
    if len(calls) < len(wanted):
        names = {layer: name for name, layer in module.named_modules()}
        missing = ", ".join(names.get(layer, "a layer") for layer in wanted if layer not in calls)
        raise UsageError(f"no batch goes through {missing} (allowed: skip these, or other batches)")
    return calls


def sharing(module: nn.Module, layers: Iterable[nn.Linear], batch: Any) -> dict[nn.Linear, nn.Linear]:
    """For each layer that a batch goes through, itself or the first layer that is called right before it with the
    same tensor, in all of their calls: q of q, k and v."""
    first: dict[nn.Linear, nn.Linear] = {}
    calls: dict[nn.Linear, int] = {}
    last: list[tuple[nn.Linear, Tensor, int]] = []

    def note(layer: nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        x = given[0]
        version = -1 if x.is_inference() else x._version  # torch counts writes to a tensor here
        same = bool(last) and last[0][1] is x and last[0][2] == version >= 0
        leader = first[last[0][0]] if same else layer
        if first.setdefault(layer, leader) is not leader:
            first[layer] = layer
        calls[layer] = calls.get(layer, 0) + 1
        last[:] = [(layer, x, version)]

    with hooked(list(dict.fromkeys(layers)), note):
        outputs_of(module, batch)
    return {layer: leader if calls[layer] == calls[leader] else layer for layer, leader in first.items()}


def inputs_of(module: nn.Module, layer: nn.Linear, calls: int, batch: Any) -> list[Tensor]:
    """What a layer is given in each of its calls for a batch; what comes after the last one is not run."""
    found: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        found.append(given[0].detach())
        if len(found) == calls:
            raise _Enough

    with hooked([layer], keep), suppress(_Enough):
        outputs_of(module, batch)
    return found


def rows_of(x: Tensor) -> F32:
    """[..., K] of any float type as float32 [T, K]."""
    rows: F32 = np.ascontiguousarray(x.reshape(-1, x.shape[-1]).float().cpu().numpy())
    return rows


def some_rows(x: F32, most: int) -> F32:
    """As many rows at most, evenly spread."""
    if len(x) <= most:
        return x
    taken: F32 = x[np.linspace(0, len(x) - 1, most).astype(np.int64)]
    return taken


def vectors_of(
    module: nn.Module, layer: nn.Linear, calls: int, batches: Sequence[Any], most: int | None = None
) -> F32:
    """What a layer is given over batches, float32 [T, K]; with `most` about this many vectors, evenly spread."""
    quota = None if most is None else -(-most // len(batches))
    parts = []
    for batch in batches:
        rows = np.concatenate([rows_of(x) for x in inputs_of(module, layer, calls, batch)])
        parts.append(rows if quota is None else some_rows(rows, quota))
    return np.concatenate(parts)


@contextmanager
def hooked(layers: Iterable[nn.Module], hook: Callable[[nn.Module, tuple[Any, ...]], None]) -> Iterator[None]:
    """A hook that is called before each of some layers."""
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


def outputs_of(module: nn.Module, batch: Any) -> Any:
    """What a module gives for a batch, in eval mode."""
    with torch.no_grad(), _evaluating(module):
        if isinstance(batch, Mapping):
            return module(**batch)
        if isinstance(batch, (tuple, list)):
            return module(*batch)
        return module(batch)

"""`Fold`: which layers of a torch model can share scales of channels, as its user names them; checked, then applied.

With x' = x / s and W' = W * s, column by column, W' x' = W x: what writes x takes the 1 / s, at no cost when the model
runs. Nothing is traced here. That a fold leaves the model's outputs as they are is found out by running it, and so is
what its layers are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from octavo.errors import UsageError
from octavo.formats.spec import F32
from octavo.torch.linear import require_values

F64 = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SAME = {torch.float32: 1e-5, torch.float64: 1e-5}
"""How far outputs with a fold that is tried may be from those without, over their norm; NARROW for other types."""
NARROW = 1e-3


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
        raise UsageError(f"no batch goes through {missing}: skip these, or give other batches")
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


@dataclass(frozen=True)
class Fold:
    """Channels that a layer writes and others read, so that scales can go from one to the other.

    into     the name of what writes them, and is divided by scales: an nn.Linear, or a norm (nn.LayerNorm, nn.RMSNorm,
             or a class called ...Norm) with a weight [K]
    linears  the names of all that reads them: nn.Linear, given the same input. Between lies nothing, or what each
             channel goes through alone and linearly: the product with a gate, attention's sum over values, dropout
    index    which output of `into` each of their K inputs is of; None: each its own. Heads that share values need it,
             and layers of which only some outputs are meant
    offset   what the norm adds to its weight before it multiplies: 1 in Gemma's
    """

    into: str
    linears: Sequence[str]
    index: Sequence[int] | None = None
    offset: float = 0.0


class OpenFold:
    """A fold of a module.

    readers  the linear layers, by name
    columns  which channel of the fold each of their inputs is, int [K]
    outputs  which output of the writer each channel is, int [channels]

    Raises UsageError naming the fold for names, layers and sizes that do not fit.
    """

    def __init__(self, module: nn.Module, fold: Fold) -> None:
        self.fold, self.label = fold, f"fold into {fold.into!r}"
        if isinstance(fold.linears, str) or not fold.linears:
            raise UsageError(f"{self.label}: linears are {fold.linears!r} (allowed: a list of names, one or more)")
        self.writer = self._part(module, fold.into)
        self._require_writer()
        self.readers = {name: self._reader(module, name) for name in fold.linears}
        sizes = {layer.in_features for layer in self.readers.values()}
        if len(sizes) > 1:
            found = ", ".join(f"{name} ({layer.in_features})" for name, layer in self.readers.items())
            raise UsageError(f"{self.label}: it is read by layers of several sizes, {found}: a fold needs one size")
        self.outputs, self.columns = self._channels(sizes.pop())

    def _part(self, module: nn.Module, name: str) -> nn.Module:
        try:
            return module.get_submodule(name)
        except AttributeError:
            whole = type(module).__name__
            raise UsageError(f"{self.label}: {whole} has no {name!r} among its named_modules()") from None

    def _require_writer(self) -> None:
        writer = self.writer
        weight = getattr(writer, "weight", None)
        is_norm = "Norm" in type(writer).__name__ and isinstance(weight, Tensor) and weight.ndim == 1
        if type(writer) is not nn.Linear and not is_norm:
            found = type(writer).__name__ + ("" if weight is None else f" with a weight {list(weight.shape)}")
            allowed = "an nn.Linear, or a norm with a weight [K]"
            raise UsageError(f"{self.label}: it is a {found} (allowed: {allowed})")
        if self.fold.offset and not is_norm:
            raise UsageError(f"{self.label}: offset is {self.fold.offset} of an nn.Linear; only norms have one")
        if weight is not None and weight.is_meta:
            raise UsageError(f"{self.label}: its weight is on the meta device, which has no data")

    def _reader(self, module: nn.Module, name: str) -> nn.Linear:
        layer = self._part(module, name)
        if not isinstance(layer, nn.Linear) or layer._parameters.get("weight") is None:
            raise UsageError(f"{self.label}: {name} is a {type(layer).__name__}, not an nn.Linear")
        require_values(layer, name)
        return layer

    def _channels(self, k: int) -> tuple[Ints, Ints]:
        """The outputs of the writer that have a scale, and which of them each of K inputs is of."""
        n, given = len(self._weight), self.fold.index
        if given is None:
            if n != k:
                problem = f"{n} outputs are read as {k} inputs"
                raise UsageError(f"{self.label}: {problem} (allowed: as many, or index=[the output of each input])")
            return np.arange(k), np.arange(k)
        index = np.asarray(given)
        if index.shape != (k,) or index.dtype.kind not in "iu" or (k and not 0 <= index.min() <= index.max() < n):
            allowed = f"integers [{k}] from 0 to {n - 1}"
            raise UsageError(f"{self.label}: index is {index.dtype} {list(index.shape)} (allowed: {allowed})")
        outputs, columns = np.unique(index, return_inverse=True)
        return outputs.astype(np.int64), columns.reshape(-1).astype(np.int64)

    @property
    def _weight(self) -> Tensor:
        weight = self.writer.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def size(self) -> int:
        """Channels that have a scale."""
        return len(self.outputs)

    def tensors(self) -> list[Tensor]:
        """What scales change."""
        bias = getattr(self.writer, "bias", None)
        beside = [bias] if isinstance(bias, Tensor) else []
        return [self._weight, *beside, *(layer.weight for layer in self.readers.values())]

    @torch.no_grad()
    def scale(self, scales: F64) -> None:
        """Divide what is written by scales [size], multiply what reads it, in place and in the weights' types."""
        divisors = np.ones(len(self._weight))
        divisors[self.outputs] = scales
        weight, bias, offset = self._weight, getattr(self.writer, "bias", None), self.fold.offset
        below = _as_tensor_like(divisors, weight)
        weight.copy_((weight.double() + offset) / (below if weight.ndim == 1 else below[:, None]) - offset)
        if isinstance(bias, Tensor):
            bias.copy_(bias.double() / below.to(bias.device))
        for layer in {id(layer): layer for layer in self.readers.values()}.values():
            layer.weight.copy_(layer.weight.double() * _as_tensor_like(scales[self.columns], layer.weight))


def _as_tensor_like(values: F64, weight: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.float64)).to(weight.device)


def open_folds(module: nn.Module, folds: Sequence[Fold]) -> list[OpenFold]:
    """The folds of a module. Raises UsageError for what is not a fold of it, and for folds in each other's way."""
    for i, fold in enumerate(folds):
        if not isinstance(fold, Fold):
            raise UsageError(f"folds[{i}] is a {type(fold).__name__}, not an octavo.torch.Fold")
    found = [OpenFold(module, fold) for fold in folds]
    writers: dict[int, str] = {}
    readers: dict[int, str] = {}
    for each in found:
        if id(each.writer) in writers:
            problem = f"it is the same layer as that of the fold into {writers[id(each.writer)]!r}"
            raise UsageError(f"{each.label}: {problem}: only one fold may lead into a layer")
        writers[id(each.writer)] = each.fold.into
        for name, layer in each.readers.items():
            if id(layer) in readers:
                problem = f"{name} reads the fold into {readers[id(layer)]!r} as well"
                raise UsageError(f"{each.label}: {problem} (allowed: each layer once)")
            readers[id(layer)] = each.fold.into
    _require_own(module, found)
    return found


def _require_own(module: nn.Module, folds: Sequence[OpenFold]) -> None:
    """Raise UsageError where a tensor that would change is another layer's too."""
    owners: dict[int, list[str]] = {}
    for name, part in module.named_modules():
        for tensor in (*part._parameters.values(), *part._buffers.values()):
            if tensor is not None:
                owners.setdefault(tensor.data_ptr(), []).append(name)
    for fold in folds:
        shared = next((names for t in fold.tensors() if len(names := owners.get(t.data_ptr(), [])) > 1), None)
        if shared is not None:
            raise UsageError(f"{fold.label}: {' and '.join(shared)} share a weight: each layer needs its own")


def require_exact(module: nn.Module, folds: Sequence[OpenFold], batch: Any) -> None:
    """Raise UsageError for a fold whose layers are given different inputs, and for one that changes what the module
    gives for a batch: something else reads its channels, or they are read otherwise than one by one."""
    _require_same_inputs(module, folds, batch)
    right = list(_floats(outputs_of(module, batch)))
    if not right:
        raise UsageError("the module's outputs hold no tensor of floats, by which folds could be checked")
    for fold in folds:
        with _as_it_was(fold):
            fold.scale(_tried(fold.size))
            wrong = _distance(list(_floats(outputs_of(module, batch))), right)
        if wrong is not None:
            problem = f"scales of its channels change the module's outputs, by {wrong:.2g} of their norm"
            allowed = "linears that are all that reads it, each channel by itself"
            raise UsageError(f"{fold.label}: {problem} (allowed: {allowed})")


def _tried(size: int) -> F64:
    """Scales of powers of two, by which no number is rounded."""
    scales: F64 = np.exp2(np.random.default_rng(0).choice([-1.0, 1.0], size))
    return scales


def _distance(found: list[Tensor], right: list[Tensor]) -> float | None:
    """How far outputs are from others, over their norm, where that is too far; None where they are the same."""
    worst = None
    for y, want in zip(found, right, strict=True):
        finite = want.isfinite()
        off = float((y[finite].double() - want[finite].double()).norm())
        norm = float(want[finite].double().norm())
        if not (torch.equal(finite, y.isfinite()) and off <= SAME.get(want.dtype, NARROW) * norm):
            worst = max(worst or 0.0, off / norm if norm else float("inf"))
    return worst


@contextmanager
def _as_it_was(fold: OpenFold) -> Iterator[None]:
    """The fold's tensors get back the values that they had."""
    kept = [(tensor, tensor.detach().clone()) for tensor in fold.tensors()]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, values in kept:
                tensor.copy_(values)


def _require_same_inputs(module: nn.Module, folds: Sequence[OpenFold], batch: Any) -> None:
    """What readers are given is held only until all of them were called."""
    of = {id(layer): (fold, name) for fold in folds for name, layer in fold.readers.items()}
    calls: dict[int, int] = {}
    held: dict[tuple[int, int], tuple[str, Tensor, int]] = {}
    different: list[UsageError] = []

    def compare(layer: nn.Module, given: tuple[Any, ...]) -> None:
        fold, name = of[id(layer)]
        call = calls[id(layer)] = calls.get(id(layer), -1) + 1
        first, x, left = held.pop((id(fold), call), (name, given[0], len({*map(id, fold.readers.values())})))
        if x is not given[0] and not (x.shape == given[0].shape and torch.equal(x, given[0])):
            problem = f"{name} is given something else than {first}"
            different.append(UsageError(f"{fold.label}: {problem} (allowed: layers that read the same)"))
        if left > 1:
            held[id(fold), call] = first, x, left - 1

    with hooked([layer for fold in folds for layer in {*fold.readers.values()}], compare):
        outputs_of(module, batch)
    if different:
        raise different[0]
    for fold in folds:
        missing = [name for name, layer in fold.readers.items() if id(layer) not in calls]
        if missing:
            raise UsageError(f"{fold.label}: no batch goes through {', '.join(missing)}: give other batches")


def _floats(found: Any) -> Iterator[Tensor]:
    """The tensors of floats in what a module gives: in tuples, lists, mappings and dataclasses."""
    if isinstance(found, Tensor):
        if found.is_floating_point():
            yield found
    elif isinstance(found, Mapping):
        for value in found.values():
            yield from _floats(value)
    elif isinstance(found, (tuple, list)):
        for value in found:
            yield from _floats(value)
    elif is_dataclass(found) and not isinstance(found, type):
        yield from _floats(list(vars(found).values()))

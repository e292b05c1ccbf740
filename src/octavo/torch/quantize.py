"""`quantize_`: every nn.Linear of a model replaced by a QuantLinear."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from octavo.calibrate.schemes.scheme_method import KINDS, ways_of
from octavo.calibrate.schemes.scheme_weights import GPTQ_WAYS
from octavo.errors import UsageError
from octavo.huggingface.schemes import CheckpointScheme, checkpoint_scheme
from octavo.torch.calibrated import Calibrator, scale_folds
from octavo.torch.folds import Fold, batches_of, layers_in_order, open_folds, require_exact
from octavo.torch.linear import QuantLinear, require_values

Skip = Sequence[str] | Callable[[str, nn.Linear], bool]
HEAD = ("lm_head", "*.lm_head")
METHODS = tuple(name for name, steps in KINDS.items() if not steps.static)
FOLDING = tuple(name for name in METHODS if KINDS[name].scales is not None)
"""Methods that choose scales of channels."""
VALUES = 4
"""What rows are a multiple of whose errors can make up for each other."""


def quantize_(
    module: nn.Module, scheme: str, *, skip: Skip = HEAD, method: str = "rtn",
    calibration: Iterable[Any] | None = None, folds: Iterable[Fold] = (),
) -> nn.Module:
    """Replace every nn.Linear within a module by a QuantLinear of a scheme, and return the module.

    scheme  one of SCHEMES: "int8-w8a8", "w4a8", "w4a8-g128", "fp8": activations rounded by token; "w4a16-g128",
            "w4a16-g64", "w4a16-g32", "w4a16", "w8a16", "fp8-block", "mxfp4a16", "nvfp4a16": weights alone
    skip    layers that stay: patterns of their whole names ("lm_head", "*.gate"), or a function of name and layer that
            says so; of itself, heads. A string is one pattern
    method  "rtn": weights rounded to nearest; "gptq": errors of a row make up for each other, over what the layer is
            given once those called before it are quantized; "qronos": and for what these err, beside a copy of the
            model; "smoothquant", "awq", "qqq": scales of the folds' channels, then weights to nearest, clipped, or as
            gptq does; "auto": of all these what errs least over inputs that were held out, layer by layer
    calibration  batches of all but "rtn", in any iterable (a list, a DataLoader): each a tensor, or a tuple, list or
            dict of arguments of the module. They are run as in eval mode, and the module keeps the mode that it had
    folds   which layers scales of channels go between, of the methods that choose some (of "auto" they may be left
            out): as `folds_of` gives them, or named one by one. Each is tried with the first batch

    A layer that lies in two places stays one layer. Subclasses of nn.Linear stay as they are, for others read their
    weights (nn.MultiheadAttention does). A module that is itself an nn.Linear is not changed: the QuantLinear is
    returned. Raises, before anything is replaced, UsageError for an unknown scheme, for layers with an input size that
    the scheme has no weight of, all of which it names, where there is no layer to replace, for a method without
    what it needs, and for folds that change what the module gives; NonFiniteError for a weight with NaN or Inf, and, on
    the way, for a layer that a batch gives these. Scales that were applied until then leave outputs as they were.
    """
    kind = checkpoint_scheme(scheme)
    chosen = {name: layer for name, layer in _layers(module) if not _skipped(skip, name, layer)}
    if not chosen:
        raise UsageError(f"no nn.Linear to quantize in {type(module).__name__} (skipped: {_words(skip)})")
    _require(kind, chosen)
    given = list(folds)
    ways = _require_method(kind, method, calibration, given)
    _require_whole(method, ways, chosen)
    batches, calibrator = _batches(method, calibration), None
    if batches:
        chosen, calibrator = _calibrated(module, kind, method, ways, chosen, batches, given)
    return _replaced(module, scheme, chosen, calibrator)


def _calibrated(
    module: nn.Module, scheme: CheckpointScheme, method: str, ways: tuple[str, ...], chosen: dict[str, nn.Linear],
    batches: Sequence[Any], folds: Sequence[Fold],
) -> tuple[dict[str, nn.Linear], Calibrator | None]:
    """The layers in the order in which they are called, and what makes their weights, after folds were scaled."""
    opened, scales = open_folds(module, folds), KINDS[method].scales
    calls = layers_in_order(module, chosen.values(), batches[0])
    if opened and scales is not None:
        require_exact(module, opened, batches[0])
        scale_folds(module, opened, scheme, scales, ways, {*chosen.values()}, batches)
    order = {layer: i for i, layer in enumerate(calls)}
    in_order = dict(sorted(chosen.items(), key=lambda item: order[item[1]]))
    if ways == ("nearest",):
        return in_order, None
    return in_order, Calibrator(module, scheme, ways, batches, in_order, calls)


def _replaced(
    module: nn.Module, scheme: str, chosen: dict[str, nn.Linear], calibrator: Calibrator | None
) -> nn.Module:
    """The module with layers replaced one after the other, or the one that takes its place."""
    while chosen:  # a layer's floats are free before the next one is quantized
        first = next(iter(chosen))
        layer = chosen[first]
        made = QuantLinear.from_linear(layer, scheme, None if calibrator is None else calibrator.weight(first))
        if not first:
            return made
        for name in [name for name, other in chosen.items() if other is layer]:
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, made)
            del chosen[name]
    return module


def _layers(module: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, layer in module.named_modules(remove_duplicate=False):
        if type(layer) is nn.Linear:
            yield name, layer


def _skipped(skip: Skip, name: str, layer: nn.Linear) -> bool:
    if callable(skip):
        return bool(skip(name, layer))
    patterns = (skip,) if isinstance(skip, str) else skip
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _words(skip: Any) -> str:
    return "by a function" if callable(skip) else ", ".join((skip,) if isinstance(skip, str) else skip) or "nothing"


def _require(scheme: CheckpointScheme, layers: dict[str, nn.Linear]) -> None:
    """Raise where a layer can't be quantized."""
    misfits = _misfits(layers, scheme.multiple)
    if misfits:
        raise UsageError(
            f"{scheme.name} of layers whose inputs are not multiples of {scheme.multiple}: {misfits} (allowed: other"
            " layers; skip these)"
        )
    for name, layer in layers.items():
        require_values(layer, name or "the layer")


def _misfits(layers: dict[str, nn.Linear], multiple: int) -> str:
    """The layers whose inputs are not multiples, with how many they are."""
    found = (f"{name or 'the layer'} ({w.in_features})" for name, w in layers.items() if w.in_features % multiple)
    return ", ".join(found)


def _require_method(
    scheme: CheckpointScheme, method: str, calibration: Any, folds: Sequence[Fold]
) -> tuple[str, ...]:
    """The ways in which a method makes weights.

    Raises UsageError for a method that is not there or that a scheme has nothing for, and for one that has no batches
    or folds, or has some that it does nothing with.
    """
    if method in KINDS and method not in METHODS:
        problem = f"method {method!r} of a torch module, whose activations have no static scales"
        instead = "smoothquant or auto; octavo quantize --method rptq writes a checkpoint with such"
        raise UsageError(f"{problem} (allowed: {instead})")
    if method not in METHODS:
        raise UsageError(f"method {method!r} (allowed: {', '.join(METHODS)})")
    if method == "rtn" and calibration is not None:
        others = ", ".join(METHODS[1:])
        raise UsageError(f"calibration with method rtn, which runs no batches (allowed: with {others})")
    if folds and method not in FOLDING:
        raise UsageError(f"folds with method {method}, which scales no channels (allowed: with {', '.join(FOLDING)})")
    if not folds and method in FOLDING and method != "auto":
        allowed = "folds=[Fold(...)], folds_of(model) where its layers are known, or method gptq, qronos or auto"
        raise UsageError(f"method {method} without folds, whose channels it scales (allowed: {allowed})")
    return ways_of(method, scheme)


def _batches(method: str, calibration: Any) -> list[Any]:
    """The batches of a method; none of "rtn"."""
    batches = batches_of(calibration)
    if not batches and method != "rtn":
        raise UsageError(f"method {method} without batches (allowed: calibration=[batch, ...], one or more)")
    return batches


def _require_whole(method: str, ways: Sequence[str], layers: dict[str, nn.Linear]) -> None:
    """Raise UsageError for layers whose errors would have to be made up for, and can't be."""
    misfits = _misfits(layers, VALUES) if set(ways) <= set(GPTQ_WAYS) else ""
    if misfits:
        problem = f"method {method} of layers whose inputs are not multiples of {VALUES}: {misfits}"
        raise UsageError(f"{problem} (allowed: other layers; skip these, or method rtn)")

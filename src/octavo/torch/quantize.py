"""`quantize_`: every nn.Linear of a model replaced by a QuantLinear."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from octavo.errors import UsageError
from octavo.formats.rows import Scheme, find_scheme
from octavo.torch.calibrated import Calibrator, layers_in_order, require_method
from octavo.torch.linear import QuantLinear, require_values

Skip = Sequence[str] | Callable[[str, nn.Linear], bool]
HEAD = ("lm_head", "*.lm_head")


def quantize_(
    module: nn.Module, scheme: str, *, skip: Skip = HEAD, method: str = "rtn",
    calibration: Iterable[Any] | None = None,
) -> nn.Module:  # fmt: skip
    """Replace every nn.Linear within a module by a QuantLinear of a scheme, and return the module.

    scheme  "int8-w8a8", "w4a8", "w4a8-g128" or "fp8": activations rounded by token
    skip    layers that stay: patterns of their whole names ("lm_head", "*.gate"), or a function of name and layer that
            says so; of itself, heads. A string is one pattern
    method  "rtn": weights rounded to nearest; "gptq": errors of a row make up for each other, over what the layer is
            given once those called before it are quantized; "qronos": and for what these err, beside a copy of the
            model
    calibration  batches of these two, in any iterable (a list, a DataLoader): each a tensor, or a tuple, list or dict
            of arguments of the module. They are run as in eval mode, and the module keeps the mode that it had

    A layer that lies in two places stays one layer. Subclasses of nn.Linear stay as they are, for others read their
    weights (nn.MultiheadAttention does). A module that is itself an nn.Linear is not changed: the QuantLinear is
    returned. Raises, before anything is replaced, UsageError for an unknown scheme, for layers with an input size that
    the scheme has no weight of, all of which it names, where there is no layer to replace, and for a method without
    what it needs; NonFiniteError for a weight with NaN or Inf, and, on the way, for a layer that a batch gives these.
    """
    kind = find_scheme(scheme)
    chosen = {name: layer for name, layer in _layers(module) if not _skipped(skip, name, layer)}
    if not chosen:
        raise UsageError(f"no nn.Linear to quantize in {type(module).__name__} (skipped: {_words(skip)})")
    _require(kind, chosen)
    batches = require_method(scheme, method, calibration)
    calibrator, calls = None, dict[nn.Linear, int]()
    if method != "rtn":
        calls = layers_in_order(module, chosen.values(), batches[0])
        order = {layer: i for i, layer in enumerate(calls)}
        chosen = dict(sorted(chosen.items(), key=lambda item: order[item[1]]))
        calibrator = Calibrator(module, scheme, method, batches)
    while chosen:  # a layer's floats are free before the next one is quantized
        first = next(iter(chosen))
        layer = chosen[first]
        coded = None if calibrator is None else calibrator.weight(layer, first, calls[layer])
        made = QuantLinear.from_linear(layer, scheme, coded)
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


def _require(scheme: Scheme, layers: dict[str, nn.Linear]) -> None:
    """Raise where a layer can't be quantized."""
    multiple = scheme.multiple
    misfits = [f"{name or 'the layer'} ({w.in_features})" for name, w in layers.items() if w.in_features % multiple]
    if misfits:
        raise UsageError(
            f"{scheme.name} of layers whose inputs are no multiple of {multiple}: {', '.join(misfits)} (allowed: other"
            " layers; skip these)"
        )
    for name, layer in layers.items():
        require_values(layer, name or "the layer")

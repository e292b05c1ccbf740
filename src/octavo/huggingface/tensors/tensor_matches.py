"""Which tensor of GGUF's each tensor of a checkpoint belongs to, by the names of the architecture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.huggingface.tensors.heads import is_no_part, is_of_heads
from octavo.io.gguf import LazyTensor
from octavo.models import Architecture
from octavo.models.shared.weights import WHOLE

BESIDE = ("bias", "scale", "order", "input_scale")
"""What a layer's weight may have beside it."""
SHARED = ("scale", "order", "input_scale")
"""What the rows of a matrix have in common, so that all tensors that are made of it have it."""

_NUMBER = r"\.(0|[1-9][0-9]{0,4})\.(.+)"
_ONE_OF = re.compile(r"(\w+)\.(0|[1-9][0-9]?)\.(weight|bias)")
_EXPERT = re.compile(r"((?:.+\.)?(?:chunk_)?experts)\.(0|[1-9][0-9]{0,4})\.(\w+)")


@dataclass
class FoundTensors:
    """The tensors of a checkpoint by GGUF name: one each, or one an expert, or a half of a tensor for all experts."""

    single: dict[str, LazyTensor] = field(default_factory=dict)
    experts: dict[str, dict[int, LazyTensor]] = field(default_factory=dict)
    halves: dict[str, tuple[LazyTensor, int]] = field(default_factory=dict)


def find(
    tensors: Mapping[str, LazyTensor], architecture: Architecture, modules: Mapping[str, str],
    outer: Mapping[str, str],
) -> FoundTensors:
    """A checkpoint's tensors, by its own names, where `modules` of layers and `outer` say that they belong."""
    found = FoundTensors()
    in_layer = re.compile(re.escape(architecture.layer) + _NUMBER)
    for name, tensor in tensors.items():
        plain = architecture.plain_name(name)
        layer = in_layer.fullmatch(plain)
        if layer is not None and _find_in_layer(found, modules, f"blk.{layer[1]}.", layer[2], tensor):
            continue
        one = _ONE_OF.fullmatch(plain)
        if one is not None and (stack := outer.get(f"{one[1]}.*.{one[3]}")) is not None:
            found.experts.setdefault(stack, {})[int(one[2])] = tensor
        else:
            found.single[outer.get(plain, name)] = tensor
    return found


def _find_in_layer(found: FoundTensors, names: Mapping[str, str], prefix: str, part: str, tensor: LazyTensor) -> bool:
    """Put a layer's tensor where it belongs; whether it is known."""
    stem, _, kind = part.rpartition(".")
    if kind not in ("weight", *BESIDE) or part in names:  # stacked experts may go without
        stem, kind = part, "" if kind == "weight" else "weight"
    expert = _EXPERT.fullmatch(stem)
    target = names.get(f"{expert[1]}.*.{expert[3]}" if expert else stem)
    if target is None:
        return False
    if not target:
        return True
    if expert:
        found.experts.setdefault(f"{prefix}{target}.{kind}", {})[int(expert[2])] = tensor
    elif "/" in target:
        stack, _, number = target.partition("/")
        found.experts.setdefault(_full(prefix, stack, kind), {})[int(number)] = tensor
    elif " " in target:
        for which, name in enumerate(target.split()):
            full = _full(prefix, name, kind)
            if kind in SHARED and not is_of_heads(full):
                found.single[full] = tensor
            elif not is_no_part(full):
                found.halves[full] = tensor, which
    else:
        found.single[_full(prefix, target, kind)] = tensor
    return True


def _full(prefix: str, target: str, kind: str) -> str:
    """The whole name of a tensor, which is the target itself, without a dot that ends it, or of that kind."""
    if target.endswith("."):
        return prefix + target[:-1]
    is_whole = not kind or target.endswith((".weight", *WHOLE))
    return f"{prefix}{target}" if is_whole else f"{prefix}{target}.{kind}"

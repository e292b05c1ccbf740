"""Weights that lie elsewhere than their layer, by their names: above all experts in the CPU's memory.

A token reads few of the experts, so that the CPU's slower memory costs least there, while the dense parts, which each
token reads whole, and the keys and values stay on the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from octavo.errors import UsageError
from octavo.expressions import compiled
from octavo.runtime.argument_checks import integer

CpuExperts = int | Literal["all"]
"""How many of the first layers have their experts on the CPU."""
EXPERTS = re.compile(r"blk\.(\d{1,6})\.ffn_\w*exps\.")
MOST_LAYERS = 1 << 20
MOST_LETTERS = 1000
"""Of an expression."""
CARD = re.compile(r"(cuda|rocm|gpu)0?")


@dataclass(frozen=True)
class TensorOverride:
    """Weights in whose names `pattern` is found lie on the CPU, or with their layer on the GPU; those of the first
    `layers` alone, whose number is the pattern's group."""

    pattern: re.Pattern[str]
    device: Literal["cpu", "gpu"]
    layers: int = MOST_LAYERS

    def is_for(self, name: str) -> bool:
        """Whether the weight of this name is one of them."""
        found = self.pattern.search(name)
        return found is not None and (self.pattern is not EXPERTS or int(found[1]) < self.layers)


Overrides = tuple[TensorOverride, ...]


def overrides(override_tensor: Mapping[str, str] | None, n_cpu_moe: CpuExperts) -> Overrides:
    """The overrides of `octavo.load`, the first that applies first. Raises UsageError for what is none."""
    if not isinstance(override_tensor, Mapping | None):
        allowed = "a device for each expression, as in {'exps': 'cpu'}"
        problem = f"override_tensor is {override_tensor!r} (allowed: {allowed})"
        raise UsageError(problem, argument="override_tensor")
    found = [_override(*each) for each in (override_tensor or {}).items()]
    if n_cpu_moe != "all":
        integer("n_cpu_moe", n_cpu_moe, 0, MOST_LAYERS)
    return (*found, *([experts_on_cpu(n_cpu_moe)] if n_cpu_moe else []))


def _override(pattern: str, device: str) -> TensorOverride:
    name = device.lower() if isinstance(device, str) else device
    if name != "cpu" and not (isinstance(name, str) and CARD.fullmatch(name)):
        raise UsageError(f"override_tensor has device {device!r} (allowed: cpu, gpu)", argument="override_tensor")
    if isinstance(pattern, str) and len(pattern) > MOST_LETTERS:
        problem = f"override_tensor has an expression of {len(pattern)} letters (allowed: up to {MOST_LETTERS})"
        raise UsageError(problem, argument="override_tensor")
    try:
        return TensorOverride(compiled(pattern), "cpu" if name == "cpu" else "gpu")
    except (re.error, TypeError) as error:
        problem = f"override_tensor has {pattern!r}, no regular expression: {error}"
        raise UsageError(problem, argument="override_tensor") from None


def experts_on_cpu(layers: CpuExperts) -> TensorOverride:
    """The experts of the first `layers` on the CPU."""
    return TensorOverride(EXPERTS, "cpu", MOST_LAYERS if layers == "all" else layers)


def device_of(name: str, found: Overrides) -> Literal["cpu", "gpu"] | None:
    """Where the weight of this name is to lie; None: with its layer."""
    return next((each.device for each in found if each.is_for(name)), None)


def require_matches(found: Overrides, names: Iterable[str]) -> None:
    """Raise UsageError for an expression that is found in no weight's name."""
    names = list(names)
    for each in found:
        if not any(map(each.is_for, names)):
            problem = f"override_tensor: no weight's name has {each.pattern.pattern!r} in it"
            if each.pattern is EXPERTS:
                problem = "n_cpu_moe: the model has no experts"
            raise UsageError(problem, argument=problem.partition(":")[0])

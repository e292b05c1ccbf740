"""Schemes of quantization that a checkpoint may name in `quantization_config`, in the terms of compressed-tensors.

The fields are those of https://github.com/vllm-project/compressed-tensors: a group of modules has arguments for its
weights and for its activations, and a format says how the weights lie in the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.errors import shown
from octavo.formats.rows import SCHEMES, Scheme
from octavo.models.config import Config

KEY, METHOD = "quantization_config", "compressed-tensors"


def layouts(scheme: Scheme) -> tuple[str, ...]:
    """The ways in which a scheme's weights may lie in a file, the first the one that is written."""
    if scheme.kind == "float":
        return ("float-quantized",)
    return ("pack-quantized", "int-quantized") if scheme.bits == 4 else ("int-quantized",)


def packs(scheme: Scheme) -> bool:
    """Whether codes are written several to a word."""
    return layouts(scheme)[0] == "pack-quantized"


def weight_arguments(scheme: Scheme) -> dict[str, Any]:
    """How weights are quantized, in the words of compressed-tensors."""
    strategy = "channel" if scheme.group is None else "group"
    return {"num_bits": scheme.bits, "type": scheme.kind, "strategy": strategy, "group_size": scheme.group}


def quantization_config(scheme: Scheme, ignored: list[str]) -> dict[str, Any]:
    """The value of `quantization_config`; `ignored` names the linear layers that are not quantized."""
    weights = {"symmetric": True, "dynamic": False, "actorder": None, "observer": "minmax", **weight_arguments(scheme)}
    tokens = {
        "num_bits": 8, "type": scheme.kind, "strategy": "token", "group_size": None, "symmetric": True,
        "dynamic": True, "actorder": None, "observer": None,
    }  # fmt: skip
    layout = layouts(scheme)[0]
    group = {
        "targets": ["Linear"], "weights": weights, "input_activations": tokens, "output_activations": None,
        "format": layout,
    }  # fmt: skip
    return {
        "quant_method": METHOD, "format": layout, "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ignored, "kv_cache_scheme": None,
    }  # fmt: skip


_UNUSED = {"kv_cache_scheme": None, "sparsity_config": None, "transform_config": None, "output_activations": None}
"""Keys that would change what is computed, or how weights lie, and have no meaning here: absent, null or empty."""


def read_scheme(config: Config) -> Scheme | None:
    """The scheme that config.json names; None where weights are plain floats.

    Raises ModelError for another method, and for arguments that no scheme here has: it names the key, the value and
    what is allowed.
    """
    found = config.values.get(KEY)
    if found is None:
        return None
    top = _Part(config, KEY, _mapping(config, KEY, found))
    top.require("quant_method", (METHOD,))
    top.refuse_unused()
    groups = _mapping(config, f"{KEY}.config_groups", top.values.get("config_groups"))
    if len(groups) != 1:
        raise config.error(f"{KEY}.config_groups", f"has {len(groups)} groups", "1")
    name, value = next(iter(groups.items()))
    group = top.part(f"config_groups.{shown(name)[1:-1]}", value)
    group.refuse_unused()
    group.require("targets", (["Linear"],))
    scheme = _scheme(group.part("weights", group.values.get("weights")))
    tokens = group.part("input_activations", group.values.get("input_activations"))
    wanted = {"num_bits": (8,), "type": (scheme.kind,), "strategy": ("token",), "dynamic": (True,)}
    for key, allowed in wanted.items():
        tokens.require(key, allowed)
    tokens.require("symmetric", (True,), default=True)
    (group if group.values.get("format") is not None else top).require("format", layouts(scheme))
    return scheme


def _scheme(weights: _Part) -> Scheme:
    weights.require("symmetric", (True,), default=True)
    weights.require("dynamic", (False,), default=False)
    weights.require("actorder", (None, False), default=None)
    known = [(s, weight_arguments(s)) for s in SCHEMES.values()]
    for key in ("type", "num_bits", "strategy", "group_size"):  # each narrows what the next may be
        fits = [(s, arguments) for s, arguments in known if weights.agrees(arguments, key)]
        weights.require(key, [arguments[key] for _, arguments in fits], default=None)
    return next(s for s, arguments in fits if arguments[key] == weights.values.get(key))


class _Part:
    """An object inside config.json; errors name the way to its keys."""

    def __init__(self, config: Config, path: str, values: Mapping[str, Any]) -> None:
        self.config, self.path, self.values = config, path, values

    def part(self, key: str, value: Any) -> _Part:
        path = f"{self.path}.{key}"
        return _Part(self.config, path, _mapping(self.config, path, value))

    def require(self, key: str, allowed: Any, default: Any = ...) -> None:
        """Raise ModelError unless the value at `key`, or the default where it is absent, is one of `allowed`."""
        value = self.values.get(key, default)
        if not any(value == a and type(value) is type(a) for a in allowed):
            problem = "is missing" if value is ... else f"is {_brief(value)}"
            words = dict.fromkeys(_brief(a) for a in allowed)
            raise self.config.error(f"{self.path}.{key}", problem, " or ".join(words))

    def agrees(self, arguments: Mapping[str, Any], before: str) -> bool:
        """Whether the values are those of `arguments` for all keys in the order of `_scheme` up to `before`."""
        keys = ("type", "num_bits", "strategy", "group_size")
        return all(self.values.get(k) == arguments[k] for k in keys[: keys.index(before)])

    def refuse_unused(self) -> None:
        for key in _UNUSED:
            value = self.values.get(key)
            empty = not value or (
                isinstance(value, dict) and (value.get("format") == "dense" or not any(value.values()))
            )
            if not empty:
                raise self.config.error(f"{self.path}.{key}", f"is {_brief(value)}", "null")


def _mapping(config: Config, path: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        problem = "is missing" if value is None else f"is {_brief(value)}"
        raise config.error(path, problem, "an object")
    return value


def _brief(value: object) -> str:
    """A value as JSON has it; of strings as everywhere."""
    return shown(value) if isinstance(value, str) else shown(json.dumps(value))[1:-1]

"""Values by key, of a GGUF file's metadata or of config.json, each checked when it is read."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from octavo.errors import ModelError, shown
from octavo.io.gguf.metadata import Metadata

LIMITS = {
    "block_count": 4096,
    "embedding_length": 1 << 20,
    "feed_forward_length": 1 << 22,
    "attention.head_count": 1 << 14,
    "attention.head_count_kv": 1 << 14,
    "attention.key_length": 1 << 14,
    "attention.key_length_swa": 1 << 14,
    "attention.sliding_window": 1 << 30,
    "context_length": 1 << 30,
    "expert_count": 1 << 16,
    "expert_used_count": 1 << 16,
    "expert_feed_forward_length": 1 << 22,
    "expert_shared_feed_forward_length": 1 << 22,
}
"""The largest size that a field of metadata may have."""
RMS_EPS, LAYER_NORM_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
HEADS, KV_HEADS, FF_WIDTH = "attention.head_count", "attention.head_count_kv", "feed_forward_length"
EXPERT_WIDTH, WINDOW, CAUSAL = "expert_feed_forward_length", "attention.sliding_window", "attention.causal"
NEXTN = "nextn_predict_layers"
"""The field that says how many of a file's last layers guess tokens beyond the next one."""
ANY, OR_NONE, ANY_OR_NONE = "any", "the same or 0", "any or 0"
"""How a size may differ from layer to layer."""


class ValueReader(ABC):
    """Numbers, flags and words; each error names the file, the key and what is allowed."""

    @abstractmethod
    def error(self, key: str, problem: str, allowed: str | None = None) -> ModelError:
        """The error for a key's value."""

    @abstractmethod
    def _value(self, key: str, kind: type, needed: bool) -> Any:
        """What a key says; None where it is missing and need not be there."""

    @abstractmethod
    def _problem(self, value: Any) -> str:
        """What is wrong with a value that is not allowed."""

    def whole(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer from `low` to `high`."""
        value = self._value(key, int, default is None)
        value = default if value is None else value
        if type(value) is not int or not low <= value <= high:
            raise self.error(key, self._problem(value), f"{low} to {high}")
        return value

    def size(self, key: str, limit: int, default: int | None = None) -> int:
        """An integer from 1 to `limit`."""
        return self.whole(key, 1, limit, default)

    def count(self, key: str, limit: int, default: int = 0) -> int:
        """An integer from 0 to `limit`."""
        return self.whole(key, 0, limit, default)

    def one_of(self, key: str, choices: Collection[str], default: str | None = None) -> str:
        """One of several words."""
        value = self._value(key, str, default is None)
        value = default if value is None else value
        if value not in choices:
            raise self.error(key, f"is {brief(value)}", " or ".join(choices))
        return str(value)


class MetadataReader(ValueReader):
    """Reads `<arch>.<field>` keys of a GGUF file.

    fields  that the architecture reads
    shapes  of the model's tensors by name, for what no key says
    """

    def __init__(
        self, metadata: Metadata, path: str, arch: str, fields: frozenset[str], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.metadata, self.path, self.arch, self.shapes, self._fields = metadata, path, arch, shapes, fields

    def key(self, field: str) -> str:
        assert field in self._fields, field
        return f"{self.arch}.{field}"

    def error(self, key: str, problem: str, allowed: str | None = None) -> ModelError:
        return ModelError(problem, file=self.path, field=self.key(key), allowed=allowed)

    def has(self, field: str) -> bool:
        return self.key(field) in self.metadata

    def knows(self, field: str) -> bool:
        """Whether the architecture reads the field."""
        return field in self._fields

    def is_array(self, field: str) -> bool:
        return self.has(field) and self.metadata.describe(self.key(field)).startswith("array")

    def integer(self, field: str, default: int) -> int:
        return self.metadata.get_int(self.key(field), default)

    def flag(self, field: str, default: bool) -> bool:
        return self.metadata.get_bool(self.key(field), default)

    def by_layer(self, field: str, differs: str = "", default: int | None = None) -> int:
        """The largest size that a field gives, from 1 to its limit: a number, or an array of one for each layer.

        differs  whether layers may have different sizes (ANY), none (OR_NONE) or both (ANY_OR_NONE); "": neither
        """
        key, limit = self.key(field), LIMITS[field]
        if not self.is_array(field):
            return self.size(field, limit, default)
        values = self.metadata.get_ints(key)
        values = values[values != 0] if differs in (OR_NONE, ANY_OR_NONE) else values
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        if low != high and differs not in (ANY, ANY_OR_NONE):
            raise self.error(field, f"differs from layer to layer ({low} to {high})", "one value for all layers")
        if not 1 <= low <= high <= limit:
            raise self.error(field, self._problem(high if low > 0 else low), f"1 to {limit}")
        return high

    def sizes(self, field: str, n_layer: int, *, some: bool = False) -> tuple[int, ...]:
        """A size for each layer, from 1 to its limit: an array, or one number for all; with `some`, or 0."""
        most = self.by_layer(field, ANY_OR_NONE if some else ANY)
        values = self.metadata.get_ints(self.key(field)).tolist() if self.is_array(field) else [most] * n_layer
        if len(values) != n_layer:
            raise self.error(field, f"has {len(values)} values", f"one for each of {n_layer} layers")
        return tuple(map(int, values))

    def real(self, field: str, default: float, low: float = 0.0, high: float = 1e12) -> float:
        """A finite number over `low` and up to `high`."""
        number = self.metadata.get_float(self.key(field), default=default)
        if not (math.isfinite(number) and low < number <= high):
            raise self.error(field, self._problem(number), f"over {low:g}, up to {high:g}")
        return float(number)

    def positive(self, field: str) -> float | None:
        """A finite number over 0; None where the file has no such key, or 0."""
        number = self.metadata.get_float(self.key(field), default=0.0)
        return None if number == 0 else self.real(field, number)

    def _value(self, key: str, kind: type, needed: bool) -> Any:
        name = self.key(key)
        if name not in self.metadata and not needed:
            return None
        return self.metadata.get_int(name) if kind is int else self.metadata.get_str(name)

    def _problem(self, value: Any) -> str:
        return f"{value} is out of range"


def brief(value: object) -> str:
    return shown(str(value))

"""config.json of a checkpoint: its values, each checked when it is read, and what several architectures read of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo.errors import ModelError, shown
from octavo.models.hparams import LAYER_NORM_EPS, LIMITS, NEXTN, RMS_EPS, Hyperparams

Keys = dict[str, Any]
"""Fields under a GGUF file's `<arch>.`, and their values."""


class _Values(dict[str, Any]):
    """Values that say which of their keys were asked for; a copy with ** asks for none."""

    def __init__(self, values: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(values)
        self._read = read

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._read.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        return super().get(key, default)


class Config:
    """The values of config.json; each error names the file, the key and what is allowed.

    read  the keys that were asked for so far, of this and of what was made of it by `replaced`
    """

    def __init__(self, values: Mapping[str, Any], file: str, read: set[str] | None = None) -> None:
        self.read = set[str]() if read is None else read
        self.values: Mapping[str, Any] = _Values(values, self.read)
        self.file = file

    def replaced(self, values: Mapping[str, Any]) -> Config:
        """The same file with other values; what has another value there, or none, was read."""
        for key, value in self.values.items():
            if values.get(key, ...) is not value:
                self.read.add(key)
        return Config(values, self.file, self.read)

    def copy(self) -> dict[str, Any]:
        """The values, to change some of; what is asked of them was read."""
        return _Values(self.values, self.read)

    def error(self, key: str, problem: str, allowed: str | None = None) -> ModelError:
        return ModelError(problem, file=self.file, field=key, allowed=allowed)

    def size(self, key: str, limit: int, default: int | None = None) -> int:
        """An integer from 1 to `limit`; null is as good as absent."""
        value = self.values.get(key)
        if value is None:
            value = default
        if type(value) is not int or not 1 <= value <= limit:
            raise self.error(key, "is missing" if value is None else f"is {brief(value)}", f"1 to {limit}")
        return value

    def count(self, key: str, limit: int) -> int:
        """An integer from 0 to `limit`; null and absent are 0."""
        return self.size(key, limit) if self.values.get(key) not in (None, 0) else 0

    def only(self, usual: Mapping[str, object]) -> None:
        """Raise ModelError for a key with another value than the usual one, which null and absent are."""
        for key, value in usual.items():
            if (found := self.values.get(key)) not in (None, value):
                raise self.error(key, f"is {brief(found)}", str(value).lower())

    def only_flags(self, usual: Mapping[str, bool]) -> None:
        """Raise ModelError for a flag that is not as usual."""
        for key, value in usual.items():
            if self.flag(key, value) != value:
                raise self.error(key, f"is {str(not value).lower()}", str(value).lower())

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {brief(value)}", "true or false")
        return value

    def real(self, key: str, default: float | None = None, *, of: Mapping[str, Any] | None = None) -> float:
        """A finite number over 0, of the config or of a part of it."""
        value = (self.values if of is None else of).get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise self.error(key, "is missing" if value is None else f"is {brief(value)}", "a number over 0")
        return float(value)


def brief(value: object) -> str:
    return shown(str(value))


def window_keys(config: Config, default: int) -> Keys:
    """The sliding window, `default` tokens where config.json does not say; nothing where it is null or 0."""
    if config.values.get("sliding_window", default) in (None, 0):
        return {}
    return {"attention.sliding_window": config.size("sliding_window", LIMITS["attention.sliding_window"], default)}


def expert_keys(config: Config, *names: str) -> Keys:
    """How many experts there are, by the first of `names` that config.json has, and how many a token uses."""
    name = next((n for n in names if config.values.get(n) is not None), names[0])
    experts = config.size(name, LIMITS["expert_count"])
    return {"expert_count": experts, "expert_used_count": config.size("num_experts_per_tok", experts)}


def expert_words(hp: Hyperparams, name: str) -> Mapping[str, Any]:
    """The inverse of `expert_keys`, and how wide a feed-forward is where none but experts' is there."""
    return {
        name: hp.n_expert, "num_experts_per_tok": hp.n_expert_used, "intermediate_size": hp.n_ff or hp.n_ff_expert
    }  # fmt: skip


def nextn_keys(config: Config) -> Keys:
    """Layers that guess tokens beyond the next one, by either of their words; GGUF counts them among the others."""
    word = "num_nextn_predict_layers"
    guessing = config.count(word if config.values.get(word) is not None else "num_mtp_layers", LIMITS["block_count"])
    n = config.size("num_hidden_layers", LIMITS["block_count"])
    return {"block_count": n + guessing, NEXTN: guessing} if guessing else {}


def layer_norm_keys(config: Config, word: str) -> Keys:
    """What layer norms add to the variance, by its word in config.json."""
    return {RMS_EPS: None, LAYER_NORM_EPS: config.real(word, 1e-5)}


def rotary_keys(config: Config, default: float) -> Keys:
    """The part of a head that rope turns."""
    parameters = rope_parameters(config).get("partial_rotary_factor")
    part = config.values.get("partial_rotary_factor") if parameters is None else parameters
    part = default if part is None else part
    if type(part) not in (int, float) or not 0 < part <= 1:
        raise config.error("partial_rotary_factor", f"is {brief(part)}", "over 0, up to 1")
    width = config.size("hidden_size", LIMITS["embedding_length"])
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    head = config.size("head_dim", LIMITS["attention.key_length"], max(1, width // heads))
    return {"rope.dimension_count": int(head * part)}


def rope_parameters(config: Config) -> Mapping[str, Any]:
    """The rope's parameters: `rope_parameters`, or `rope_scaling` of older files.

    Where layers with a window have their own, those of the others.
    """
    key = "rope_parameters" if config.values.get("rope_parameters") is not None else "rope_scaling"
    found = config.values.get(key)
    if isinstance(found, dict) and "full_attention" in found:
        found = found["full_attention"]
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise config.error(key, f"is {type(found).__name__}", "an object")
    return found

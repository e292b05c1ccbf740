"""config.json of a checkpoint: its values, each checked when it is read, and what several architectures read of it."""

from __future__ import annotations

import math
from collections.abc import Collection, ItemsView, Iterator, Mapping, ValuesView
from typing import Any, NamedTuple

from octavo.errors import ModelError
from octavo.models.shared.reader import EXPERT_WIDTH, HEADS, KV_HEADS, LIMITS, NEXTN, WINDOW, ValueReader, brief

Keys = dict[str, Any]
"""Fields under a GGUF file's `<arch>.`, and their values."""


class _WatchedValues(dict[str, Any]):
    """Values that say which of their keys were asked for; a copy with ** asks for none.

    place  what the names of keys begin with where this is a part of an object
    """

    def __init__(self, values: Mapping[str, Any], read: set[str], place: str = "") -> None:
        super().__init__({key: _watched(value, read, place + key) for key, value in {**values}.items()})
        self.read, self.place = read, place

    def __getitem__(self, key: str) -> Any:
        self.read.add(self.place + key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(f"{self.place}{key}")
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(self.place + key)
        return super().get(key, default)


class Unread(NamedTuple):
    """A key that nothing asked for, with its place and alone; `beside`: the keys of its object."""

    place: str
    key: str
    value: Any
    beside: Collection[str]


class ConfigObject(_WatchedValues):
    """An object in config.json; all of it is read by what goes through it, or compares it with another."""

    def unread(self) -> Iterator[Unread]:
        """The keys that were not asked for, of objects in it too."""
        for key, value in super().items():
            if self.place + key not in self.read:
                yield Unread(self.place + key, key, value, self.keys())
            else:
                yield from unread_inside(value)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self._read_all()
        return super().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        self._read_all()
        return super().values()

    def __eq__(self, other: object) -> bool:
        self._read_all()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def _read_all(self) -> None:
        for key, value in super().items():
            self.read.add(self.place + key)
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, ConfigObject):
                    inner._read_all()


def _watched(value: Any, read: set[str], place: str) -> Any:
    """A value with the objects in it as ConfigObjects; those that are stay as they are."""
    if isinstance(value, dict) and not isinstance(value, ConfigObject):
        return ConfigObject(value, read, f"{place}.")
    if isinstance(value, list) and any(isinstance(each, dict) and not isinstance(each, ConfigObject) for each in value):
        return [_watched(each, read, f"{place}[{i}]") for i, each in enumerate(value)]
    return value


def unread_inside(value: Any) -> Iterator[Unread]:
    """The keys that were not asked for, of an object or of those in a list."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, ConfigObject):
            yield from each.unread()


class Config(ValueReader):
    """The values of config.json, where null is as good as absent.

    read  the keys that were asked for so far, of this and of what was made of it by `replaced`
    """

    def __init__(self, values: Mapping[str, Any], file: str, read: set[str] | None = None) -> None:
        self.read = set[str]() if read is None else read
        watched = isinstance(values, ConfigObject)
        self.values: Mapping[str, Any] = values if watched else _WatchedValues(values, self.read)
        self.file = file

    def replaced(self, values: Mapping[str, Any]) -> Config:
        """The same file with other values; what has another value there, or none, was read."""
        new = {**values}
        for key, value in self.values.items():
            if new.get(key, ...) is not value:
                self.read.add(key)
        return Config(new, self.file, self.read)

    def copy(self) -> dict[str, Any]:
        """The values, to change some of; what is asked of them was read."""
        return _WatchedValues(self.values, self.read)

    def error(self, key: str, problem: str, allowed: str | None = None) -> ModelError:
        return ModelError(problem, file=self.file, field=key, allowed=allowed)

    def count(self, key: str, limit: int, default: int = 0) -> int:
        """An integer from 0 to `limit`."""
        value = self.values.get(key)
        return 0 if value is not None and value == 0 else super().count(key, limit, default)

    def only(self, usual: Mapping[str, object]) -> None:
        """Raise ModelError for a key with another value than the usual one, which null and absent are."""
        for key, value in usual.items():
            found = self.flag(key, value) if isinstance(value, bool) else self.values.get(key)
            if found not in (None, value):
                said = str(found).lower() if isinstance(value, bool) else brief(found)
                raise self.error(key, f"is {said}", "null" if value is None else str(value).lower())

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {brief(value)}", "true or false")
        return value

    @property
    def n_layer(self) -> int:
        return self.size("num_hidden_layers", LIMITS["block_count"])

    @property
    def width(self) -> int:
        """Of the model."""
        return self.size("hidden_size", LIMITS["embedding_length"])

    @property
    def n_head(self) -> int:
        return self.size("num_attention_heads", LIMITS[HEADS])

    @property
    def n_head_kv(self) -> int:
        """Heads of keys, as many as of queries where config.json does not say."""
        return self.size("num_key_value_heads", LIMITS[KV_HEADS], self.n_head)

    def real(self, key: str, default: float | None = None, *, of: Mapping[str, Any] | None = None) -> float:
        """A finite number over 0, of the config or of a part of it."""
        value = (self.values if of is None else of).get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise self.error(key, self._problem(value), "a number over 0")
        return float(value)

    def _value(self, key: str, kind: type, needed: bool) -> Any:
        return self.values.get(key)

    def _problem(self, value: Any) -> str:
        return "is missing" if value is None else f"is {brief(value)}"


def window_keys(config: Config, default: int) -> Keys:
    """The sliding window, `default` tokens where config.json does not say; nothing where it is null or 0."""
    if config.values.get("sliding_window", default) in (None, 0):
        return {}
    return {WINDOW: config.size("sliding_window", LIMITS[WINDOW], default)}


def expert_keys(config: Config, *names: str, width: str = "") -> Keys:
    """How many experts there are, by the first of `names` that config.json has, and how many a token uses; how wide
    they are, where it has a key for that.
    """
    name = next((n for n in names if config.values.get(n) is not None), names[0])
    experts = config.size(name, LIMITS["expert_count"])
    keys = {"expert_count": experts, "expert_used_count": config.size("num_experts_per_tok", experts)}
    return keys | ({EXPERT_WIDTH: config.size(width, LIMITS[EXPERT_WIDTH])} if width else {})


def nextn_keys(config: Config) -> Keys:
    """Layers that guess tokens beyond the next one, by either of their words; GGUF counts them among the others."""
    word = "num_nextn_predict_layers"
    guessing = config.count(word if config.values.get(word) is not None else "num_mtp_layers", LIMITS["block_count"])
    return {"block_count": config.n_layer + guessing, NEXTN: guessing} if guessing else {}


def head_keys(config: Config, default: int) -> Keys:
    """How long heads are, `default` where config.json does not say, all of whose values rope is applied to."""
    head = config.size("head_dim", LIMITS["attention.key_length"], default)
    return dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), head)


def rotary_keys(config: Config, default: float) -> Keys:
    """The rotary part of a head."""
    parameters = rope_parameters(config).get("partial_rotary_factor")
    part = config.values.get("partial_rotary_factor") if parameters is None else parameters
    part = default if part is None else part
    if type(part) not in (int, float) or not 0 < part <= 1:
        raise config.error("partial_rotary_factor", f"is {brief(part)}", "over 0, up to 1")
    head = config.size("head_dim", LIMITS["attention.key_length"], max(1, config.width // config.n_head))
    return {"rope.dimension_count": int(head * part)}


def rope_parameters(config: Config) -> Mapping[str, Any]:
    """The rope's parameters: `rope_parameters`, or `rope_scaling` of older files.

    Where layers with a window have their own, those of the others. Raises ModelError where both are there and differ.
    """
    key = "rope_parameters" if config.values.get("rope_parameters") is not None else "rope_scaling"
    found = config.values.get(key)
    if isinstance(found, dict) and "full_attention" in found:
        found = found["full_attention"]
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise config.error(key, f"is {type(found).__name__}", "an object")
    older = config.values.get("rope_scaling")
    if key == "rope_parameters" and isinstance(older, dict) and not _says_again(config, older, found):
        raise config.error(
            "rope_scaling", f"is {brief(older)}, and rope_parameters another", "the same, or one of both"
        )
    return found


def _says_again(config: Config, older: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether all that `rope_scaling` says is said by `rope_parameters` or beside it."""
    kinds = [each.get("rope_type", each.get("type", "default")) for each in (older, found)]
    said = {**config.values, **found, "rope_type": kinds[1], "type": kinds[1]}
    older = {**older, "rope_type": kinds[0]}
    return all(value is None or said.get(key) == value for key, value in older.items() if key != "full_attention")


def local_rope(config: Config) -> Mapping[str, Any] | None:
    """The rope's parameters of layers with a window, where these have their own. Raises ModelError for a scaled one."""
    found = config.values.get("rope_parameters")
    local = found.get("sliding_attention") if isinstance(found, dict) else None
    if not isinstance(local, dict):
        return None
    if (kind := local.get("rope_type", local.get("type", "default"))) != "default":
        raise config.error("sliding_attention", f"has rope_type {brief(kind)}", "default")
    return local

"""Which layers have a sliding window: as a GGUF file says it, and as config.json does."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.models.shared.config import Config, Keys, window_keys
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import LIMITS, WINDOW, MetadataReader, brief

PATTERN = "attention.sliding_window_pattern"
"""The field that says it: a period, or true or false for each layer."""


@dataclass(frozen=True)
class Windows:
    """Which layers have the window.

    period  what a file means that does not say: the last of each period has none. With 0 all layers have it; with None
            it could mean anything: contexts are no longer than the window
    usual   tokens of the window where config.json does not say; None: a class's own function reads it
    tokens  those where a file does not say
    first   the first of each period has none, not the last
    listed  a file has to say it for each layer
    """

    period: int | None = None
    usual: int | None = None
    tokens: int | None = None
    first: bool = False
    listed: bool = False

    def read(self, r: MetadataReader, hp: Hyperparams) -> Hyperparams:
        """With the window, and whether each layer has it. Raises ModelError naming the key that is wrong."""
        if self.tokens and not r.has(WINDOW):
            hp = replace(hp, n_window=self.tokens)
        windowed = self._windowed(r, hp)
        return replace(hp, windowed=windowed[: hp.n_layer], next_windowed=windowed[hp.n_layer :])

    def _windowed(self, r: MetadataReader, hp: Hyperparams) -> tuple[bool, ...]:
        """Of all layers; a list may have those that guess tokens, too."""
        if self.listed and not r.is_array(PATTERN):
            raise r.error(PATTERN, "is missing or not an array", "true or false for each layer")
        if not hp.n_window:
            return (False,) * hp.n_layer
        if r.is_array(PATTERN):
            flags = _flags(r)
            if len(flags) not in (hp.n_layer, hp.n_layer + hp.n_next):
                raise r.error(PATTERN, f"has {len(flags)} values", f"one for each of {hp.n_layer} layers")
            return flags
        period = r.size(PATTERN, LIMITS["block_count"]) if r.has(PATTERN) else self.period
        if period is None:
            return ()
        return tuple(i % period != 0 for i in range(hp.n_layer)) if self.first else tuple(periodic(hp.n_layer, period))

    def keys(self, config: Config) -> Keys:
        """The window as config.json says it, and which layers have it."""
        return {} if self.usual is None else layer_window_keys(config, self.period or 0, self.usual)


def _flags(r: MetadataReader) -> tuple[bool, ...]:
    """The field's array of true and false, or of 1 and 0."""
    if r.metadata.describe(r.key(PATTERN)).endswith("BOOL"):
        return tuple(map(bool, r.metadata.get_bools(r.key(PATTERN))))
    numbers = r.metadata.get_ints(r.key(PATTERN)).tolist()
    if wrong := [n for n in numbers if n not in (0, 1)]:
        raise r.error(PATTERN, f"has a {wrong[0]}", "true or false, or 1 or 0, for each layer")
    return tuple(map(bool, numbers))


def periodic(n: int, period: int) -> list[bool]:
    """Windows in all layers but the last of each `period`, with 0 in all."""
    return [not period or (i + 1) % period != 0 for i in range(n)]


def window_of_some(config: Config) -> Keys:
    """The window of Qwen2 and Qwen3, which say whether to use it, and in which layers by a list or by the first."""
    window = window_keys(config, 4096) if config.flag("use_sliding_window", False) else {}
    if not window:
        return {}
    n, first = config.n_layer, config.values.get("max_window_layers", 28)
    if type(first) is not int:
        raise config.error("max_window_layers", f"is {brief(first)}", "an integer")
    listed = config.values.get("layer_types") is not None
    windowed = windowed_layers(config, 0) if listed else [i >= first for i in range(n)]
    return window | {PATTERN: windowed} if any(windowed) else {}


def layer_window_keys(config: Config, period: int, default: int = 4096) -> Keys:
    """The window, and which layers have it where that is not what `period` says."""
    windowed = windowed_layers(config, period)
    if not any(windowed):
        return {}
    keys = window_keys(config, default)
    if not keys:
        raise config.error("sliding_window", "is null or 0", "a number, as layer_types has sliding_attention")
    found = windowed.index(False) + 1 if False in windowed else period
    if windowed != periodic(len(windowed), found):
        return keys | {PATTERN: windowed}
    return keys if windowed == periodic(len(windowed), period) else keys | {PATTERN: found}


def windowed_layers(config: Config, period: int) -> list[bool]:
    """Whether each layer has the window: those that config.json lists, or all but the last of each period."""
    n, kinds = config.n_layer, config.values.get("layer_types")
    if kinds is None:
        said = config.values.get("sliding_window_pattern") is not None
        return periodic(n, config.size("sliding_window_pattern", LIMITS["block_count"]) if said else period)
    if not isinstance(kinds, list) or len(kinds) != n or set(map(str, kinds)) - {"sliding_attention", "full_attention"}:
        raise config.error("layer_types", f"is {brief(kinds)}", f"{n} of sliding_attention, full_attention")
    return [kind == "sliding_attention" for kind in kinds]

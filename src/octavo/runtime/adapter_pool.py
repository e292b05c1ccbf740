"""Adapters that requests choose: which are loaded, and which lies in which slot of an engine's tables.

What is computed with is a set of adapters, each times a scale: a mix. A loaded adapter alone and as it is has a slot
until it is unloaded and no request is computed with it any more; other mixes take those that are left, the least
recently used one first. Nothing but slots takes memory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from octavo.errors import (
    AdapterError,
    AdaptersFullError,
    ModelError,
    NonFiniteError,
    UnknownAdapterError,
    UsageError,
    shown,
)
from octavo.graph.factors import LowRank
from octavo.graph.low_rank import targets
from octavo.models.shared.lora import Adapter, combined
from octavo.runtime.engine.engine import Engine

Mix = tuple[tuple[str, float], ...]
"""Adapters by name, each with its scale."""
MOST_IN_MIX = 8


@dataclass(frozen=True)
class LoadedAdapter:
    """An adapter by the name that requests have for it.

    digest  of its values: what is computed with one of the same is the same
    added   what it adds to weights, while it is on its way to a slot
    """

    id: int
    name: str
    path: str
    rank: int
    digest: str
    adapter: Adapter
    added: Mapping[str, LowRank]


@dataclass
class _Slot:
    """What lies in a slot, how many requests are computed with it, and whether a loaded adapter keeps it."""

    key: str = ""
    users: int = 0
    pinned: bool = False
    used: int = 0


@dataclass(frozen=True)
class Taken:
    """A mix in its slot, until it is given back; `key` tells it from all others in the prefix cache."""

    slot: int
    key: str


@dataclass
class AdapterPool:
    """Those of an engine with `max_loras` slots. It is for one thread at a time, but for `read`."""

    engine: Engine
    adapters: dict[str, LoadedAdapter] = field(default_factory=dict)
    _ids: count[int] = field(default_factory=count)
    _clock: count[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self._slots = [_Slot() for _ in range(self.engine.config.max_loras)]

    def read(self, name: str, path: str | os.PathLike[str]) -> LoadedAdapter:
        """Read an adapter, which `load` then puts in a slot. Any thread may call it.

        Raises FileError and ModelError for one that can't be read, is of another model, changes what requests can't
        choose, or has too high a rank, and AdapterError for NaN and Inf in it.
        """
        from octavo.huggingface.adapters.adapter import open_adapter

        model, most = self.engine.model, self.engine.config.max_lora_rank
        adapter = open_adapter(path, model)
        adapter.require_fitting(targets(model.graph()), model.file.tensors)
        for part, factors in adapter.parts.items():
            if part not in self.engine.adapted_weights:
                problem = "is an embedding or of experts, which requests can't choose adapters for"
                raise ModelError(problem, file=adapter.path, field=f"tensor {shown(part)}",
                                 allowed="other weights, or --lora for all requests")
            if factors.rank > most:
                problem = f"has the rank {factors.rank}"
                raise ModelError(problem, file=adapter.path, field=f"tensor {shown(part)}",
                                 allowed=f"up to {most}; see --max-lora-rank")
        try:
            added = combined([(adapter, 1.0)])
        except NonFiniteError as error:
            raise AdapterError(str(error)) from None
        rank = max((factors.rank for factors in adapter.parts.values()), default=0)
        return LoadedAdapter(next(self._ids), name, os.fspath(path), rank, _digest(added), adapter, added)

    def load(self, adapter: LoadedAdapter) -> None:
        """Have a read adapter under its name. Raises UsageError for a name that is taken, AdaptersFullError.

        One of the same name and values stays as it is.
        """
        known = self.adapters.get(adapter.name)
        if known is not None:
            if known.digest == adapter.digest:
                return
            problem = f"an adapter {shown(adapter.name)} is loaded already: unload it first"
            raise UsageError(problem, argument="lora_name")
        slot = self._slot(_key(((adapter.digest, 1.0),)), adapter.added)
        slot.pinned = True
        self.adapters[adapter.name] = LoadedAdapter(**{**vars(adapter), "added": {}})

    def unload(self, name: str) -> LoadedAdapter:
        """Forget an adapter; requests that are computed with it go on. Raises UnknownAdapterError."""
        adapter = self._named(name)
        del self.adapters[name]
        key = _key(((adapter.digest, 1.0),))
        if not any(other.digest == adapter.digest for other in self.adapters.values()):
            for slot in self._slots:
                slot.pinned = slot.pinned and slot.key != key
        return adapter

    def take(self, mix: Mix) -> Taken | None:
        """A slot with a mix in it, for a request to be computed with; None where it adds nothing.

        Raises UnknownAdapterError for a name that there is not, AdaptersFullError where requests under way and loaded
        adapters have all slots, and AdapterError for what can't be mixed.
        """
        if len(mix) > MOST_IN_MIX:
            raise UsageError(f"{len(mix)} adapters for one request (allowed: up to {MOST_IN_MIX})", argument="lora")
        chosen = [(self._named(name), scale) for name, scale in mix]
        chosen = sorted(((one, scale) for one, scale in chosen if scale), key=lambda pair: pair[0].id)
        if not chosen:
            return None
        key = _key([(one.digest, scale) for one, scale in chosen])
        slot = next((slot for slot in self._slots if slot.key == key), None) or self._slot(key, self._mixed(chosen))
        slot.users, slot.used = slot.users + 1, next(self._clock)
        return Taken(self._slots.index(slot), key)

    def give_back(self, taken: Taken) -> None:
        """A request is no longer computed."""
        self._slots[taken.slot].users -= 1

    def _named(self, name: str) -> LoadedAdapter:
        if (found := self.adapters.get(name)) is None:
            raise UnknownAdapterError(name, sorted(self.adapters))
        return found

    def _slot(self, key: str, added: Mapping[str, LowRank]) -> _Slot:
        """A slot with this in it: the one that has it, or the least recently used one that may be overwritten."""
        found = next((slot for slot in self._slots if slot.key == key), None)
        if found is not None:
            return found
        free = [slot for slot in self._slots if not slot.users and not slot.pinned]
        if not free:
            raise AdaptersFullError(f"all {len(self._slots)} slots for adapters are taken, by loaded ones and by "
                                    "requests: wait, unload one, or start with a larger --max-loras")
        slot = min(free, key=lambda slot: slot.used)
        slot.key = ""
        self.engine.put_adapter(self._slots.index(slot), added)
        slot.key, slot.used = key, next(self._clock)
        return slot

    def _mixed(self, chosen: Sequence[tuple[LoadedAdapter, float]]) -> Mapping[str, LowRank]:
        """What adapters add together, read again. Raises AdapterError for one that has changed, or is too much."""
        for one, _ in chosen:
            if _digest(combined([(one.adapter, 1.0)])) != one.digest:
                raise AdapterError(f"{one.path} has changed since it was loaded: unload {shown(one.name)}, and load it")
        added = combined([(one.adapter, scale) for one, scale in chosen])
        rank, most = max(pair.a.shape[0] for pair in added.values()), self.engine.config.max_lora_rank
        if rank > most:
            raise AdapterError(f"the adapters have the rank {rank} together (allowed: up to {most}; --max-lora-rank)")
        return added


def _digest(added: Mapping[str, LowRank]) -> str:
    """What tells the values of an adapter from those of others."""
    found = hashlib.blake2b(digest_size=16)
    for name, pair in sorted(added.items()):
        found.update(f"{name} {pair.a.shape} {pair.b.shape}\0".encode())
        for factor in (pair.a, pair.b):
            found.update(factor.format.name.encode())
            found.update(factor.data.tobytes())
    return found.hexdigest()


def _key(chosen: Sequence[tuple[str, float]]) -> str:
    """What tells a mix from others: digests and scales."""
    return hashlib.blake2b(repr(tuple(chosen)).encode(), digest_size=16).hexdigest()

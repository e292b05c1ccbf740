"""Which adapters a request is computed with: by `model` or `lora`, or those that all others have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.server.engine.client import EngineClient
from octavo.server.engine.engine_protocol import AdapterInfo
from octavo.server.http.api_errors import ApiError, bad
from octavo.server.routes.schema import AdapterChoice

Mix = list[tuple[str, float]]
"""Adapters by name, each with its scale."""
NONE = "adapters that requests choose: start the server with --lora-modules or --max-loras"


class Adapters:
    """Those that an engine has loaded, by name; `scales` are of requests that choose none, as /lora-adapters sets them.

    names  of the model itself
    """

    def __init__(self, client: EngineClient, names: Sequence[str]) -> None:
        self._client, self._names = client, tuple(names)
        self.scales: dict[str, float] = {}

    @property
    def loaded(self) -> Mapping[str, AdapterInfo]:
        return {one.name: one for one in self._client.adapters}

    @property
    def are_chosen(self) -> bool:
        """Whether the engine has room for any."""
        return self._client.info is not None and self._client.info.max_loras > 0

    def named(self, model: str | None) -> str | None:
        """The adapter that a model's name means: NAME, or MODEL:NAME. Raises ApiError for MODEL: and no such name."""
        if model is None or not self.are_chosen or model in self._names:
            return None
        if model in self.loaded:
            return model
        base, _, name = model.partition(":")
        if not name or base not in self._names:
            return None
        return self.require(name, "model").name

    def of(self, model: str | None, lora: str | Sequence[AdapterChoice] | None) -> Mix:
        """The adapters of a request. Raises ApiError for one that there is not."""
        if lora is None:
            name = self.named(model)
            return [(name, 1.0)] if name else [(n, s) for n, s in self.scales.items() if n in self.loaded and s]
        if not self.are_chosen and lora:
            raise bad(f"lora: the server has no {NONE}", "lora")
        if isinstance(lora, str):
            return [(self.require(lora, "lora").name, 1.0)]
        found: dict[str, float] = {}
        for one in lora:
            adapter = self._by_id(one.id) if one.name is None else self.require(one.name, "lora")
            if adapter.name in found:
                raise bad(f"lora names the adapter {adapter.name!r} twice", "lora")
            found[adapter.name] = one.scale
        return [(name, scale) for name, scale in found.items() if scale]

    def set_scales(self, given: Sequence[AdapterChoice]) -> None:
        """Have these scales for requests that choose none, and 0 for all other adapters. Raises ApiError."""
        if not self.are_chosen:
            raise bad(f"the server has no {NONE}")
        self.scales = dict(self.of(None, given))

    def _by_id(self, number: int | None) -> AdapterInfo:
        found = next((one for one in self.loaded.values() if one.id == number), None)
        if found is None:
            ids = ", ".join(f"{one.id} ({one.name})" for one in self.loaded.values()) or "none is loaded"
            raise bad(f"lora: there is no adapter with the id {number} (ids: {ids})", "lora")
        return found

    def require(self, name: str, param: str) -> AdapterInfo:
        """The adapter of a name. Raises ApiError for none."""
        if (found := self.loaded.get(name)) is None:
            there = ", ".join(sorted(self.loaded)) or "none is loaded"
            raise ApiError(404, f"there is no adapter {name!r} (adapters: {there})", param=param,
                           code="model_not_found" if param == "model" else "adapter_not_found")
        return found

"""Objects of a quantization's configuration: values that are required, allowed or known to change nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from octavo.errors import ModelError, shown
from octavo.models.shared.config import Config


class QuantSettings:
    """An object inside a JSON file; errors name the way to its keys."""

    def __init__(self, config: Config, path: str, values: Mapping[str, Any]) -> None:
        self.config, self.path, self.values = config, path, values

    @classmethod
    def of(cls, config: Config, path: str, value: Any) -> QuantSettings:
        """Raises ModelError for a value that is not an object."""
        if not isinstance(value, dict):
            raise config.error(path, "is missing" if value is None else f"is {brief(value)}", "an object")
        return cls(config, path, value)

    def part(self, key: str, value: Any = ...) -> QuantSettings:
        """The object at a key, or `value` under its name."""
        found = self.values.get(key) if value is ... else value
        return QuantSettings.of(self.config, self._at(shown(key)[1:-1]), found)

    def error(self, key: str, problem: str, allowed: str | None = None) -> ModelError:
        return self.config.error(self._at(key), problem, allowed)

    def one_of(self, key: str, allowed: Iterable[Any], default: Any = ...) -> Any:
        """The value at `key`, or the default where it is absent. Raises ModelError unless it is one of `allowed`."""
        value, allowed = self.values.get(key, default), list(allowed)
        if not any(value == a and type(value) is type(a) for a in allowed):
            problem = "is missing" if value is ... else f"is {brief(value)}"
            raise self.error(key, problem, " or ".join(dict.fromkeys(map(brief, allowed))))
        return value

    def flag(self, key: str, default: bool) -> bool:
        return bool(self.one_of(key, (True, False), default))

    def size(self, key: str, default: Any = ...) -> int:
        """An integer from 1 on."""
        value = self.values.get(key, default)
        if type(value) is not int or not 1 <= value <= 1 << 30:
            raise self.error(key, "is missing" if value is ... else f"is {brief(value)}", "an integer from 1 on")
        return value

    def strings(self, key: str) -> list[str]:
        """A list of strings; null and absent are empty ones."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.error(key, f"is {brief(value)}", "a list of strings")
        return value

    def only(self, *keys: Collection[str]) -> None:
        """Raise ModelError for a key that is in none of these collections, unless its value says nothing."""
        known = {key for some in keys for key in some}
        for key, value in self.values.items():
            if key not in known and value not in (None, False, {}, []):
                raise self.error(shown(key)[1:-1], f"is {brief(value)}, which is not known here", "absent or null")

    def empty(self, *keys: str) -> None:
        """Raise ModelError unless the values at these keys are absent, null or empty."""
        for key in keys:
            value = self.values.get(key)
            nothing = isinstance(value, dict) and (value.get("format") == "dense" or not any(value.values()))
            if value and not nothing:
                raise self.error(key, f"is {brief(value)}", "null")

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def brief(value: object) -> str:
    """A value as JSON has it; of strings as everywhere."""
    return shown(value) if isinstance(value, str) else shown(json.dumps(value))[1:-1]

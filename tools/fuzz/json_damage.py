"""Other values for those of a JSON document or of metadata: of another type, at the edge of a range, nested, long."""

from __future__ import annotations

import json
import random
from typing import Any

EDGE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32, 2**63, -(2**63), 2**64, 10**30, 0.0, -0.0,
    1e-300, 1e300, 0.5, float("nan"), float("inf"), -float("inf"), "", "x", "\x00", "\ud800", "<0x-1>", "a" * 3000,
    "../../x",
    "{{ 1 }}", "{% for i in range(99999) %}{% endfor %}", [], {}, [[]], [None], {"": {}}, [0] * 100, ["a", "a"],
)
LONG_NUMBER = "1" + "0" * 400
MOST_PLACES = 5000


def other_value(rng: random.Random, old: Any) -> Any:
    """A value in place of `old`: near it, or anything."""
    if isinstance(old, bool) or rng.random() < 0.4:
        return rng.choice(EDGE_VALUES)
    if isinstance(old, int):
        real = float(old) if abs(old) < 1e300 else 0.5
        return rng.choice((old + 1, old - 1, -old, old * 2, old // 2, old ^ 1 << rng.randrange(40), real, str(old)))
    if isinstance(old, float):
        return rng.choice((old * 2, -old, old / 1e6, old * 1e6, int(old) if abs(old) < 1e15 else 0, str(old)))
    if isinstance(old, str):
        at = rng.randrange(len(old) + 1)
        return rng.choice((old[:at], old[:at] + "\ufffd" + old[at:], old.upper(), old * 2, old[at:], [old], {"a": old}))
    return rng.choice(EDGE_VALUES)


def damage_json(rng: random.Random, text: str) -> str:
    """A JSON text with a few of its values, keys or characters changed; mostly still JSON."""
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = _places(value)
        if not places:
            break
        holder, key = rng.choice(places)
        match rng.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[rng.choice(("", "x", key + " ", "9" * 5000, "__class__"))] = holder.pop(key)
            case 2 if isinstance(holder, list):
                holder.insert(key, other_value(rng, holder[key]))
            case 3:
                other, name = rng.choice(places)
                if name in other if isinstance(other, dict) else name < len(other):
                    holder[key] = json.loads(json.dumps(other[name]))
            case _:
                holder[key] = other_value(rng, holder[key])
    made = json.dumps(value)
    match rng.randrange(20):
        case 0:
            return made[: rng.randrange(len(made) + 1)]
        case 1:
            at = rng.randrange(len(made) + 1)
            return made[:at] + rng.choice(("{", "[" * 3000, '"', "\\ud800", "\x00", "//", ",")) + made[at:]
        case 2:
            return made.replace("1", LONG_NUMBER, 1)
        case 3:
            return made.replace("{", '{"architectures": 1, "vocab_size": "x", ', 1)
    return made


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(holder, key or index) of values in a document, the outer ones first and some of long lists."""
    found: list[tuple[Any, Any]] = []
    queue = [value]
    while queue and len(found) < MOST_PLACES:
        holder = queue.pop(0)
        keys = list(holder) if isinstance(holder, dict) else range(min(len(holder), 40))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                queue.append(holder[key])
    return found

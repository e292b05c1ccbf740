"""Values that a JSON schema allows, in words that llguidance holds a reply to.

It reads whole numbers as doubles. A bound that does not belong to what it bounds it takes for one that does where both
bounds have the same whole part, and of a class of a pattern that has all control characters it allows quotation marks
and backslashes, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import copysign, inf, nextafter
from typing import Any, TypeGuard

from octavo.errors import GrammarError

BOUNDS = (("minimum", "exclusiveMinimum", inf), ("maximum", "exclusiveMaximum", -inf))
"""Keywords of bounds, and towards what they can be moved with no other value allowed."""
EXACT, LARGEST = 1 << 53, (1 << 63) - 1024
"""A double holds all whole numbers up to the first; llguidance counts to the second."""
FARTHEST, STEP, LEAST = 1e12, 1e-14, 1e-30
"""Bounds up to the first are moved by so much of themselves, as llguidance may read the next double as the bound; zero
by the last."""
_NEGATED = re.compile(r"\\.|(\[\^\]?)(-?)", re.DOTALL)


def bounded(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema whose bounds are numbers that a double holds and, up to FARTHEST, belong to what they bound."""
    found = dict(schema)
    for key, beyond, towards in BOUNDS:
        found |= {name: _representable(found[name], towards) for name in (key, beyond) if name in found}
        bound = found.get(beyond)
        if _is_number(bound) and abs(bound) < FARTHEST and _is_number(found.get(key, bound)):
            inner = bound + copysign(max(abs(bound) * STEP, LEAST), towards)
            found[key] = (max if towards > 0 else min)(found.get(key, inner), inner)
            del found[beyond]
    return found


def _is_number(given: Any) -> TypeGuard[int | float]:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _representable(bound: Any, towards: float) -> Any:
    """A bound as a whole number that a double holds: the next one `towards`, where it holds not the bound itself."""
    if not isinstance(bound, int) or abs(bound) <= EXACT:
        return bound
    near = float(bound)
    if int(near) != bound and (int(near) < bound) == (towards > 0):
        near = nextafter(near, towards)
    return max(int(near), -LARGEST) if towards > 0 else min(int(near), LARGEST)


def never_null(pattern: str) -> str:
    """A regular expression whose negated classes have no null character, and so not all control characters."""
    return _NEGATED.sub(lambda m: f"{m[1]}\\x00{m[2] and chr(92) + m[2]}" if m[1] else m[0], pattern)


def require_exact(key: str, value: Any) -> None:
    """Raise GrammarError for a value with a whole number that a reply would have another one for."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += one
        elif isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, int) and abs(one) > EXACT:
            raise GrammarError(f"{key} of the JSON schema has {one} (allowed: integers up to 2**53, or strings)")

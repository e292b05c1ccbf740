"""Adapters as commands take them: `--lora ADAPTER[=SCALE]`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from octavo.cli.hub.models import shown_by
from octavo.cli.progress_bar import Bar
from octavo.errors import UsageError


def adapters(given: Sequence[str] | None, offline: bool = False) -> dict[str, float]:
    """Adapters by path, with their scales; those of the hub are downloaded first where they are not on this machine.

    Raises UsageError for a scale that is not a number, and for an adapter that is named twice.
    """
    if not given:
        return {}
    from octavo.io.model_path import locate_adapter
    from octavo.runtime.lora_adapters import require_once

    with Bar() as bar:
        found = [(locate_adapter(path, offline=offline, show=shown_by(bar)), scale) for path, scale in map(part, given)]
    require_once(found)
    return dict(found)


def located(path: str, offline: bool = False) -> str:
    """The path of an adapter, which is downloaded where it is not on this machine."""
    from octavo.io.model_path import locate_adapter

    with Bar() as bar:
        return locate_adapter(path, offline=offline, show=shown_by(bar))


def part(text: str) -> tuple[str, float]:
    """The adapter and the scale that an option's value names; a path that has a `=` wins over a scale."""
    path, sign, number = text.rpartition("=")
    if not sign or os.path.lexists(text):
        return text, 1.0
    try:
        scale = float(number)
    except ValueError:
        scale = math.nan
    if not math.isfinite(scale):
        raise UsageError(f"lora has the scale {number!r} (allowed: a number, as in {path}=0.5)", argument="lora")
    return path, scale

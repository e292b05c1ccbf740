"""Reports without their pictures, for tests of what else is on the page: drawing them takes two seconds."""

from __future__ import annotations

import pytest

from octavo.evals.report import pictures

DRAWN = ("quality_picture", "_heat_map", "small_multiples")


def leave_out_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, an empty picture is in the place of each."""
    for name in DRAWN:
        monkeypatch.setattr(pictures, name, lambda *given, **how: "<svg></svg>")

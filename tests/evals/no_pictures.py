"""Reports without their pictures, for tests of what else is on the page: drawing them takes two seconds."""

from __future__ import annotations

import pytest

from octavo.evals.report import curve, heat, method_pictures, pictures

DRAWN = ((curve, "quality_picture"), (heat, "_heat_map"), (pictures, "weights_picture"), (pictures, "codes_picture"),
         (pictures, "scales_picture"), (method_pictures, "errors_picture"), (method_pictures, "peaks_picture"),
         (method_pictures, "spans_picture"))


def leave_out_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, an empty picture is in the place of each."""
    for module, name in DRAWN:
        monkeypatch.setattr(module, name, lambda *given: "<svg></svg>")

"""What tests of drafts have in common."""

from __future__ import annotations

import pytest

from octavo.runtime.speculation.draft_lengths import StepCosts
from octavo.runtime.speculation.draft_model import DraftModel
from octavo.runtime.speculation.head_drafter import HeadDrafter
from octavo.runtime.speculation.step_sizes import StepSizes


@pytest.fixture
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drafts pay whatever time they take here."""
    monkeypatch.setattr(StepCosts, "factor", lambda *_: 1.0)
    monkeypatch.setattr(StepSizes, "fitted", lambda _, replies, lengths, seconds: list(lengths))
    for drafter in (DraftModel, HeadDrafter):
        monkeypatch.setattr(drafter, "seconds", lambda *_: 0.0)

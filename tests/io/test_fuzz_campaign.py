"""The fuzzers of models, checkpoint folders and adapters run, and find what they look for."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import campaign
import fuzz_adapters
import fuzz_checkpoints
import fuzz_models
import pytest
from tests.limits import HANG_S
from tests.sampling import slow


@pytest.mark.slow
@pytest.mark.parametrize("module", [slow(fuzz_models), slow(fuzz_checkpoints), fuzz_adapters])
def test_damaged_models_are_run_or_refused(module: Any, tmp_path: Path) -> None:
    target = module.Target(tmp_path, n_seeds=2)
    taken = []
    for i in range(6, 22):
        target.make(random.Random(i))
        taken.append(target.exercise())
    assert 0 < sum(taken) < 16


def test_faults_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error without a type, a process that dies, one that waits for ever, and one that computes for too long."""
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
    monkeypatch.setattr(campaign, "STUCK", 30)  # 3 s, in which what only computes long ends on a busy machine too
    args = argparse.Namespace(
        target="headers", module="faulty_target", count=6, first=0, seed=0, workers=1, seconds=HANG_S, limit=0.1,
        findings=tmp_path,
    )
    counts: Counter[str] = Counter()
    found = dict(campaign.campaign(args, counts))
    assert set(found) == {"error", "crash", "hang", "slow"}
    assert "input 0: " in found["error"]
    assert "ValueError: no typed error" in found["error"]
    assert found["crash"] == "input 1: the process died with 3"
    assert found["hang"] == "input 2: it never ended"
    assert found["slow"].startswith("input 3: 0.")
    assert (counts["ran"], counts["refused"]) == (1, 2)
    assert {p.name for p in tmp_path.iterdir()} == {f"headers-0-{i}" for i in range(4)}

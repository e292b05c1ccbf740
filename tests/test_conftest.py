"""What all tests set up holds in whatever order folders are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOWN = "import tests.conftest, triton; print(type(triton.language.sum).__name__)"


@pytest.mark.parametrize(
    ("asked", "found"), [(None, "InterpretedFunction"), ("1", "InterpretedFunction"), ("0", "JITFunction")]
)
def test_triton_is_imported_to_be_interpreted_unless_told(asked: str | None, found: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if asked is not None:
        environment["TRITON_INTERPRET"] = asked
    command = [sys.executable, "-c", SHOWN]
    run = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [found]

"""The scripts of examples/ run, say what they should, and stay short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_S
from tests.sampling import slow

EXAMPLES = Path(__file__).parents[1] / "examples"
SAID = {
    "chat.py": ["12 times 7 is 84.", "12 times 8 is 96.", "tokens a second)"],
    "structured.py": ["12 * 7 {'answer': ", "25 + 17 {'answer': "],
    "quantize_and_compare.py": ["Q8_0 ", "Q2_K ", "divergence 0."],
    "int8_product.py": ["from the same codes ", "from the floats "],
    "serve_and_ask.py": ["12 times 7 is 84."],
}


def test_each_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAID)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", [slow(name) if name == "quantize_and_compare.py" else name for name in SAID])
def test_it_runs(name: str) -> None:
    script = EXAMPLES / name
    assert len(script.read_text().splitlines()) <= 40
    done = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, timeout=HANG_S)
    for text in SAID[name]:
        assert text in done.stdout, done.stdout

"""README.md says which test is of what clients depend on: all of these are there."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = (HERE / "README.md").read_text(encoding="utf-8")


def test_every_point_has_tests_that_there_are() -> None:
    rows = re.findall(r"(?m)^\| ([\d, ]+) \|.*\| (.*) \|$", TABLE)
    points = [int(n) for numbers, _ in rows for n in numbers.split(",")]
    assert points == list(range(1, len(points) + 1))
    for _, tests in rows:
        named = re.findall(r"`(test_\w+)\.(test_\w+)`", tests)
        assert named
        for module, name in named:
            (file,) = HERE.rglob(f"{module}.py")
            text = file.read_text(encoding="utf-8")
            slow = rf"@pytest\.mark\.slow\n(?:@.*\n)*(?:async )?def {name}\(|(?m:^pytestmark = .*slow)"
            marked = re.search(slow, text) is not None
            assert re.search(rf"(?m)^(?:async )?def {name}\(", text), f"{module}.{name}"
            assert marked == (f"`{module}.{name}`" in tests.partition("slow:")[2]), f"{module}.{name}"

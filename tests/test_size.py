"""Lines are counted as CONTRIBUTING.md's budget means them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "tools")
    import size

    return size


TEXT = '''"""A module.

Of two paragraphs.
"""

# a comment
LIMIT = 3
"""What an attribute is."""


def f(
    a, b,  # why
):
    """What it does."""
    text = """two
lines"""
    return a + b
'''


def test_only_lines_of_code_count(tool) -> None:
    assert tool.code_lines(TEXT) == 7


def test_long_lists_of_parameters_are_named(tool) -> None:
    many = ", ".join(f"a{i}" for i in range(13))
    assert tool.parameters(f"class A:\n def f(self, {many}): pass\ndef g(a, *, b): pass") == [("f", 13)]

"""Tables: the same in a pipe as on a terminal."""

from __future__ import annotations

from octavo.cli.columns import columns


def test_columns_are_aligned_and_lines_end_where_they_end() -> None:
    rows = [("a", "1", ""), ("long name " * 12, "20", "x")]
    head, first, second = columns(("name", "n", "note"), rows, numbers=("n",))
    assert head.index("  n") == first.index("  1") == second.index(" 20")
    assert first.endswith(" 1")
    assert second == f"{rows[1][0]}  20  x"

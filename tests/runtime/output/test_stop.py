"""Stop strings: found however the text is cut, and never part of what is shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.runtime.output.stop import StopStrings


def feed(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """What is shown of each piece (what was held back last), and whether a stop string ended it."""
    watch, shown = StopStrings(stops), []
    for piece in pieces:
        text, stopped = watch.push(piece)
        shown.append(text)
        if stopped:
            return shown, True
    return [*shown, watch.flush()], False


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "stopped"),
    [
        ([], ["a", "b"], ["a", "b", ""], False),
        ([""], ["a"], ["a", ""], False),
        (["END"], ["one ENDtwo"], ["one "], True),
        (["END"], ["one E", "N", "D two"], ["one ", "", ""], True),
        (["END"], ["one E", "N", "X"], ["one ", "", "ENX", ""], False),
        (["END"], ["one EN"], ["one ", "EN"], False),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", ""], True),
        (["x", "END"], ["ENDx"], [""], True),
        (["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", ""], True),
        (["abcd", "bc"], ["abcd"], ["a"], True),
        (["abcd", "bc"], ["a", "b", "c", "d"], ["", "", "a"], True),
        (["abc", "bc"], ["abc"], [""], True),
    ],
)
def test_by_hand(stops: list[str], pieces: list[str], shown: list[str], stopped: bool) -> None:
    assert feed(stops, pieces) == (shown, stopped)


def first_stop(stops: list[str], text: str) -> int | None:
    """Where the shown text ends, by trying every prefix."""
    for end in range(1, len(text) + 1):
        at = [end - len(s) for s in stops if s and text[:end].endswith(s)]
        if at:
            return min(at)
    return None


letters = st.text(alphabet="abé", max_size=4)


@settings(deadline=None)
@given(stops=st.lists(letters, max_size=3), pieces=st.lists(letters, max_size=12))
def test_shows_the_text_before_the_stop_string_that_is_complete_first(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    end = first_stop(stops, text)
    shown, stopped = feed(stops, pieces)
    assert stopped == (end is not None)
    assert "".join(shown) == text[:end]
    assert not any(s in "".join(shown) for s in stops if s)

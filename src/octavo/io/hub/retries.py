"""What is tried again, after how long: servers that are busy, and connections that are cut."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from octavo.errors import HubError

log = logging.getLogger("octavo")

Show = Callable[[str, int, int | None], None]
"""Told what goes on, how many bytes of how many are there."""
Began = Callable[[str, int], None]
"""Told of a file that is downloaded: where its first bytes are, and how many it will have."""

TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
"""What servers answer that may answer otherwise later."""
TRIES = 5
LONGEST_S = 600
"""More seconds than a server may ask to wait."""


def nobody(what: str, done: int = 0, total: int | None = None) -> None:
    """Tells nobody."""


class Retries:
    """How often a thing was tried in vain. `show` is told of each wait, and so is the log."""

    def __init__(self, show: Show = nobody, tries: int = TRIES) -> None:
        self.show, self._tries, self._failed = show, tries, 0

    def refresh(self) -> None:
        """Something was got: what failed before counts no more."""
        self._failed = 0

    def wait(self, problem: str, asked: float | None = None) -> None:
        """Wait 1, 2, 4, ... seconds, or as many as the server `asked` for. Raises HubError where it is no use."""
        self._failed += 1
        if self._failed >= self._tries:
            advice = "trying again later resumes, and `octavo run MODEL --offline` uses what is on this machine"
            raise HubError(f"{problem}; gave up after {self._tries} tries: {advice}")
        if asked is not None and asked > LONGEST_S:
            raise HubError(f"{problem}, and asks to wait {asked:,.0f} seconds: run the same command then to resume")
        seconds = float(2 ** (self._failed - 1)) if asked is None else asked
        log.warning("%s; retrying in %.0f s", problem, seconds)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.show(f"{problem}; retrying in {left:.0f} s", 0, None)
            time.sleep(min(left, 1.0))


def retry_after(value: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or as a date; None without one."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        return None

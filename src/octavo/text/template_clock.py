"""The time as chat templates have it: what a model is told of today's date."""

from __future__ import annotations

from datetime import datetime


def now() -> datetime:
    """The time of this machine's zone."""
    return datetime.now()


def dates() -> dict[str, str]:
    """Variables of templates that ask for a date by name (Llama 3), as llama-server sets them.

    Left undefined, templates write the day on which they were made: those of Llama 3.1 "26 Jul 2024".
    """
    today = now()
    return {"date_string": f"{today:%d %b %Y}", "datetime": f"{today:%b %d %Y}"}

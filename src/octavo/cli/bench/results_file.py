"""What the commands of `octavo bench` share: lists of numbers, and results that are written to a file."""

from __future__ import annotations

import os
import sys

from octavo.errors import UsageError


def numbers(option: str, text: str) -> list[int]:
    """The integers of `1,4,8`. Raises UsageError for anything else."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} is {text!r} (allowed: numbers separated by commas, such as 1,4,8)") from None


def write(output: str, name: str, text: str) -> None:
    """Write a result to the file `output`, or under `name` into the folder `output`, and say so."""
    from octavo.io.atomic import written_file

    path = os.path.join(output, name) if os.path.isdir(output) else output
    with written_file(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    print(f"octavo: wrote {path}", file=sys.stderr)

"""Starts the `octavo` command, where the program is interrupted while it is still being imported too."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command line."""
    gc.disable()  # what is imported stays; looking through it again and again takes an eighth of a start
    try:
        from octavo.cli import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()

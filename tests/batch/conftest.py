"""The command in this process, as tests of commands have it."""

from tests.cli.conftest import octavo

__all__ = ["octavo"]

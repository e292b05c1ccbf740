"""For all tests: the environment and the fixtures of Octavo's own."""

from __future__ import annotations

from tests.conftest import hub, pytest_collection_finish

__all__ = ["hub", "pytest_collection_finish"]

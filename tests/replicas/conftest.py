"""A loaded model, as tests of the server have it."""

from tests.server.conftest import model

__all__ = ["model"]

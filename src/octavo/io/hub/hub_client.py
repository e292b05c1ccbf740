"""The hub's client, `huggingface_hub`, as far as its versions differ or tests and mirrors need it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from huggingface_hub import HfApi

LIBRARY = {"library_name": "octavo", "library_version": sys.modules["octavo"].__version__}
"""What the hub is told of who asks."""


def client() -> HfApi:
    """The client of the hub that HF_ENDPOINT names."""
    from huggingface_hub import HfApi

    return HfApi(**LIBRARY)


def host(api: HfApi) -> str:
    """The hub, as errors call it."""
    return api.endpoint.partition("://")[2] or api.endpoint


def http_library() -> Any:
    """What the client makes its requests with: httpx, or httpx2 from its version 2 on."""
    from huggingface_hub import get_session

    return sys.modules[type(get_session()).__module__.partition(".")[0]]

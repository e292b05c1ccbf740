"""The chat page: one file of HTML, and the headers that let a browser run nothing but what is in it."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files


@cache
def page() -> tuple[bytes, dict[str, str]]:
    """The page and its headers.

    The content security policy names script and style sheet by their hashes: text of a model that got into the page as
    HTML would still not run. Requests go to the server that the page came from, and nowhere else.
    """
    text = (files("octavo.server.http") / "page.html").read_text(encoding="utf-8")
    policy = {
        "default-src": "'none'",
        "script-src": _hashes(text, "script"),
        "style-src": _hashes(text, "style"),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return text.encode(), {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "; ".join(f"{what} {allowed}" for what, allowed in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


def _hashes(text: str, tag: str) -> str:
    """The sources of a policy that allow the elements `tag` of the page."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode() for inner in found)
    return " ".join(f"'sha256-{digest}'" for digest in digests)

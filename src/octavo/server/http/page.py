"""The chat page: the files of web/ as one document, with headers that let a browser run nothing but what is in it."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

LINK = re.compile(r'<link rel="stylesheet" href="(\w+\.css)">|<script src="(\w+\.js)"></script>')
"""What page.html names, and is sent in its place: one request, and no route that would need a key or not."""


@cache
def page() -> tuple[bytes, dict[str, str]]:
    """The page and its headers.

    The content security policy names scripts and style sheet by their hashes: text of a model that got into the page as
    HTML would still not run. Requests go to the server that the page came from, and nowhere else.
    """
    folder = files("octavo.server.http") / "web"

    def inline(found: re.Match[str]) -> str:
        name, tag = found[1] or found[2], "style" if found[1] else "script"
        return f"<{tag}>\n{(folder / name).read_text(encoding='utf-8')}</{tag}>"

    text = LINK.sub(inline, (folder / "page.html").read_text(encoding="utf-8"))
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

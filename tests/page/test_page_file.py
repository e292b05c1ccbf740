"""The chat page as a file: what may stand in it, and what its policy allows."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from octavo.server.http.page import page

WEB = Path(str(files("octavo.server.http"))) / "web"
TEXT = page()[0].decode()


def test_nothing_reads_text_as_markup() -> None:
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc", TEXT)
    assert not re.findall(r"<[^>]*\s(?:on\w+|style)=", TEXT.split("<script>")[0])


def test_nothing_comes_from_elsewhere() -> None:
    named = re.findall(r'(?:src|href)="([^"]*)"', TEXT.split("<script>")[0])
    assert [name.split(",")[0] for name in named] == ["data:image/svg+xml", "#prompt"]
    assert "@import" not in TEXT
    assert "url(" not in TEXT


def test_the_policy_allows_the_page_and_nothing_else() -> None:
    text, headers = page()
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert len(policy["script-src"].split()) == text.count(b"<script") == text.count(b"</script")
    assert text.count(b"<script") == len([*WEB.glob("*.js")])
    assert len(policy["style-src"].split()) == text.count(b"<style") == text.count(b"</style") == 1
    assert b"<!--" not in text


def test_the_files_are_short() -> None:
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in WEB.iterdir()}
    assert max(lines.values()) < 160, lines
    assert sum(lines.values()) < 1300, lines


def test_each_script_is_strict_and_says_what_it_is() -> None:
    for path in WEB.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert path.name == "markdown.js" or max(map(len, text.splitlines())) <= 140, path.name
        first, second = text.splitlines()[:2]
        assert first == '"use strict";', path.name
        assert second.startswith("/* "), path.name


def luminance(colour: str) -> float:
    """As WCAG 2 has it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_it_is_on(scheme: str) -> None:
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", (WEB / "style.css").read_text(encoding="utf-8"))
    colour = {name: luminance(light if scheme == "light" else dark) for name, light, dark in found}
    pairs = [(text, ground) for text in ("ink", "muted") for ground in ("page", "side", "raised", "soft")]
    pairs += [("accent", "page"), ("on-accent", "accent"), ("bad", "bad-soft"), ("bad", "page")]
    pairs += [(text, "raised") for text in ("word", "text", "number")]
    for text, ground in pairs:
        least, most = sorted((colour[text], colour[ground]))
        assert (most + 0.05) / (least + 0.05) >= 4.5, (text, ground)

"""The chat page as a file: what may stand in it, and what its policy allows."""

from __future__ import annotations

import re

from octavo.server.http.page import page

TEXT = page()[0].decode()


def test_nothing_reads_text_as_markup() -> None:
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc", TEXT)
    assert not re.findall(r"<[^>]*\s(?:on\w+|style)=", TEXT.split("<script>")[0])


def test_nothing_comes_from_elsewhere() -> None:
    named = re.findall(r'(?:src|href)="([^"]*)"', TEXT.split("<script>")[0])
    assert [name.split(",")[0] for name in named] == ["data:image/svg+xml"]
    assert "@import" not in TEXT
    assert "url(" not in TEXT


def test_the_policy_allows_the_page_and_nothing_else() -> None:
    text, headers = page()
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert len(policy["script-src"].split()) == len(policy["style-src"].split()) == 1
    assert text.count(b"<script") == text.count(b"<style") == 1


def test_the_page_is_short() -> None:
    assert len(TEXT.splitlines()) < 705

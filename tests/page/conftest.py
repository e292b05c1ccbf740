"""A browser for the tests of a package, and somebody who uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.page.fake_chat import Chat, serving
from tests.page.user import CHROMIUM, User


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def user(browser: Any) -> Iterator[User]:
    with serving(Chat()) as chat:
        one = User(browser, chat)
        yield one
        one.context.close()
    assert one.problems == []
    assert all(url.startswith((chat.url, "data:")) for url in one.asked)

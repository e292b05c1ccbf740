"""A server that goes away: the page says so, loses nothing that was written, and goes on when the server is back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.page.fake_chat import Chat, serving
from tests.page.user import DONE, User

pytestmark = pytest.mark.browser


def test_what_is_written_outlives_the_server(browser: Any) -> None:
    with serving(Chat()) as chat:
        user = User(browser, chat)
        user.say("hello")
        user.page.fill("#prompt", "half a sent")
    user.page.fill("#prompt", "Is anyone there?")
    user.page.press("#prompt", "Enter")
    user.page.wait_for_selector("#away >> text=be reached. Conversations and what you write are kept in this browser")
    user.page.wait_for_selector(DONE)
    user.page.fill("#prompt", "written while it is away")
    user.page.click("#chats .title")  # conversations are there
    assert user.texts(".message .body") == ["hello", "Is anyone there?"]
    assert [m["content"] for m in user.stored()[0]["messages"]][2] == "Is anyone there?"
    chat.told.get()
    with serving(chat):
        user.page.wait_for_selector("#away:empty", state="attached")
        assert user.page.input_value("#prompt") == "written while it is away"
        user.page.click(DONE)
        user.page.wait_for_selector("text=You said Is anyone there?, reply 2.")
        user.page.wait_for_selector(DONE)
        assert user.texts(".message .error") == []
        user.context.close()


def test_a_reply_that_ends_early_says_so(user: User) -> None:
    user.say("cut off")
    assert user.texts(".message > .text") == ["You said c"]
    assert user.texts(".message .error") == ["The reply broke off: the server ended it early."]
    user.page.click(DONE)  # what came of it stays, as a version
    user.page.wait_for_selector("text=2 of 2")


def test_the_page_asks_nobody_else(user: User) -> None:
    """And has all of itself: the fixture looks where requests went."""
    user.page.wait_for_selector("text=demo-model")
    user.say("markdown")
    user.page.click("#settings")
    assert {url.removeprefix(user.chat.url) for url in user.asked} == {"", "v1/models", "props", "v1/chat/completions"}

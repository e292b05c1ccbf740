"""Versions of messages: an edit or another reply takes nothing away and keeps what came after the version before it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.page.user import DONE, User

pytestmark = pytest.mark.browser
SHOWN = ".message .body, .message > .text"


def edit(user: User, number: int, text: str) -> None:
    user.page.hover(f".message >> nth={number}")
    user.page.click(f".message >> nth={number} >> [aria-label=Edit]")
    user.page.fill("textarea.edit", text)


def turn(user: User, number: int, where: str) -> None:
    user.page.click(f".message >> nth={number} >> [aria-label='{where} version']")


def test_an_edit_is_a_branch_and_nothing_is_lost(user: User) -> None:
    for text in ("one", "two"):
        user.say(text)
    edit(user, 0, "other")
    user.page.press("textarea.edit", "Enter")
    user.page.wait_for_selector("text=You said other, reply 3.")
    user.page.wait_for_selector(DONE)
    user.say("more")
    after = ["other", "You said other, reply 3.", "more", "You said more, reply 4."]
    assert user.texts(SHOWN) == after
    assert [m["content"] for m in user.chat.asked[-1]["messages"]] == after[:3]
    assert user.texts(".versions span") == ["2 of 2"]
    turn(user, 0, "Previous")
    before = ["one", "You said one, reply 1.", "two", "You said two, reply 2."]
    assert user.texts(SHOWN) == before
    assert user.texts("#chats .title span") == ["one"]
    assert user.focused() == "Next version"
    user.page.reload()
    assert user.texts(SHOWN) == before
    turn(user, 0, "Next")
    assert user.texts(SHOWN) == after
    assert user.texts("#said") == ["Version 2 of 2"]
    assert len(user.stored()[0]["messages"]) == 8


def test_a_branch_is_shown_where_it_was_left(user: User) -> None:
    user.say("one")
    user.say("two")
    user.page.click(DONE)  # another reply to "two"
    user.page.wait_for_selector("text=reply 3.")
    user.page.wait_for_selector(DONE)
    turn(user, 3, "Previous")
    assert user.texts(SHOWN)[3] == "You said two, reply 2."
    user.page.hover(".message >> nth=1")
    user.page.click(".message >> nth=1 >> [aria-label=Regenerate]")
    user.page.wait_for_selector("text=You said one, reply 4.")
    user.page.wait_for_selector(DONE)
    assert user.texts(SHOWN) == ["one", "You said one, reply 4."]
    turn(user, 1, "Previous")
    assert user.texts(SHOWN)[3] == "You said two, reply 2."


def test_a_reply_is_edited_without_asking_again(user: User) -> None:
    user.say("one")
    edit(user, 1, "It was I who said this.")
    user.page.press("textarea.edit", "Enter")  # a line more
    assert len(user.texts(SHOWN)) == 1
    user.page.press("textarea.edit", "Backspace")
    user.page.press("textarea.edit", "Control+Enter")
    assert user.texts(SHOWN) == ["one", "It was I who said this."]
    assert user.texts(".stats") == ["edited"]
    assert len(user.chat.asked) == 1
    user.say("two")
    assert user.chat.asked[-1]["messages"][1] == {"role": "assistant", "content": "It was I who said this."}
    turn(user, 1, "Previous")
    assert user.texts(SHOWN) == ["one", "You said one, reply 1."]


def test_an_edit_that_is_left_changes_nothing(user: User) -> None:
    user.say("one")
    edit(user, 0, "never mind")
    user.page.press("textarea.edit", "Escape")
    assert user.texts(SHOWN) == ["one", "You said one, reply 1."]
    assert user.focused() == "Edit"
    assert len(user.stored()[0]["messages"]) == 2


def test_a_reply_that_did_not_come_is_asked_for_in_its_place(user: User) -> None:
    user.page.route("**/v1/chat/completions", lambda route: route.abort())
    user.say("hello")
    user.page.unroute_all()
    user.problems.clear()
    user.page.click(DONE)
    user.page.wait_for_selector("text=You said hello, reply 1.")
    user.page.wait_for_selector(DONE)
    assert user.page.locator(".versions").count() == user.page.locator(".message .error").count() == 0


def test_conversations_of_before_there_were_branches(user: User) -> None:
    messages = [{"role": "user", "content": "old"}, {"role": "assistant", "content": "old reply", "reasoning": ""}]
    old = {"id": "x", "title": "old", "updated": 1, "system": "", "messages": messages}
    odd = {"id": "z", "messages": [{"role": "user", "content": 3}]}
    foreign: list[Any] = [3, {"id": "y"}, odd, {"id": 3, "messages": []}]
    values = {f"octavo.chat.{i}": json.dumps(one) for i, one in enumerate(foreign)} | {"octavo.chat.x": json.dumps(old)}
    user.page.evaluate("v => Object.assign(localStorage, v)", values | {"octavo.chat.broken": "{"})
    user.page.reload()
    assert user.texts("#chats .title") == ["old"]
    user.page.click("#chats .title")
    assert user.texts(SHOWN) == ["old", "old reply"]
    user.page.click(DONE)
    user.page.wait_for_selector("text=2 of 2")
    user.page.wait_for_selector(DONE)
    turn(user, 1, "Previous")
    assert user.texts(SHOWN) == ["old", "old reply"]


def test_two_windows_add_to_one_conversation(user: User) -> None:
    user.say("one")
    other = user.context.new_page()
    other.goto(user.chat.url)
    other.click("#chats .title")
    other.fill("#prompt", "of the other")
    other.press("#prompt", "Enter")
    other.wait_for_selector("text=You said of the other, reply 2.")
    other.wait_for_selector(DONE)
    user.page.wait_for_selector("text=You said of the other, reply 2.")  # it is shown here too
    user.page.evaluate("chat.messages.splice(2); switchTo(chat, chat.messages[1]); draw()")  # as if not told yet
    user.say("of this one")
    assert user.texts(SHOWN)[2:] == ["of this one", "You said of this one, reply 3."]
    turn(user, 2, "Next")
    assert user.texts(SHOWN)[2:] == ["of the other", "You said of the other, reply 2."]

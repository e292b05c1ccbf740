"""Without a mouse, and without eyes: the keyboard reaches all of the page, and a reply is read once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.page.fake_chat import Chat, serving
from tests.page.user import DONE, SCREENS, User

pytestmark = pytest.mark.browser
NAMELESS = """[...document.querySelectorAll(
    "button, input, select, textarea, progress, article, nav, section, dialog, a")].filter((e) =>
        !(e.ariaLabel || e.textContent.trim() || e.labels?.length ||
        document.getElementById(e.getAttribute("aria-labelledby")))).map((e) => e.outerHTML)"""
REACHED = """[...document.querySelectorAll("a, button, summary, textarea, pre")]
    .filter((e) => !e.disabled && !e.closest("dialog") && e.checkVisibility({ visibilityProperty: true })).length"""
LIVE = "[...document.querySelectorAll('[aria-live], [role=log], [role=status], [role=alert]')].map((e) => e.id)"
IDS = "[...document.querySelectorAll('[id]')].map((e) => e.id)"
OUTLINED = """(() => { const e = document.activeElement, s = getComputedStyle(e);
    return s.outlineStyle !== "none" || (e.closest("#box") && e.id === "prompt") || e.className === "edit"; })()"""


def test_all_of_it_is_reached_by_the_tab_key(user: User) -> None:
    user.say("one")
    user.page.click("#new")
    user.say("markdown")
    user.page.click(DONE)
    user.page.wait_for_selector("text=2 of 2")
    user.page.wait_for_selector(DONE)
    user.page.keyboard.press("Tab")  # so that the browser shows the focus
    user.page.evaluate("document.querySelector('.skip').focus()")
    wanted, seen = user.page.evaluate(REACHED), []
    for _ in range(wanted):
        assert user.page.evaluate(OUTLINED), user.focused()
        seen.append(user.page.evaluate("document.activeElement.seen = (document.activeElement.seen ?? 0) + 1"))
        user.page.keyboard.press("Tab")
    assert seen == [1] * wanted
    assert wanted >= 18


def test_shortcuts(user: User) -> None:
    page = user.page
    user.say("one")
    page.keyboard.press("Control+Shift+O")
    assert user.texts(".message") == []
    user.say("two")
    page.keyboard.press("Alt+ArrowDown")
    assert user.texts(".message .body") == ["one"]
    page.keyboard.press("Alt+ArrowUp")
    assert user.texts(".message .body") == ["two"]
    page.keyboard.press("Alt+ArrowUp")
    assert user.texts(".message .body") == ["two"]
    page.keyboard.press("Control+Shift+G")
    page.wait_for_selector("text=You said two, reply 3.")
    page.wait_for_selector(DONE)
    page.press("#prompt", "ArrowUp")
    assert page.input_value("textarea.edit") == "two"
    page.keyboard.press("Escape")
    page.fill("#prompt", "text")
    page.press("#prompt", "ArrowUp")
    assert page.locator("textarea.edit").count() == 0
    user.say("markdown")
    bottom = page.evaluate("document.getElementById('scroll').scrollTop")
    page.press("#prompt", "PageUp")
    assert page.evaluate("document.getElementById('scroll').scrollTop") < bottom
    page.press("#prompt", "PageDown")
    assert page.evaluate("document.getElementById('scroll').scrollTop") == bottom
    page.keyboard.press("Control+/")
    page.wait_for_selector("#keys[open]")
    listed = user.texts("#keys dt")
    assert {"Enter", "Escape", "Ctrl+Shift+O", "Ctrl+/"} < set(listed)
    page.keyboard.press("Control+Shift+O")  # nothing happens behind a dialog
    page.keyboard.press("Escape")
    assert user.texts(".message .body") == ["two", "markdown"]
    with page.expect_file_chooser():
        page.keyboard.press("Control+Shift+A")
    page.click("#settings")
    page.click("text=Keyboard shortcuts >> visible=true")
    page.wait_for_selector("#keys[open]")


def test_the_focus_comes_back(browser: Any) -> None:
    with serving(Chat(models={"a": {"value": "loaded"}})) as chat:
        user = User(browser, chat, **SCREENS["phone"])
        user.page.wait_for_selector("#choice")
        user.page.focus("#menu")
        user.page.keyboard.press("Enter")
        assert user.focused() == "new"
        assert user.page.get_attribute("#menu", "aria-expanded") == "true"
        assert user.page.evaluate("document.querySelector('main').inert")
        user.page.keyboard.press("Escape")
        assert user.focused() == "menu"
        assert not user.page.evaluate("document.querySelector('main').inert")
        for button in ("choice", "settings"):
            user.page.focus(f"#{button}")
            user.page.keyboard.press("Enter")
            user.page.wait_for_selector("dialog[open]")
            user.page.keyboard.press("Escape")
            assert user.focused() == button
        assert user.problems == []
        user.context.close()


def test_a_reply_is_read_once(user: User) -> None:
    page = user.page
    page.evaluate("""window.read = []; new MutationObserver(() => window.read.push(said.textContent))
        .observe(document.getElementById("said"), { childList: true, subtree: true, characterData: true })""")
    user.say("markdown")
    read = [text for text in page.evaluate("window.read") if text]
    assert read[0] == "Waiting for the reply"
    assert len(read) == 2
    assert read[1].startswith("Reply: # Sorting")
    assert sorted(page.evaluate(LIVE)) == ["away", "notices", "refused", "said"]
    assert page.get_attribute(".message.assistant", "aria-busy") == "false"


def test_all_of_it_has_a_name(browser: Any) -> None:
    with serving(Chat(models={"a": {"value": "loaded"}, "b": {"value": "loading"}})) as chat:
        user = User(browser, chat)
        for text in ("think", "markdown", "call"):
            user.say(text)
        user.page.click("#choice")
        user.page.wait_for_selector("#known >> text=loading")
        assert user.page.evaluate(NAMELESS) == []
        assert [e.get_attribute("aria-label") for e in user.page.locator("#log article").all()] == ["You", "Reply"] * 3
        assert user.page.locator("h1").count() == user.page.locator("main").count() == 1
        ids = user.page.evaluate(IDS)
        assert len(ids) == len(set(ids))
        user.context.close()

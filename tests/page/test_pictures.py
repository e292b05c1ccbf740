"""The page on a phone and on a desk, light and dark: nothing is wider than the window, and pictures of it are kept."""

from __future__ import annotations

from typing import Any

import pytest

from tests.page.fake_chat import Chat, serving
from tests.page.user import DONE, SCREENS, User

pytestmark = pytest.mark.browser
NOTES = b"Meeting of Tuesday\n\n- the pages are kept on disk\n- they are read again after a start\n"
PHOTO = b"\x89PNG\r\n\x1a\n\0"
MODELS: dict[str, dict[str, Any]] = {
    "qwen3-1.7b": {"value": "loaded"},
    "ggml-org/a-model-with-a-long-name-instruct-2507-GGUF:Q4_K_M": {
        "value": "loading", "progress": {"value": 0.4, "what": "reading weights"},
    },
    "gemma": {"value": "sleeping"},
    "broken": {"value": "unloaded", "failed": True, "why": "broken.gguf: blk.0.attn_q.weight ends after the file"},
    "ORG/large:Q8_0": {"value": "downloading", "progress": {"ORG/large:Q8_0": {"done": 300, "total": 1200}}},
}
WIDE = ("document.documentElement", "document.getElementById('scroll')", "document.querySelector('dialog[open]')")


def attach(user: User, name: str, text: bytes) -> None:
    user.page.set_input_files("#file", [{"name": name, "mimeType": "text/plain", "buffer": text}])


def talk(user: User) -> None:
    attach(user, "notes.txt", NOTES)
    user.page.wait_for_selector(".chip")
    user.say("think")
    user.page.click(DONE)
    user.page.wait_for_selector("text=2 of 2")
    user.page.wait_for_selector(DONE)


def thoughts(user: User) -> None:
    user.page.click(".message summary:has-text('Thought')")
    user.page.click(".message summary:has-text('notes.txt')")
    user.page.wait_for_selector("text=Let me see.")


def markdown(user: User) -> None:
    user.page.keyboard.press("Control+Shift+O")
    user.say("markdown")


def tools(user: User) -> None:
    user.page.keyboard.press("Control+Shift+O")
    user.say("call")


def edit(user: User) -> None:
    user.page.click(".message.user >> [aria-label=Edit]", force=True)


def models(user: User) -> None:
    user.page.click("#choice")
    user.page.wait_for_selector("#known >> text=reading weights")


def conversations(user: User) -> None:
    user.page.keyboard.press("Escape")
    user.page.keyboard.press("Control+Shift+O")
    user.page.click("#choice")
    user.page.click("#known >> text=gemma")
    user.say("A question of some length, so that its title does not fit into the list")
    if user.page.is_visible("#menu"):
        user.page.click("#menu")


def options(user: User) -> None:
    user.page.keyboard.press("Escape")
    user.page.click("#settings")


def keys(user: User) -> None:
    user.page.click("#show-keys")


def trouble(user: User) -> None:
    user.page.keyboard.press("Escape")
    user.page.keyboard.press("Control+Shift+O")
    attach(user, "photo.png", PHOTO)
    attach(user, "todo.md", b"- milk")
    user.page.wait_for_selector(".chip")
    user.page.route("**/v1/**", lambda route: route.abort())
    user.say("Is anyone there?")
    user.page.wait_for_selector("#away:has-text('reached')")
    user.page.unroute_all()
    user.problems.clear()  # those of the request


SCENES = (talk, thoughts, markdown, tools, edit, models, conversations, options, keys, trouble)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_the_page_fits_and_is_pictured(browser: Any, screen: str, scheme: str) -> None:
    with serving(Chat(models={name: dict(status) for name, status in MODELS.items()})) as chat:
        user = User(browser, chat, color_scheme=scheme, **SCREENS[screen])
        user.page.wait_for_selector("#choice")
        red = int(user.page.evaluate("getComputedStyle(document.body).backgroundColor").split("(")[1].split(",")[0])
        assert red > 240 if scheme == "light" else red < 40
        assert user.page.is_visible("#chats") == (screen == "desk")
        for i, scene in enumerate(SCENES):
            scene(user)
            user.picture(f"{screen}-{scheme}-{i}-{scene.__name__}")
            for wide in WIDE:
                assert user.page.evaluate(f"(e => !e || e.scrollWidth <= e.clientWidth)({wide})"), (scene, wide)
        assert user.problems == []
        user.context.close()

"""Somebody at a browser, headless, and what one sees there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.limits import HANG_S
from tests.page.fake_chat import Chat

CHROMIUM = shutil.which("chromium")
DONE = ".message:last-child .tools [aria-label=Regenerate]"
"""What the last reply has once it is whole."""
PICTURES = Path(__file__).parents[2] / "build/page"
"""Where pictures of the page are left, for those who want to look at them."""
SCREENS: dict[str, dict[str, Any]] = {
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
    "desk": {"viewport": {"width": 1440, "height": 900}},
}


class User:
    """Somebody at a browser."""

    def __init__(self, browser: Any, chat: Chat, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(1000 * HANG_S)
        self.chat, self.page = chat, self.context.new_page()
        self.problems: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.context.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(chat.url)

    def say(self, text: str, wait: bool = True) -> None:
        self.page.fill("#prompt", text)
        before = self.page.locator(".message").count()
        self.page.press("#prompt", "Enter")
        if wait:
            self.page.wait_for_function("n => document.querySelectorAll('.message').length > n", arg=before)
            self.page.wait_for_selector(DONE)

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.page.locator(selector).all_inner_texts()
        return found

    def stored(self) -> list[dict[str, Any]]:
        """The conversations that the browser keeps."""
        kept = self.page.evaluate("Object.keys(localStorage).filter(k => k.includes('chat')).map(k => localStorage[k])")
        return [json.loads(one) for one in kept]

    def focused(self) -> str:
        """What has the focus: its id, label or text."""
        found: str = self.page.evaluate("(e => e.id || e.ariaLabel || e.textContent)(document.activeElement)")
        return found

    def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", animations="disabled")

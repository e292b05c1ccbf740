"""The chat page in a browser, headless: what a user does, and what a hostile model could try."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import octavo
from tests.page.fake_chat import USUAL, Chat, serving
from tests.server.live_server import running_model
from tests.server.scripted_engine import until

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium")
STATS = (
    "45 tokens · 96.2 a second · first after 0.02 s", "1 token · first after 0.09 s · stopped",
    "4,045 tokens · 96.2 a second · first after 10.02 s · cut at the limit",
)
DONE = ".message:last-child .tools [aria-label=Regenerate]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class User:
    """Somebody at a browser."""

    def __init__(self, browser: Any, chat: Chat, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(10_000)
        self.chat, self.page = chat, self.context.new_page()
        self.problems: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.context.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(chat.url)

    def say(self, text: str, wait: bool = True) -> None:
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")
        if wait:
            self.page.wait_for_selector(DONE)

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.page.locator(selector).all_inner_texts()
        return found

    def stored(self) -> list[dict[str, Any]]:
        """The conversations that the browser keeps."""
        kept = self.page.evaluate("Object.keys(localStorage).filter(k => k.includes('chat')).map(k => localStorage[k])")
        return [json.loads(one) for one in kept]


@pytest.fixture
def user(browser: Any) -> Iterator[User]:
    with serving(Chat()) as chat:
        one = User(browser, chat)
        yield one
        one.context.close()
    assert one.problems == []
    assert all(url.startswith((chat.url, "data:")) for url in one.asked)


def test_a_reply_is_streamed_kept_and_there_again(user: User) -> None:
    user.page.wait_for_selector("text=demo-model")
    user.say("hello")
    assert user.texts(".message .body, .message > .text") == ["hello", "You said hello, reply 1."]
    assert user.texts(".stats")[0].startswith("5 tokens · 42.3 a second · first after 0.")
    assert user.texts("#context") == ["105 of 4,096 tokens"]
    assert user.texts("#chats .title") == ["hello"]
    user.page.reload()
    assert user.texts(".message > .text") == ["You said hello, reply 1."]
    user.say("more")
    assert [m["content"] for m in user.chat.asked[-1]["messages"]] == ["hello", "You said hello, reply 1.", "more"]
    assert "temperature" not in user.chat.asked[-1]


@pytest.mark.parametrize("how", ["button", "key"])
def test_stop(user: User, how: str) -> None:
    user.say("endless", wait=False)
    user.page.wait_for_selector("text=on and on and")
    if how == "button":
        user.page.click("[aria-label=Stop]")
    else:
        user.page.keyboard.press("Escape")
    user.page.wait_for_selector(DONE)
    assert user.texts(".error") == []
    assert user.texts(".stats")[0].endswith(" s · stopped")
    assert user.stored()[0]["messages"][1]["content"].startswith("on and on")
    user.page.reload()
    assert user.texts(".stats")[0].endswith(" s · stopped")
    user.say("hello")
    assert user.chat.left == 1
    assert len(user.texts(".message")) == 4
    assert "stopped" not in user.texts(".stats")[1]


def test_a_reply_that_is_stopped_before_it_begins_says_so(user: User) -> None:
    user.say("never", wait=False)
    user.page.click("[aria-label=Stop]")
    user.page.wait_for_selector(DONE)
    assert user.texts(".stats") == ["stopped"]
    user.page.reload()
    assert user.texts(".stats") == ["stopped"]


def test_a_reload_opens_the_conversation_that_was_open(user: User) -> None:
    user.say("first")
    user.page.click("#new")
    user.page.reload()
    assert user.texts(".message") == []
    user.say("second")
    user.page.click("#chats .title >> text=first")
    user.page.reload()
    assert user.texts(".message .body") == ["first"]
    assert user.texts("#chats li.open .title") == ["first"]
    other = user.context.new_page()  # a window of its own, with a conversation of its own
    other.goto(user.chat.url)
    assert other.locator(".message").count() == 0
    user.page.click("[aria-label='Remove first']")
    user.page.click("[aria-label='Remove first']")
    user.page.reload()
    assert user.texts(".message") == []
    assert user.texts("#chats .title") == ["second"]


def test_a_reload_in_the_middle_of_a_reply_keeps_what_there_is(user: User) -> None:
    user.say("endless", wait=False)
    user.page.wait_for_selector("text=on and on and")
    user.page.reload()
    user.page.wait_for_selector(DONE)
    assert user.texts(".message > .text")[0].startswith("on and on and")
    assert user.texts(".stats")[0].endswith("stopped")


def test_the_title_is_that_of_the_first_text(user: User) -> None:
    user.say("one")
    user.page.hover(".message.user")
    user.page.click(".message.user >> [aria-label=Edit]")
    user.page.fill("textarea.edit", "changed")
    user.page.press("textarea.edit", "Enter")
    user.page.wait_for_selector("text=You said changed, reply 2.")
    user.page.wait_for_selector(DONE)
    assert user.texts("#chats .title") == ["changed"]
    user.say("two")
    assert user.texts("#chats .title") == ["changed"]
    assert [one["title"] for one in user.stored()] == ["changed"]


def test_no_more_tokens_are_shown_than_the_context_has(user: User) -> None:
    """A server may count the token that did not fit."""
    user.say("full")
    assert user.texts("#context") == ["4,096 of 4,096 tokens"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 320])
def test_the_row_of_a_reply_breaks_between_its_parts(browser: Any, width: int, scheme: str) -> None:
    with serving(Chat()) as chat:
        size = {"width": width, "height": 740}
        user = User(browser, chat, viewport=size, color_scheme=scheme, is_mobile=True, has_touch=True)
        user.say("hello")
        for stats in STATS:
            user.page.evaluate("([s]) => { chat.messages[1].stats = s; draw(); }", [stats])
            assert user.texts(".stats") == [stats]
            copied, again = (user.page.locator(f".message:last-child [aria-label={name}]").bounding_box()
                             for name in ("Copy", "Regenerate"))
            assert copied["y"] == again["y"]
            heights = {part.bounding_box()["height"] for part in user.page.locator(".stats span").all()}
            assert len(heights) == 1
            assert heights.pop() < 30
            assert user.page.evaluate("document.getElementById('scroll').scrollWidth") == width
        user.context.close()


def test_regenerate_and_edit(user: User) -> None:
    user.say("one")
    user.page.click(DONE)
    user.page.wait_for_selector("text=reply 2.")
    user.page.wait_for_selector(DONE)
    user.say("two")
    user.page.hover(".message.user >> nth=0")
    user.page.click(".message.user >> nth=0 >> [aria-label=Edit]")
    user.page.fill("textarea.edit", "changed")
    user.page.press("textarea.edit", "Enter")
    user.page.wait_for_selector("text=You said changed, reply 4.")
    assert [m["content"] for m in user.chat.asked[-1]["messages"]] == ["changed"]
    assert len(user.texts(".message")) == 2


def test_nothing_is_cut_while_a_reply_is_under_way(user: User) -> None:
    """An edit there would take the messages after it along, and send nothing."""
    user.say("one")
    user.say("endless", wait=False)
    user.page.wait_for_selector("text=on and on and")
    user.page.hover(".message.user >> nth=0")
    assert not user.page.is_visible(".message.user >> nth=0 >> [aria-label=Edit]")
    assert not user.page.is_visible("[aria-label=Regenerate] >> nth=0")
    assert user.page.is_visible(".message.user >> nth=0 >> [aria-label=Copy]")
    user.page.evaluate("edit(document.querySelector('.message'), chat.messages[0])")
    user.page.fill("textarea.edit", "changed")
    user.page.press("textarea.edit", "Enter")
    user.page.click("[aria-label=Stop]")
    user.page.wait_for_selector(DONE)
    assert [m["content"] for m in user.stored()[0]["messages"]][:3] == ["one", "You said one, reply 1.", "endless"]
    assert user.page.input_value("textarea.edit") == "changed"
    user.page.press("textarea.edit", "Enter")
    user.page.wait_for_selector("text=You said changed, reply 3.")


def test_the_end_of_a_reply_scrolls_nowhere(user: User) -> None:
    user.say("markdown")
    user.say("endless", wait=False)
    user.page.wait_for_selector("text=on and on and")
    user.page.evaluate("document.getElementById('scroll').scrollTop = 0")
    user.page.keyboard.press("Escape")
    user.page.wait_for_selector(DONE)
    assert user.page.evaluate("document.getElementById('scroll').scrollTop") == 0


def test_settings_show_what_is_in_force(user: User) -> None:
    user.page.wait_for_selector("[name=top_k][placeholder='20']", state="attached")
    shown = {name: user.page.get_attribute(f"[name={name}]", "placeholder") for name in USUAL}
    assert shown == {name: str(value) for name, value in USUAL.items()}


def test_settings_go_with_requests(user: User) -> None:
    user.page.click("#settings")
    for name, value in {"system": "Be brief.", "temperature": "0.5", "top_k": "7", "seed": "0"}.items():
        user.page.fill(f"[name={name}]", value)
    user.page.select_option("[name=thinking]", "off")
    user.page.click("#options >> text=Save")
    user.say("hello")
    asked = user.chat.asked[-1]
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    assert {k: asked[k] for k in ("temperature", "top_k", "seed")} == {"temperature": 0.5, "top_k": 7, "seed": 0}
    assert asked["chat_template_kwargs"] == {"enable_thinking": False}
    assert not {"top_p", "min_p", "max_tokens"} & set(asked)
    user.page.reload()
    user.page.click("#settings")
    user.page.fill("[name=temperature]", "2")
    user.page.click("#options >> text=Cancel")
    user.say("again")
    assert user.chat.asked[-1]["temperature"] == 0.5


def test_markdown(user: User) -> None:
    user.say("markdown")
    reply = ".message > .text "
    assert user.texts(reply + "h1") == ["Sorting"]
    assert user.texts(reply + "strong") == ["pivot"]
    assert user.texts(reply + "em") == ["splits"]
    assert user.texts(reply + "s") == ["always"]
    assert user.page.get_attribute(reply + "a", "href") == "https://example.org/quick"
    assert user.texts(reply + "p > code") == ["sorted(xs)"]
    (code,) = user.texts(reply + "pre")
    assert code.splitlines()[1] == "    # an empty list is sorted"
    assert user.texts(reply + ".comment") == ["# an empty list is sorted"]
    assert user.texts(reply + ".word")[0] == "def"
    assert user.texts(reply + "ol > li > ul > li") == ["smaller ones", "larger ones"]
    assert user.texts(reply + "td") == ["average", "n log n", "worst", "n^2"]
    assert user.texts(reply + "p >> nth=-1") == ["Done with a_snake_name and 2 * 3 * 4."]


def test_text_of_a_model_is_never_markup(user: User) -> None:
    user.say("hostile")
    user.say("<img src=x onerror='window.hacked=1'>")
    assert user.page.evaluate("window.hacked") is None
    assert user.page.locator("#log :is(img, script, iframe, b)").count() == 0
    assert [a.get_attribute("href") for a in user.page.locator("#log a").all()] == ["https://evil.example/p.png"]
    assert "<img src=x onerror=" in user.texts(".message > .text")[0]
    assert user.texts(".message.user .body")[1] == "<img src=x onerror='window.hacked=1'>"
    assert not any("evil" in url for url in user.asked)


def test_markup_that_got_in_would_not_run(browser: Any) -> None:
    with serving(Chat()) as chat:
        user = User(browser, chat)
        user.page.evaluate("document.getElementById('log').innerHTML = '<img src=x onerror=\"window.hacked=1\">'")
        user.page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'hacked=1'}))")
        user.page.wait_for_timeout(100)
        assert user.page.evaluate("window.hacked") is None
        assert any("Content Security Policy" in problem for problem in user.problems)
        user.context.close()


def test_the_key_is_asked_once(browser: Any) -> None:
    with serving(Chat(key="secret")) as chat:
        user = User(browser, chat)
        user.page.fill("[name=key]", "secret")
        user.page.click("#key >> text=Continue")
        user.page.wait_for_selector("text=demo-model")
        user.say("hello")
        user.page.reload()
        user.page.wait_for_selector("text=demo-model")
        assert not user.page.is_visible("#key")
        assert user.page.evaluate("sessionStorage.getItem('octavo.key')") == "secret"
        assert "secret" not in user.page.evaluate("JSON.stringify(localStorage)")
        user.context.close()


def test_what_goes_wrong_is_told(browser: Any) -> None:
    with serving(Chat()) as chat:
        user = User(browser, chat)
        user.say("busy")
        assert user.texts(".error") == ["the queue is full (try again in 7 s)"]
        assert user.page.locator(".message:last-child [aria-label=Copy]").count() == 0
        user.say("break")
        assert user.texts(".error")[1] == "the engine has gone"
        assert user.texts(".message:last-child > .text") == ["You said b"]
    user.say("anyone")
    assert user.texts(".error")[2] == "The server can't be reached."
    user.context.close()


def test_thoughts_fold_when_the_reply_begins(user: User) -> None:
    user.say("think")
    assert user.texts(".message > .text") == ["You said think, reply 1."]
    assert user.page.locator("details").get_attribute("open") is None
    user.page.click("summary")
    assert user.texts("details .text") == ["Let me see."]
    user.say("more")
    assert "Let me" not in json.dumps(user.chat.asked[-1])


def test_conversations(user: User) -> None:
    user.say("first")
    user.page.click("#new")
    user.say("second")
    assert user.texts("#chats .title") == ["second", "first"]
    user.page.click("#chats .title >> text=first")
    assert user.texts(".message .body") == ["first"]
    user.page.click("[aria-label='Remove first']")
    assert len(user.stored()) == 2
    user.page.click("[aria-label='Remove first']")
    assert [one["title"] for one in user.stored()] == ["second"]
    assert user.texts(".message") == []


def test_a_reply_goes_on_while_another_conversation_is_open(user: User) -> None:
    user.say("endless", wait=False)
    user.page.wait_for_selector("text=on and on and")
    user.page.click("#new")
    assert user.texts(".message") == []
    user.page.click("#chats .title")
    length = len(user.texts(".message > .text")[0])
    user.page.wait_for_timeout(300)
    assert len(user.texts(".message > .text")[0]) > length
    user.page.click("[aria-label=Stop]")
    user.page.wait_for_selector(DONE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(browser: Any, scheme: str) -> None:
    with serving(Chat()) as chat:
        size = {"width": 390, "height": 844}
        user = User(browser, chat, viewport=size, color_scheme=scheme, is_mobile=True, has_touch=True)
        user.say("markdown")
        assert user.page.evaluate("document.documentElement.scrollWidth") == 390
        assert user.page.evaluate("document.getElementById('scroll').scrollWidth") == 390
        assert not user.page.is_visible("#chats")
        user.page.click("#menu")
        user.page.click("#chats .title")
        user.page.wait_for_selector("#chats", state="hidden")
        red = int(user.page.evaluate("getComputedStyle(document.body).backgroundColor").split("(")[1].split(",")[0])
        assert red > 240 if scheme == "light" else red < 40
        assert user.problems == []
        user.context.close()


def test_colours_that_are_chosen(user: User) -> None:
    user.page.click("#settings")
    user.page.select_option("[name=theme]", "dark")
    user.page.click("#options >> text=Save")
    user.page.reload()
    assert user.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 28)"


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1200, "dark")])
def test_several_models_are_chosen_loaded_and_named_in_requests(browser: Any, width: int, scheme: str) -> None:
    states = {"small": {"value": "loaded"}, "large-with-a-long-name-Q4_K_M": {"value": "unloaded"},
              "asleep": {"value": "sleeping"}}
    large = [*states][1]
    with serving(Chat(models=states)) as chat:
        user = User(browser, chat, viewport={"width": width, "height": 760}, color_scheme=scheme)
        choice = user.page.locator("#choice")
        choice.wait_for(state="visible")
        assert user.texts("#choice option") == ["small", f"{large} (not loaded)", "asleep (sleeping)"]
        assert user.page.locator("#model").is_hidden()
        user.say("hello")
        assert chat.asked[-1]["model"] == "small"
        assert user.texts("#context") == ["105 of 512 tokens"]
        if width < 700:
            user.page.click("#menu")
        user.page.click("#new")
        choice.select_option(large)
        user.page.click("#load")
        until(lambda: chat.asked[-1].get("path") is not None)
        user.page.wait_for_selector("#load >> text=Load")
        assert chat.asked[-1] == {"path": "/models/load", "model": large}
        states[large] = {"value": "loading"}
        progress = {"stages": ["text_model"], "current": "text_model", "value": 0.4}
        chat.told.put({"model": large, "event": "model_status", "data": {"status": "loading", "progress": progress}})
        user.page.wait_for_selector(f"#choice option:text-is('{large} (loading 40%)')", state="attached")
        assert user.texts("#load") == ["Cancel (40%)"]
        states[large] = {"value": "loaded"}
        chat.told.put({"model": large, "event": "model_status", "data": {"status": "loaded"}})
        user.page.wait_for_selector("#load >> text=Unload")
        user.say("hello again")
        assert chat.asked[-1]["model"] == large
        failed = {"status": "unloaded", "failed": True, "why": "it is too large"}
        chat.told.put({"model": "asleep", "event": "model_status", "data": failed})
        user.page.wait_for_selector(".error:text-is('asleep: it is too large')")
        user.page.reload()
        user.page.wait_for_selector("#load >> text=Unload")
        assert choice.input_value() == large
        assert user.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert user.problems == []
        user.context.close()


def test_with_the_server_itself(browser: Any) -> None:
    with octavo.load("demo", max_sequences=2, device="cpu") as model, running_model(model, keys=("secret",)) as server:
        user = User(browser, Chat(port=server.port))
        user.page.fill("[name=key]", "secret")
        user.page.click("#key >> text=Continue")
        user.page.wait_for_selector("text=demo")
        user.page.click("#settings")
        user.page.wait_for_selector("[name=temperature][placeholder='0']")  # the demo's own
        user.page.fill("[name=temperature]", "0")
        user.page.click("#options >> text=Save")
        user.say("What is 12 * 7?")
        assert user.texts(".message > .text") == ["12 × 7 = 84."]
        assert user.texts(".stats")[0].startswith("11 tokens · ")
        assert user.texts("#context") == ["28 of 1,024 tokens"]
        user.say("x " * 1500)
        assert "This model's maximum context length is 1024 tokens" in user.texts(".error")[0]
        user.context.close()

"""The chat page in a browser, headless: what a user does, and what a hostile model could try."""

from __future__ import annotations

import json
from typing import Any

import pytest

import octavo
from tests.page.fake_chat import USUAL, Chat, serving
from tests.page.user import DONE, User
from tests.server.live_server import running_model
from tests.server.scripted_engine import until

pytestmark = pytest.mark.browser
STATS = (
    "45 tokens · 96.2 a second · first after 0.02 s", "1 token · first after 0.09 s · stopped",
    "4,045 tokens · 96.2 a second · first after 10.02 s · cut at the limit",
)


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


def test_stop(user: User) -> None:
    user.say("endless", wait=False)
    user.page.wait_for_selector("text=on and on and")
    user.page.click("[aria-label=Stop]")
    user.page.wait_for_selector(DONE)
    assert user.texts(".message .error") == []
    assert user.texts(".stats")[0].endswith(" s · stopped")
    assert user.stored()[0]["messages"][1]["content"].startswith("on and on")
    user.page.reload()
    assert user.texts(".stats")[0].endswith(" s · stopped")
    user.say("endless", wait=False)
    user.page.wait_for_selector(".message:last-child > .text:has-text('on and on and')")
    user.page.keyboard.press("Escape")
    user.page.wait_for_selector(DONE)
    assert user.texts(".stats")[1].endswith(" s · stopped")
    user.say("hello")
    assert user.chat.left == 2
    assert len(user.texts(".message")) == 6
    assert "stopped" not in user.texts(".stats")[2]


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


@pytest.mark.parametrize("width", [375, 320])
def test_the_row_of_a_reply_breaks_between_its_parts(browser: Any, width: int) -> None:
    with serving(Chat()) as chat:
        size = {"width": width, "height": 740}
        user = User(browser, chat, viewport=size, is_mobile=True, has_touch=True)
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
    assert user.texts(reply + "h2") == ["Sorting"]
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
        assert user.texts(".message .error") == ["the queue is full (try again in 7 s)"]
        assert user.page.locator(".message:last-child [aria-label=Copy]").count() == 0
        user.say("break")
        assert user.texts(".message .error")[1] == "the engine has gone"
        assert user.texts(".message:last-child > .text") == ["You said b"]
    user.say("anyone")
    assert user.texts(".message .error")[2] == "The server can't be reached."
    user.context.close()


def test_thoughts_fold_when_the_reply_begins(user: User) -> None:
    user.say("think")
    assert user.texts(".message > .text") == ["You said think, reply 1."]
    assert user.page.locator(".message details").get_attribute("open") is None
    user.page.click(".message summary")
    user.page.wait_for_selector(".message details .text >> text=Let me see.")
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
    until(lambda: len(user.texts(".message > .text")[0]) > length)
    user.page.click("[aria-label=Stop]")
    user.page.wait_for_selector(DONE)


def test_colours_that_are_chosen(user: User) -> None:
    user.page.click("#settings")
    user.page.select_option("[name=theme]", "dark")
    user.page.click("#options >> text=Save")
    user.page.reload()
    assert user.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 28)"


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
        assert "This model's maximum context length is 1024 tokens" in user.texts(".message .error")[0]
        user.context.close()

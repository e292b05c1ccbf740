"""Several models on the page: chosen, loaded and downloaded, and conversations that stay with theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.page.fake_chat import Chat, serving
from tests.page.user import DONE, User
from tests.router.live_models import served
from tests.router.live_models import serving as routing
from tests.server.scripted_engine import until

pytestmark = pytest.mark.browser
LARGE = "large-with-a-long-name-Q4_K_M"
HOSTILE = "<img src=x onerror='window.hacked=1'>\u202e"


@pytest.fixture
def several(browser: Any) -> Iterator[User]:
    states = {"small": {"value": "loaded"}, LARGE: {"value": "unloaded"}, "gemma": {"value": "sleeping"}}
    with serving(Chat(models=states)) as chat:
        user = User(browser, chat)
        user.page.wait_for_selector("#choice")
        yield user
        assert user.problems == []
        user.context.close()


def rows(user: User) -> list[str]:
    return [" ".join(row.split()) for row in user.texts("#known li")]


def choose(user: User, name: str) -> None:
    user.page.click("#choice")
    user.page.click(f"#known bdi:text-is({name!r})")


def happens(user: User, model: str, event: str, **data: Any) -> None:
    """The server tells of something that is so from now on."""
    status = {"value": "downloading", "progress": data} if event == "download_progress" else {
        **data, "value": data.get("status")}
    if event in ("model_status", "download_progress"):
        user.chat.models[model] = {key: value for key, value in status.items() if key != "status"}
    user.chat.told.put({"model": model, "event": event, "data": data})


def test_a_model_is_chosen_loaded_and_named_in_requests(several: User) -> None:
    page = several.page
    several.say("hello")
    assert several.chat.asked[-1]["model"] == "small"
    assert several.texts("#context") == ["105 of 512 tokens"]
    page.click("#choice")
    assert rows(several) == ["small loaded Unload", f"{LARGE} not loaded Load", "gemma sleeping Load"]
    page.click(f"[aria-label='Load {LARGE}']")
    until(lambda: several.chat.asked[-1].get("path") is not None)
    assert several.chat.asked[-1] == {"path": "/models/load", "model": LARGE}
    progress = {"stages": ["text_model"], "current": "text_model", "value": 0.4, "what": "reading"}
    happens(several, LARGE, "model_status", status="loading", progress=progress)
    page.wait_for_selector("#known >> text=loading 40% · reading")
    assert page.get_by_label(f"Progress of {LARGE}").get_attribute("value") == "0.4"
    assert several.focused() == f"Cancel {LARGE}"  # the button that was pressed, which is another now
    page.press(f"[aria-label='Cancel {LARGE}']", "Enter")
    until(lambda: several.chat.asked[-1]["path"] == "/models/unload")
    happens(several, LARGE, "model_status", status="loaded")
    page.wait_for_selector(f"[aria-label='Unload {LARGE}']")
    page.click("#known bdi >> nth=1")
    assert several.focused() == "prompt"
    assert several.texts("#choice") == [LARGE]
    several.say("hello again")
    assert several.chat.asked[-1]["model"] == LARGE
    assert several.texts(".stats span >> nth=0") == ["small ·"]
    happens(several, "gemma", "model_status", status="unloaded", failed=True, why="it is too large")
    page.wait_for_selector("#notices span:text-is('gemma: it is too large')")
    page.click("#choice")
    assert rows(several)[2] == "gemma failed it is too large Load"
    page.reload()
    page.wait_for_selector(f"#choice >> text={LARGE}")


def test_a_message_waits_for_its_model(several: User) -> None:
    choose(several, "gemma")
    assert several.texts("#choice small") == ["sleeping"]
    several.say("never", wait=False)
    happens(several, "gemma", "model_status", status="loading", progress={"value": 0.25})
    several.page.wait_for_selector("#choice small:text-is('loading 25%')")
    assert several.page.get_attribute(".wait", "data-why") == "gemma is loading 25%"
    assert several.page.locator("#progress").get_attribute("value") == "0.25"
    assert several.texts("#said") == ["gemma is loading 25%"]
    several.page.keyboard.press("Escape")
    several.page.wait_for_selector(DONE)


def test_a_download(several: User) -> None:
    page = several.page
    page.click("#choice")
    page.fill("#pull input", "taken")
    page.press("#pull input", "Enter")
    page.wait_for_selector("#refused:text-is('taken is not a hub name')")
    several.problems.clear()
    page.fill("#pull input", "ORG/new:Q8_0")
    page.click("text=Download >> visible=true")
    until(lambda: several.chat.asked == [{"path": "/models", "model": "ORG/new:Q8_0"}])
    page.wait_for_selector("#known >> text=ORG/new:Q8_0")
    assert page.input_value("#pull input") == ""
    parts = {"one": {"done": 30, "total": 100}, "two": {"done": 20, "total": 100}}
    happens(several, "ORG/new:Q8_0", "download_progress", **parts)
    page.wait_for_selector("#known >> text=downloading 25%")
    del several.chat.models["ORG/new:Q8_0"]
    happens(several, "ORG/new:Q8_0", "download_failed", why="the disk is full")
    page.wait_for_selector("#notices >> text=ORG/new:Q8_0 was not downloaded: the disk is full")
    page.wait_for_selector("#known li >> nth=3", state="detached")


def test_no_download_is_offered_where_the_server_refuses_it(several: User) -> None:
    several.page.click("#choice")
    assert several.page.is_visible("#pull input")
    several.chat.pulls = False
    several.page.reload()
    several.page.wait_for_selector("#choice >> text=small")
    several.page.click("#choice")
    assert several.page.is_visible("#known >> text=gemma")
    assert not several.page.is_visible("#pull")


def test_models_that_are_known_once_there_is_a_key(browser: Any) -> None:
    with serving(Chat(key="secret", models={"small": {"value": "loaded"}})) as chat:
        user = User(browser, chat)
        user.page.click("#key >> text=Cancel")
        user.say("hello", wait=False)
        user.page.fill("[name=key]", "secret")
        user.page.click("#key >> text=Continue")
        user.page.wait_for_selector(DONE)
        assert chat.asked[-1]["model"] == "small"
        assert user.texts("#choice") == ["small"]
        user.context.close()


def test_a_hidden_window_does_not_listen(several: User) -> None:
    """A browser has six connections to a server, for all its windows."""
    until(lambda: several.chat.listened == 1)
    several.page.evaluate("Object.defineProperty(document, 'hidden', { get: () => window.isHidden })")

    def turns(hidden: str, times: int) -> None:
        looked = several.chat.looked
        several.page.evaluate(f"window.isHidden = {hidden}; document.dispatchEvent(new Event('visibilitychange'))")
        until(lambda: several.chat.looked > looked)  # what has changed meanwhile
        until(lambda: several.chat.listened == times)

    turns("true", 1)
    turns("false", 2)


def test_conversations_stay_with_their_models(several: User) -> None:
    several.say("to the small one")
    several.page.click("#new")
    choose(several, "gemma")
    several.say("to gemma")
    assert several.texts("#chats .title small") == ["gemma", "small"]
    several.page.click("#chats >> text=to the small one")
    assert several.texts("#choice") == ["small"]
    several.page.select_option("#filter", "gemma")
    assert several.texts("#chats .title span") == ["to gemma"]
    several.page.select_option("#filter", "")
    several.page.click("#chats >> text=to gemma")
    del several.chat.models["gemma"]
    several.chat.told.put({"model": "*", "event": "models_reload"})
    several.page.wait_for_selector("#strayed >> text=with gemma, which this server does not have: small goes on")
    several.say("and now?")
    assert several.chat.asked[-1]["model"] == "small"
    assert several.texts("#strayed") == [""]
    assert several.texts(".stats span:first-child") == ["gemma ·", "small ·"]


def test_a_name_can_do_nothing(browser: Any) -> None:
    states = {HOSTILE: {"value": "unloaded", "failed": True, "why": HOSTILE}}
    with serving(Chat(models=states)) as chat:
        user = User(browser, chat)
        user.page.click("#choice")
        user.page.wait_for_selector("#known li")
        user.page.keyboard.press("Escape")
        user.say("hello")
        chat.told.put({"model": HOSTILE, "event": "model_status", "data": {"status": "unloaded", "why": HOSTILE}})
        user.page.wait_for_selector("#notices div")
        chat.told.put({"model": "__proto__", "event": "model_status", "data": {"status": "unloaded"}})
        chat.models["other"] = {"value": "loaded"}
        user.page.click("#new")
        user.page.reload()
        choose(user, "other")
        user.say("hello")
        assert user.page.evaluate("window.hacked") is None
        assert user.page.locator(":is(img, iframe), main script").count() == 0
        assert user.page.locator("#filter option").count() == 3
        assert user.problems == []
        user.context.close()


def test_a_server_without_a_model(browser: Any) -> None:
    with serving(Chat(models={"gone": {"value": "loaded"}})) as chat:
        del chat.models["gone"]
        chat.empty = True
        user = User(browser, chat)
        user.page.click("#choice >> text=No model yet")
        user.page.wait_for_selector("#pull")
        chat.models["new"] = {"value": "unloaded"}
        chat.told.put({"model": "new", "event": "download_finished"})
        user.page.click("#known >> text=new")
        user.say("hello")
        assert chat.asked[-1]["model"] == "new"
        assert user.problems == []
        user.context.close()


def test_with_a_router_itself(browser: Any) -> None:
    with routing([served("one"), served("two")], idle=4.0) as (server, _):
        user = User(browser, Chat(port=server.port))
        user.page.wait_for_selector("#choice >> text=not loaded")
        user.say("What is 12 * 7?", wait=False)
        user.page.wait_for_selector("#choice >> text=loading")
        user.page.wait_for_selector(DONE)
        assert user.texts(".message > .text") == ["12 × 7 = 84."]
        assert user.texts(".stats")[0].endswith(" · 0 of 17 cached")
        user.say("What is 3 + 4?")
        assert user.texts(".stats")[1].endswith(" · 27 of 45 cached")
        user.page.wait_for_selector("#choice small:text-is('sleeping')")
        assert user.problems == []
        user.context.close()

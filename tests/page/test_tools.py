"""Tools: what the settings describe goes along, calls are readable, and their results are sent."""

from __future__ import annotations

import json

import pytest

from tests.page.user import DONE, User

pytestmark = pytest.mark.browser
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


def describe(user: User, text: str) -> None:
    user.page.click("#settings")
    user.page.click("#options summary")
    user.page.fill("[name=tools]", text)
    user.page.click("#options >> text=Save")


def test_calls_are_shown_and_answered(user: User) -> None:
    describe(user, json.dumps([WEATHER]))
    user.say("call")
    assert user.chat.asked[-1]["tools"] == [{"type": "function", "function": WEATHER}]
    assert user.texts(".call > div") == ["Calls weather", "Calls note"]
    assert user.texts(".call dt") == ["city", "days"]
    assert user.texts(".call dd") == ["Ulm <b>", "2"]
    assert user.texts(".call pre") == ["not JSON"]
    assert user.texts("#said") == ["Reply: calls weather, note"]
    user.page.reload()
    user.page.fill("[aria-label='Result of weather']", "rain")
    user.page.click("text=Send results")
    assert user.focused() == "Result of note"  # it lacks one
    user.page.fill("[aria-label='Result of note']", "<b>done</b>")
    user.page.click("text=Send results")
    user.page.wait_for_selector("text=You said <b>done</b>, reply 2.")
    user.page.wait_for_selector(DONE)
    calls = [{"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": text}}
             for i, (name, text) in enumerate((("weather", '{"city": "Ulm <b>", "days": 2}'), ("note", "not JSON")))]
    assert user.chat.asked[-1]["messages"] == [
        {"role": "user", "content": "call"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_0", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_1", "content": "<b>done</b>"},
    ]
    assert user.texts(".message.tool summary bdi") == ["Result of weather", "Result of note"]
    assert user.page.locator(".results").count() == user.page.locator("#log b").count() == 0


def test_what_describes_no_tools_is_not_saved(user: User) -> None:
    user.page.click("#settings")
    user.page.click("#options summary")
    for text in ("[", "[3]", '[{"parameters": {}}]'):
        user.page.fill("[name=tools]", text)
        user.page.click("#options >> text=Save")
        assert user.page.locator("#options").get_attribute("open") is not None
        said = user.page.evaluate("document.querySelector('[name=tools]').validationMessage")
        assert said.startswith("Tools are a list in JSON: ")
    user.page.click("#options >> text=Cancel")
    user.say("hello")
    assert "tools" not in user.chat.asked[-1]

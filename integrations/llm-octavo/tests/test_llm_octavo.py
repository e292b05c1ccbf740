"""The plug-in in the real llm: its command and its library, with the demo model and small random ones."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, Literal

import llm
import numpy as np
import pytest
from click.testing import CliRunner
from llm.cli import cli

import octavo
from llm_octavo import turn as turns
from llm_octavo.models import loaded
from octavo.data import resolve
from octavo.server.tool_calls.tools import ToolUse, tool_use
from tests.models.embedding_checkpoints import KINDS, save

QUESTION, ANSWER = "What is 12 times 7?", "12 times 7 is 84."
SCHEMA = {"type": "object", "properties": {"answer": {"enum": [84, 85]}}, "required": ["answer"]}


def command(*words: str, code: int = 0) -> str:
    """What the command prints, or what it says of an error."""
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == code, (result.output, result.exception)
    return result.stderr if code else result.stdout


@pytest.fixture
def demo() -> llm.Model:
    found = llm.get_model("octavo/demo")
    assert isinstance(found, llm.Model)
    return found


def test_the_command_answers() -> None:
    assert command("-m", "octavo/demo", "-o", "temperature", "0", "--no-log", QUESTION).strip() == ANSWER
    assert "octavo/demo" in command("models", "--options")
    said = json.loads(command("-m", "octavo/demo", "--schema", json.dumps(SCHEMA), "--no-log", QUESTION))
    assert said["answer"] in (84, 85)
    assert "temperature" in command("-m", "octavo/demo", "-o", "temperature", "-1", "--no-log", QUESTION, code=1)


def test_conversations_are_logged_and_go_on() -> None:
    assert command("-m", "octavo/demo", "-o", "temperature", "0", "--log", "What is 3+4?").strip() == "3 + 4 = 7."
    assert command("-c", "--log", "And 5+6?").strip() == "5 + 6 = 11."
    first, second = json.loads(command("logs", "-n", "2", "--json"))
    assert first["conversation_id"] == second["conversation_id"]
    assert second["input_tokens"] > first["input_tokens"] > 0


def test_pieces_and_what_is_told_of_a_reply(demo: llm.Model) -> None:
    with octavo.load("demo") as model:
        want = model.generate(QUESTION, temperature=0)
        assert want.text == ANSWER
    response = demo.prompt(QUESTION, temperature=0)
    pieces = list(response)
    assert ("".join(pieces), len(pieces) > 3) == (ANSWER, True)
    usage = response.usage()
    assert (usage.input, usage.output) == (want.timings.prompt_tokens, len(want.tokens))
    assert response.response_json == {"finish_reason": "stop"}
    assert demo.prompt(QUESTION, temperature=0, stop="times").text() == "12 "
    cut = demo.prompt(QUESTION, temperature=0, max_tokens=3)
    assert (cut.text(), cut.response_json) == ("12 times", {"finish_reason": "length"})
    same = {demo.prompt(QUESTION, seed=3, temperature=9.0, min_p=0.0).text() for _ in range(2)}
    assert len(same) == 1


def test_a_conversation_with_a_system_prompt(demo: llm.Model) -> None:
    conversation = demo.conversation()
    first = conversation.prompt("What is 3+4?", system="You are a calculator.", temperature=0)
    assert first.text()
    second = conversation.prompt("And 5+6?", temperature=0)
    assert second.text() == "5 + 6 = 11."
    assert second.usage().input > first.usage().input + first.usage().output


def test_several_at_once_with_asyncio() -> None:
    async def ask() -> list[str]:
        model = llm.get_async_model("octavo/demo")
        streamed = [piece async for piece in model.prompt(QUESTION, temperature=0)]
        assert len(streamed) > 3
        both = await asyncio.gather(*(model.prompt(one, temperature=0).text() for one in (QUESTION, "What is 3+4?")))
        return ["".join(streamed), *both]

    assert asyncio.run(ask()) == [ANSWER, ANSWER, "3 + 4 = 7."]


def test_tools_are_called_and_their_results_go_on(demo: llm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, prompts = list[str](), list[list[int]]()

    def weather(city: Literal["Rome", "Bonn"]) -> str:
        """How it is there."""
        asked.append(city)
        return "sunny"

    def called_once(*given: Any, **more: Any) -> ToolUse | None:
        """A model that knows tools would call one; this one is made to, the first time."""
        return tool_use(given[0], given[1], None if asked else "required", None, several=False)

    begun = turns._begun

    def noted(model: octavo.Model, tokens: list[int], *given: Any) -> octavo.Generation:
        prompts.append(tokens)
        return begun(model, tokens, *given)

    monkeypatch.setattr(turns, "tool_use", called_once)
    monkeypatch.setattr(turns, "_begun", noted)
    chain = demo.chain(QUESTION, tools=[weather], options={"temperature": 0, "max_tokens": 120})
    events = [event.type for event in chain.stream_events()]
    assert {"tool_call_name", "tool_call_args", "text"} <= {*events}
    assert len(asked) == 1
    assert asked[0] in ("Rome", "Bonn")
    texts = [loaded(resolve("demo")).tokenizer.decode(one) for one in prompts]
    assert ("weather" in texts[0], "sunny" in texts[0], "sunny" in texts[1]) == (True, False, True)


def test_thinking_is_told_apart(demo: llm.Model) -> None:
    model = loaded(resolve("demo"))
    own = model.template
    thinks = "{{ messages[0].content }}{% if enable_thinking %}<think>{% else %}</think>{% endif %}"
    model.template = model.tokenizer.own_template(thinks)
    try:
        response = demo.prompt(QUESTION, temperature=0, max_tokens=4)
        events = [(event.type, event.chunk) for event in response.stream_events()]
        assert {kind for kind, _ in events} == {"reasoning"}
        assert demo.prompt(QUESTION, temperature=0, max_tokens=4, think=False).text()
    finally:
        model.template = own


def test_a_model_without_a_template_continues_a_text(demo: llm.Model) -> None:
    model = loaded(resolve("demo"))
    own, model.template = model.template, None
    try:
        want = model.generate("12 times 7 is", raw=True, temperature=0, max_tokens=4).text
        assert demo.prompt("12 times 7 is", temperature=0, max_tokens=4).text() == want
        with pytest.raises(llm.ModelError, match="has no chat template"):
            demo.prompt("12", system="x").text()
    finally:
        model.template = own


@pytest.mark.parametrize(("prompt", "options", "words"), [
    ("x", {"temperature": -1.0}, "temperature"), ("x" * 9000, {}, "context"), ("x", {"device": "tpu"}, "device"),
])
def test_what_is_wrong(demo: llm.Model, prompt: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(llm.ModelError, match=words):
        demo.prompt(prompt, **options).text()


def test_a_schema_that_can_not_be_held(demo: llm.Model) -> None:
    with pytest.raises(llm.ModelError, match="Invalid type"):
        demo.prompt("x", schema={"type": "nothing"}).text()


def test_another_context_loads_the_model_again(demo: llm.Model) -> None:
    path = resolve("demo")
    before = loaded(path)
    with pytest.raises(llm.ModelError, match="context"):
        demo.prompt("one two three " * 30, n_ctx=64).text()
    assert demo.prompt(QUESTION, temperature=0).text() == ANSWER
    assert loaded(path) is not before


def test_models_of_a_folder(tmp_path: Path, settings: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    assert command("octavo", "models-dir").startswith("no folder")
    shutil.copy(resolve("demo"), folder / "mine.gguf")
    save(folder / "small", KINDS["bert"])
    (folder / "broken.gguf").write_bytes(b"GGUF but no more")
    assert command("octavo", "models-dir", str(folder)).strip() == str(folder)
    listed = command("models")
    assert ("octavo/mine" in listed, "octavo/small" in listed, "octavo/broken" in listed) == (True, False, False)
    assert command("-m", "octavo/mine", "-o", "temperature", "0", "--no-log", QUESTION).strip() == ANSWER
    assert "octavo/small" in command("embed-models")
    vector = json.loads(command("embed", "-m", "octavo/small", "-c", "a cat"))
    with octavo.load(folder / "small") as model:
        np.testing.assert_allclose(vector, model.embed("a cat")[0], atol=1e-6)
    several = list(llm.get_embedding_model("octavo/small").embed_multi(["a cat", "a dog"]))
    assert np.linalg.norm(several, axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert command("octavo", "models-dir", "--none").startswith("no folder")
    (settings / "octavo.json").write_text("[]")
    assert "can't be read" in command("octavo", "models-dir", code=1)

"""Models with several chat templates: that for tools where a request has some, and one that the server is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import octavo
from octavo.errors import TemplateError
from octavo.server.generation.service import Service
from octavo.server.serve_options import ServerOptions
from tests.runtime import tiny
from tests.server.calls import TOOLS
from tests.server.live_server import running_model

TEMPLATES = {
    "tokenizer.chat_template": "plain {{ messages[0].content }}",
    "tokenizer.chat_template.tool_use": "tools {{ tools | length }} <tool_call> {{ messages[0].content }}",
    "tokenizer.chat_template.rag": "rag {{ messages[0].content }}",
    "tokenizer.chat_templates": ["tool_use", "rag"],
}
ASK = [{"role": "user", "content": "hi"}]


def test_the_template_of_a_request(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", weights=tiny.alphabet(), keys=TEMPLATES)
    with octavo.load(path, device="reference", n_ctx=128) as model:
        with running_model(model) as server:
            props = server.get("/props")
            assert props["chat_template"] == TEMPLATES["tokenizer.chat_template"]
            assert props["chat_template_tool_use"] == TEMPLATES["tokenizer.chat_template.tool_use"]
            for tools, text in ((None, "plain hi"), ([], "plain hi"), (TOOLS, f"tools {len(TOOLS)} <tool_call> hi")):
                more = {} if tools is None else {"tools": tools}
                assert server.post("/apply-template", messages=ASK, **more)["prompt"] == text
                reply = server.post("/v1/chat/completions", messages=ASK, max_tokens=1, **more)
                assert reply["usage"]["prompt_tokens"] == len(model.tokenizer.encode(text, add_special=False))
        with running_model(model, chat_template="rag") as server:
            assert "chat_template_tool_use" not in server.get("/props")
            assert server.post("/apply-template", messages=ASK, tools=TOOLS)["prompt"].startswith("rag You can call")
            client, file = server.service.client, model.file
        with pytest.raises(TemplateError, match=r"called 'tools' \(allowed: default, rag, tool_use\)"):
            Service(client, file, model.tokenizer, ServerOptions("m", chat_template="tools"))

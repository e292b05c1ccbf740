"""Files of requests to the demo model, and what a batch has written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from octavo.batch.request_line import CHAT

NUMBERS = [{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}]


def openai_line(custom_id: str, body: dict[str, Any], url: str = CHAT) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def write_lines(path: Path, lines: Iterable[Any]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def mixed(n: int) -> list[Any]:
    """Chats, completions, responses and vectors, greedy, sampled and with schemas; plain forms, and three bad lines."""
    lines: list[Any] = []
    for i in range(n):
        question = f"What is {i % 40} times {7 + i % 3}?"
        messages = [{"role": "user", "content": question}]
        lines.append([
            openai_line(f"greedy-{i}", {"messages": messages, "temperature": 0, "max_tokens": 24}),
            openai_line(f"sampled-{i}", {"messages": messages, "temperature": 1.5, "max_tokens": 24}),
            openai_line(f"seeded-{i}", {"messages": messages, "temperature": 1.5, "seed": i, "max_tokens": 24}),
            {"prompt": question, "max_tokens": 12},
            {"messages": messages, "max_tokens": 30, "json_schema": NUMBERS[0], "custom_id": f"schema-{i}"},
            openai_line(f"response-{i}", {"input": question, "max_output_tokens": 24}, "/v1/responses"),
            openai_line(f"vector-{i}", {"input": question, "dimensions": 4}, "/v1/embeddings"),
            question,
        ][i % 8])
    lines[n // 2 : n // 2] = [openai_line("greedy-0", {}), {"custom_id": "c", "url": CHAT}, {"messages": []}]
    return lines


def read_lines(path: str | Path) -> list[Any]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def comparable(path: str | Path) -> list[Any]:
    """The lines in the input's order, without what differs between runs: ids, times, how much was cached."""
    return sorted((_plain(line) for line in read_lines(path)), key=lambda line: int(line["id"].rpartition("_")[2]))


def _plain(line: Any) -> Any:
    body = line["response"]["body"] if line["response"] else {}
    for name in ("created", "created_at", "completed_at", "timings"):
        body.pop(name, None)
    if "id" in body:
        body["id"] = body["id"].partition("_")[0].partition("-")[0]
    for item in body.get("output", ()):
        item["id"] = item["id"].partition("_")[0]
    for details in ("prompt_tokens_details", "input_tokens_details"):
        (body.get("usage") or {}).pop(details, None)
    return line

"""A server that is killed in the middle of a batch, and started again in the same folder."""

from __future__ import annotations

import json
import time
from pathlib import Path

import openai
import pytest

from tests.batch.served.test_batches import CHAT, client_of, ended, jsonl, line, lines_of, made
from tests.limits import HANG_S
from tests.server.engine.test_process import Command

LINES = 60


def answered(client: openai.OpenAI, one: str, least: int) -> int:
    end = time.monotonic() + HANG_S
    while (n := client.batches.retrieve(one).request_counts.completed) < least:
        assert time.monotonic() < end
        time.sleep(0.01)
    return n


@pytest.mark.slow
def test_a_server_that_is_killed_goes_on_with_its_batches(tmp_path: Path) -> None:
    asked = [line(i, f"What is {i} plus {i}?", max_tokens=40) for i in range(LINES)]
    options = ("--data-dir", str(tmp_path), "--device", "cpu", "--kv-memory", "64M", "-np", "4")
    command = Command(*options)
    with client_of(command.server) as client:
        want = {one["custom_id"]: command.server.post(CHAT, **one["body"])["choices"] for one in asked[:3]}
        kept = client.responses.create(model="x", input="What is 3 plus 4?", temperature=0)
        batch = made(client, jsonl(*asked))
        answered(client, batch.id, 5)
    command.process.kill()
    command.end()
    written = (tmp_path / "batches" / f"{batch.id}.jsonl").read_bytes().count(b"\n")
    assert 5 <= written < LINES
    for kill in (True, False):
        command = Command(*options)
        with client_of(command.server) as client:
            if kill:
                assert answered(client, batch.id, written + 5) < LINES
                command.process.kill()
            else:
                done = ended(client, batch.id)
                assert (done.status, done.request_counts.completed) == ("completed", LINES)
                found = lines_of(client, done.output_file_id)
                assert len(found) == LINES
                for name, choices in want.items():
                    assert found[name]["response"]["body"]["choices"] == choices
                assert client.responses.retrieve(kept.id).output_text == kept.output_text
                assert json.loads((tmp_path / "batches" / f"{batch.id}.json").read_text())["status"] == "completed"
                command.process.terminate()
        command.end()

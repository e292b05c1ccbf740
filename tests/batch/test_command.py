"""`octavo batch` with the demo model: what it answers, and what is left of it when it is killed, stopped or refused."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo.batch.output_files import files_of
from tests.batch.files import comparable, mixed, openai_line, read_lines, write_lines
from tests.cli.conftest import Result, Run, users_environment
from tests.limits import HANG_S

Found = tuple[str, dict[str, list[Any]]]
BASE = ["--device", "cpu", "--threads", "1"]
N = 48


def command(source: str, output: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "octavo", "batch", "demo", source, output, *BASE, *more]


def run(source: str, output: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = command(source, output, *more)
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=HANG_S, env=users_environment())


@contextmanager
def started(source: str, output: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    words = command(source, output, *more)
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=users_environment())
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until_bytes(process: subprocess.Popen[str], output: str, n: int) -> None:
    """Wait until a batch has written this many bytes of responses, or is at its end."""
    while process.poll() is None and (not os.path.exists(output) or os.path.getsize(output) < n):
        time.sleep(0.001)


def child(process: subprocess.Popen[str]) -> int:
    """The engine's process."""
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        for pid in (task / "children").read_text().split():
            if b"octavo.server.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    raise AssertionError("there is no engine")


def files(output: str) -> dict[str, list[Any]]:
    names = files_of(output)
    return {what: comparable(names[what]) for what in ("output", "errors")}


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """A file of requests, and what a run that nothing disturbs makes of it."""
    folder = tmp_path_factory.mktemp("batch")
    source, output = write_lines(folder / "in.jsonl", mixed(N)), str(folder / "out.jsonl")
    done = run(source, output)
    assert done.returncode == 1, done.stderr
    return source, files(output)


def test_each_line_is_answered(undisturbed: Found) -> None:
    _, found = undisturbed
    answers = {line["custom_id"]: line["response"] for line in found["output"]}
    assert len(answers) == N
    assert {answer["status_code"] for answer in answers.values()} == {200}
    texts = {name: answer["body"]["choices"][0] for name, answer in answers.items() if "choices" in answer["body"]}
    assert texts["greedy-0"]["message"]["content"] == "0 times 7 is 0."
    assert texts["seeded-2"] != texts["sampled-1"]
    schemas = [json.loads(one["message"]["content"]) for name, one in texts.items() if name.startswith("schema")]
    assert len(schemas) == N // 8
    assert all(isinstance(value["n"], int) for value in schemas)
    bodies = [answer["body"] for answer in answers.values()]
    assert [len(body["data"][0]["embedding"]) for body in bodies if body["object"] == "list"] == [4] * (N // 8)
    assert sum(body["object"] == "response" for body in bodies) == N // 8
    errors = [(line["line"], (line["error"] or {}).get("code"), line["custom_id"]) for line in found["errors"]]
    middle = N // 2
    assert errors == [
        (middle + 1, "repeated_custom_id", "greedy-0"), (middle + 2, "invalid_request", "c"),
        (middle + 3, None, f"line-{middle + 3}"),
    ]
    assert found["errors"][2]["response"]["body"]["error"]["param"] == "messages"


def killed(source: str, output: str, times: int, seed: int) -> int:
    """Run a batch, killed at random moments, to its end: how often it was."""
    rng, kills, size = random.Random(seed), 0, 0
    whole = 1000 * len(read_lines(source))
    for _ in range(times):
        with started(source, output) as process:
            if rng.random() < 0.3:
                time.sleep(rng.random())
            else:
                until_bytes(process, output, size + rng.randrange(1, 2 * whole // times))
            time.sleep(rng.random() * 0.02)
            kills += process.poll() is None
            process.kill()
            process.wait()
        size = os.path.getsize(output) if os.path.exists(output) else 0
    done = run(source, output)
    assert done.returncode == 1, done.stderr
    return kills


@pytest.mark.slow
@pytest.mark.parametrize(("times", "seed"), [(3, 0), pytest.param(20, 1, marks=pytest.mark.slow)])
def test_killed_at_random_it_loses_and_repeats_nothing(
    undisturbed: Found, tmp_path: Path, times: int, seed: int
) -> None:
    source, found = undisturbed
    if times > 3:
        source = write_lines(tmp_path / "in.jsonl", mixed(480))
        assert run(source, str(tmp_path / "whole.jsonl")).returncode == 1
        found = files(str(tmp_path / "whole.jsonl"))
    output = str(tmp_path / "out.jsonl")
    assert killed(source, output, times, seed) >= times // 2
    assert files(output) == found
    again = run(source, output, "--json")
    told = json.loads(again.stdout)
    assert (again.returncode, told["before"], told["done"] + told["failed"]) == (1, told["done"], told["lines"])
    assert told["done"] == len(read_lines(output))


def test_an_engine_that_is_killed_is_started_again(undisturbed: Found, tmp_path: Path) -> None:
    source, found = undisturbed
    output = str(tmp_path / "out.jsonl")
    with started(source, output) as process:
        until_bytes(process, output, 3000)
        os.kill(child(process), signal.SIGKILL)
        _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 1, said
    assert "the engine ended: its process was killed by SIGKILL" in said
    assert files(output) == found


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_it_in_order(undisturbed: Found, tmp_path: Path, number: signal.Signals) -> None:
    source, found = undisturbed
    output = str(tmp_path / "out.jsonl")
    with started(source, output) as process:
        until_bytes(process, output, 3000)
        process.send_signal(number)
        _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + number
    assert said.splitlines() == [f"octavo: stopped; the same command goes on where {output} ends"]
    assert Path(output).read_bytes().endswith(b"\n")
    there = len(read_lines(output))
    done = json.loads(run(source, output, "--json").stdout)
    assert 0 < there == done["before"]
    assert (done["done"], done["failed"], done["lines"]) == (N, 3, N + 3)
    assert files(output) == found


def test_another_command_is_told_apart_from_the_one_that_began(octavo: Run, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "What is 12 plus 5?"}]
    source = write_lines(tmp_path / "in.jsonl", [openai_line("a", {"messages": messages})])
    output = str(tmp_path / "out.jsonl")

    def run(*more: str) -> Result:
        return octavo("batch", "demo", source, output, *BASE, *more)

    assert run("--temp", "0", "-n", "4").status == 0
    (first,) = comparable(output)
    assert first["response"]["body"]["usage"]["completion_tokens"] == 4
    other = run("--temp", "0", "-n", "5")
    assert (other.status, "was begun with another max tokens (4, and now it is 5)" in other.err) == (2, True)
    assert comparable(output) == [first]
    hotter = run("--temp", "0.5", "-n", "4")
    assert "was begun with another temperature (0.0, and now it is 0.5): " in hotter.err
    narrower = run("--temp", "0", "--top-p", "0.5", "-n", "4")
    assert "was begun with another top_p (not set, and now it is 0.5): " in narrower.err
    again = run("--temp", "0", "-n", "4")
    said = f"octavo: {output}: 1 of 1 line is done (all of them before this run)\n"
    assert (again.status, again.err) == (0, said)
    anew = run("--temp", "0", "-n", "5", "--json-schema", '{"type": "integer"}', "--restart")
    (second,) = comparable(output)
    assert anew.status == 0
    assert isinstance(int(second["response"]["body"]["choices"][0]["message"]["content"]), int)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--json-schema", '{"type": 3}'], "the grammar or schema can't be used"), (["-n", "0"], "-n is 0"),
        (["-c", "99999999"], "-c is 99999999"), (["--temp", "-1"], "--temp"), (["--seed", "-2"], "--seed is -2"),
        (["--replicas", "0"], "--replicas"), (["--kv-memory", "x"], "--kv-memory is 'x'"),
        (["--json-schema", "{}", "--grammar", 'root ::= "a"'], "can't be used together"),
    ],
)
def test_options_that_can_not_be_used(octavo: Run, tmp_path: Path, options: list[str], words: str) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["What is 3 plus 4?"])
    assert words in octavo("batch", "demo", source, str(tmp_path / "out.jsonl"), *options).error()


def test_a_file_without_lines(octavo: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("\n\n")
    done = octavo("batch", "demo", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--json")
    assert (done.status, json.loads(done.out)["lines"]) == (0, 0)
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_a_batch_that_never_ran_leaves_no_files(octavo: Run, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["What is 3 plus 4?", 7])
    assert "-c is 99999999" in octavo("batch", "demo", source, str(tmp_path / "out.jsonl"), "-c", "99999999").error()
    assert os.listdir(tmp_path) == ["in.jsonl"]
    (tmp_path / "in.jsonl").write_text("What is 3 plus 4?\nWhat is 3 times 4?\n")
    assert "in.jsonl: has no line of JSON" in octavo("batch", "demo", source, str(tmp_path / "out.jsonl")).error()
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_an_input_that_changes_while_it_is_answered(
    octavo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After all of it was read again, too."""
    from octavo.batch import batch_file

    source = write_lines(tmp_path / "in.jsonl", ["What is 3 plus 4?"])

    async def answered(*given: object) -> None:
        os.utime(source, ns=(0, 0))

    monkeypatch.setattr(batch_file, "_run", answered)
    assert f"{source}: changed during the batch" in octavo("batch", "demo", source, str(tmp_path / "out.jsonl")).error()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("demo a b --model x", "no option --model here: the model is the first argument, here demo: leave it out"),
        ("a b --model x", "write `octavo batch x a b`"),
        ("-i a -o b --model x", "no option -i here: a batch's model, input and output are arguments"),
        ("demo a --output-file b", "no option --output-file here: a batch's model"),
    ],
)
def test_lines_of_other_programs_are_answered(octavo: Run, typed: str, said: str) -> None:
    assert said in octavo("batch", *typed.split()).error()


@pytest.mark.parametrize(
    ("source", "output", "words"),
    [
        ("in.jsonl", "in.jsonl", "is the input that is read"), ("in.jsonl", "link.jsonl", "is the input that is read"),
        ("out.jsonl.journal", "out.jsonl", "is the input that is read"), ("-", "out.jsonl", "IN and OUT are files"),
        ("in.jsonl", "-", "IN and OUT are files"), ("missing.jsonl", "out.jsonl", "missing.jsonl"),
        ("in.jsonl", "no/out.jsonl", "no/out.jsonl: there is no folder"),
        (".", "out.jsonl", "a file of requests as IN"),
        ("in.jsonl", "mine.jsonl", "mine.jsonl: was not written by octavo batch; take another name for OUT"),
        ("in.jsonl", ".", "is a folder"),
    ],
)
def test_files_that_can_not_be_used(octavo: Run, tmp_path: Path, source: str, output: str, words: str) -> None:
    write_lines(tmp_path / "in.jsonl", ["What is 3 plus 4?"])
    (tmp_path / "out.jsonl.journal").write_text('"a"\n')
    (tmp_path / "mine.jsonl").write_text("mine\n")
    before = sorted([*os.listdir(tmp_path), "link.jsonl"])
    os.symlink(tmp_path / "in.jsonl", tmp_path / "link.jsonl")
    names = [name if name == "-" else str(tmp_path / name) for name in (source, output)]
    for more in ([], ["--restart"]):
        assert words in octavo("batch", "demo", *names, *more).error()
    assert (sorted(os.listdir(tmp_path)), (tmp_path / "mine.jsonl").read_text()) == (before, "mine\n")
    assert (tmp_path / "in.jsonl").read_text() == '"What is 3 plus 4?"\n'

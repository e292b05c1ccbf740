"""Workloads against a server whose times are known, and what results say."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.bench.serving.http import address
from octavo.bench.serving.latency_stats import distribution, read_limits, summary
from octavo.bench.serving.request_load import at_most, at_rate
from octavo.bench.serving.serving_report import file_name, to_markdown
from octavo.bench.serving.serving_result import Progress, ServingOptions, bench_server
from octavo.bench.serving.serving_target import ServingTarget, find
from octavo.bench.serving.stream_reader import StreamedReply
from octavo.errors import BackendError, UsageError
from tests.bench.serving.fake_server import Fake, serving, until
from tests.cli.conftest import Run
from tests.sampling import slow


def reply(sent: float, first: float, gaps: list[float], **changes: Any) -> StreamedReply:
    arrivals = [sent + first]
    for gap in gaps:
        arrivals.append(arrivals[-1] + gap)
    ended = {"sent": sent, "arrivals": arrivals, "ended": arrivals[-1], "tokens": len(arrivals), "prompt_tokens": 10}
    return StreamedReply(**{**ended, **changes})


def test_a_summary() -> None:
    replies = [reply(0.0, 1.0, [0.5, 0.5]), reply(2.0, 3.0, [1.0]), reply(0.0, 0.1, [], error="lost")]
    found = summary(replies, {"ttft": 2.0})
    assert (found["requests"], found["failed"], found["failures"]) == (3, 1, ["lost"])
    assert (found["seconds"], found["output_tokens"], found["input_tokens"]) == (6.0, 5, 20)
    assert found["output_rate"] == pytest.approx(5 / 6)
    assert found["total_rate"] == pytest.approx(25 / 6)
    assert found["goodput"] == pytest.approx(1 / 6)
    assert found["kept"] == pytest.approx(1 / 3)
    assert found["ttft"]["p50"] == 2000.0
    assert found["itl"]["n"] == 3
    assert found["tpot"]["mean"] == 750.0
    assert found["e2e"]["percentiles"][0] == 2000.0
    assert summary([replies[2]], {}) == {"requests": 1, "failed": 1, "failures": ["lost"]}


def test_percentiles_are_linear_between_values() -> None:
    found = distribution([i / 1000 for i in range(101)])
    assert found is not None
    assert (found["p50"], found["p90"], found["p99"]) == (50.0, 90.0, 99.0)
    assert len(found["percentiles"]) == 101
    assert distribution([]) is None


def test_limits() -> None:
    assert read_limits("ttft:2000, tpot:50") == {"ttft": 2.0, "tpot": 0.05}
    assert read_limits(None) == {}
    for wrong in ("ttft", "itl:5", "ttft:0", "ttft:x", "ttft:nan", "ttft:inf"):
        with pytest.raises(UsageError, match="--goodput"):
            read_limits(wrong)


def test_arrivals_at_a_rate_are_those_of_a_poisson_process(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def send() -> None:
        pass

    ours = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})  # not other threads', which serve for other tests
    monkeypatch.setattr("octavo.bench.serving.request_load.asyncio", ours)
    asyncio.run(at_rate(4.0, 2000, send, random.Random(0)))
    assert len(waits) == 2000
    assert sum(waits) / 2000 == pytest.approx(0.25, rel=0.05)
    assert sum(w > 0.25 for w in waits) / 2000 == pytest.approx(0.368, abs=0.03)


def test_no_more_than_so_many_at_a_time() -> None:
    running, most, count, wanted = 0, 0, 0, 3

    async def send() -> None:
        nonlocal running, most, count
        running, count = running + 1, count + 1
        most = max(most, running)
        while most < wanted:
            await asyncio.sleep(0)
        await asyncio.sleep(0.002)  # for those that may not begin yet
        running -= 1

    asyncio.run(at_most(3, 10, send))
    assert (most, count) == (3, 10)
    most, wanted = 0, 2
    asyncio.run(at_rate(1e6, 10, send, random.Random(0), streams=2))
    assert (most, count) == (2, 20)


def bench(fake: Fake, progress: Progress = lambda text: None, **options: Any) -> dict[str, Any]:
    with serving(fake):
        result = bench_server(address(fake.url), ServingOptions(**options), progress)
        until(lambda: fake.running == 0)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    return result


def test_short_requests() -> None:
    """No reply of a run begins before as many run at once as asked for."""
    most: list[int] = []

    def progress(text: str) -> None:
        if "to come" in text:
            most.append(int(text.split(", ")[1].split(maxsplit=1)[0]))
            fake.most_running = 0

    fake = Fake(first=0.03, gap=0.004, holds=lambda request, i: bool(most) and fake.most_running < most[-1])
    result = bench(fake, progress, streams=(1, 3), requests=6, input=9, output=5, goodput="ttft:60000")
    assert (result["prompts"], result["server"]["model"], result["server"]["product"]) == ("ids", "fake-7b", "fake")
    assert (most, fake.most_running) == ([1, 3], 3)
    for run in result["runs"]:
        assert (run["requests"], run["failed"], run["output_tokens"], run["input_tokens"]) == (6, 0, 30, 54)
        assert 30 <= run["ttft"]["p50"] < 1e3 * run["wall"]
        assert run["kept"] == 1.0
        assert 0 < run["client_cpu"] < 2, "two threads, one of which is the server's"
        assert run["output_rate"] == pytest.approx(30 / run["seconds"])
        assert run["seconds"] <= run["wall"]
    asked = [a for a in fake.asked if a["max_tokens"] == 5]
    assert len({tuple(a["prompt"]) for a in asked}) == 12
    assert all(len(a["prompt"]) == 9 and max(a["prompt"]) < 1000 for a in asked)
    text = to_markdown(result)
    assert "| streams | requests | failed | out tok/s |" in text
    assert len([line for line in text.splitlines() if line.startswith("|")]) == 4
    assert file_name(result) == f"serve-a-fake-7b-{result['date'][:10]}.json"


def test_words_have_the_length_in_tokens() -> None:
    """The fake server counts two tokens a word, and seven around them."""
    fake = Fake(n_vocab=None, first=0.0, gap=0.0)
    result = bench(fake, requests=2, input=100, output=2, chat=True)
    assert result["prompts"] == "words"
    assert result["runs"][0]["input_tokens"] == 2 * 107
    assert {a["path"] for a in fake.asked} == {"/v1/chat/completions"}


def test_long_prompts_among_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first text of a long prompt waits until streams have had 24 of their own."""
    targets, since = list[ServingTarget](), dict[int, int]()

    async def found(*arguments: Any) -> ServingTarget:
        targets.append(await find(*arguments))
        return targets[0]

    def holds(request: dict[str, Any], i: int) -> bool:
        if len(request["prompt"]) < 2048 or i or not targets:
            return False
        arrived = sum(len(reply.arrivals) for reply in targets[0].replies)
        return arrived < since.setdefault(id(request), arrived) + 24

    monkeypatch.setattr("octavo.bench.serving.serving_result.find", found)
    fake = Fake(first=0.08, gap=0.004, holds=holds)
    run = bench(fake, workload="b", streams=(2,), requests=2, output=3)["runs"][0]
    assert (run["requests"], run["failed"]) == (2, 0)
    assert [len(a["prompt"]) for a in fake.asked if a["max_tokens"] == 3] == [2048, 2048]
    assert 80 <= run["ttft"]["p50"] < 1e3 * run["wall"]
    assert run["during"]["n"] > 40
    assert run["steady"]["n"] > 48
    assert run["during"]["n"] + run["steady"]["n"] <= len(run["timeline"])
    assert len(run["arrivals"]) == 2
    assert fake.left == 2  # the streams, which were under way at the end


def test_a_stream_that_fails_ends_the_run() -> None:
    fake = Fake()

    def progress(text: str) -> None:
        fake.status = 503 if "to come" in text else 200

    with serving(fake), pytest.raises(BackendError, match="a stream failed: status 503"):
        bench_server(address(fake.url), ServingOptions(workload="b", streams=(2,)), progress)


def test_conversations() -> None:
    fake = Fake(first=0.001, gap=0.0)
    result = bench(fake, workload="c", streams=(2,), output=3)
    (run,) = result["runs"]
    assert run["requests"] == 16
    assert [t["turn"] for t in run["turns"]] == list(range(1, 9))
    assert [t["ttft"]["n"] for t in run["turns"]] == [2] * 8
    assert run["turns"][0]["cached_tokens"] == 5
    assert run["cold"]["n"] == 2
    assert run["last_to_cold"] == pytest.approx(run["turns"][7]["ttft"]["p50"] / run["cold"]["p50"])
    last = max((a for a in fake.asked if "messages" in a), key=lambda a: len(a["messages"]))
    assert [m["role"] for m in last["messages"]] == ["system", *["user", "assistant"] * 7, "user"]
    assert last["messages"][2]["content"] == "w0 w1 w2 "
    first = [a["messages"][0] for a in fake.asked if "messages" in a]
    systems = {m["content"] for m in first if m["role"] == "system"}
    assert len(systems) == 3  # one that all share, and two unseen
    assert "| 2 | 8, unseen |" in to_markdown(result)


def test_failures_are_counted() -> None:
    fake = Fake(first=0.0, gap=0.0)

    def progress(text: str) -> None:
        fake.broken = "cut" if "to come" in text else None

    with serving(fake):
        result = bench_server(address(fake.url), ServingOptions(requests=3), progress)
    run = result["runs"][0]
    assert (run["requests"], run["failed"]) == (3, 3)
    assert "the connection ended before the answer" in run["failures"][0]
    assert "- 1 at a time: the connection ended" in to_markdown(result)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"requests": 0}, "--requests is 0"),
        ({"streams": (1, 0)}, "--streams is 0"),
        ({"rate": 0.0}, "--rate is 0.0"),
        ({"rate": 1.0, "workload": "c"}, "--rate is for workload a"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bench_server(address("http://127.0.0.1:9"), ServingOptions(**options))


def test_the_command(octavo: Run, tmp_path: Path) -> None:
    picture, written = tmp_path / "x.png", tmp_path / "x.json"
    fast = ("--requests", "2", "--output-tokens", "3", "-c", "1,2", "--seed", "7")
    with serving(Fake(first=0.0, gap=0.0, key="secret")) as fake:
        done = octavo("bench", "serve", fake.url, *fast, "--key", "secret", "--plot", str(picture), "-o", str(written))
    assert done.status == 0
    assert "workload a, requests of 128 tokens in, 3 out, prompts of ids" in done.out
    result = json.loads(written.read_text())
    assert "secret" not in written.read_text()
    assert (result["kind"], result["seed"], len(result["runs"])) == ("serve", 7, 2)
    assert result["settings"] == {"temperature": 0.0, "ignore_eos": True}
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_prints_json(octavo: Run) -> None:
    with serving(Fake(first=0.0, gap=0.0)) as fake:
        done = octavo("bench", "serve", fake.url, "--requests", "1", "--output-tokens", "2", "-c", "1", "--json")
    assert done.status == 0
    result = json.loads(done.out)
    assert (result["kind"], len(result["runs"])) == ("serve", 1)


@pytest.mark.parametrize("workload", [slow("b"), "c"])
def test_pictures_of_the_others(octavo: Run, tmp_path: Path, workload: str) -> None:
    picture = tmp_path / "x.svg"
    with serving(Fake(first=0.01, gap=0.002)) as fake:
        asked = ("bench", "serve", fake.url, "-w", workload, "-c", "1", "--requests", "1", "--output-tokens", "2")
        assert octavo(*asked, "--plot", str(picture)).status == 0
    assert "<svg" in picture.read_text()


def test_the_command_refuses(octavo: Run, tmp_path: Path) -> None:
    def error(*arguments: str) -> str:
        return octavo("bench", "serve", *arguments).error()

    assert "http://127.0.0.1:9 can't be reached" in error("http://127.0.0.1:9")
    assert "--plot is 'x.foo' (allowed: a name with ." in error("http://127.0.0.1:9", "--plot", "x.foo")
    assert "--streams is 'x'" in error("http://127.0.0.1:9", "-c", "x")
    assert "--serve-options needs a model" in error("http://127.0.0.1:9", "--serve-options", "-t 1")
    assert "there is no folder" in error("http://127.0.0.1:9", "-o", str(tmp_path / "no" / "x.json"))

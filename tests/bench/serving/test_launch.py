"""Servers that are started for a measurement, and the comparison of two of them."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from octavo.bench.serving.http import Address, ReplyError
from octavo.bench.serving.launch import free_port, running
from octavo.errors import BackendError
from tests.bench.conftest import ROOT
from tests.cli.conftest import Run

SERVER = """
import http.server, sys, time
time.sleep(0.3)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *arguments): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_runs_until_the_block_ends() -> None:
    to = Address("127.0.0.1", free_port())
    with running("a server", [sys.executable, "-c", SERVER, str(to.port)], to) as process:
        assert process.poll() is None
    assert process.poll() is not None


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-program"], "a server: no-such-program can't be run"),
        ([sys.executable, "-c", "import sys; print('no room'); sys.exit(3)"], "a server ended with status 3: no room"),
        ([sys.executable, "-c", ""], "a server ended with status 0: it said nothing"),
    ],
)
def test_a_server_that_does_not_start(command: list[str], message: str) -> None:
    to = Address("127.0.0.1", free_port())
    with pytest.raises(BackendError, match=message), running("a server", command, to):
        pass


def test_what_fails_while_it_runs_is_told_as_it_is() -> None:
    to = Address("127.0.0.1", free_port())
    command = [sys.executable, "-c", SERVER, str(to.port)]
    with pytest.raises(ReplyError, match="mine"), running("a server", command, to):
        raise ReplyError("mine")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return import_module("serve_peer")


def test_ratios_say_how_many_times_as_fast(tool: ModuleType) -> None:
    def run(rate: float, first: float) -> dict[str, object]:
        times = {"p50": first, "p99": 2 * first}
        return {
            "failed": 0,
            "output_rate": rate,
            "ttft": times,
            "itl": times,
            "turns": [{"ttft": times}],
            "cold": times,
        }

    ours = tool.best([tool.figures(run(30.0, 20.0)), tool.figures(run(20.0, 10.0))])
    assert ours == {
        "output_rate": 30.0,
        "ttft_p50": 10.0,
        "itl_p50": 10.0,
        "itl_p99": 20.0,
        "last_turn": 10.0,
        "cold": 10.0,
    }
    found = tool.ratio(ours, tool.figures(run(15.0, 40.0)))
    assert found == {"output_rate": 2.0, "ttft_p50": 4.0, "itl_p50": 4.0, "itl_p99": 4.0, "last_turn": 4.0, "cold": 4.0}
    with pytest.raises(SystemExit, match="2 of 3 requests failed"):
        tool.figures({"failed": 2, "requests": 3, "failures": ["no room"]})


def test_tests_of_a_comparison(tool: ModuleType) -> None:
    found = list(tool.tests(["a", "first", "b", "c"], [1, 32]))
    assert [t.name for t in found] == ["a x1", "a x32", "first 512", "b x4", "c"]
    assert [t.sequences for t in found] == [1, 32, 1, 5, 1]
    with pytest.raises(SystemExit, match="'d'"):
        list(tool.tests(["d"], [1]))


@pytest.mark.slow
def test_a_model_is_served_meanwhile(octavo: Run, tmp_path: Path) -> None:
    written = tmp_path / "x.json"
    asked = ("bench", "serve", "demo", "-c", "2", "--requests", "4", "--output-tokens", "8", "-o", str(written))
    assert octavo(*asked, "--serve-options", "-np 2 --device cpu").status == 0
    (run,) = json.loads(written.read_text())["runs"]
    assert (run["failed"], run["output_tokens"], run["input_tokens"]) == (0, 32, 512)
    assert "no such file" in octavo("bench", "serve", "no/such.gguf").error().lower()

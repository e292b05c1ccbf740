"""What each replica of this machine has, numbers of all of them, and the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.bench.serving.http import Address, get_json
from octavo.bench.serving.launch import served
from octavo.errors import BackendError, UsageError
from octavo.replicas import local
from octavo.replicas.local import LocalLauncher, cards
from octavo.replicas.merged_metrics import ReplicaMetrics
from octavo.replicas.pool import Pool
from octavo.replicas.replica_process import start
from octavo.replicas.setup import ALIVE
from octavo.server.engine.channel import Channel
from octavo.server.engine.client import EngineDiedError
from octavo.server.engine.fake import FakeClient
from octavo.server.http.tls import Certificate
from octavo.server.routes.metrics import Metrics
from octavo.server.serve_options import EngineOptions, KVEvents, ServerOptions
from tests.limits import HANG_S
from tests.replicas.live_front import ENGINE, OPTIONS, fronting
from tests.replicas.live_front import local as processes
from tests.replicas.scripted_replicas import ScriptedLauncher
from tests.server.http.test_tls import CERT, KEY
from tests.server.kv_events.reader import Reader
from tests.server.scripted_engine import until

SERVER = ServerOptions(name="demo")


def setups(n: int, **engine: object) -> list[tuple[int | None, int, dict[str, str]]]:
    launcher = LocalLauncher(n, EngineOptions("demo", **engine), SERVER)  # type: ignore[arg-type]
    found = [launcher.setup(i) for i in range(n)]
    assert [one.number for one in found] == [*range(n)]
    return [(one.engine.threads, one.engine.servers, one.environment) for one in found]


def test_cores_and_memory_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "cores", lambda: 8)
    assert setups(4, device="cpu") == [(2, 4, {})] * 4
    assert setups(3, device="cpu") == [(2, 3, {})] * 3
    assert setups(8, device="cpu") == [(1, 8, {})] * 8
    assert setups(2, device="cpu", threads=8) == [(8, 2, {})] * 2
    with pytest.raises(UsageError, match=r"--replicas is 9, but this process may use 8 cores \(allowed: up to 8\)"):
        setups(9, device="cpu")


def test_a_gpu_that_is_not_there_is_told_before_any_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.backends.gpu.device.driver.find_driver", lambda: None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match="device gpu: no GPU driver was found"):
        setups(100, device="gpu")


def test_each_has_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    monkeypatch.setattr(local, "cores", lambda: 8)
    assert cards() == ["3", "GPU-5"]
    assert setups(2) == [(None, 1, {"CUDA_VISIBLE_DEVICES": "3"}), (None, 1, {"CUDA_VISIBLE_DEVICES": "GPU-5"})]
    with pytest.raises(UsageError, match=r"--replicas is 3, but each needs a card \(allowed: up to 2, or --device cpu"):
        setups(3)
    assert len(setups(3, device="cpu")) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    found = setups(2, tensor_parallel=2)
    assert [environment["CUDA_VISIBLE_DEVICES"] for _, _, environment in found] == ["0,1", "2,3"]
    with pytest.raises(UsageError, match=r"--replicas is 3, but each needs 2 cards \(allowed: up to 2"):
        setups(3, tensor_parallel=2)
    with pytest.raises(UsageError, match=r"--replicas is 2, but each needs 4 cards \(allowed: up to 1"):
        setups(2, tensor_parallel=2, pipeline=2)


def test_cards_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(local, "CARDS", tmp_path / "none")
    assert cards() == []
    monkeypatch.setattr(local, "CARDS", tmp_path)
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert cards() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cards() == []


def test_an_engine_is_started_before_its_server_is_imported() -> None:
    code = "import sys; import octavo.replicas.replica_process; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert not {"numpy", "pydantic", "uvicorn", "octavo.server.serve"} & set(said.split())


def test_a_replica_that_can_not_load_its_model_says_why() -> None:
    import asyncio

    async def refused() -> None:
        setup = processes(1).setup(0)
        setup.engine = EngineOptions("demo", device="cpu", n_ctx=1 << 40)
        running = local.LocalProcess(*start(setup))
        with pytest.raises(UsageError, match="n_ctx is 1099511627776"):
            await running.served()
        assert "status 1" in await running.ended()
        await running.close()

    asyncio.run(refused())


@pytest.mark.parametrize("times", [1, 3])
def test_an_engine_that_is_killed_in_its_first_load_is_started_again_twice(times: int) -> None:
    import asyncio

    async def loaded() -> None:
        running = local.LocalProcess(*start(processes(1).setup(0)))
        loading, killed = asyncio.ensure_future(running.served()), set[str]()
        try:
            while len(killed) < times:
                for pid in {*children(running.process.pid).split()} - killed:
                    if b"octavo.server.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(int(pid), signal.SIGKILL)
                        killed.add(pid)
                await asyncio.sleep(0.001)
            if times == 1:
                assert (await loading).pid == running.process.pid
            else:
                with pytest.raises(EngineDiedError, match="its process was killed by SIGKILL"):
                    await loading
        finally:
            await running.close()

    asyncio.run(loaded())


@pytest.mark.parametrize("answers", [0, 4])
def test_a_process_that_gives_no_sign_of_life_is_not_waited_for(answers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio
    import socket

    monkeypatch.setattr(local, "ANSWER_S", 0.05)
    ours, theirs = socket.socketpair()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(answers):
            writer.write(await reader.readexactly(4))

    async def silent() -> None:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
        process.send_signal(signal.SIGSTOP)
        running = local.LocalProcess(process, ours)
        reader, writer = await asyncio.open_connection(sock=theirs)
        answering = asyncio.create_task(answer(reader, writer))
        with pytest.raises(local.SilentError, match=r"its process did not answer for 0\.15 s, and was killed"):
            await running.served()
        await answering
        writer.close()
        await running.close()
        assert process.returncode == -signal.SIGKILL

    asyncio.run(silent())


def test_a_process_gives_signs_of_life_from_its_setup_on() -> None:
    process, sock = start(processes(1).setup(0))
    with sock:
        channel = Channel(sock)
        channel.send(ALIVE)
        assert next(channel.received()) == ALIVE, "before it has read its model"
    assert process.wait(HANG_S) == 0


def test_a_signal_that_ends_a_process_has_its_name() -> None:
    import asyncio
    import socket

    async def why(command: str) -> str:
        process = subprocess.Popen([sys.executable, "-c", f"import os, signal; {command}"])
        with socket.socket() as sock:
            return await local.LocalProcess(process, sock).ended()

    assert asyncio.run(why("os.kill(os.getpid(), signal.SIGKILL)")) == "its process was killed by SIGKILL"
    assert asyncio.run(why("os._exit(3)")) == "its process ended with status 3"


@pytest.mark.parametrize("imported", [False, True])
def test_a_replica_that_is_interrupted_while_it_starts_says_nothing(
    imported: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    import asyncio

    async def interrupted() -> str:
        running = local.LocalProcess(*start(processes(1).setup(0)))
        while imported and not children(running.process.pid):  # its engine, which `main` starts
            await asyncio.sleep(0.001)
        running.process.send_signal(signal.SIGINT)
        why = await running.ended()
        await running.close()
        return why

    assert asyncio.run(interrupted()) == "its process was killed by SIGINT"
    assert capfd.readouterr().err == ""


def children(pid: int) -> str:
    """Processes that a process has started, on Linux."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


def test_the_certificate_is_the_fronts_alone() -> None:
    """The front speaks plain HTTP to its replicas."""
    shown = replace(OPTIONS, certificate=Certificate(CERT, KEY))
    with fronting(processes(1, shown), 1) as (server, front):
        assert server.get("/v1/models")["data"][0]["id"] == "demo"
        (said,) = server.get("/replicas")
        assert isinstance(running := front.pool.replicas[0].running, local.LocalProcess)
        assert (said["pid"], said["answered"]) == (running.process.pid, 1)


def test_routers_follow_the_pages_of_each_and_choose_one(tmp_path: Path) -> None:
    """As those of vLLM's data-parallel ranks: a publisher for each, and a header."""
    events = KVEvents(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")
    launcher = local.LocalLauncher(2, msgspec.structs.replace(ENGINE, kv_events=events), OPTIONS)
    readers = [Reader(one.endpoint, one.replay or "") for one in map(events.of_rank, range(2))]
    with fronting(launcher, 2) as (server, front):
        for number, reader in enumerate(readers):
            body = {"prompt": "What is 12 times 7? " * (20 + 10 * number), "max_tokens": 1}
            for _ in range(3):
                assert server.send("POST", "/v1/completions", body, {"X-data-parallel-rank": str(number)})[0] == 200

            def has_pages(reader: Reader = reader) -> bool:
                reader.catch_up()  # what was published before it was connected
                return reader.tree.counts["stored"] > 0

            until(has_pages)
        assert [one.answered for one in front.pool.replicas] == [3, 3]
        first, second = (reader.tree.paths for reader in readers)
        assert first < second, "the longer prompt begins with the shorter one"
        assert [reader.ranks for reader in readers] == [{0}, {1}]
        for given in ("2", "-1", "x", "9" * 5000):
            status, error = server.refused("/v1/completions", {"prompt": "a"}, **{"x-data-parallel-rank": given})
            assert (status, error["param"]) == (400, "x-data-parallel-rank"), given
            assert "(allowed: a replica, 0 to 1)" in error["message"]
    for reader in readers:
        reader.close()


def test_numbers_of_all_replicas_are_one_page() -> None:
    texts = {}
    for number in (0, 2):
        metrics = Metrics(FakeClient(), "demo")
        metrics.ended(1.0 + number, "stop", 5)
        texts[number] = metrics.text().decode()
    merged = ReplicaMetrics(Pool(ScriptedLauncher([]), 3, 1.0, ""))
    merged.moved = 7
    page = merged.text({str(number): text for number, text in texts.items()}).decode()
    assert page.count("# TYPE octavo:e2e_request_latency_seconds histogram") == 1
    found = {(s.name, *sorted(s.labels.items())): s.value for f in text_string_to_metric_families(page)
             for s in f.samples}
    for number, text in texts.items():
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {**sample.labels, "replica": str(number)}
                if "engine" in labels:  # vLLM's name for it
                    labels["engine"] = str(number)
                assert found.pop((sample.name, *sorted(labels.items()))) == sample.value
    of_each = dict.fromkeys((f"octavo:replica_{name}" for name in (
        "up", "requests", "restarts_total", "rolling_restarts_total")), 0)
    wanted = {(name, ("replica", str(i))): value for name, value in of_each.items() for i in range(3)}
    assert found == {**wanted, ("octavo:requests_moved_total",): 7}


@pytest.mark.parametrize(("options", "why"), [
    ("--ray-address auto", "--ray-address needs --replicas"),
    ("--replicas 2 --kv-events tcp://*:5557 --kv-events-replay tcp://*:5558",
     "--kv-events is tcp://*:5557, --kv-events-replay is tcp://*:5558: --replicas is 2, and each publishes at ports of "
     "its own, from those given on (allowed: ports that are 2 or more apart)"),
])
def test_options_that_do_not_go_together(options: str, why: str) -> None:
    command = [sys.executable, "-m", "octavo", "serve", "demo", *options.split()]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert (run.returncode, run.stderr) == (2, f"octavo: error: {why}\n")


@pytest.mark.slow
def test_the_command_ends_in_order_and_leaves_nothing(tmp_path: Path) -> None:
    import asyncio

    with served("demo", ["--device", "cpu", "--replicas", "2"]) as to:
        states, _ = asyncio.run(get_json(Address(to.host, to.port), "/replicas"))
        assert len(states) == 2
        children = subprocess.run(["ps", "-eo", "pid,args"], check=True, capture_output=True, text=True).stdout
        mine = [int(line.split()[0]) for line in children.splitlines() if f"--port {to.port}" in line]
        assert mine
        replicas = Path(f"/proc/{mine[0]}/task/{mine[0]}/children").read_text().split()
        assert len(replicas) == 2
        os.kill(mine[0], signal.SIGTERM)
        for one in replicas:
            while Path(f"/proc/{one}").exists():
                pass

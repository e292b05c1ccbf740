"""Times a long conversation that goes on: in the server that has it, and in one that starts anew with it on disk.

    python bench/kept_prefixes.py MODEL.gguf [--length 8192] [--more 32] [--turns 5] [--decode 4] [-o FOLDER]

A prompt of `--length` random tokens is computed once by `octavo serve --cache-disk`. Then each turn asks for the first
token after it and `--more` others: `warm` in that server, `restarted` in another one, started after the end of the one
before. `read` is what reading and checking the files takes by itself, right after that, in a new process, which has to
get the memory for them as well; they are in the page cache of the system. Right before each a process fills as much
memory as they take, twice, and ends: virtual machines wait for their host where memory was not used for two seconds.
`limit` is 1.5 times the median of `warm`, and the median of `read`. `cpu` has the same in seconds of a processor, those
of the engine's process, which other programs change less.

Decoding: `--decode` turns each with pages kept and without, A B B A, in one process: four replies of 192 tokens, in
tokens a second, and in milliseconds of a processor for a token, those of writing included.

The result is bench/results/kept-prefixes-<date>.json, or in the folder that `-o` names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import results_file
from octavo.bench.serving.http import Address, exchange, request_bytes
from octavo.bench.serving.launch import free_port, running
from octavo.huggingface import open_model_file
from octavo.io.model_path import resolve
from octavo.io.regular_file import open_regular
from octavo.models import read_model
from octavo.runtime.cache.tiers.entry_file import read_entry

DISK = "16G"
REPLIES, TOKENS = 4, 192
READ = "--read-files"
Times = tuple[float, float]
"""Seconds, and seconds of a processor."""


def first_token(to: Address, prompt: list[int]) -> tuple[float, dict[str, Any]]:
    """Seconds until the answer of one token, and its timings."""
    parts = list[bytes]()
    body = {"prompt": prompt, "n_predict": 1, "temperature": 0}
    began = time.monotonic()
    found = asyncio.run(exchange(to, request_bytes(to, "POST", "/completion", body), parts.append))
    seconds = time.monotonic() - began
    answer = json.loads(b"".join(parts))
    if found.status != 200:
        raise SystemExit(f"no answer: {answer}")
    return seconds, answer["timings"]


def cpu_seconds(server: int) -> float:
    """Seconds of a processor that the engine of a server has taken."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    (engine,) = (one for one in children if b"octavo.server.worker" in Path(f"/proc/{one}/cmdline").read_bytes())
    fields = Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_files(paths: list[str]) -> None:
    """Print what reading and checking files takes, and the same of a processor; all stay in memory."""
    began, cpu = time.monotonic(), time.process_time()
    kept = []
    for path in paths:
        with open_regular(path) as file:
            kept.append(read_entry(file, path))
    print(json.dumps([round(time.monotonic() - began, 4), round(time.process_time() - cpu, 4)]))


def fill_memory(nbytes: int) -> None:
    """Have a process of its own fill memory, and end."""
    subprocess.run([sys.executable, "-c", f"import numpy; numpy.ones({nbytes}, numpy.uint8)"], check=True)


def read_seconds(folder: Path) -> tuple[Times, int]:
    """What reading all files takes in a process that has none of the memory yet that they go to; and their bytes."""
    paths = sorted(map(str, folder.rglob("*.page")))
    fill_memory(2 * sum(map(os.path.getsize, paths)))
    said = subprocess.run([sys.executable, __file__, READ, *paths], check=True, capture_output=True, text=True).stdout
    seconds, cpu = json.loads(said)
    return (seconds, cpu), sum(os.path.getsize(path) for path in paths)


def conversation(model: str, length: int, more: int, turns: int, folder: Path) -> dict[str, Any]:
    with open_model_file(resolve(model)) as file:
        n_vocab = read_model(file).hparams.n_vocab
    rng = random.Random(1)
    prompt = [rng.randrange(3, n_vocab) for _ in range(length)]
    warm, restarted, read, cached = list[Times](), list[Times](), list[Times](), list[int]()
    options = ["--device", "cpu", "-np", "2", "--ctx-size", str(length + 256), "--cache-disk", DISK,
               "--cache-dir", str(folder)]

    def asked(to: Address, server: int) -> Times:
        before = cpu_seconds(server)
        seconds, timings = first_token(to, prompt + [rng.randrange(3, n_vocab) for _ in range(more)])
        cached.append(timings["cache_n"])
        return round(seconds, 4), round(cpu_seconds(server) - before, 2)

    def server() -> Any:
        to = Address("127.0.0.1", free_port())
        command = [sys.executable, "-m", "octavo", "serve", model, "--port", str(to.port), *options]
        return to, running("octavo serve", command, to)

    to, process = server()
    with process as started:
        cold = first_token(to, prompt)[0]
        warm = [asked(to, started.pid) for _ in range(turns)]
        started.send_signal(signal.SIGTERM)
        started.wait()
    for _ in range(turns):
        to, process = server()
        with process as started:
            fill_memory(2 * sum(path.stat().st_size for path in folder.rglob("*.page")))
            restarted.append(asked(to, started.pid))
            started.send_signal(signal.SIGTERM)
            started.wait()
        times, nbytes = read_seconds(folder)
        read.append(times)

    def summary(which: int) -> dict[str, Any]:
        found = {
            name: [one[which] for one in times]
            for name, times in (("warm", warm), ("restarted", restarted), ("read", read))
        }
        medians = {name: statistics.median(values) for name, values in found.items()}
        limit = round(1.5 * medians["warm"] + medians["read"], 4)
        return {**found, "medians": medians, "limit": limit}

    return {
        "model": Path(model).name, "length": length, "more": more, "cold": round(cold, 2), "bytes": nbytes,
        "cached_tokens": cached, **summary(0), "cpu": summary(1),
    }


def decoding(model: str, turns: int, folder: Path) -> dict[str, Any]:
    """Tokens a second of some replies, with their pages kept and without, in turns."""
    import octavo
    from octavo.runtime.cache.tiers.open_tiers import open_tiers
    from octavo.runtime.engine.core import EngineCore
    from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
    from octavo.runtime.scheduler.request import Request

    loaded = octavo.load(model, device="cpu", max_sequences=REPLIES, n_ctx=1024, speculate="off")
    core = EngineCore(loaded.engine, n_known=loaded.tokenizer.n_vocab)
    tiers = open_tiers(loaded.engine, disk=1 << 32, folder=folder)
    assert tiers is not None
    core.use_tiers(tiers)
    keeping, rng = core.scheduler.restorer, random.Random(2)
    found: dict[str, list[float]] = {"kept": [], "not kept": []}
    cpu: dict[str, list[float]] = {"kept": [], "not kept": []}
    for kept in [True, False, False, True] * turns:
        core.scheduler.restorer = keeping if kept else None
        for _ in range(REPLIES):
            prompt = [rng.randrange(3, loaded.tokenizer.n_vocab) for _ in range(20)]
            core.add(Request(prompt, make_sampler(SamplingParams(temperature=0.0)), max_tokens=TOKENS))
        core.step()
        began, before, n = time.monotonic(), time.process_time(), 0
        while not core.scheduler.idle:
            n += sum(output.token is not None for output in core.step())
        found["kept" if kept else "not kept"].append(round(n / (time.monotonic() - began), 2))
        tiers.flush(60.0)
        cpu["kept" if kept else "not kept"].append(round(1000 * (time.process_time() - before) / n, 3))
        loaded.engine.prefixes.clear()
    speed = statistics.median(a / b for a, b in zip(found["kept"], found["not kept"], strict=True))
    cpu_ratio = statistics.median(cpu["kept"]) / statistics.median(cpu["not kept"])
    return {"replies": REPLIES, "tokens": TOKENS, **found, "speed": round(speed, 4), "cpu_ms_a_token": cpu,
            "cpu_ratio": round(cpu_ratio, 4)}


def main() -> None:
    if sys.argv[1:2] == [READ]:
        read_files(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--more", type=int, default=32)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--decode", type=int, default=4)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    asked = parser.parse_args()
    result = results_file.described()
    with tempfile.TemporaryDirectory() as place:
        if asked.turns:
            result["conversation"] = conversation(asked.model, asked.length, asked.more, asked.turns, Path(place) / "a")
            print(json.dumps(result["conversation"]), flush=True)
        if asked.decode:
            result["decoding"] = decoding(asked.model, asked.decode, Path(place) / "b")
            print(json.dumps(result["decoding"]), flush=True)
    results_file.write("kept-prefixes", result, asked.output)


if __name__ == "__main__":
    main()

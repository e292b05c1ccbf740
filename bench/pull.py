"""Measures downloads from a hub on this machine next to curl's, and writes bench/results/pull-<date>.json.

    python bench/pull.py [--bytes 1000000000] [--rounds 5] [--folder /dev/shm]

Both fetch the same file from the same server in turn, by way of the hub's redirect, into a folder in memory, so that
the disk does not decide. `octavo pull` also computes the file's SHA-256, which curl does not. Then a download that is
cut five times is compared with the file byte for byte. Processor seconds are those of the client alone.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import results_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
NAME, FILE = "bench/model-GGUF", "model-Q4_K_M.gguf"
CUTS = 5


def serve(nbytes: int, path: str, cuts: int, to: Connection) -> None:
    """A process with the hub, which first writes the file to `path`; says where it is, and ends when asked to."""
    from tests.hub_server import Fault, Hub

    data = os.urandom(nbytes)
    Path(path).write_bytes(data)
    with Hub() as hub:
        hub.repository(NAME, {FILE: data})
        hub.faults += [Fault("/cdn/", cut=nbytes // (cuts + 1)) for _ in range(cuts)]
        to.send((hub.endpoint, hub.repositories[NAME].commit))
        with suppress(EOFError):
            to.recv()


class Server:
    """A hub in a process of its own."""

    def __init__(self, nbytes: int, path: str, cuts: int = 0) -> None:
        self._end, other = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=serve, args=(nbytes, path, cuts, other))
        self._process.start()
        self.endpoint, self.commit = self._end.recv()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.send(None)
        self._process.join()


def pull(server: Server, folder: str) -> str:
    """Download by `octavo.io.hub.pull` into an empty cache; gives the path."""
    from huggingface_hub import constants

    from octavo.io.hub import HubName, pull

    constants.ENDPOINT, constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE = server.endpoint, folder, False
    return pull(HubName(NAME), show=lambda what, done, total: None).path


def curl(server: Server, folder: str) -> str:
    path = os.path.join(folder, FILE)
    url = f"{server.endpoint}/{NAME}/resolve/{server.commit}/{FILE}"
    subprocess.run(["curl", "-s", "-S", "-f", "-L", "-o", path, url], check=True)
    return path


def timed(how: Callable[[Server, str], str], who: int, server: Server, parent: str) -> dict[str, float]:
    """Seconds, and processor seconds of this process or of its children, to fetch the file into an empty folder."""
    folder = tempfile.mkdtemp(dir=parent)
    before, start = resource.getrusage(who), time.perf_counter()
    how(server, folder)
    seconds, after = time.perf_counter() - start, resource.getrusage(who)
    shutil.rmtree(folder)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu}


def summary(runs: list[dict[str, float]], nbytes: int) -> dict[str, Any]:
    seconds, cpu = (statistics.median(run[key] for run in runs) for key in ("seconds", "cpu_seconds"))
    return {"seconds": seconds, "cpu_seconds": cpu, "mb_per_second": nbytes / seconds / 1e6, "rounds": runs}


def against_curl(nbytes: int, rounds: int, folder: str) -> dict[str, Any]:
    with Server(nbytes, os.path.join(folder, "served")) as server:
        timed(pull, resource.RUSAGE_SELF, server, folder)
        pairs = [
            (timed(pull, resource.RUSAGE_SELF, server, folder), timed(curl, resource.RUSAGE_CHILDREN, server, folder))
            for _ in range(rounds)
        ]
    ours, theirs = summary([p[0] for p in pairs], nbytes), summary([p[1] for p in pairs], nbytes)
    ratios = [b["seconds"] / a["seconds"] for a, b in pairs]
    return {"octavo": ours, "curl": theirs, "speed_of_curls": statistics.median(ratios), "ratios": ratios}


def cut(nbytes: int, folder: str) -> dict[str, Any]:
    """Whether a download that is cut five times has the right bytes in the end."""
    served = os.path.join(folder, "served")
    with Server(nbytes, served, CUTS) as server:
        start = time.perf_counter()
        path = pull(server, os.path.join(folder, "cut"))
        seconds = time.perf_counter() - start
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    same = filecmp.cmp(path, served, shallow=False)
    return {"cuts": CUTS, "seconds": seconds, "of_which_waiting": float(CUTS), "same_bytes": same, "sha256": digest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=10**9)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default="/dev/shm")
    options = parser.parse_args()
    version = subprocess.run(["curl", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    import huggingface_hub

    described = results_file.described(curl=version, huggingface_hub=huggingface_hub.__version__)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        whole = against_curl(options.bytes, options.rounds, folder)
        resumed = cut(options.bytes, folder)
    load = os.getloadavg()
    results_file.write("pull", {**described, "bytes": options.bytes, "load": load, "whole": whole, "cut": resumed})


if __name__ == "__main__":
    main()

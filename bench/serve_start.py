"""Times how soon `octavo serve` answers after its command; writes bench/results/serve-start-<date>.json.

    python bench/serve_start.py [MODEL] [--starts N] [-o FOLDER]

Each start is a server of its own, which is asked for a token as soon as it takes connections, again and again until
it answers. The first one may compile kernels, and is not among the others' `seconds`. MODEL is the demo by default.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

import results_file
from octavo.bench.serving.http import Address
from octavo.bench.serving.launch import free_port
from octavo.bench.serving.stream_reader import StreamedReply, stream

BODY = {"prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0}
WAIT_S, LONGEST_S = 0.02, 600.0


def answered(to: Address) -> bool:
    """Whether a server gives a token."""
    reply = StreamedReply()
    asyncio.run(stream(to, "/v1/completions", BODY, reply))
    return reply.good


def seconds(model: str) -> float:
    """From the command of a server to its first answer."""
    to = Address("127.0.0.1", free_port())
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo", "serve", model, "--port", str(to.port)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        while not answered(to):
            if process.poll() is not None or time.perf_counter() - start > LONGEST_S:
                raise SystemExit(f"the server gave no answer; its status is {process.poll()}")
            time.sleep(WAIT_S)
        return time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--starts", type=int, default=5, help="after the first")
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    asked = parser.parse_args()
    first, *others = (round(seconds(asked.model), 3) for _ in range(1 + asked.starts))
    result = {"of": Path(asked.model).stem, "first": first, "seconds": others, "median": statistics.median(others)}
    print(result, flush=True)
    results_file.write("serve-start", {**results_file.described(), **result}, asked.output)


if __name__ == "__main__":
    main()

"""What the server's front alone can do: streams over an engine that computes nothing, and the front's time of a core.

    python bench/front_load.py --streams 128 --tokens 500

Prints chunks a second of wall time, and chunks a second of the front's CPU time, which other work on the machine
changes less. Streams are read by this process, over sockets; the front is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import socket
import subprocess
import sys
import time

BODY = {"prompt": "What is 12 times 7?", "stream": True, "temperature": 0}


def front(seconds: float) -> None:
    """Serve until the reader closes standard input; then print the CPU time since the first request."""
    import threading

    from octavo.io.gguf import GGUFFile
    from octavo.io.named import resolve
    from octavo.server.fake import FakeClient
    from octavo.server.options import ServerOptions
    from octavo.server.serve import bind, run, serve

    sock = bind("127.0.0.1", 0)

    def told(service: object) -> None:
        print(json.dumps({"port": sock.getsockname()[1], "cpu": cpu()}), flush=True)

    def wait() -> None:
        sys.stdin.read()
        print(json.dumps({"cpu": cpu()}), flush=True)
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
    with GGUFFile.open(resolve("demo")) as file:
        client = FakeClient([300, 301, 302], seconds)
        run(serve(client, file, ServerOptions(name="demo"), sock, told))


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def read(port: int, streams: int, tokens: int, path: str) -> tuple[int, float]:
    """Read all streams to their ends: events, and seconds."""
    body = BODY | {"max_tokens": tokens}
    if path.endswith("chat/completions"):
        body = {**body, "messages": [{"role": "user", "content": body.pop("prompt")}]}
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    selector, found, start = selectors.DefaultSelector(), 0, time.monotonic()
    for _ in range(streams):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(head.encode() + b"\r\n\r\n" + data)
        selector.register(sock, selectors.EVENT_READ)
    left = streams
    while left:
        for key, _ in selector.select():
            piece = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            found += piece.count(b'"index"')
            if not piece or b"[DONE]" in piece:
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                left -= 1
    return found, time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=0.005, help="of a step of the engine")
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument("--front", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.front:
        front(options.seconds)
        return
    command = [sys.executable, __file__, "--front", "--seconds", str(options.seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        chunks, seconds = read(told["port"], options.streams, options.tokens, options.path)
        process.stdin.close()
        used = json.loads(process.stdout.readline())["cpu"] - told["cpu"]
    print(f"{options.streams} streams, {chunks} chunks: {chunks / seconds:.0f} a second, "
          f"{chunks / used:.0f} a second of the front's CPU time ({1e6 * used / chunks:.1f} us each)")  # fmt: skip


if __name__ == "__main__":
    main()

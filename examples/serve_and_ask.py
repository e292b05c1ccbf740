"""A server in a process of its own, asked with the standard library: `python examples/serve_and_ask.py [MODEL]`."""

import json
import socket
import subprocess
import sys
import time
import urllib.request

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
url = f"http://127.0.0.1:{port}"
server = subprocess.Popen([sys.executable, "-m", "octavo", "serve", *(sys.argv[1:] or ["demo"]), "--port", str(port)])
try:
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health").close()
            break
        except OSError:  # not listening yet, or still loading
            time.sleep(0.2)
    body = {"messages": [{"role": "user", "content": "What is 12 times 7?"}], "stream": True, "temperature": 0}
    ask = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
    ask.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(ask) as stream:
        for line in stream:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    print(choice["delta"].get("content") or "", end="", flush=True)
    print()
finally:
    server.terminate()
    server.wait()

"""A hub on this machine: repositories of files, served as Hugging Face's serves them, with faults to order.

    hub.repository("org/model-GGUF", {"model-Q4_K_M.gguf": b"..."})
    hub.faults.append(Fault("/cdn/", cut=1000))          # the next download is cut after 1,000 bytes

Files of models are kept by LFS: `resolve` answers with a redirect to another host, which takes ranges and no tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

LFS = (".gguf", ".safetensors")
PIECE = 1 << 20
_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+)|/(refs))?")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Fault:
    """What the next request for a path that begins with `path` gets instead: a status, a cut, or wrong bytes.

    whole  no part of the file, whatever is asked for
    part   what the server says that it sends of it
    """

    path: str
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    wrong: bool = False
    whole: bool = False
    part: str | None = None


@dataclass
class Repository:
    """The files of a repository at one commit. `token` is what one needs to have them."""

    files: dict[str, bytes]
    token: str | None = None
    listed: dict[str, Any] = field(default_factory=dict)
    revisions: tuple[str, ...] = ("main",)

    def __post_init__(self) -> None:
        self.digests = {name: digest_of(name, data) for name, data in self.files.items()}
        self.commit = hashlib.sha1(repr(sorted(self.digests.items())).encode()).hexdigest()

    def listed_file(self, name: str) -> dict[str, Any]:
        """A file as the hub lists it with `blobs=True`."""
        digest, size = self.digests[name], len(self.files[name])
        lfs = {"lfs": {"sha256": digest, "size": size, "pointerSize": 130}} if name.endswith(LFS) else {}
        return {"rfilename": name, "size": size, "blobId": digest[:40], **lfs}


def digest_of(name: str, data: bytes) -> str:
    """What a file is known by: its SHA-256, or the name of its blob in Git."""
    if name.endswith(LFS):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """The server. `requests` are those that it got: method, path, and headers in small letters. `rate`: bytes of files
    that it sends a second, as many as it can with 0."""

    def __init__(self, rate: float = 0.0) -> None:
        self.rate = rate
        self.repositories: dict[str, Repository] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def repository(self, name: str, files: Mapping[str, bytes], **other: Any) -> Repository:
        """Serve files under a name."""
        made = self.repositories[name] = Repository(dict(files), **other)
        return made

    def blob(self, digest: str) -> bytes:
        """The bytes with a digest."""
        every = ((r.digests[name], data) for r in self.repositories.values() for name, data in r.files.items())
        return next(data for known, data in every if known == digest)

    def asked(self, start: str) -> list[dict[str, str]]:
        """The headers of the requests for paths that begin so."""
        return [headers for _, path, headers in self.requests if path.startswith(start)]

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves early is not news."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.hub.requests.append((self.command, url.path, {k.lower(): v for k, v in self.headers.items()}))
        fault = next((fault for fault in self.hub.faults if url.path.startswith(fault.path)), None)
        if fault is not None:
            self.hub.faults.remove(fault)
            if fault.status:
                self._send(fault.status, b"", fault.headers)
                return
        if url.path.startswith("/cdn/"):
            self._bytes(self.hub.blob(url.path.removeprefix("/cdn/")), {}, fault)
        elif url.path == "/api/models":
            (search,) = parse_qs(url.query).get("search", [""])
            self._json([{"id": name} for name in self.hub.repositories if search.casefold() in name.casefold()])
        elif api := _API.fullmatch(url.path):
            self._repository(self._spelled(api[1]), unquote(api[2] or "main"), api[3] is not None)
        elif resolve := _RESOLVE.fullmatch(url.path):
            self._resolve(resolve[1], unquote(resolve[2]), unquote(resolve[3]), fault)
        else:
            self._send(404, b"", {})

    def _spelled(self, name: str) -> str:
        """The name of a repository as it was made; capitals make no difference."""
        return next((known for known in self.hub.repositories if known.casefold() == name.casefold()), name)

    def _found(self, name: str, revision: str) -> Repository | None:
        """The repository; None after it was answered that there is none such."""
        found = self.hub.repositories.get(name)
        if found is None:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif revision not in (*found.revisions, found.commit):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
            return None
        return found

    def _repository(self, name: str, revision: str, refs: bool) -> None:
        found = self._found(name, revision)
        if found is None:
            return
        if refs:
            branches = [{"name": r, "ref": f"refs/heads/{r}", "targetCommit": found.commit} for r in found.revisions]
            self._json({"branches": branches, "converts": [], "tags": []})
            return
        files = [found.listed_file(file) for file in found.files]
        self._json({"id": name, "sha": found.commit, "siblings": files} | found.listed)

    def _resolve(self, name: str, revision: str, file: str, fault: Fault | None) -> None:
        found = self._found(name, revision)
        if found is None:
            return
        given = self.headers.get("Authorization")
        if found.token is not None and given != f"Bearer {found.token}":
            self._send(
                403 if given else 401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}
            )
            return
        data = found.files.get(file)
        if data is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            return
        digest = found.digests[file]
        headers = {"X-Repo-Commit": found.commit, "ETag": f'"{digest}"'}
        if file.endswith(LFS):
            headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
            self._send(302, b"", {**headers, "Location": f"http://localhost:{self.hub.port}/cdn/{digest}"})
        else:
            self._bytes(data, headers, fault)

    def _bytes(self, data: bytes, headers: Mapping[str, str], fault: Fault | None) -> None:
        fault = fault or Fault("")
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted and not fault.whole else 0
        if start >= len(data) > 0:
            self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        extra = {"Content-Range": fault.part or f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        rest = bytes(byte ^ 1 for byte in data[start:]) if fault.wrong else data[start:]
        self._send(206 if start else 200, rest, {**headers, **extra}, fault.cut)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: Mapping[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self._write(data if cut is None else data[:cut])
        if cut is not None:
            self.close_connection = True

    def _write(self, data: bytes) -> None:
        if self.hub.rate == 0.0:
            self.wfile.write(data)
            return
        for i in range(0, len(data), PIECE):
            self.wfile.write(data[i : i + PIECE])
            time.sleep(PIECE / self.hub.rate)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is printed."""

"""Slots over sockets, as llama-server's clients use them: saved to a file, erased, restored."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.runtime import Model
from octavo.runtime.cache.tiers.open_tiers import open_tiers
from octavo.runtime.cache.tiers.slot_file import SlotFiles
from tests.server.live_server import Server, running
from tests.server.thread_client import ThreadClient

TEXT = "What is 12 times 7? " * 30


@pytest.fixture
def saving(model: Model, tmp_path: Path) -> Iterator[Server]:
    """A server that saves slots in `tmp_path`, for clients with the keys "one" and "two"."""
    client = ThreadClient(model)
    tiers = open_tiers(model.engine, slots=True)
    assert tiers is not None
    assert client.loop.core is not None
    client.loop.side.slots = SlotFiles(tiers, client.loop.core.scheduler)
    with running(client, model, slot_path=str(tmp_path), keys=("one", "two")) as server:
        yield server
    model.engine.prefixes.clear()


def send(server: Server, path: str, body: Any = None, key: str = "one") -> tuple[int, Any]:
    status, _, answer = server.send("POST", path, body, {"Authorization": f"Bearer {key}"})
    return status, json.loads(answer)


def complete(server: Server, text: str, key: str = "one", **more: Any) -> dict[str, Any]:
    body = {"prompt": text, "n_predict": 6, "temperature": 0, **more}
    status, found = send(server, "/completion", body, key)
    assert status == 200, found
    return dict(found)


def test_saved_erased_and_restored(saving: Server, tmp_path: Path) -> None:
    first = complete(saving, TEXT, id_slot=3)
    assert first["id_slot"] == 3
    again = TEXT + first["content"] + " And 13?"
    status, saved = send(saving, "/slots/3?action=save", {"filename": "talk.bin"})
    assert (status, saved["id_slot"], saved["filename"]) == (200, 3, "talk.bin")
    n = first["tokens_evaluated"] + 5  # the last token of a reply is not computed
    assert (saved["n_saved"], saved["n_written"]) == (n, (tmp_path / "talk.bin").stat().st_size)
    assert stat.S_IMODE((tmp_path / "talk.bin").stat().st_mode) == 0o600
    status, erased = send(saving, "/slots/3?action=erase")
    assert (status, erased) == (200, {"id_slot": 3, "n_erased": n + 1})
    assert send(saving, "/slots/3?action=save", {"filename": "nothing"})[0] == 400
    anew = complete(saving, again)
    assert anew["timings"]["cache_n"] == 0
    send(saving, f"/slots/{anew['id_slot']}?action=erase")
    status, restored = send(saving, "/slots/5?action=restore", {"filename": "talk.bin"})
    assert (status, restored["n_restored"], restored["n_read"]) == (200, n, saved["n_written"])
    after = complete(saving, again)
    assert after["timings"]["cache_n"] >= n - 2  # where the text is one, its tokens may be others
    assert (after["content"], after["id_slot"]) == (anew["content"], 5)


def test_what_can_not_be_restored(saving: Server, tmp_path: Path) -> None:
    complete(saving, TEXT, id_slot=0)
    assert send(saving, "/slots/0?action=save", {"filename": "a"}, "two")[0] == 400
    assert send(saving, "/slots/0?action=save", {"filename": "a"})[0] == 200
    good = (tmp_path / "a").read_bytes()

    def refused(data: bytes | None, key: str = "one") -> str:
        (tmp_path / "b").unlink(missing_ok=True)
        if data is not None:
            (tmp_path / "b").write_bytes(data)
        status, found = send(saving, "/slots/1?action=restore", {"filename": "b"}, key)
        assert status == 400, found
        assert saving.service.client.stats.held == 0
        return str(found["error"]["message"])

    assert "another key" in refused(good, "two")
    assert "can't be opened" in refused(None)
    assert "ends before" in refused(good[:-9])
    assert "checksum" in refused(good[:-9] + bytes(9))
    assert "not a kept prefix" in refused(b"x" * 500)
    assert "version 9" in refused(good[:8] + b"\t" + good[9:])
    for name in ("../a", "", "a/b", ".a", "a\0b"):
        assert send(saving, "/slots/0?action=save", {"filename": name})[0] == 400
    assert send(saving, "/slots/0?action=copy", {"filename": "a"})[0] == 400
    assert send(saving, "/slots/8?action=save", {"filename": "a"})[0] == 400
    assert send(saving, "/completion", {"prompt": "a", "id_slot": 8})[0] == 400


def test_without_a_folder(server: Server) -> None:
    status, _, body = server.send("POST", "/slots/0?action=save", {"filename": "a"})
    assert (status, "--slot-save-path" in body.decode()) == (501, True)

"""Downloads from a hub on this machine: whole, cut, resumed, refused."""

from __future__ import annotations

import errno
import logging
import os
import re
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.hub_server import Fault, Hub, Repository, digest_of

from octavo.errors import ChoiceError, HubError
from octavo.io.hub import HubName, Pulled, parse, pull
from octavo.io.hub import retries as patience_module
from octavo.io.hub.download import offered
from octavo.io.hub.download_cache import PARTIAL, add, cached, folder_of
from octavo.io.hub.inventory import installed
from octavo.io.hub.retries import retry_after
from octavo.io.model_path import locate_adapter

DATA = bytes(range(256)) * 4096  # 1 MiB: several pieces
FILE = "m-Q4_K_M.gguf"
NAME = HubName("org/m-GGUF")


@pytest.fixture
def repository(hub: Hub) -> Repository:
    return hub.repository(NAME.repo, {FILE: DATA, "m-Q8_0.gguf": DATA * 2, "README.md": b"#"})


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were waited for, at once."""
    waited: list[float] = []
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        waited.append(seconds)

    fake = SimpleNamespace(sleep=sleep, monotonic=lambda: clock[0], time=lambda: 1e9)
    monkeypatch.setattr(patience_module, "time", fake)
    return waited


def pulled(name: HubName = NAME) -> Pulled:
    found = pull(name)
    assert cached(name) == found.path
    return found


def test_a_file_is_where_the_hubs_cache_has_it(hub: Hub, repository: Repository) -> None:
    found = pulled()
    assert Path(found.path).read_bytes() == DATA
    folder = Path(folder_of(NAME.repo))
    assert os.readlink(found.path) == f"../../blobs/{digest_of(FILE, DATA)}"
    assert (folder / "refs" / "main").read_text() == repository.commit == found.commit
    assert found.downloaded == len(DATA)
    before = len(hub.asked("/cdn/"))
    assert pulled().downloaded == 0
    assert len(hub.asked("/cdn/")) == before


def test_the_hubs_own_client_finds_it(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants, hf_hub_download

    path = pulled().path
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hf_hub_download(NAME.repo, FILE, cache_dir=constants.HF_HUB_CACHE, local_files_only=True) == path


def test_progress(repository: Repository) -> None:
    told: list[tuple[str, int, int | None]] = []
    pull(NAME, show=lambda what, done, total: told.append((what, done, total)))
    assert told[0][0] == "asking for org/m-GGUF"
    what, done, total = told[-1]
    assert what.startswith(f"{FILE}: 1.0 MB of 1.0 MB")
    assert what.endswith("/s")
    assert done == total == len(DATA)


def test_cut_five_times(hub: Hub, repository: Repository, waits: list[float], caplog: pytest.LogCaptureFixture) -> None:
    hub.faults += [Fault("/cdn/", cut=100_001) for _ in range(5)]
    assert Path(pulled().path).read_bytes() == DATA
    ranges = [headers.get("range") for headers in hub.asked("/cdn/")]
    assert ranges == [None, *(f"bytes={i * 100_001}-" for i in range(1, 6))]
    assert sum(waits) == 5
    assert "the connection was lost after 100.0 kB; retrying in 1 s" in caplog.text


def test_a_wait_leaves_the_bar_where_it_is(hub: Hub, repository: Repository, waits: list[float]) -> None:
    hub.faults.append(Fault("/cdn/", cut=len(DATA) // 2))
    told: list[tuple[str, int, int | None]] = []
    pull(NAME, show=lambda *what: told.append(what))
    (cut,) = [what for what in told if "was lost" in what[0]]
    assert 0 < cut[1] <= len(DATA) // 2
    assert cut[2] == len(DATA)


def test_an_interrupted_download_goes_on(hub: Hub, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.io.hub.download.SHOWN_S", 0)

    def interrupt(what: str, done: int, total: int | None) -> None:
        if done > len(DATA) // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(NAME, show=interrupt)
    assert cached(NAME) is None
    (row,) = installed()
    assert (row.quantization, row.nbytes) == (
        None,
        os.path.getsize(row.path + f"/blobs/{digest_of(FILE, DATA)}{PARTIAL}"),
    )
    found = pulled()
    assert Path(found.path).read_bytes() == DATA
    assert found.downloaded == len(DATA) - row.nbytes
    assert hub.asked("/cdn/")[-1]["range"] == f"bytes={row.nbytes}-"


@pytest.mark.parametrize("path", ["/api/models/", "/cdn/"])
def test_a_server_that_redirects_for_ever(hub: Hub, repository: Repository, waits: list[float], path: str) -> None:
    hub.faults += [Fault(path, 302, {"Location": path}) for _ in range(200)]
    with pytest.raises(HubError, match=r"Exceeded maximum allowed redirects.*gave up after \d tries"):
        pull(NAME)


def test_a_server_without_ranges(hub: Hub, repository: Repository, waits: list[float]) -> None:
    hub.faults += [Fault("/cdn/", cut=100_000), Fault("/cdn/", whole=True)]
    assert Path(pulled().path).read_bytes() == DATA


def test_a_server_that_sends_another_part(hub: Hub, repository: Repository, waits: list[float]) -> None:
    hub.faults += [Fault("/cdn/", cut=100_000), Fault("/cdn/", part=f"bytes 7-{len(DATA) - 1}/{len(DATA)}")]
    with pytest.raises(HubError, match=rf"{FILE}: the server sends bytes 7-{len(DATA) - 1}, not bytes \d+-"):
        pull(NAME)
    assert Path(pulled().path).read_bytes() == DATA


def test_a_disk_that_fills_up(hub: Hub, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(FileIO):
        def write(self, data: Any, /) -> int:
            if self.tell():
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    with monkeypatch.context() as patched:
        patched.setattr("octavo.io.hub.fetch.FileIO", Full)
        said = rf"{FILE} can't be written to .*blobs: No space left on device; free some space, and the same command"
        with pytest.raises(HubError, match=said):
            pull(NAME)
    done = installed()[0].nbytes
    assert 0 < done < len(DATA)
    assert Path(pulled().path).read_bytes() == DATA
    assert hub.asked("/cdn/")[-1]["range"] == f"bytes={done}-"


def test_wrong_bytes_are_removed_and_refused(hub: Hub, repository: Repository) -> None:
    hub.faults.append(Fault("/cdn/", wrong=True))
    with pytest.raises(
        HubError,
        match=rf"^{FILE} was corrupted in the download, and removed: it should have SHA-256 {digest_of(FILE, DATA)}",
    ):
        pull(NAME)
    assert not [path for path in Path(folder_of(NAME.repo)).rglob("*") if path.is_file() and path.name != "main"]
    assert Path(pulled().path).read_bytes() == DATA


@pytest.mark.parametrize("left", [b"garbage" * 100, DATA + b"x"])
def test_what_another_left_is_looked_at(repository: Repository, left: bytes) -> None:
    partial = Path(folder_of(NAME.repo)) / "blobs" / f"{digest_of(FILE, DATA)}{PARTIAL}"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(left)
    if len(left) > len(DATA):
        assert Path(pulled().path).read_bytes() == DATA
        return
    with pytest.raises(HubError, match="corrupted in the download, and removed"):
        pull(NAME)
    assert Path(pulled().path).read_bytes() == DATA


def test_an_interrupted_reference_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: str, target: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        add(str(tmp_path), "c" * 40, "main")
    assert os.listdir(tmp_path / "refs") == []


def test_a_file_that_was_cut_is_replaced(repository: Repository) -> None:
    path = Path(pulled().path)
    path.resolve().write_bytes(DATA[:1000])
    assert pulled().downloaded == len(DATA)
    assert path.read_bytes() == DATA


def test_another_process_downloads_it(repository: Repository) -> None:
    from octavo.io.locks import try_lock

    blob = Path(folder_of(NAME.repo)) / "blobs" / digest_of(FILE, DATA)
    blob.parent.mkdir(parents=True)
    with open(f"{blob}{PARTIAL}", "wb") as file:
        assert try_lock(file.fileno())

        def finish(what: str, done: int, total: int | None) -> None:
            if "another process" in what:
                blob.write_bytes(DATA)
                file.close()

        assert pull(NAME, show=finish).downloaded == 0
    assert Path(cached(NAME) or "").read_bytes() == DATA


def test_too_many_requests(
    hub: Hub, repository: Repository, waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    hub.faults += [
        Fault("/api/models/", 429, {"Retry-After": "7"}),
        Fault("/org/", 429, {"Retry-After": "3"}),
        Fault("/cdn/", 503),
    ]
    told: list[str] = []
    pull(NAME, show=lambda what, *_: told.append(what))
    assert sum(waits) == 7 + 3 + 2
    assert any(what.endswith("gets too many requests (status 429); retrying in 7 s") for what in told)
    assert "is busy (status 503); retrying in 2 s" in caplog.text


def test_a_server_that_stays_busy(hub: Hub, repository: Repository, waits: list[float]) -> None:
    hub.faults += [Fault("/cdn/", 503) for _ in range(9)]
    with pytest.raises(
        HubError, match=r"is busy \(status 503\); gave up after 5 tries: trying again later resumes"
    ):
        pull(NAME)
    assert sum(waits) == 1 + 2 + 4 + 8


def test_a_server_that_asks_for_an_hour(hub: Hub, repository: Repository) -> None:
    hub.faults.append(Fault("/api/models/", 429, {"Retry-After": "3600"}))
    with pytest.raises(HubError, match="asks to wait 3,600 seconds: run the same command then to resume"):
        pull(NAME)


def test_retry_after_is_a_number_or_a_date(waits: list[float]) -> None:
    assert retry_after("12") == 12
    assert retry_after("Sun, 09 Sep 2001 01:47:10 GMT") == 30
    assert retry_after(None) is retry_after("soon") is None


def test_a_gated_repository(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repository(NAME.repo, {FILE: DATA}, token="hf_secret")
    with pytest.raises(
        HubError,
        match=r"accept its terms at http://\S+/org/m-GGUF, make a token at \S+/settings/tokens, and set HF_TOKEN",
    ):
        pull(NAME)
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(HubError, match="not open to the token that is set: accept its terms"):
        pull(NAME)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert Path(pulled().path).read_bytes() == DATA
    assert all("authorization" not in headers for headers in hub.asked("/cdn/")), "the token goes to the hub alone"


def test_names_that_are_not_there(hub: Hub, repository: Repository) -> None:
    with pytest.raises(
        HubError, match=r"has no org/m, or it is private and no token is set; did you mean org/m-GGUF\?"
    ):
        pull(HubName("org/m"))
    with pytest.raises(HubError, match=r"org/m-GGUF has no revision v9 \(choices: main\)"):
        pull(HubName(NAME.repo, None, "v9"))


def test_revisions(hub: Hub) -> None:
    old = hub.repository(NAME.repo, {FILE: DATA}, revisions=("main", "v1")).commit
    at_v1 = HubName(NAME.repo, None, "v1")
    path = pulled(at_v1).path
    assert pulled(HubName(NAME.repo, None, old)).path == path
    hub.repository(NAME.repo, {FILE: DATA * 2})
    assert Path(pulled().path).read_bytes() == DATA * 2
    assert cached(at_v1) == path


def test_shards_and_checkpoints(hub: Hub) -> None:
    shards = {f"m-Q8_0-{i:05d}-of-00002.gguf": DATA[i:] for i in (1, 2)}
    hub.repository("a/split", shards)
    first = Path(pulled(HubName("a/split")).path)
    assert first.name == "m-Q8_0-00001-of-00002.gguf"
    assert {path.name: path.read_bytes() for path in first.parent.iterdir()} == shards
    files = {"config.json": b"{}", "model.safetensors": DATA, "tokenizer.json": b"[]", "empty.txt": b"", "x.bin": b"x"}
    hub.repository("a/folder", files)
    folder = Path(pulled(HubName("a/folder")).path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        k: v for k, v in files.items() if k != "x.bin"
    }


def test_an_adapter(hub: Hub) -> None:
    """Its folder; a repository's own model is taken before it, unless an adapter is asked for."""
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": DATA}
    hub.repository("a/lora", files | {"config.json": b"{}", "README.md": b"#", "adapter_model.bin": b"x"})
    hub.repository("a/both", files | {"config.json": b"{}", "model.safetensors": DATA})
    hub.repository("a/pickle", {"adapter_config.json": b"{}", "adapter_model.bin": b"x"})
    folder = Path(pulled(HubName("a/lora")).path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert locate_adapter("a/lora", offline=True) == str(folder)
    assert pulled(HubName("a/both")).variant.label == "safetensors"
    adapter = locate_adapter("a/both")
    assert "adapter_model.safetensors" in os.listdir(adapter)
    assert {v.label for v in offered(HubName("a/both"))} == {"safetensors", "adapter"}
    hub.repository("a/model", {"config.json": b"{}", "model.safetensors": DATA})
    with pytest.raises(HubError, match=r"^a/model has no adapter: neither adapter_model\.safetensors nor a GGUF file"):
        locate_adapter("a/model")
    with pytest.raises(HubError, match=r"^a/pickle is an adapter without adapter_model\.safetensors"):
        pull(HubName("a/pickle"))


def test_no_room(hub: Hub, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(HubError, match=r"the download needs 1\.0 MB, but \S+ has only 1\.0 kB free"):
        pull(NAME)
    assert not hub.asked("/cdn/")


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ({"sha": "../../x"}, r"is at commit '\.\./\.\./x', which is not 40 hex digits"),
        ({"siblings": [{"rfilename": "../m.gguf", "size": 1, "blobId": "0" * 40}]}, "allowed: names within its folder"),
        ({"siblings": [{"rfilename": "/m.gguf", "size": 1, "blobId": "0" * 40}]}, "allowed: names within its folder"),
        ({"siblings": [{"rfilename": "m.gguf", "size": 1, "blobId": "../x"}]}, "without a size and a digest"),
        ({"siblings": [{"rfilename": "m.gguf", "size": -1, "blobId": "0" * 40}]}, "without a size and a digest"),
        ({"siblings": [{"name": "m.gguf"}]}, "does not answer like a hub"),
        ({"siblings": []}, "has no GGUF files and no checkpoint"),
    ],
)
def test_lists_are_believed_no_further_than_they_may_go(hub: Hub, listed: dict[str, object], said: str) -> None:
    hub.repository(NAME.repo, {FILE: DATA}, listed=listed)
    with pytest.raises(HubError, match=said):
        pull(NAME)


def test_a_file_of_another_size(hub: Hub) -> None:
    entry = {
        "rfilename": FILE,
        "size": 5,
        "blobId": "0" * 40,
        "lfs": {"sha256": digest_of(FILE, DATA), "size": 5, "pointerSize": 1},
    }
    hub.repository(NAME.repo, {FILE: DATA}, listed={"siblings": [entry]})
    with pytest.raises(HubError, match=r"the server has 1,048,576 bytes, not the 5 that the hub lists"):
        pull(NAME)


def test_no_hub_there(hub: Hub, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(HubError, match=r"127\.0\.0\.1:1 can't be reached: .*gave up after 2 tries"):
        pull(NAME)


def test_offline(hub: Hub, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    done = pulled()
    asked = len(hub.requests)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = pull(NAME)
    assert (found.path, found.commit, found.downloaded) == (done.path, done.commit, 0)
    assert found.variant.files == done.variant.files
    missing = HubName(NAME.repo, "Q8_0")
    said = (
        f"{missing} is not on this machine (choices: Q4_K_M (1.0 MB)), and nothing is downloaded offline; unset HF_"
    )
    with pytest.raises(HubError, match=re.escape(said)):
        pull(missing)
    assert [v.label for v in offered(missing)] == ["Q4_K_M"]
    with pytest.raises(HubError, match=r"^a/b is not on this machine$"):
        offered(HubName("a/b"))
    with pytest.raises(ChoiceError, match=r"has nothing that fits 1\.0 kB of free memory"):
        pull(NAME, free=1000)
    assert len(hub.requests) == asked


def test_addresses_are_names(hub: Hub, repository: Repository) -> None:
    name = parse(f"https://huggingface.co/{NAME.repo}/blob/main/m-Q8_0.gguf")
    assert name is not None
    assert Path(pulled(name).path).read_bytes() == DATA * 2


def test_the_log_tells_of_downloads(hub: Hub, repository: Repository, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "octavo"):
        pull(NAME)
    assert "downloading org/m-GGUF: Q4_K_M of 1.0 MB" in caplog.text

"""Packed weights from the cache are those that packing gives, and are of the file as it is now."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.cpu.device.memory import packed_bytes
from octavo.backends.cpu.packed import cache_folder
from octavo.backends.cpu.packed import store as store_module
from octavo.backends.cpu.packed.store import MappedStore, WritingStore, open_store
from octavo.bench.cases import WEIGHTS
from octavo.errors import UsageError
from octavo.formats import QTensor, by_name
from octavo.formats.part import TensorPart
from octavo.formats.per_channel import channel_format
from octavo.formats.qtensor import DeferredQTensor
from octavo.io.gguf import GGUFFile
from tests.backends.cpu.packed.cached import load, matrix, require_all_equal, source, write
from tests.backends.cpu.test_pack import tensor
from tests.sampling import slow

ROWS = ("INT8", "FP8")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf", [matrix("Q4_K", 40, 512, name="a"), matrix("F32", 512, name="norm")])


STORED = [fmt for fmt in WEIGHTS if by_name(fmt).gguf is not None]


@pytest.mark.parametrize("formats", [slow(STORED), ["BF16", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "MXFP4"]])
def test_weights_of_formats_are_the_same_to_the_bit(formats: list[str], weights: Path, tmp_path: Path) -> None:
    tensors = [matrix(fmt, 19, 512, name=fmt) for fmt in formats]
    tensors += [matrix(fmt, 3, 17, 512, name=f"{fmt} experts") for fmt in ("Q4_K", "BF16", "IQ4_NL")]
    tensors += [matrix("F32", 100, name="norm"), matrix("Q8_0", 20, 96, name="odd")]
    path = write(tmp_path / "model.gguf", tensors)
    _, plain = load(path, keep=False)
    first, packed = load(path)
    second, mapped = load(path)
    assert (type(first), type(second)) == (WritingStore, MappedStore)
    require_all_equal(packed, plain)
    require_all_equal(mapped, plain)
    assert not any(array.flags.writeable for array in (w if isinstance(w, np.ndarray) else w.data for w in mapped))
    assert len(list(weights.iterdir())) == 1


def test_weights_of_rows_are_the_same_to_the_bit(weights: Path, model: Path) -> None:
    with GGUFFile.open(model) as file:
        name = next(iter(file.tensors))
        made = [tensor(channel_format(fmt, 96), 21, 96) for fmt in ROWS]
        tensors = [DeferredQTensor(t.format, t.shape, lambda t=t: t, name) for t in made]
        _, plain = load(model, tensors, keep=False)
        _, packed = load(model, tensors)
        second, mapped = load(model, tensors)
    assert isinstance(second, MappedStore)
    require_all_equal(packed, plain)
    require_all_equal(mapped, plain)


def test_parts_of_ranks_are_kept_apart(weights: Path, model: Path) -> None:
    with GGUFFile.open(model) as file:
        whole = file.tensor("a")
        parts = [TensorPart(whole, rows=((0, 24),)), TensorPart(whole, rows=((24, 40),))]
        parts += [TensorPart(whole, columns=((0, 256),)), TensorPart(whole, columns=((256, 512),))]
        plain = [load(model, [part], keep=False)[1] for part in parts]
        for want in (WritingStore, MappedStore):
            found = [load(model, [part]) for part in parts]
            assert {type(store) for store, _ in found} == {want}
            require_all_equal([w for _, (w,) in found], [w for (w,) in plain])
    assert len(list(weights.iterdir())) == 4


def rewrite(path: Path, change: Callable[[bytearray], Any]) -> None:
    """Change bytes of a file, which stays as old as it was."""
    data, stat = bytearray(path.read_bytes()), path.stat()
    change(data)
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], None]] = {
    "content": lambda path: rewrite(path, lambda data: data.__setitem__(-100, data[-100] ^ 1)),
    "size": lambda path: rewrite(path, lambda data: data.extend(bytes(32))),
    "time": lambda path: os.utime(path, (1, 1)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_file_is_packed_again(weights: Path, model: Path, what: str) -> None:
    load(model)
    CHANGES[what](model)
    store, found = load(model)
    assert isinstance(store, WritingStore)
    assert len(list(weights.iterdir())) == 1  # what was of the file before is gone
    require_all_equal(found, load(model, keep=False)[1])


def test_what_other_code_packed_goes_after_a_day(weights: Path, model: Path) -> None:
    load(model, code=b"older")
    load(model)
    assert len(cache_folder.entries()) == 2
    for entry in cache_folder.entries():
        os.utime(entry.path, (entry.used - 100_000, entry.used - 100_000))
    load(model, code=b"newer")
    (entry,) = cache_folder.entries()
    assert load(model, code=b"newer")[0].__class__ is MappedStore


def test_other_code_packs_again_and_another_place_does_not(weights: Path, model: Path, tmp_path: Path) -> None:
    load(model)
    assert isinstance(load(model, code=b"other")[0], WritingStore)
    shutil.copy2(model, tmp_path / "copy.gguf")
    assert isinstance(load(tmp_path / "copy.gguf")[0], MappedStore)


def test_what_is_not_of_the_models_files_is_not_kept(weights: Path, model: Path) -> None:
    adapter = matrix("F32", 512, 8, name="a.lora_a")
    with GGUFFile.open(model) as file:
        tensors = [file.tensor("a"), adapter, DeferredQTensor(adapter.format, adapter.shape, lambda: adapter, "b")]
        for _ in range(2):
            store, found = load(model, tensors)
            require_all_equal(found, load(model, tensors, code=b"0", keep=False)[1])
        assert isinstance(store, MappedStore)
        assert len(store._weights) == 1


def test_tensors_of_one_name_are_not_kept(weights: Path, model: Path) -> None:
    with GGUFFile.open(model) as file:
        twins = [file.tensor("a"), DeferredQTensor(file.tensor("a").format, (40, 512), lambda: other, "a")]
        other = matrix("Q4_K", 40, 512, name="a")
        for _ in range(2):
            store, _ = load(model, [*twins, file.tensor("norm")])
    assert isinstance(store, MappedStore)
    assert [key.split()[0] for key in store._weights] == ["norm"]


def test_nan_is_told_of_at_each_start(weights: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored = matrix("F32", 16, 64)
    stored.data.view(np.float32)[3, 5] = np.nan
    path = write(tmp_path / "nan.gguf", [stored, matrix("F32", 16, 64, name="finite")])
    for _ in range(2):
        caplog.clear()
        load(path)
        assert [r.getMessage() for r in caplog.records] == ["tensor w holds NaN or Inf"]


def test_a_small_model_is_not_kept(weights: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.backends.cpu.packed.store.LEAST", 1 << 20)
    assert load(model)[0] is None
    assert not weights.exists()


def test_without_the_cache_what_is_kept_goes(weights: Path, model: Path) -> None:
    load(model)
    assert load(model, keep=False)[0] is None
    assert not list(weights.iterdir())


def one_line(caplog: pytest.LogCaptureFixture, why: str) -> None:
    (record,) = [r for r in caplog.records if "not kept" in r.getMessage()]
    assert record.levelno == logging.INFO
    assert why in record.getMessage()


def test_a_disk_that_becomes_full_costs_nothing_but_the_file(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo")
    path = write(tmp_path / "model.gguf", [matrix("Q8_0", 64, 256, name=f"w{i}") for i in range(6)])
    plain, whole, written = load(path, keep=False)[1], os.pwrite, list[int]()

    def pwrite(fd: int, data: Any, at: int) -> int:
        if sum(written) > 3 * 64 * 272:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(whole(fd, data[: 1 << 12], at))  # and all of it in no call
        return written[-1]

    monkeypatch.setattr(os, "pwrite", pwrite)
    _, found = load(path)
    monkeypatch.undo()
    require_all_equal(found, plain)
    assert len(written) > 6
    one_line(caplog, "No space left")


@pytest.mark.usefixtures("weights")
def test_a_full_disk_is_seen_before(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo")
    monkeypatch.setattr(cache_folder, "_free", lambda: cache_folder.SPARED + 1000)
    monkeypatch.setenv(cache_folder.VARIABLE, "1G")
    store, found = load(model)
    assert store is None
    require_all_equal(found, load(model, keep=False)[1])
    one_line(caplog, "the disk has")


def test_a_folder_that_cant_be_made(
    weights: Path, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo")
    plain = load(model, keep=False)[1]
    weights.write_text("a file")
    monkeypatch.setenv(cache_folder.VARIABLE, "1G")
    store, found = load(model)
    assert store is None
    require_all_equal(found, plain)
    one_line(caplog, "Not a directory")


def test_a_read_only_folder(
    weights: Path, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo")
    whole = os.open

    def refusing(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_CREAT and Path(path).parent == weights:  # root may write to any folder
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return whole(path, flags, *more, **named)

    plain = load(model, keep=False)[1]
    monkeypatch.setattr(os, "open", refusing)
    _, found = load(model)
    require_all_equal(found, plain)
    one_line(caplog, "Permission denied")
    assert not list(weights.iterdir())


def test_what_was_not_used_for_longest_goes_first(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(tmp_path / f"{i}.gguf", [matrix("Q8_0", 64, 512, name=f"w{i}")]) for i in range(4)]
    for i, path in enumerate(paths[:3]):
        load(path)
        (entry,) = [e for e in cache_folder.entries() if e.model == str(path)]
        os.utime(entry.path, (1000 + i, 1000 + i))
    load(paths[0])  # is used now
    nbytes = entry.nbytes
    monkeypatch.setenv(cache_folder.VARIABLE, f"{3.5 * nbytes / 1024:.1f}K")
    load(paths[3])
    assert {e.model for e in cache_folder.entries()} == {str(paths[i]) for i in (0, 2, 3)}
    monkeypatch.setenv(cache_folder.VARIABLE, "100")
    assert load(paths[1])[0] is None
    assert len(list(weights.iterdir())) == 3


@pytest.mark.parametrize(("text", "nbytes"), [("0", 0), ("512M", 512 << 20), ("1.5g", 3 << 29), ("20GB", 20 << 30)])
def test_limits(monkeypatch: pytest.MonkeyPatch, text: str, nbytes: int) -> None:
    monkeypatch.setenv(cache_folder.VARIABLE, text)
    assert cache_folder.limit() == nbytes


@pytest.mark.usefixtures("weights")
def test_a_limit_that_is_no_size(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache_folder.VARIABLE, "much")
    with pytest.raises(UsageError, match=r"OCTAVO_WEIGHT_CACHE is 'much' \(allowed: bytes, such as 512M or 20G"):
        load(model)


def test_asking_whether_there_is_memory_removes_nothing(
    weights: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(model)
    (entry,) = cache_folder.entries()
    monkeypatch.setenv(cache_folder.VARIABLE, str(entry.nbytes + 1000))
    other = write(tmp_path / "other.gguf", [matrix("Q4_K", 40, 512, name="a")])
    with GGUFFile.open(other) as file:
        store = open_store(source(file), [file.tensor("a")], packed_bytes)
        assert isinstance(store, WritingStore)
        store.close()
    assert cache_folder.entries() == [entry]
    load(other)
    assert [e.model for e in cache_folder.entries()] == [str(other)]


def test_an_interrupted_start_leaves_no_file(weights: Path, model: Path) -> None:
    backend = CpuBackend(threads=1)
    with GGUFFile.open(model) as file:
        tensors: list[QTensor] = [file.tensor(name) for name in file.tensors]
        store = open_store(source(file), tensors, packed_bytes)
        assert store is not None
        store.load(tensors[0], backend._pack, backend._arena)
        store.close()
    assert not list(weights.iterdir())
    assert isinstance(load(model)[0], WritingStore)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Windows has it: no `pread`, and a file that is mapped is neither renamed nor removed."""
    monkeypatch.setattr(store_module, "sys", SimpleNamespace(platform="win32"))
    for name in ("pread", "pwrite"):
        monkeypatch.delattr(os, name)

    def unless_mapped(whole: Callable[..., None]) -> Callable[..., None]:
        def change(path: Any, *more: Any) -> None:
            if os.fspath(path) in Path("/proc/self/maps").read_text():
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            whole(path, *more)

        return change

    for name in ("unlink", "replace"):
        monkeypatch.setattr(os, name, unless_mapped(getattr(os, name)))


@pytest.mark.usefixtures("windows")
@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="what is mapped is not told")
def test_windows(weights: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are kept and mapped; a file that a process has mapped stays, and one that was not finished goes."""
    _, plain = load(model, keep=False)
    backend = CpuBackend(threads=1)
    with GGUFFile.open(model) as file:
        store = open_store(source(file), [file.tensor(name) for name in file.tensors], packed_bytes)
        assert store is not None
        one = store.load(file.tensor("a"), backend._pack, backend._arena)
        store.close()  # not all are packed
    (left,) = weights.iterdir()
    assert load(model)[0] is None  # while that is in use
    del one, store
    first, packed = load(model)
    second, mapped = load(model)
    assert (type(first), type(second)) == (WritingStore, MappedStore)
    require_all_equal(packed, plain)
    require_all_equal(mapped, plain)
    monkeypatch.setenv(cache_folder.VARIABLE, str(left.stat().st_size + 1000))
    other = write(tmp_path / "other.gguf", [matrix("Q4_K", 40, 512, name="a")])
    load(other)
    assert len(list(weights.iterdir())) == 2
    del first, packed, second, mapped
    load(write(tmp_path / "third.gguf", [matrix("Q4_K", 40, 512, name="b")]))
    assert [Path(e.model).name for e in cache_folder.entries()] == ["third.gguf"]

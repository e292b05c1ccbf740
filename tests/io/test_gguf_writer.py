"""Writing: what is written reads back, by us and by the gguf package, and a target is never half a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import GGUFError
from octavo.formats import FORMATS, QTensor, by_name
from octavo.io.atomic import replace_file
from octavo.io.gguf import GGUFFile, LazyTensor, TypedValue, ValueType, write_gguf

F32 = by_name("F32")


def tensor(name: str, shape: tuple[int, ...], fmt: str = "F32", seed: int = 0) -> QTensor:
    row = by_name(fmt)
    packed = (*shape[:-1], row.row_bytes(shape[-1]))
    return QTensor(row, shape, np.random.default_rng(seed).integers(0, 256, packed, dtype=np.uint8), name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_every_format_round_trips(path: Path) -> None:
    formats = [f for f in FORMATS if f.gguf is not None]
    tensors = [tensor(f"{f.name}.{rank}", (3, 2, 256)[rank:], f.name) for f in formats for rank in range(3)]
    write_gguf(path, "llama", {}, tensors)
    with GGUFFile.open(path) as file:
        assert list(file.tensors) == [t.name for t in tensors]
        for t in tensors:
            back = file.tensor(t.name)
            assert (back.format, back.shape) == (t.format, t.shape)
            np.testing.assert_array_equal(back.data, t.data)


def test_the_gguf_package_reads_it(path: Path) -> None:
    tensors = {"q": tensor("", (4, 256), "Q4_K"), "f": np.ones((2, 3), np.float32), "h": np.ones(5, np.float16)}
    write_gguf(path, "qwen3", {"qwen3.block_count": 2, "tokens": ["a", "é"]}, tensors)
    reader = oracle.GGUFReader(path)
    assert {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")} == {
        "general.architecture": "qwen3",
        "qwen3.block_count": 2,
        "tokens": ["a", "é"],
    }
    assert [(t.name, t.tensor_type.name, t.shape.tolist()) for t in reader.tensors] == [
        ("q", "Q4_K", [256, 4]),
        ("f", "F32", [3, 2]),
        ("h", "F16", [5]),
    ]
    np.testing.assert_array_equal(reader.tensors[0].data, tensors["q"].data)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (1, "U32"), (-1, "I32"), (1 << 32, "U64"), (-(1 << 40), "I64"), (1.5, "F32"), (True, "BOOL"), ("é", "STRING"),
        (np.uint16(3), "U16"), (np.int8(-3), "I8"), (np.float64(0.1), "F64"), (np.bool_(True), "BOOL"),
        (np.float16(0.5), "F32"), ([1, 2], "array of 2 I32"), ([1, 1 << 31], "array of 2 U32"),
        ([-1, 1 << 40], "array of 2 I64"), ([1.0], "array of 1 F32"), ([True, False], "array of 2 BOOL"),
        (["a", "b"], "array of 2 STRING"), (np.arange(3, dtype=np.uint8), "array of 3 U8"),
        (np.array([1, 2], dtype=">i2"), "array of 2 I16"), (np.zeros(2, np.float16), "array of 2 F32"),
    ],
    ids=repr,
)
def test_types_that_values_take(path: Path, value: Any, stored: str) -> None:
    write_gguf(path, "llama", {"k": value}, [])
    with GGUFFile.open(path) as file:
        assert file.metadata.describe("k") == stored
        assert np.array_equal(file.metadata["k"], value)


def test_types_that_the_caller_chooses(path: Path) -> None:
    chosen = {
        "a": TypedValue(ValueType.U8, 200),
        "b": TypedValue(ValueType.F64, 0.1),
        "c": TypedValue(ValueType.ARRAY, [1, 2], ValueType.U64),
        "d": TypedValue(ValueType.STRING, b"\xff"),
    }
    write_gguf(path, "llama", chosen, [])
    with GGUFFile.open(path) as file:
        assert [file.metadata.describe(k) for k in chosen] == ["U8", "F64", "array of 2 U64", "STRING"]
        assert [file.metadata[k] for k in "abd"] == [200, 0.1, "\\xff"]
        assert file.metadata.get_ints("c").tolist() == [1, 2]


_integers = st.integers(-(1 << 63), (1 << 64) - 1)
_floats = st.floats(width=32)
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_keys = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
_values = st.one_of(
    _integers, _floats, st.booleans(), _texts, st.binary(max_size=20),
    st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1), st.lists(_floats, min_size=1),
    st.lists(st.booleans(), min_size=1), st.lists(st.binary(max_size=20), min_size=1),
)


@settings(deadline=None)
@given(metadata=st.dictionaries(_keys, _values, max_size=8))
def test_any_metadata_round_trips(tmp_path_factory: pytest.TempPathFactory, metadata: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("any")
    metadata = {k: v for k, v in metadata.items() if not k.startswith(("general.", "split."))}
    write_gguf(folder / "a.gguf", "llama", metadata, [])
    with GGUFFile.open(folder / "a.gguf") as first:
        assert set(first.metadata) == {"general.architecture", *metadata}
        for key, value in metadata.items():
            _assert_same(_raw(first, key), value)
        write_gguf(folder / "b.gguf", "llama", {k: first.metadata.typed(k) for k in first.metadata}, [])
    assert (folder / "a.gguf").read_bytes() == (folder / "b.gguf").read_bytes()


def _raw(file: GGUFFile, key: str) -> Any:
    value = file.metadata.typed(key).value
    return value.tolist() if isinstance(value, np.ndarray) else value


def _assert_same(found: Any, wanted: Any) -> None:
    wanted = wanted.encode() if isinstance(wanted, str) else wanted
    np.testing.assert_equal(found, wanted)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("k", None, "NoneType"),
        ("k", [1, "a"], "int, str"),
        ("k", [[1], [2]], "list"),
        ("k", {"a": 1}, "dict"),
        ("k", 1 << 64, "integers from"),
        ("k", [-1, (1 << 64) - 1], "integers from"),
        ("k", 1e39, "does not fit F32"),
        ("k", TypedValue(ValueType.U8, 256), "256 does not fit U8"),
        ("k", TypedValue(ValueType.U8, 1.5), "float as U8"),
        ("k", TypedValue(ValueType.BOOL, 1), "int as BOOL"),
        ("k", TypedValue(ValueType.ARRAY, [[1]], ValueType.ARRAY), "array of arrays"),
        ("k", "\ud800", "lone surrogate"),
        ("k", np.zeros((2, 2)), "2 dimensions"),
        ("k", np.zeros(2, np.complex64), "complex64"),
        ("", 1, "0 characters"),
        ("\ud800", 1, "lone surrogate"),
        ("k" * 1025, 1, "1025 characters"),
        ("general.alignment", 48, "48"),
        ("general.architecture", "qwen2", "qwen2"),
    ],
)
def test_metadata_that_can_not_be_written(path: Path, key: str, value: Any, problem: str) -> None:
    with pytest.raises(GGUFError, match="allowed: ") as caught:
        write_gguf(path, "llama", {key: value}, [])
    assert problem in caught.value.problem
    assert caught.value.field is not None
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"": np.ones(2, np.float32)}, "a name"),
        ({"n" * 64: np.ones(2, np.float32)}, "a name"),
        ({"a\0b": np.ones(2, np.float32)}, "a name"),
        ([tensor("a", (2,)), tensor("a", (2,))], "duplicate"),
        ({"a": np.ones(2, np.float64)}, "float64"),
        ({"a": np.ones((), np.float32)}, "shape []"),
        ({"a": np.ones((0, 2), np.float32)}, "shape [0, 2]"),
        ({"a": np.ones((1, 1, 1, 1, 2), np.float32)}, "shape [1, 1, 1, 1, 2]"),
        ([LazyTensor("a", by_name("Q8_0"), (33,), lambda: tensor("a", (33,)))], "shape [33]"),
        ([LazyTensor("a", F32, (2,), lambda: tensor("a", (3,)))], "was made as"),
    ],
)
def test_tensors_that_can_not_be_written(path: Path, tensors: Any, problem: str) -> None:
    with pytest.raises(GGUFError) as caught:
        write_gguf(path, "llama", {}, tensors)
    assert problem in caught.value.problem
    assert os.listdir(path.parent) == []


def test_alignment_empty_arrays_and_split_keys(path: Path) -> None:
    metadata = {"general.alignment": 128, "empty": [], "split.count": np.uint16(3), "text": ""}
    write_gguf(path, "llama", metadata, [tensor("a", (3,)), tensor("b", (5,))])
    with GGUFFile.open(path) as file:
        assert file.alignment == 128
        assert [t.offset % 128 for t in file.tensors.values()] == [0, 0]
        assert set(file.metadata) == {"general.architecture", "general.alignment", "text"}


def test_a_few_tensors_in_memory_at_a_time(path: Path) -> None:
    n, shape = 64, (256, 1024)  # 1 MiB each

    def lazies() -> Iterator[LazyTensor]:
        for i in range(n):
            yield LazyTensor(f"t{i}", F32, shape, lambda i=i: tensor(f"t{i}", shape, seed=i))

    import gguf  # noqa: F401 - so that importing it does not count

    tracemalloc.start()
    try:
        write_gguf(path, "llama", {}, lazies())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert path.stat().st_size > n << 20


def test_an_error_leaves_the_target_as_it_was(path: Path) -> None:
    path.write_bytes(b"before")

    def fail() -> QTensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_gguf(path, "llama", {}, [tensor("a", (8,)), LazyTensor("b", F32, (8,), fail)])
    assert path.read_bytes() == b"before"
    assert os.listdir(path.parent) == [path.name]


_WRITE = """
import os, resource, signal, sys
import numpy as np
from octavo.errors import GGUFError
from octavo.formats import QTensor, by_name
from octavo.io.gguf import LazyTensor, write_gguf

f32, shape = by_name("F32"), (1024, 1024)

def make():
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return QTensor(f32, shape, np.zeros((1024, 4096), np.uint8))

if sys.argv[2] == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, 6 << 20))
first = QTensor(f32, shape, np.ones((1024, 4096), np.uint8), "a")
try:
    write_gguf(sys.argv[1], "llama", {}, [first, LazyTensor("b", f32, shape, make)])
except GGUFError as e:
    print(e)
"""


def _write_in_a_process(path: Path, how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", _WRITE, str(path), how], capture_output=True, text=True, check=False)


def test_a_killed_writer_leaves_the_target_as_it_was(path: Path) -> None:
    path.write_bytes(b"before")
    assert _write_in_a_process(path, "kill").returncode == -signal.SIGKILL
    assert path.read_bytes() == b"before"
    left = [name for name in os.listdir(path.parent) if name != path.name]
    assert [name.startswith(".octavo-") and name.endswith(".tmp") for name in left] == [True]


def test_a_full_disk_leaves_the_target_as_it_was(path: Path) -> None:
    path.write_bytes(b"before")
    done = _write_in_a_process(path, "full")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{path}: writing failed: ")
    assert path.read_bytes() == b"before"
    assert os.listdir(path.parent) == [path.name]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="writing failed: No such file or directory"):
        write_gguf(tmp_path / "no" / "model.gguf", "llama", {}, [])


def test_bytes_reach_the_disk_before_the_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(fd: int) -> None:
        target = os.readlink(f"/proc/self/fd/{fd}")
        steps.append("flush folder" if os.path.isdir(target) else "flush file")
        fsync(fd)

    def record_replace(source: str, target: str) -> None:
        steps.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    with replace_file(path) as temporary:
        assert os.path.dirname(temporary) == str(path.parent)
        Path(temporary).write_bytes(b"x")
    assert steps == ["flush file", "rename", "flush folder"]
    assert path.read_bytes() == b"x"


def test_permissions_and_links_are_those_of_a_plain_write(tmp_path: Path) -> None:
    plain, link, real = tmp_path / "plain", tmp_path / "link", tmp_path / "real"
    plain.write_bytes(b"")
    real.write_bytes(b"old")
    link.symlink_to(real)
    with replace_file(link) as temporary:
        Path(temporary).write_bytes(b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert real.stat().st_mode == plain.stat().st_mode

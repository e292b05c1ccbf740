"""Malformed files: a GGUFError that names file, offset and field, fast and in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from gguf_builder import ARCH, ARRAY, DATA, STRING, U32, WEIGHT, gguf, info, pair, raw_pair, tiny
from gguf_hostile import CORPUS, Hostile
from tests.limits import processor_time

from octavo.errors import GGUFError
from octavo.io.gguf import GGUFFile

MIB = 1 << 20


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_malformed_file_is_refused(tmp_path: Path, case: Hostile) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(case.data)
    tracemalloc.start()
    try:
        with processor_time(1), pytest.raises(GGUFError) as caught:
            GGUFFile.open(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    error, text = caught.value, str(caught.value)
    assert error.file == str(path)
    assert error.offset == case.offset
    assert error.field is not None
    assert case.field in error.field
    assert case.problem in error.problem
    assert str(path) in text
    assert f"byte {case.offset}" in text
    assert error.field in text
    assert "\n" not in text
    assert peak < 64 * MIB


def test_the_valid_twin_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny())
    with GGUFFile.open(path) as file:
        assert list(file.tensors) == ["a"]


def test_every_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for n in range(len(tiny())):
        path.write_bytes(tiny()[:n])
        with pytest.raises(GGUFError):
            GGUFFile.open(path)


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "nul"])
def test_paths_that_are_no_file(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "model.gguf")
    if kind == "folder":
        os.mkdir(path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "nul":
        path += "\0"
    with pytest.raises(GGUFError) as caught:
        GGUFFile.open(path)
    assert caught.value.file == path


def test_bad_utf8_in_a_value_is_kept_as_escapes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([pair("k", STRING, b"a\xffb\xc3\xa9")]))
    with GGUFFile.open(path) as file:
        assert file.metadata["k"] == "a\\xffbé"
        assert file.metadata.get_bytes("k") == b"a\xffb\xc3\xa9"


def test_sparse_file_of_64_gib_with_a_string_as_long(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([raw_pair("k", STRING, (1 << 35).to_bytes(8, "little"))]))
    os.truncate(path, 1 << 36)
    with pytest.raises(GGUFError, match=r"key 'k' string length: 34359738368.*at most 67108864"):
        GGUFFile.open(path)


_MEASURE = """
import re, sys, time
import octavo.formats.rare
from octavo.errors import GGUFError
from octavo.io.gguf import GGUFFile

def peak_mib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

before, start = peak_mib(), time.thread_time()
try:
    GGUFFile.open(sys.argv[1])
except GGUFError as e:
    print(time.thread_time() - start, peak_mib() - before)
    print(e)
"""


def _many_strings() -> bytes:
    """As many empty strings as are allowed, and one."""
    n = (1 << 21) + 1
    half = (1 << 20).to_bytes(8, "little") + bytes(8 << 20)
    rest = (n - (1 << 20)).to_bytes(8, "little") + bytes(8 * (n - (1 << 20)))
    kind = STRING.to_bytes(4, "little")
    return gguf([raw_pair("a", ARRAY, kind + half), raw_pair("b", ARRAY, kind + rest)])


def _many_tensors() -> bytes:
    """As many tensors as are allowed, the last in the place of the first."""
    n = 1 << 16
    infos = [info(f"blk.{i}.attn_output.weight", [8], offset=32 * (i % (n - 1))) for i in range(n)]
    return gguf([ARCH], infos, bytes(32 * n))


def _many_keys() -> bytes:
    """As many keys as are allowed, the last one twice."""
    pairs = [pair(f"key.number.{i}", U32, i) for i in range((1 << 14) - 1)]
    return gguf([*pairs, pairs[-1]], [WEIGHT], DATA)


def _many_arrays() -> bytes:
    """As many arrays in arrays as are allowed, and some."""
    kind, count = ARRAY.to_bytes(4, "little"), (1 << 15).to_bytes(8, "little")
    inner = kind + count + bytes(12 << 15)
    return gguf([raw_pair("k", ARRAY, kind + (3).to_bytes(8, "little") + inner * 3)])


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "build", [_many_strings, _many_tensors, _many_keys, _many_arrays], ids=lambda f: f.__name__[1:]
)
def test_the_largest_headers_in_time_and_memory(tmp_path: Path, build) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(build())
    command = [sys.executable, "-c", _MEASURE, str(path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures, message = output.splitlines()
    seconds, mib = map(float, figures.split())
    assert str(path) in message
    assert seconds < 2, message
    assert mib < 64, message

"""Any change of a valid file gives a model or a GGUFError, nothing else, and soon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf_target as target
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.limits import processor_time
from tests.sampling import some

SEEDS = target.seeds()
_at = st.one_of(st.integers(0, 512), st.integers(0, 1 << 16))
_value = st.one_of(st.sampled_from(target.EDGES), st.integers(0, (1 << 64) - 1))
_changes = st.one_of(
    st.builds(lambda at, bit: lambda data: target.flip(data, at, bit), _at, st.integers(0, 7)),
    st.builds(lambda at: lambda data: target.cut(data, at), _at),
    st.builds(
        lambda at, value, width: lambda data: target.overwrite(data, at, value, width),
        _at, _value, st.sampled_from(target.WIDTHS),
    ),
    st.builds(
        lambda at, other, start, n: lambda data: target.splice(data, at, other, start, n),
        _at, st.sampled_from(SEEDS), _at, st.integers(0, 256),
    ),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target.input_path(tmp_path_factory.mktemp("damage"))


@settings(max_examples=200, deadline=None)
@given(seed=st.sampled_from(SEEDS), changes=st.lists(_changes, max_size=4))
@example(seed=SEEDS[0], changes=[])
def test_damaged_files(path: Path, seed: bytes, changes: list) -> None:
    for change in changes:
        seed = change(seed)
    path.write_bytes(seed)
    with processor_time(1):
        valid = target.exercise(path)
    assert valid or changes


@settings(max_examples=200, deadline=None)
@given(
    data=st.binary(max_size=300),
    version=st.sampled_from([2, 3]),
    counts=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_random_bytes_after_a_header(path: Path, data: bytes, version: int, counts: tuple[int, int]) -> None:
    head = b"GGUF" + version.to_bytes(4, "little") + b"".join(n.to_bytes(8, "little") for n in counts)
    path.write_bytes(head + data)
    assert target.exercise(path) in (False, True)


@pytest.mark.parametrize("seed", some(range(len(SEEDS)), 2))
def test_every_bit_of_the_header(path: Path, seed: int) -> None:
    data = SEEDS[seed]
    for at in range(min(len(data), 200)):
        for bit in range(8):
            path.write_bytes(target.flip(data, at, bit))
            target.exercise(path)


def test_the_fuzz_command_runs(tmp_path: Path) -> None:
    script = Path(target.__file__).with_name("fuzz_gguf.py")
    command = [sys.executable, str(script), "--seconds", "2", "--findings", str(tmp_path / "found")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "found").iterdir()) == []

"""What fuzzing a GGUF file means: valid files to start from, ways to damage them, and everything a reader is asked.

Used by `fuzz_gguf.py` and by the property tests.
"""

from __future__ import annotations

import random
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from octavo.errors import GGUFError
from octavo.io.gguf import GGUFFile, Metadata, scan_non_finite

EDGES = (
    0,
    1,
    3,
    31,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    (1 << 62) + 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
WIDTHS = (1, 2, 4, 8)

_Type = gguf.GGUFValueType
_WIDTH = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_NUMBERS = [t for t in _Type if t not in (_Type.STRING, _Type.ARRAY)]
_ACCESSORS = (
    *(f"get_{kind}" for kind in ("int", "float", "bool", "str", "bytes", "ints", "floats", "bools", "strs")),
    "get_bytes_list", "typed", "describe",
)


def seeds() -> list[bytes]:
    """Valid files: a vocabulary, every value type, every tensor type, nested arrays, a shard, version 2, nothing."""
    model = _file(_add_vocabulary, {"token_embd.weight": ("F16", (4, 32)), "output_norm.weight": ("F32", (32,))})
    # Q8_1 is for activations only, and gguf has another size for it than ggml
    types = {t.name: (t.name, (256,)) for t in gguf.GGMLQuantizationType if t.name != "Q8_1"}
    return [
        model,
        model[:4] + (2).to_bytes(4, "little") + model[8:],
        _file(_add_every_type, {"x": ("F32", (2, 3, 4))}),
        _file(lambda writer: writer.add_custom_alignment(8), types),
        _shard(0),
        _file(lambda writer: writer.add_custom_alignment(64), {"x": ("F16", (8,))}),
        _file(lambda writer: None, {}),
    ]


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "</s>", "é", b"\xff"])
    writer.add_token_types([3, 3, 1, 1])
    writer.add_token_scores([0.5] * 4)
    writer.add_add_bos_token(True)


def _add_every_type(writer: gguf.GGUFWriter) -> None:
    for t in _NUMBERS:
        writer.add_key_value(t.name, 1, t)
        writer.add_key_value(f"{t.name}s", [1, 0, 1], _Type.ARRAY, sub_type=t)
    writer.add_key_value("string", b"a\xffb", _Type.STRING)
    writer.add_key_value("nested", [[1, 2], ["a", "b"], [[0.5]]], _Type.ARRAY)


def _shard(no: int) -> bytes:
    """One of two shards, with a tensor each."""

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_key_value("split.no", no, _Type.UINT16)
        writer.add_key_value("split.count", 2, _Type.UINT16)
        writer.add_key_value("split.tensors.count", 2, _Type.INT32)

    return _file(add, {f"x{no}": ("F32", (8,))})


def _file(add_metadata: Any, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> bytes:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seed.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        add_metadata(writer)
        for name, (kind, shape) in tensors.items():
            number = gguf.GGMLQuantizationType[kind]
            packed = gguf.quants.quant_shape_to_byte_shape(shape, number)
            writer.add_tensor(name, rng.integers(0, 256, packed, dtype=np.uint8), raw_dtype=number)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def input_path(folder: Path) -> Path:
    """Where to put an input: a shard's name, with the other shard beside it, as it may claim to be one of two."""
    (folder / "input-00002-of-00002.gguf").write_bytes(_shard(1))
    return folder / "input-00001-of-00002.gguf"


def flip(data: bytes, at: int, bit: int) -> bytes:
    """`data` with one bit turned."""
    at %= max(len(data), 1)
    return data[:at] + bytes([b ^ (1 << bit) for b in data[at : at + 1]]) + data[at + 1 :]


def cut(data: bytes, at: int) -> bytes:
    """The beginning of `data`."""
    return data[: at % (len(data) + 1)]


def overwrite(data: bytes, at: int, value: int, width: int) -> bytes:
    """`data` with a little-endian integer of `width` bytes put over what was there."""
    at %= len(data) + 1
    return data[:at] + (value % (1 << 8 * width)).to_bytes(width, "little") + data[at + width :]


def splice(data: bytes, at: int, other: bytes, start: int, n: int) -> bytes:
    """`data` with `n` bytes of `other` put in."""
    at, start = at % (len(data) + 1), start % (len(other) + 1)
    return data[:at] + other[start : start + n] + data[at:]


@lru_cache(maxsize=64)
def integers(data: bytes) -> list[tuple[int, int]]:
    """Where the numbers of a header lie, counts and lengths too: (byte, width), as far as the header makes sense."""
    found: list[tuple[int, int]] = []
    with suppress(struct.error, KeyError, OverflowError):
        for field in _walk(data):
            found.append(field)
            if len(found) == 4096:
                break
    return found


def _walk(data: bytes) -> Iterator[tuple[int, int]]:
    """The fields that `integers` lists; ends with an error where the bytes make no sense."""
    at = 4

    def number(width: int) -> int:
        nonlocal at
        value: int = struct.unpack_from("<I" if width == 4 else "<Q", data, at)[0]
        at += width
        return value

    def text() -> Iterator[tuple[int, int]]:
        nonlocal at
        yield at, 8
        length = number(8)
        at += length

    def value(kind: int) -> Iterator[tuple[int, int]]:
        nonlocal at
        if kind == _Type.STRING:
            yield from text()
        elif kind == _Type.ARRAY:
            yield from ((at, 4), (at + 4, 8))
            element, count = number(4), number(8)
            for _ in range(count):
                yield from value(element)
        else:
            yield at, _WIDTH[kind]
            at += _WIDTH[kind]

    yield from ((4, 4), (8, 8), (16, 8))
    number(4)
    n_tensors, n_keys = number(8), number(8)
    for _ in range(n_keys):
        yield from text()
        yield at, 4
        yield from value(number(4))
    for _ in range(n_tensors):
        yield from text()
        yield at, 4
        n_dims = number(4)
        yield from ((at + 8 * i, 8) for i in range(n_dims))
        at += 8 * n_dims
        yield from ((at, 4), (at + 4, 8))
        number(4), number(8)


def damage(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """`data` with a few random changes: mostly other numbers in its header, else bits, bytes, cuts and splices."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(max(1, len(data) if rng.random() < 0.2 else min(len(data), 1024)))
        match rng.randrange(8):
            case 0:
                data = flip(data, at, rng.randrange(8))
            case 1:
                data = overwrite(data, at, rng.choice(EDGES), rng.choice(WIDTHS))
            case 2:
                data = splice(data, at, rng.choice(others), rng.randrange(1024), rng.randrange(64))
            case 3 if rng.random() < 0.3:
                data = cut(data, at)
            case _:
                data = _other_number(rng, data)
    return data


def _other_number(rng: random.Random, data: bytes) -> bytes:
    fields = integers(data)
    if not fields:
        return data
    at, width = rng.choice(fields)
    old = int.from_bytes(data[at : at + width], "little")
    choices = (
        rng.choice(EDGES),
        rng.randrange(64),
        old + rng.choice((-1, 1)),
        old * 2,
        old ^ 1 << rng.randrange(8 * width),
    )
    return overwrite(data, at, rng.choice(choices), width)


def exercise(path: Path) -> bool:
    """Ask a reader for everything in the file. False where it gave a GGUFError, which is a right answer."""
    try:
        with GGUFFile.open(path) as file:
            _check_places(file)
            _ask_metadata(file.metadata)
            for name in file.tensors:
                tensor = file.tensor(name)
                if tensor.nbytes < 1 << 20:
                    scan_non_finite(tensor)
    except GGUFError:
        return False
    return True


def _check_places(file: GGUFFile) -> None:
    """Tensors lie within their files, aligned, apart from each other."""
    ends: dict[str, int] = {}
    assert file.alignment in range(8, (1 << 20) + 1)
    for info in sorted(file.tensors.values(), key=lambda info: (info.file, info.offset)):
        assert info.offset % file.alignment == 0 or len(file.files) > 1
        assert info.size > 0
        assert len(info.shape) in range(1, 5)
        assert ends.get(info.file, 24) <= info.offset
        ends[info.file] = info.offset + info.nbytes
    for path, end in ends.items():
        assert end <= Path(path).stat().st_size


def _ask_metadata(metadata: Metadata) -> None:
    for key in metadata:
        metadata[key]
        for accessor in _ACCESSORS:
            with suppress(GGUFError):
                getattr(metadata, accessor)(key)

"""What fuzzing a GGUF file means: valid files to start from, ways to damage them, and everything a reader is asked.

Used by `fuzz_gguf.py` and by the property tests.
"""

from __future__ import annotations

import random
import tempfile
from contextlib import suppress
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
_NUMBERS = [t for t in _Type if t not in (_Type.STRING, _Type.ARRAY)]
_ACCESSORS = (
    "int",
    "float",
    "bool",
    "str",
    "bytes",
    "ints",
    "floats",
    "bools",
    "strs",
    "bytes_list",
    "typed",
    "describe",
)


def seeds() -> list[bytes]:
    """Valid files: a vocabulary, every value type, every tensor type, nested arrays, a shard, version 2, nothing."""
    model = _file(_add_vocabulary, {"token_embd.weight": ("F16", (40, 32)), "output_norm.weight": ("F32", (32,))})
    # Q8_1 is for activations only, and gguf has another size for it than ggml
    types = {t.name: (t.name, (2, 256)) for t in gguf.GGMLQuantizationType if t.name != "Q8_1"}
    return [
        model,
        model[:4] + (2).to_bytes(4, "little") + model[8:],
        _file(_add_every_type, {"x": ("F32", (2, 3, 4))}),
        _file(lambda writer: writer.add_custom_alignment(8), types),
        _shard(0),
        _file(lambda writer: None, {}),
    ]


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "</s>", "é", b"\xff", *(f"t{i}" for i in range(36))])
    writer.add_token_types([3, 3, *[1] * 38])
    writer.add_token_scores([0.5] * 40)
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


def damage(rng: random.Random, files: list[bytes]) -> bytes:
    """One of `files` with a few random changes, most of them near the beginning, where the header is."""
    data = rng.choice(files)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(max(1, len(data) if rng.random() < 0.2 else min(len(data), 1024)))
        match rng.randrange(4):
            case 0:
                data = flip(data, at, rng.randrange(8))
            case 1:
                data = overwrite(data, at, rng.choice(EDGES), rng.choice(WIDTHS))
            case 2:
                data = splice(data, at, rng.choice(files), rng.randrange(1024), rng.randrange(64))
            case _ if rng.random() < 0.3:
                data = cut(data, at)
    return data


def exercise(path: Path) -> bool:
    """Ask a reader for everything in the file. False where it gave a GGUFError, which is a right answer."""
    try:
        with GGUFFile.open(path) as file:
            _ask_metadata(file.metadata)
            for name in file.tensors:
                tensor = file.tensor(name)
                if tensor.nbytes < 1 << 20:
                    scan_non_finite(tensor)
    except GGUFError:
        return False
    return True


def _ask_metadata(metadata: Metadata) -> None:
    for key in metadata:
        metadata[key]
        for accessor in _ACCESSORS:
            with suppress(GGUFError):
                getattr(metadata, accessor)(key)

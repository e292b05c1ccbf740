"""Weights that are packed where they lie are, byte for byte, those that NumPy packs on the host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from octavo.backends.gpu.weights import load as loading
from octavo.backends.gpu.weights import upload as uploads
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight, kernel_views
from octavo.backends.gpu.weights.layout import layout_of
from octavo.backends.gpu.weights.load import load
from octavo.backends.gpu.weights.pack import pack
from octavo.backends.gpu.weights.row_scales import load_rows
from octavo.bench.cases import WEIGHTS
from octavo.errors import GGUFError, QuantFormatError
from octavo.formats import FORMATS, QTensor, by_name, channel_format, unpack
from octavo.formats.group import BITS, GROUPS, SCALES, row_named
from octavo.formats.part import TensorPart
from octavo.formats.rows import pack_int4
from octavo.formats.spec import AnyArray, BlockFormat
from octavo.io.gguf import GGUFFile, write_gguf

ENDS = ("", "_Z", "_M")
PUBLISHED = [f"GROUP{b}_{group}{end}_{scale}" for b in BITS for group in GROUPS for end in ENDS for scale in SCALES]
NAMES = [*WEIGHTS, *(f.name for f in FORMATS if f.codebook), "FP8_128", "FP8_32", *PUBLISHED]


def has_layout(fmt: BlockFormat) -> bool:
    try:
        layout_of(fmt, "f16")
    except QuantFormatError:
        return False
    return not fmt.is_float


def stored(fmt: BlockFormat, n: int, k: int, *, finite: bool = False) -> QTensor:
    """Random bytes: every code and scale, NaN and Inf too unless they are to be finite."""
    data = np.random.default_rng(k).integers(0, 256, (n, k // fmt.block, fmt.block_bytes), dtype=np.uint8)
    if finite:
        at = 0
        for field in fmt.fields:
            if field.dtype.kind == "f" or field.kind == "bf16":
                data[..., at + field.dtype.itemsize - 1 : at + field.nbytes : field.dtype.itemsize] &= 0xBF
            at += field.nbytes
    return QTensor(fmt, (n, k), data.reshape(n, -1), "blk.0.weight")


def require_same(found: torch.Tensor, wanted: AnyArray, name: str) -> None:
    raw = np.ascontiguousarray(wanted).view(np.uint8)
    assert np.array_equal(found.contiguous().view(torch.uint8).numpy().reshape(-1), raw.reshape(-1)), name


@pytest.mark.parametrize("name", sorted({name for name in NAMES if has_layout(row_named(name))}))
def test_bytes_are_those_that_numpy_packs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = row_named(name)
    tensor = stored(fmt, 5, 3 * max(fmt.block, 64), finite=True)
    monkeypatch.setattr(loading, "CHUNK_VALUES", 2 * tensor.shape[1])
    found = load(tensor, "cpu")
    assert isinstance(found, QuantWeight)
    wanted = pack(unpack(tensor), fmt, found.layout.scale)
    assert wanted.layout == found.layout == pack(unpack(tensor), fmt).layout
    views = kernel_views(wanted)
    assert views.keys() == found.parts.keys()
    for part, view in views.items():
        require_same(found.parts[part], view, part)
        assert found.parts[part].numpy().dtype == view.dtype
        assert tuple(found.parts[part].shape) == view.shape


class Computed(TorchDispatchMode):
    """Which operations but moves have operands of unsigned types of 16 and 32 bits; CUDA lacks most of these."""

    MOVES = ("_to_copy", "clone", "copy_", "detach", "slice", "unsqueeze", "view")

    def __init__(self) -> None:
        super().__init__()
        self.found = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kinds = {x.dtype for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        name = func.overloadpacket.__name__
        if kinds & {torch.uint16, torch.uint32} and name not in self.MOVES:
            self.found.add(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", sorted(f.name for f in FORMATS if has_layout(f)))
def test_nothing_is_computed_with_types_that_cards_lack(name: str) -> None:
    fmt = row_named(name)
    with Computed() as computed:
        load(stored(fmt, 5, 3 * max(fmt.block, 64), finite=True), "cpu")
    assert computed.found == set()


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q8_0", "MXFP4", "FP8_128", "GROUP4_128_Z_BF16"])
def test_what_is_not_finite_stays_so(name: str, caplog: pytest.LogCaptureFixture) -> None:
    fmt = row_named(name)
    tensor = stored(fmt, 1024, 4 * max(fmt.block, 64))
    found, wanted = load(tensor, "cpu"), kernel_views(pack(unpack(tensor), fmt))
    assert isinstance(found, QuantWeight)
    kinds = {"f16": np.float16, "f32": np.float32, "exponent": np.uint8}
    scales = found.parts["scale"].numpy().view(kinds[found.layout.scale])
    np.testing.assert_array_equal(scales, wanted["scale"].view(scales.dtype))
    said = any("holds NaN or Inf" in record.message for record in caplog.records)
    assert said == (name != "MXFP4")


def test_parts_that_need_other_scales_are_packed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power of two in the first row, in the second a number that float16 does not hold."""
    fmt = row_named("GROUP4_128_F32")
    tensor = stored(fmt, 2, 128)
    tensor.data[:, :4] = np.float32([[0.25], [1 / 3]]).view(np.uint8)
    monkeypatch.setattr(loading, "CHUNK_VALUES", 128)
    found = load(tensor, "cpu")
    assert isinstance(found, QuantWeight)
    assert found.layout.scale == "f32"
    for part, view in kernel_views(pack(unpack(tensor), fmt)).items():
        require_same(found.parts[part], view, part)


@pytest.mark.parametrize("name", ["INT8", "INT4", "INT4_G128", "FP8"])
def test_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = channel_format(name, 256)
    tensor = stored(fmt, 5, 256)
    monkeypatch.setattr(loading, "CHUNK_VALUES", 512)
    found, planes = load_rows(tensor, "cpu"), unpack(tensor)
    assert planes.d is not None
    scale = planes.d[:, 0]
    match name:
        case "FP8":
            codes, lost = planes.q, (planes.q & 0x7F == 0x7F).any(axis=1)
            scale = np.where(lost, np.float32(np.nan), scale)
        case "INT8":
            codes = planes.q ^ np.uint8(0x80)
        case _:
            codes = pack_int4(planes.q ^ np.uint8(8))
    require_same(found.codes, codes, "codes")
    np.testing.assert_array_equal(found.scale.numpy(), scale)
    if planes.sc is not None:
        assert found.groups is not None
        assert found.groups.stride() == (1, 5)
        np.testing.assert_array_equal(found.groups.numpy(), planes.sc)


class Cuda:
    """What pieces are copied with, on a machine without a card."""

    device = torch.device("cpu")

    def record_event(self) -> Cuda:
        return self

    def synchronize(self) -> None:
        return


def small_staging(monkeypatch: pytest.MonkeyPatch) -> uploads.Staging:
    """Memory whose pieces are two rows of Q8_0 of 256 values."""
    empty = torch.empty

    def pageable(*size: int, dtype: torch.dtype, pin_memory: bool = False) -> torch.Tensor:
        return empty(*size, dtype=dtype)

    monkeypatch.setattr(torch, "empty", pageable)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Cuda())
    monkeypatch.setattr(uploads, "PIECE", 2 * 272)
    return uploads.Staging()


@pytest.mark.parametrize("rows", [1, 40, 100])
def test_pieces_are_copied_in_their_places(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file, and of a part of its tensor; with more pieces than there is memory for."""
    tensor = stored(by_name("Q8_0"), rows, 256)
    write_gguf(tmp_path / "one.gguf", "llama", {}, [tensor])
    staging = small_staging(monkeypatch)
    with GGUFFile.open(tmp_path / "one.gguf") as file:
        source = file.tensor(tensor.name)
        for one in (source.in_parts(), TensorPart(source, rows=((rows // 2, rows),)).in_parts(), tensor):
            for _ in range(2):
                out = torch.zeros((one.shape[0], 272), dtype=torch.uint8)
                staging.copy(one, slice(0, one.shape[0]), out)
                require_same(out, one.data, tensor.name)
    assert len(staging._free) == uploads.PIECES


def test_a_file_that_is_cut_gives_all_pieces_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = stored(by_name("Q8_0"), 100, 256)
    write_gguf(tmp_path / "one.gguf", "llama", {}, [tensor])
    staging = small_staging(monkeypatch)
    with GGUFFile.open(tmp_path / "one.gguf") as file:
        source = file.tensor(tensor.name)
        os.truncate(tmp_path / "one.gguf", os.path.getsize(tmp_path / "one.gguf") - 50 * 272)
        with pytest.raises(GGUFError, match="truncated"):
            staging.copy(source.in_parts(), slice(0, 100), torch.zeros((100, 272), dtype=torch.uint8))
    assert len(staging._free) == uploads.PIECES


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_floats(name: str) -> None:
    tensor = stored(by_name(name), 3, 64)
    found = load(tensor, "cpu")
    assert isinstance(found, FloatWeight)
    require_same(found.data, tensor.data, name)

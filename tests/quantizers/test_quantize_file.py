"""A model file quantized: every tensor's bytes, the metadata, the report, and what is refused."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from octavo.errors import FileError, GGUFError, ModelError, NonFiniteError, QuantFormatError, UsageError
from octavo.formats import QTensor, dequantize
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.quantizers import encode
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job import recode
from octavo.quantizers.job.quantize import quantize_file
from octavo.quantizers.mix.mixing import Choices
from tests.quantizers import small
from tests.sampling import slow

TYPES = {
    "token_embd.weight": "Q4_K", "output.weight": "Q6_K", "blk.0.attn_v.weight": "Q4_K", "blk.2.attn_v.weight": "Q6_K",
    "blk.3.ffn_down_exps.weight": "Q6_K", "blk.1.ffn_down_exps.weight": "Q4_K", "blk.0.ffn_gate_inp.weight": "F32",
    "output_norm.weight": "F32", "blk.1.attn_v.bias": "F32",
}


def read(path: Path) -> dict[str, QTensor]:
    with GGUFFile.open(path) as file:
        return {name: file.tensor(name, copy=True) for name in file.tensors}


def imatrix() -> Imatrix:
    """Weights for the matrices of layer 1 only: a row for attn_v, one each for the experts."""
    rng = np.random.default_rng(5)
    made = Imatrix(datasets=("a text",), chunk_count=7, chunk_size=512)
    made.add("blk.1.attn_v.weight", rng.random(small.WIDTH) * 9, 3)
    made.add("blk.1.ffn_down_exps.weight", rng.random((small.EXPERTS, small.FF)) ** 4 * 9, [3, 3, 4, 5])
    return made


def relative(wrong: np.ndarray, right: np.ndarray, weights: np.ndarray | float = 1.0) -> float:
    x, y = wrong.astype(np.float64), right.astype(np.float64)
    return float(np.sqrt((weights * (x - y) ** 2).sum() / (weights * y**2).sum()))


def test_each_tensor_is_encoded_in_its_type(src: Path, dst: Path) -> None:
    report = quantize_file(src, dst, "q4_k_m")
    before, after = read(src), read(dst)
    assert list(after) == list(before) == [row.name for row in report.rows]
    for row in report.rows:
        old, new = before[row.name], after[row.name]
        assert (row.source_type, row.type, row.shape) == (old.format.name, new.format.name, new.shape)
        assert (row.source_bytes, row.nbytes) == (old.nbytes, new.nbytes)
        if row.type == row.source_type:
            assert row.error is None
            np.testing.assert_array_equal(new.data, old.data)
            continue
        values = dequantize(old)
        packed = encode(values.reshape(-1, values.shape[-1]), row.type)
        np.testing.assert_array_equal(new.data.reshape(packed.shape), packed)
        assert row.error == pytest.approx(relative(dequantize(new), values), rel=1e-4)
        assert 0.001 < row.error < 0.2
    assert {name: after[name].format.name for name in TYPES} == TYPES
    assert report.nbytes == sum(t.nbytes for t in after.values())
    assert report.bits_per_weight == pytest.approx(8 * report.nbytes / sum(t.size for t in after.values()))


def test_metadata_is_kept_and_says_the_type(src: Path, dst: Path) -> None:
    quantize_file(src, dst, "Q4_K_M")
    with GGUFFile.open(src) as old, GGUFFile.open(dst) as new:
        added = {"general.file_type": 15, "general.quantization_version": 2}
        assert {k: new.metadata[k] for k in new.metadata} == {k: old.metadata[k] for k in old.metadata} | added
        assert {new.metadata.describe(k) for k in added} == {"U32"}


@pytest.mark.slow
def test_slabs_do_not_show(src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantize_file(src, tmp_path / "whole.gguf", "Q4_K_M", imatrix=imatrix())
    monkeypatch.setattr(recode, "SLAB", 3 * small.WIDTH)
    parts = quantize_file(src, tmp_path / "parts.gguf", "Q4_K_M", imatrix=imatrix())
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "parts.gguf").read_bytes()
    assert [r.error or 0 for r in parts.rows] == pytest.approx([r.error or 0 for r in whole.rows], rel=1e-4)


def test_threads_do_not_show(src: Path, tmp_path: Path) -> None:
    reports = [quantize_file(src, tmp_path / f"{n}.gguf", "Q4_K_M", imatrix=imatrix(), threads=n) for n in (1, 2)]
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "2.gguf").read_bytes()
    assert reports[0].rows == reports[1].rows


def test_importance_goes_to_each_expert(src: Path, dst: Path) -> None:
    given = imatrix()
    report = quantize_file(src, dst, "Q4_K_M", imatrix=given)
    before, after = read(src), read(dst)
    weighted = {row.name: row.error for row in report.rows if row.weighted}
    assert set(weighted) == {"blk.1.attn_v.weight", "blk.1.ffn_down_exps.weight"}
    name = "blk.1.ffn_down_exps.weight"
    values, weights = dequantize(before[name]), given.importance(name)
    assert weights is not None
    for expert in range(small.EXPERTS):
        packed = encode(values[expert], after[name].format, importance=weights[expert])
        np.testing.assert_array_equal(after[name].data[expert], packed)
    assert weighted[name] == pytest.approx(relative(dequantize(after[name]), values, weights[:, None]), rel=1e-4)


def test_an_imatrix_is_named_in_the_file(src: Path, dst: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights.gguf"
    imatrix().save(path)
    quantize_file(src, dst, "Q4_K_M", imatrix=path)
    with GGUFFile.open(dst) as file:
        found = {k.rpartition(".")[2]: file.metadata[k] for k in file.metadata if k.startswith("quantize.imatrix.")}
        assert file.metadata.describe("quantize.imatrix.entries_count") == "U32"
    assert found == {"file": str(path)[:127], "dataset": "a text", "entries_count": 2, "chunks_count": 7}


def test_an_imatrix_of_another_model_is_refused(src: Path, dst: Path) -> None:
    other = Imatrix()
    other.add("blk.1.attn_v.weight", np.ones(small.WIDTH + 1), 1)
    with pytest.raises(FileError, match=r"blk\.1\.attn_v\.weight"):
        quantize_file(src, dst, "Q4_K_M", imatrix=other)
    assert not dst.exists()


def test_an_imatrix_that_has_none_of_the_weights_is_refused(src: Path, dst: Path, tmp_path: Path) -> None:
    other = Imatrix(path="other.gguf")
    other.add("blk.1.attn_x.weight", np.ones(small.WIDTH), 1)
    for dry_run in (False, True):
        with pytest.raises(FileError, match=r"other\.gguf: has importances of 1 weights, none of which .*src"):
            quantize_file(src, dst, "Q4_K_M", imatrix=other, dry_run=dry_run)
    assert not dst.exists()


def test_weights_that_an_imatrix_lacks_are_told(src: Path, dst: Path, caplog: pytest.LogCaptureFixture) -> None:
    some = Imatrix()
    some.add("blk.1.attn_v.weight", np.ones(small.WIDTH), 1)
    quantize_file(src, dst, "Q4_K_M", imatrix=some, dry_run=True)
    assert "no importances for 7 of 10 tensors: blk.0.attn_v.weight, ..." in caplog.text


def test_choices_reach_the_types(src: Path, dst: Path) -> None:
    choices = Choices(output_type="q8_0", tensor_types=((r"blk\.[01]\.attn_v", "Q5_K"),), leave_output=False)
    report = quantize_file(src, dst, "Q4_0", choices=choices, dry_run=True)
    types = {row.name: row.type for row in report.rows}
    assert [types[f"blk.{i}.attn_v.weight"] for i in range(4)] == ["Q5_K", "Q5_K", "Q4_0", "Q4_0"]
    assert (types["output.weight"], types["token_embd.weight"]) == ("Q8_0", "Q4_0")


def test_a_dry_run_says_what_a_run_does_and_writes_nothing(src: Path, dst: Path) -> None:
    dry = quantize_file(src, dst, "Q3_K_M", dry_run=True)
    assert os.listdir(dst.parent) == [src.name]
    wet = quantize_file(src, dst, "Q3_K_M")
    assert (dry.dry_run, wet.dry_run) == (True, False)
    assert [(r.name, r.type, r.nbytes) for r in dry.rows] == [(r.name, r.type, r.nbytes) for r in wet.rows]
    assert {r.error for r in dry.rows} == {None}


def test_copy_changes_no_tensor(src: Path, dst: Path) -> None:
    quantize_file(src, dst, "COPY")
    before, after = read(src), read(dst)
    assert all((t.format, t.data.tobytes()) == (after[n].format, after[n].data.tobytes()) for n, t in before.items())
    with GGUFFile.open(dst) as file:
        assert file.metadata["general.file_type"] == 1


@pytest.mark.parametrize("preset", ["F32", "BF16"])
def test_floats(src: Path, dst: Path, preset: str) -> None:
    report = quantize_file(src, dst, preset)
    changed = [row for row in report.rows if row.error is not None]
    assert {row.type for row in changed} == {preset}
    assert len(changed) == 2 + 2 * small.LAYERS
    assert all((row.error or 0) <= (0 if preset == "F32" else 0.004) for row in changed)


def test_quantized_tensors_are_quantized_again_only_if_asked(src: Path, dst: Path, tmp_path: Path) -> None:
    quantize_file(src, dst, "Q8_0")
    again = tmp_path / "again.gguf"
    with pytest.raises(UsageError, match=r"token_embd\.weight' is Q8_0.*allow_requantize"):
        quantize_file(dst, again, "Q4_K_M")
    assert quantize_file(dst, again, "Q4_K_M", dry_run=True).nbytes
    assert not again.exists()
    report = quantize_file(dst, again, "Q4_K_M", allow_requantize=True)
    assert {row.name: row.type for row in report.rows}["token_embd.weight"] == "Q4_K"
    same = quantize_file(dst, again, "Q8_0")
    assert {row.error for row in same.rows} == {None}


def test_progress_ends_at_all_values(src: Path, dst: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    report = quantize_file(src, dst, "Q4_K_M", progress=lambda *row: seen.append(row))
    values = sum(int(np.prod(row.shape)) for row in report.rows)
    assert seen[-1] == (report.rows[-1].name, values, values)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert {name for name, *_ in seen} == {row.name for row in report.rows}


def test_memory_is_a_few_tensors(tmp_path: Path, dst: Path) -> None:
    src = small.write(tmp_path / "deep.gguf", layers=40)
    largest = max(t.size for t in read(src).values())
    total = sum(t.nbytes for t in read(src).values())
    quantize_file(src, dst, "Q4_K_M")  # what is imported and compiled once does not count
    tracemalloc.start()
    quantize_file(src, dst, "Q4_K_M")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total > 5e6
    assert peak < total / 2
    assert peak < 40 * largest


@pytest.mark.parametrize(("name", "at"), [
    ("blk.2.ffn_down_exps.weight", (3, 1, 500)),
    ("token_embd.weight", (7, 0)),
    ("blk.1.attn_v.bias", (5,)),
    ("blk.0.ffn_gate_inp.weight", (0, 9)),
])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nan_and_inf_name_the_tensor(tmp_path: Path, dst: Path, name: str, at: tuple[int, ...], value: float) -> None:
    bad = small.weights()[name]
    bad[at] = value
    src = small.write(tmp_path / "src.gguf", {name: bad})
    dst.write_bytes(b"before")
    with pytest.raises(NonFiniteError, match=name.replace(".", r"\.")) as error:
        quantize_file(src, dst, "Q4_K_M")
    if name.endswith(("exps.weight", "embd.weight")):
        assert str(list(at)) in str(error.value)
    assert dst.read_bytes() == b"before"
    assert sorted(os.listdir(tmp_path)) == ["dst.gguf", "src.gguf"]


@pytest.mark.parametrize("preset", ["F16", "Q4_0", "Q4_K_M"])
def test_values_beyond_a_type_name_the_tensor(tmp_path: Path, dst: Path, preset: str) -> None:
    large = np.full((64, small.WIDTH), 3e30, np.float32)
    src = small.write(tmp_path / "src.gguf", {"blk.2.attn_v.weight": large})
    with pytest.raises(QuantFormatError, match=r"blk\.2\.attn_v\.weight"):
        quantize_file(src, dst, preset)
    assert not dst.exists()


@pytest.mark.parametrize("link", ["", "symlink", "hardlink"])
def test_the_source_is_no_target(src: Path, tmp_path: Path, link: str) -> None:
    before, other = src.read_bytes(), tmp_path / "other.gguf"
    if link:
        (other.symlink_to if link == "symlink" else other.hardlink_to)(src)
    with pytest.raises(UsageError, match="is the model that is read"):
        quantize_file(src, other if link else src, "Q4_K_M")
    assert src.read_bytes() == before


def split(folder: Path) -> list[Path]:
    """The small model in two files."""
    weights = small.weights()
    names = list(weights)
    paths = [folder / f"split-{i + 1:05d}-of-00002.gguf" for i in range(2)]
    for i, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        for key, kind, value in (("no", "uint16", i), ("count", "uint16", 2), ("tensors.count", "int32", len(names))):
            getattr(writer, f"add_{kind}")(f"split.{key}", value)
        for key, value in small.KEYS.items() if i == 0 else ():
            (writer.add_array if isinstance(value, list) else writer.add_string if isinstance(value, str)
             else writer.add_uint32)(key, value)
        for name in names[:5] if i == 0 else names[5:]:
            writer.add_tensor(name, weights[name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_a_split_model_becomes_one_file(src: Path, dst: Path, tmp_path: Path) -> None:
    parts = split(tmp_path)
    quantize_file(src, dst, "Q4_K_M")
    whole = read(dst)
    quantize_file(parts[1], dst, "Q4_K_M")
    with GGUFFile.open(dst) as file:
        assert not any(key.startswith("split.") for key in file.metadata)
        assert file.files == (str(dst),)
    assert {n: t.data.tobytes() for n, t in read(dst).items()} == {n: t.data.tobytes() for n, t in whole.items()}
    with pytest.raises(UsageError, match="is the model that is read"):
        quantize_file(parts[1], parts[0], "Q4_K_M")


_QUANTIZE = """
import os, resource, signal, sys
from octavo.errors import OctavoError
from octavo.quantizers.job.quantize import quantize_file

src, dst, how = sys.argv[1:]

def stop(name, done, total):
    if how == "kill" and done > total / 2:
        os.kill(os.getpid(), signal.SIGKILL)

if how == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    quantize_file(src, dst, "Q4_K_M", progress=stop)
except OctavoError as error:
    print(error)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("how", "before"), [("kill", b"before"), ("full", None), slow(("kill", None)), slow(("full", b"before"))]
)
def test_the_target_is_whole_or_as_it_was(src: Path, dst: Path, how: str, before: bytes | None) -> None:
    if before:
        dst.write_bytes(before)
    command = [sys.executable, "-c", _QUANTIZE, str(src), str(dst), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), done.stderr
    assert done.stdout.startswith(f"{dst}: writing failed: " if how == "full" else "")
    assert (dst.read_bytes() if dst.exists() else None) == before
    left = set(os.listdir(dst.parent)) - {src.name, dst.name}
    assert [name.endswith(".tmp") for name in left] == ([True] if how == "kill" else [])


def test_q2_k_s_needs_importance(src: Path, dst: Path) -> None:
    assert quantize_file(src, dst, "Q2_K_S", dry_run=True).nbytes
    with pytest.raises(UsageError, match=r"Q2_K_S makes tensor .* Q2_K.* importance"):
        quantize_file(src, dst, "Q2_K_S")
    with pytest.raises(UsageError, match=r"blk\.0\.ffn_down_exps"):
        quantize_file(src, dst, "Q2_K_S", imatrix=imatrix())


def rare(path: Path) -> Path:
    """A model with a tensor of type Q2_0, which can be read and not written, nor by the gguf package."""
    blocks = np.random.default_rng(0).integers(0, 256, (16, small.WIDTH // 64, 18), dtype=np.uint8)
    blocks[..., 1] &= 0x3F  # a finite scale
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    kind = gguf.GGMLQuantizationType.Q4_0  # whose block is as large, and has half the values
    writer.add_tensor("output.weight", blocks.reshape(16, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    written, true = struct.pack("<QQI", small.WIDTH // 2, 16, kind), struct.pack("<QQI", small.WIDTH, 16, 42)
    assert path.read_bytes().count(written) == 1
    path.write_bytes(path.read_bytes().replace(written, true))
    return path


def test_types_that_are_only_read(tmp_path: Path, dst: Path) -> None:
    src = rare(tmp_path / "rare.gguf")
    with pytest.raises(UsageError, match=r"'output\.weight' is Q2_0, which can be read but not written"):
        quantize_file(src, dst, "COPY")
    (row,) = quantize_file(src, dst, "F16").rows
    assert (row.source_type, row.type, row.error) == ("Q2_0", "F16", 0)
    assert row.source_bytes == 16 * small.WIDTH // 64 * 18


@pytest.mark.parametrize(("keys", "error"), [
    ({"llama.block_count": 0}, GGUFError),
    ({"llama.block_count": "four"}, GGUFError),
    ({"llama.attention.head_count": -1}, GGUFError),
    ({"general.type": "imatrix"}, ModelError),
])
def test_metadata_that_makes_no_sense(tmp_path: Path, dst: Path, keys: dict[str, Any], error: type[Exception]) -> None:
    src = tmp_path / "src.gguf"
    write_gguf(src, "llama", small.KEYS | keys, small.weights())
    with pytest.raises(error):
        quantize_file(src, dst, "Q4_K_M")
    assert not dst.exists()


def test_the_demo_model_by_its_name(tmp_path: Path) -> None:
    report = quantize_file("demo", tmp_path / "out.gguf", "Q8_0", dry_run=True)
    assert report.source.endswith("demo.gguf")

"""Times 4-bit rows of published checkpoints next to Q4_0 and writes bench/results/<device>-w4a16-<date>.json.

    python bench/w4a16.py FOLDER [--device gpu] [--threads N] [--rounds N] [--shape NAME] [--only ops|models]

Groups of 128, symmetric (compressed-tensors and GPTQ) and with zero points (AWQ). First single products of the model's
matrices; then the model: folders are made in FOLDER where they are missing, and a GGUF file of the same weights and the
same embedding as Q4_0 by `octavo convert`. With --rows the layers of a GGUF file are replaced by random rows when they
are loaded, which needs neither a tokenizer nor an encoder. All run in turns, so that what else the machine does meets
each alike. `speed` is the median of Q4_0's time over the median of the row's: 1 is as fast, 0.95 five per cent slower.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import results_file
from octavo.backends import select
from octavo.bench import machine
from octavo.bench.cases import OpCase
from octavo.bench.op_bench import plans_of
from octavo.bench.subject import EngineSubject
from octavo.bench.synthetic import SHAPES, make, random_matrix
from octavo.formats import Planes, QTensor, dequantize, quantize_reference, unpack
from octavo.formats.group import group_format, row_named
from octavo.formats.scalars import f32_to_bf16
from octavo.formats.spec import AnyArray
from octavo.graph.protocol import Backend
from octavo.huggingface import open_model_file
from octavo.huggingface.config.config_out import config_json
from octavo.huggingface.tensors.tensor_names import checkpoint_name, is_linear
from octavo.io.gguf import GGUFFile
from octavo.io.safetensors.safetensors_writer import TensorHead, write_safetensors
from octavo.models import read_model
from octavo.runtime.engine.engine import Engine, EngineConfig

ROWS = {"ct": "GROUP4_128_F16", "gptq": "GROUP4_128_F16", "awq": "GROUP4_128_Z_F16"}
BASE = "Q4_0"
GROUP, DRAWN = 128, 64
TOKENS = {"cpu": (1, 2, 4, 8, 512), "gpu": (1, 2, 4, 8, 512, 2048)}
CONFIG: dict[str, dict[str, Any]] = {
    "ct": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True}}},
    },
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "checkpoint_format": "gptq"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
}
Parts = dict[str, AnyArray]
Times = dict[str, list[float]]


def words(codes: AnyArray, order: Sequence[int] = range(8)) -> AnyArray:
    """Codes [R, C] of 4 bits as I32 [R, C / 8]; nibble i of a word is code order[i] of its eight."""
    octets = codes.reshape(len(codes), -1, 8)[..., list(order)].astype(np.uint32)
    packed: AnyArray = np.bitwise_or.reduce(octets << np.arange(0, 32, 4, dtype=np.uint32), axis=-1)
    return packed.view(np.int32)


def module(layout: str, n: int, k: int, rng: np.random.Generator) -> Parts:
    """The tensors of a linear layer; its rows are DRAWN random ones again and again."""
    below = "zero" if layout == "awq" else "offset"
    values = rng.standard_normal((DRAWN, k), dtype=np.float32) / np.float32(k**0.5)
    planes: Planes = unpack(quantize_reference(values, group_format(4, GROUP, "F16", below)))
    assert planes.d is not None
    q, d = planes.q, planes.d.astype(np.float16)
    rows = (rng.integers(0, DRAWN // 8, n // 8)[:, None] * 8 + np.arange(8)).reshape(-1)  # whole words of AWQ's
    if layout == "ct":
        return {"weight_packed": words(q)[rows], "weight_scale": d[rows], "weight_shape": np.array([n, k])}
    if layout == "gptq":
        zeros = np.full((k // GROUP, n // 8), 0x77777777, np.int32)
        index = np.arange(k, dtype=np.int32) // GROUP
        return {"qweight": words(q)[rows].T, "qzeros": zeros, "scales": d[rows].T, "g_idx": index}
    assert planes.m is not None
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {"qweight": words(q.T[:, rows], order), "qzeros": words(planes.m.T[:, rows], order), "scales": d[rows].T}


DTYPES = {"int32": "I32", "int64": "I64", "float16": "F16", "uint16": "BF16", "float32": "F32"}


def write_folder(folder: Path, layout: str, base: GGUFFile) -> None:
    """A checkpoint of the shape of a GGUF file, its linear layers in a layout and the rest as bfloat16."""
    from octavo.huggingface.tokenizer.tokenizer_out import tokenizer_files

    model = read_model(base)
    tensors: dict[str, Callable[[], AnyArray]] = {}
    heads: list[TensorHead] = []

    def add(name: str, make_array: Callable[[], AnyArray], like: AnyArray) -> None:
        tensors[name] = make_array
        heads.append(TensorHead(name, DTYPES[like.dtype.name], like.shape))

    made: dict[tuple[int, int], Parts] = {}
    for name, info in base.tensors.items():
        full = checkpoint_name(name, model.architecture)
        assert full is not None
        if is_linear(name):
            n, k = info.shape
            parts = made.setdefault((n, k), module(layout, n, k, np.random.default_rng(n + k)))
            for end, array in parts.items():
                add(full.removesuffix("weight") + end, partial(np.ascontiguousarray, array), array)
        else:
            add(full, partial(_as_bf16, base, name), np.empty(info.shape, np.uint16))
    folder.mkdir(parents=True)
    write_safetensors(folder / "model.safetensors", heads, (array() for array in tensors.values()))
    config = config_json(model) | {"quantization_config": CONFIG[layout]}
    for file, values in {"config.json": config, **tokenizer_files(base)}.items():
        (folder / file).write_text(json.dumps(values), encoding="utf-8")


def _as_bf16(base: GGUFFile, name: str) -> AnyArray:
    values: AnyArray = f32_to_bf16(dequantize(base.tensor(name)))
    return values


def models(folder: Path, shape: str, layouts: Sequence[str]) -> dict[str, GGUFFile]:
    """Folders of the layouts, and a Q4_0 file with the weights of the first; made where they are missing."""
    base = folder / f"{shape}-q4_0.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    if not base.exists():
        make(shape, BASE, base)
    paths = {layout: folder / f"{shape}-{layout}" for layout in layouts}
    with GGUFFile.open(base) as file:
        for layout, path in paths.items():
            if not path.exists():
                write_folder(path, layout, file)
    converted = folder / f"{shape}-{layouts[0]}-q4_0.gguf"
    if not converted.exists():
        from octavo.convert import convert_checkpoint

        convert_checkpoint(paths[layouts[0]], converted)
    return {name: open_model_file(path) for name, path in {BASE: converted, **paths}.items()}


class InRows(GGUFFile):
    """A GGUF file whose linear layers are random rows of another format."""

    def __init__(self, base: GGUFFile, row: str) -> None:
        self.path, self.version, self.alignment, self.metadata = base.path, base.version, base.alignment, base.metadata
        self.tensors, self._sources = base.tensors, {}
        self._base, self._row, self._rng = base, row_named(row), np.random.default_rng(0)

    def tensor(self, name: str, *, copy: bool = False) -> QTensor:
        """A tensor of the file, or rows of its shape."""
        if is_linear(name):
            return random_matrix(name, self._row, self.tensors[name].shape, self._rng)
        return self._base.tensor(name, copy=copy)


def with_rows(folder: Path, shape: str) -> dict[str, GGUFFile]:
    """The Q4_0 file of a shape, made where it is missing, and the same with other rows."""
    base = folder / f"{shape}-q4_0.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    if not base.exists():
        make(shape, BASE, base)
    file = GGUFFile.open(base)
    return {BASE: file, **{row: InRows(file, row) for row in dict.fromkeys(ROWS.values())}}


def in_turns(subjects: Mapping[str, Callable[[], float]], rounds: int) -> Times:
    """Seconds of each subject, one after the other, `rounds` times; the first time is not counted."""
    times: Times = {name: [] for name in subjects}
    for i in range(rounds + 1):
        for name, measure in subjects.items():
            seconds = measure()
            if i:
                times[name].append(seconds)
    return times


def rows_of(times: Times, **case: Any) -> Iterator[dict[str, Any]]:
    """A row for each subject: its median, and how many times as fast as Q4_0 it is."""
    base = statistics.median(times[BASE])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        row = {**case, "format": name, "microseconds": median * 1e6, "speed": round(base / median, 4)}
        print(row, flush=True)
        yield row


def ops(backends: Sequence[Backend], shape: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Products of the matrices of a shape: q, k and v; gate and up; down."""
    s, timer = SHAPES[shape], _on_gpu if backends[0].name == "gpu" else _on_cpu
    rows = (s.n_head + 2 * s.n_head_kv) * s.head_dim
    for n, k in ((rows, s.n_embd), (2 * s.n_ff, s.n_embd), (s.n_embd, s.n_ff)):
        timers = {name: timer(backends[0], name, n, k) for name in (BASE, *dict.fromkeys(ROWS.values()))}
        for tokens in TOKENS[backends[0].name]:
            subjects = {name: timer(tokens) for name, timer in timers.items()}
            yield from rows_of(in_turns(subjects, rounds), op="mul_mat", n=n, k=k, tokens=tokens)


Timer = Callable[[int], Callable[[], float]]


def _on_cpu(backend: Backend, name: str, n: int, k: int) -> Timer:
    """For a number of tokens, what runs products with some copies of a matrix and gives the seconds of one."""

    def of(tokens: int) -> Callable[[], float]:
        case = OpCase("mul_mat", tokens, {"n": n, "k": k}, (name,))
        plans, _ = plans_of(case, case.build(), [backend])

        def run() -> float:
            start = time.perf_counter()
            for plan in plans:
                for step in plan.steps:
                    step()
            return (time.perf_counter() - start) / len(plans)

        return run

    return of


def _on_gpu(backend: Any, name: str, n: int, k: int) -> Timer:
    """The same by the events of a GPU; activations are quantized before."""
    import torch

    import gpu_ops
    from octavo.backends.gpu.launch.context import Context
    from octavo.backends.gpu.matmul.launch import product
    from octavo.bench import random_products

    context, (weight, nbytes) = Context(backend.target), random_products.matrix(backend, row_named(name), n, k)
    weights = random_products.copies(weight, nbytes)

    def of(tokens: int) -> Callable[[], float]:
        x, y = random_products.activations(context, tokens, k), torch.empty(tokens, n, device="cuda")
        used = weights if tokens <= 32 else weights[:4]
        calls = [gpu_ops.together(product(context, w, x, y, ())) for w in used]
        return lambda: gpu_ops.seconds(calls)

    return of


def whole(files: Mapping[str, GGUFFile], backends: Sequence[Backend], rounds: int) -> Iterator[dict[str, Any]]:
    """Prefill and decode of models."""
    gpu = backends[0].name == "gpu"
    prompts, steps = ((512, 2048), 32) if gpu else ((128,), 8)
    config = EngineConfig(n_ctx=max(prompts) + steps, n_batch=max(prompts), strict=True)
    subjects = {name: EngineSubject(Engine(read_model(file), backends, config)) for name, file in files.items()}
    for n in prompts:
        times = in_turns({name: partial(s.prefill, n) for name, s in subjects.items()}, rounds)
        yield from rows_of(times, test=f"prefill {n}")
    for subject in subjects.values():
        subject.prepare(0, 1)
    times = in_turns({name: partial(_decode, s, steps) for name, s in subjects.items()}, rounds)
    yield from rows_of(times, test="decode")


def _decode(subject: EngineSubject, steps: int) -> float:
    return subject.decode(steps) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--threads", type=int, default=machine.machine()["cores"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="qwen3-1.7b")
    parser.add_argument("--layouts", nargs="*", choices=tuple(ROWS), default=["ct", "awq"])
    parser.add_argument("--rows", action="store_true", help="replace the layers of a GGUF file when they are loaded")
    parser.add_argument("--only", choices=("ops", "models"))
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    args = parser.parse_args()
    backends = select(args.device, args.threads)
    described: dict[str, Any] = {}
    if args.device == "gpu":
        from octavo.bench import gpu

        described = {"gpu": gpu.describe(backends[0]), **gpu.versions()}
    result: dict[str, Any] = {**results_file.described(**described), "shape": args.shape, "threads": args.threads}
    if args.only != "models":
        result["ops"] = list(ops(backends, args.shape, args.rounds))
    if args.only != "ops":
        files = with_rows(args.folder, args.shape) if args.rows else models(args.folder, args.shape, args.layouts)
        result["models"] = list(whole(files, backends, args.rounds))
    results_file.write(f"{args.device}-w4a16", result, args.output)


if __name__ == "__main__":
    main()

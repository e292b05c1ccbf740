"""What products take of the device's memory in a step, beside weights and values: no copy of a weight, and little.

Products are bound as on each architecture, in the shapes of real models, on torch's device `meta`, which has no
memory: what they would allocate is counted, and kernels are not launched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.device import torch_device
from octavo.backends.gpu.device.torch_device import GpuTarget
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import (
    Activation,
    TokenCodes,
    activation_bytes,
    float_activation,
    half_activation_bytes,
    token_bytes,
)
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul import launch as products
from octavo.backends.gpu.matmul.w8a8 import gemm
from octavo.backends.gpu.ops import BINDERS
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight
from octavo.backends.gpu.weights.load import load, supported
from octavo.backends.gpu.weights.row_scales import RowWeight, load_rows
from octavo.bench.cases import WEIGHTS
from octavo.bench.synthetic import SHAPES, ModelShape, make, random_matrix
from octavo.bench.synthetic_folder import make_folder
from octavo.formats import QTensor, channel_format
from octavo.formats.float8 import float8_format
from octavo.formats.group import row_named
from octavo.formats.spec import BlockFormat
from octavo.graph.node import Node
from octavo.huggingface.writers import WRITERS
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import EngineConfig
from octavo.runtime.loading import open_model
from octavo.runtime.sampling.top_k import BEST
from tests.sampling import slow

ARCHS = ("interpreter", "sm_80", "sm_89", "sm_90", "sm_100", "gfx942")
TOKENS = (1, 2, 8, 32, 64, 256, 512)
MATRICES = ((28672, 4096), (4096, 14336), (128256, 4096))
"""Gate and up, down, and the output matrix of an 8B model: [n, k]; twice as large they are a 70B model's."""
EXPERTS = ((32, 4, 2880, 2880), (128, 8, 1536, 2048), (128, 8, 2048, 768))
"""How many there are and a token uses, n and k."""
KEPT_MIB = 64
ROWS = 64

FOLDERS = [("compressed-tensors", "BF16"), *((layout, scheme) for layout, w in WRITERS.items() for scheme in w.rows)]
MODELS = {("gguf", "Q4_K"), ("compressed-tensors", "BF16"), ("compressed-tensors", "fp8"), ("awq", "w4a16-g128")}

PER_ROW = ("INT8", "INT4", "INT4_G128", "FP8")
GROUPS = tuple(
    f"GROUP{bits}_{group}{below}_{scale}" for bits in (4, 8) for group in (32, 64, 128) for below in ("", "_Z")
    for scale in ("F16", "BF16", "F32")
)
FORMATS = (*WEIGHTS, *PER_ROW, "FP8_128", "FP8_32", *GROUPS)
QUICK = ("Q4_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4", "NVFP4", "BF16", "F16", "F32", "GROUP4_128_F16", "GROUP4_32_Z_F16",
         *PER_ROW, "FP8_128")


def format_of(name: str, k: int) -> BlockFormat:
    if name in PER_ROW:
        return channel_format(name, k)
    return float8_format(int(name[4:])) if name.startswith("FP8_") else row_named(name)


class Allocations(TorchDispatchMode):
    """The bytes of each tensor that is made, and is not a view of another."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = [t.untyped_storage() for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.sizes += [storage.nbytes() for storage in made if storage._cdata not in given]
        return out


class NoKernel:
    """What is launched in place of a kernel."""

    arg_names: tuple[str, ...] = ()

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **options: None


@pytest.fixture(params=[arch if arch in ("interpreter", "sm_90") else slow(arch) for arch in ARCHS])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GpuTarget:
    """An architecture on the device meta, on which kernels do nothing."""
    made = GpuTarget("meta", "none", False, request.param, "a card that is not here")
    monkeypatch.setattr(torch_device, "target", lambda card=None: made)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda at: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(Launch, "__call__", lambda launch: None)
    monkeypatch.setattr(gluon, "kernel", lambda name: NoKernel())
    for name in [name for name in vars(gemm) if name.endswith("_kernel")]:
        monkeypatch.setattr(gemm, name, NoKernel())
    return made


@cache
def _few(name: str, k: int, experts: int) -> Any:
    """Some rows of a format on the host."""
    fmt, shape = format_of(name, k), (1, ROWS, k) if experts > 1 else (ROWS, k)
    if fmt.encode is None:
        tensor = QTensor(fmt, shape, np.zeros((*shape[:-1], fmt.row_bytes(k)), np.uint8))
    else:
        tensor = random_matrix("w", fmt, shape, np.random.default_rng(0))
    if not supported(tensor)[0] or (fmt.per_row and experts > 1):
        return None
    return load_rows(tensor, "cpu") if fmt.per_row else load(tensor, "cpu")


def weight_of(name: str, n: int, k: int, experts: int = 1) -> Any:
    """A weight without memory, as it would lie on the device; None where there is none of these sizes."""
    if k % format_of(name, k).block:
        return None
    few = _few(name, k, experts)

    def like(part: torch.Tensor, rows: int) -> torch.Tensor:
        return torch.empty((rows, *part.shape[1:]), dtype=part.dtype, device="meta")

    if few is None:
        return None
    if isinstance(few, FloatWeight):
        return FloatWeight(experts, n, k, torch.empty((experts, n, k), dtype=few.data.dtype, device="meta"))
    if isinstance(few, RowWeight):
        groups = None if few.groups is None else torch.empty((k // 128, n), dtype=few.groups.dtype, device="meta").t()
        return RowWeight(n, k, like(few.codes, n), torch.empty(n, device="meta"), groups)
    return QuantWeight(few.layout, experts, n, k, {key: like(p, experts * n) for key, p in few.parts.items()})


def nbytes(weight: Any) -> int:
    return int(weight.codes.nbytes if isinstance(weight, RowWeight) else weight.nbytes)


def value_of(weight: Any, tokens: int, k: int, target: GpuTarget) -> Any:
    """Activations as a product with the weight takes them."""
    if isinstance(weight, RowWeight):
        kind = "fp8_token" if weight.codes.dtype == torch.float8_e4m3fn else "int8_token"
        return TokenCodes(torch.empty(token_bytes(tokens, k), dtype=torch.uint8, device="meta"), tokens, k, kind)
    if isinstance(weight, FloatWeight):
        few = tokens <= dispatch.FLOAT_MATVEC_MAX_TOKENS
        return torch.empty((tokens, k), dtype=torch.float32 if few else weight.data.dtype, device="meta")
    if weight.layout.float8:
        raw = torch.empty(half_activation_bytes(tokens, k), dtype=torch.uint8, device="meta")
        return float_activation(raw, tokens, k, target.arch)
    raw = torch.empty(activation_bytes(tokens, k, target.arch), dtype=torch.uint8, device="meta")
    return Activation(raw, tokens, k, both=dispatch.ordered(tokens, target.arch))


def run(context: Context, op: str, inputs: list[Any], out: torch.Tensor) -> None:
    """Bind a product of a plan of its own, and do what the host does in a step."""
    for call in BINDERS[op](context.begin_plan(), Node(op, (), tuple(out.shape), "f32"), inputs, out):
        call()


def kept(context: Context) -> int:
    """Bytes that the plans of a context have in common."""
    own = [t for work in context.workspaces.values() for t in vars(work).values() if isinstance(t, torch.Tensor)]
    return sum(t.nbytes for t in (*context.scratch.values(), *own))


@pytest.mark.few(32)
@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in FORMATS])
@pytest.mark.parametrize("size", ["8B", "70B"])
def test_no_product_copies_its_weight(size: str, name: str, target: GpuTarget) -> None:
    context, some = Context(target), False
    for n, k in MATRICES if size == "8B" else [(2 * n if n < 1 << 16 else n, 2 * k) for n, k in MATRICES]:
        weight = weight_of(name, n, k)
        if weight is None:
            continue
        some = True
        for tokens in TOKENS:
            x, y = value_of(weight, tokens, k, target), torch.empty((tokens, n), device="meta")
            with Allocations() as seen:
                run(context, "mul_mat", [weight, x], y)
            most = max(seen.sizes, default=0)  # a part of a matrix as halves may be larger than all of it in few bits
            assert most < (nbytes(weight) if size == "70B" else 2 * n * k), f"{tokens} tokens, {n} x {k}"
            if size == "8B" and target.arch != "interpreter":
                assert kept(context) < KEPT_MIB << 20, f"{tokens} tokens, {n} x {k}"
    assert some


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in FORMATS if name not in PER_ROW])
def test_no_product_with_experts_copies_their_weights(name: str, target: GpuTarget) -> None:
    for experts, used, n, k in EXPERTS:
        context, weight = Context(target), weight_of(name, n, k, experts)
        if weight is None:
            continue
        for tokens in TOKENS:
            x = torch.empty((tokens, k), device="meta")
            ids = torch.empty((tokens, used), dtype=torch.int32, device="meta")
            y = torch.empty((tokens, used, n), device="meta")
            with Allocations() as seen:
                run(context, "mul_mat_id", [weight, x, ids], y)
            assert max(seen.sizes, default=0) < nbytes(weight), f"{tokens} tokens, {n} x {k}"
            assert kept(context) < KEPT_MIB << 20, f"{tokens} tokens, {n} x {k}"


@pytest.mark.parametrize("shape", ["dense", "experts"])
@pytest.mark.parametrize(
    ("layout", "scheme"),
    [one if one in MODELS else slow(one) for one in (("gguf", "Q4_K"), ("gguf", "Q8_0"), *FOLDERS)],
)
def test_a_step_that_is_bound_allocates_little(
    layout: str, scheme: str, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a whole model, by the interpreter's plans: what a step that has run before makes is less than any matrix.

    Without products of the library, which the interpreter has in float32; those of cards are in the tests above.
    """
    keys = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 512}
    experts = keys if shape == "experts" else {}
    arch = "qwen3moe" if experts else "llama"
    monkeypatch.setitem(SHAPES, "tiny", ModelShape(arch, 1, 512, 512, 4, 4, 128, 600, False, keys=experts))
    path = tmp_path / "tiny.gguf"
    if layout == "gguf":
        make("tiny", scheme, path)
    else:
        make_folder("tiny", scheme, path, layout=layout)
    monkeypatch.setattr(Launch, "__call__", lambda launch: None)
    monkeypatch.setattr(products, "library_product", lambda x, w, y, add=False: None)
    for name in [name for name in vars(gemm) if name.endswith("_kernel")]:
        monkeypatch.setattr(gemm, name, NoKernel())
    config = EngineConfig(n_ctx=512, n_batch=256, max_sequences=8)
    with open_model(path, [GpuBackend()], config) as model:
        least = min(info.nbytes for info in model.file.tensors.values() if len(info.shape) > 1 and info.shape[0] > 8)
        for tokens in (1, 2, 8, 64, 256):
            for again in (False, True):
                sequence = Sequence()
                with Allocations() as seen:
                    model.engine.launch([Feed(sequence, [1] * tokens)], (BEST,), check=False).read()
                model.engine.pool.release(sequence)
                assert not again or max(seen.sizes) < least, f"{tokens} tokens"

"""Calls that are made of those of a node like theirs are, address by address, those that binding gives."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from octavo.backends.gpu import GpuBackend, backend
from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.device import torch_device
from octavo.backends.gpu.device.torch_device import GpuTarget
from octavo.backends.gpu.launch import call, template
from octavo.backends.gpu.launch.call import Captured, Launch
from octavo.backends.gpu.matmul.w8a8 import gemm
from octavo.bench.synthetic import SHAPES, ModelShape, make
from octavo.bench.synthetic_folder import make_folder
from octavo.graph.plan import Plan
from octavo.runtime.engine.captured_sizes import StepSize
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.loading import open_model
from octavo.runtime.sampling.draw import GREEDY, DeviceDraws
from octavo.runtime.sampling.top_k import BEST, DRAWN
from tests.sampling import slow

LAYERS = 8
SIZES = (StepSize(1, 0), StepSize(2, 0), StepSize(8, 0), StepSize(64, 0), StepSize(0, 32), StepSize(8, 256))
EXPERTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 256}
MODELS = {
    "dense": ("llama", {}, "Q4_K_M"),
    "floats": ("llama", {}, "BF16"),
    "experts": ("qwen3moe", EXPERTS, "Q4_K_M"),
    "experts of few bits": ("qwen3moe", EXPERTS, "MXFP4_MOE"),
    "windows": ("gemma3", {"attention.sliding_window": 64}, "Q8_0"),
}
FOLDERS = {"rows": "fp8", "groups": "w4a16-g128", "rows of four bits": "w4a8"}


class NoKernel:
    """What is launched in place of a kernel in Gluon, which has no interpreter."""

    arg_names: tuple[str, ...] = ()

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments, **options: None


@pytest.fixture(params=["sm_90", slow("sm_80"), slow("gfx942")])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GpuTarget:
    """An architecture whose kernels do nothing; values lie in the host's memory."""
    made = GpuTarget("cpu", "ptx", request.param == "sm_90", request.param, "a card that is not here")
    monkeypatch.setattr(torch_device, "target", lambda card=None: made)
    monkeypatch.setattr(backend, "target", lambda card=None: made)
    monkeypatch.setattr(backend, "interpreted", lambda: False)
    monkeypatch.setattr(torch_device, "_multiprocessors", lambda card: 132)
    monkeypatch.setattr(call, "PendingKernels", lambda launches: SimpleNamespace(is_done=True, finish=lambda: None))
    monkeypatch.setattr(Captured, "__call__", lambda captured: None)
    monkeypatch.setattr(Launch, "__call__", lambda launch: None)
    kernels = dict[str, NoKernel]()
    monkeypatch.setattr(gluon, "kernel", lambda name: kernels.setdefault(name, NoKernel()))
    for name in [name for name in vars(gemm) if name.endswith("_kernel")]:
        monkeypatch.setattr(gemm, name, NoKernel())
    return made


def plans_of(engine: Engine, size: StepSize) -> list[Plan]:
    """Plans of steps of a size, bound now."""
    engine.load().rebind()
    feeds = engine.dummy_step(size)
    draws = DeviceDraws([GREEDY] * len(feeds), [0] * len(feeds), 600)
    return [engine.plan(feeds, (output,), more) for output, more in ((BEST, None), (DRAWN, draws))]


def leaves(argument: Any) -> Any:
    """An argument with addresses in place of what has them."""
    if isinstance(argument, tuple):
        return tuple(map(leaves, argument))
    if hasattr(argument, "data_ptr"):
        return argument.data_ptr()
    if hasattr(argument, "block_shape"):
        return leaves(argument.base), argument.base.dtype, *argument.shape, *argument.strides, *argument.block_shape
    return argument


def kinds(argument: Any) -> Any:
    """The types of an argument, all the way down."""
    return type(argument), *(map(kinds, argument) if isinstance(argument, tuple) else ())


def described(one: Any) -> Any:
    if isinstance(one, Launch):
        return one.kernel, one._grid, one._options, one.compiled_for, leaves(one.arguments)
    if isinstance(one, partial):
        tensors = [x for x in one.args if isinstance(x, torch.Tensor)]
        return one.func, one.keywords, [(x.data_ptr(), x.shape, x.stride(), x.dtype) for x in tensors]
    return type(one)


def calls_of(plan: Plan) -> list[Any]:
    (step,) = plan.steps
    assert isinstance(step, Captured)
    return list(step.calls)


def model(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    arch, keys, preset = MODELS.get(name, ("llama", {}, ""))
    monkeypatch.setitem(SHAPES, "tiny", ModelShape(arch, LAYERS, 512, 512, 4, 2, 128, 600, False, keys=keys))
    if preset:
        make("tiny", preset, path / "tiny.gguf")
        return path / "tiny.gguf"
    make_folder("tiny", FOLDERS[name], path / "tiny")
    return path / "tiny"


@pytest.mark.few(2)
@pytest.mark.parametrize("name", [*MODELS, *FOLDERS])
def test_calls_are_those_that_binding_gives(
    name: str, target: GpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bound = model(name, tmp_path, monkeypatch), list[str]()
    bind = GpuBackend.launches

    def launches(self: GpuBackend, context: Any, node: Any, inputs: Any, out: Any) -> Any:
        bound.append(node.op)
        return bind(self, context, node, inputs, out)

    monkeypatch.setattr(GpuBackend, "launches", launches)
    config = EngineConfig(n_ctx=1024, n_batch=512, max_sequences=64)
    with open_model(path, [GpuBackend()], config) as opened:
        for size in SIZES:
            plans_of(opened.engine, size)  # after which weights lie as products of this size read them
            bound.clear()
            made, few = [calls_of(plan) for plan in plans_of(opened.engine, size)], len(bound)
            bound.clear()
            with monkeypatch.context() as plain:
                plain.setattr(template.Templates, "calls", lambda self, c, b: self._bind(c, b))
                each = [calls_of(plan) for plan in plans_of(opened.engine, size)]
            for found, wanted in zip(made, each, strict=True):
                assert len(found) == len(wanted)
                for one, other in zip(found, wanted, strict=True):
                    assert described(one) == described(other), size
                    if isinstance(one, Launch):  # which is compiled for what binding gives
                        source: Any = one.prepare
                        assert kinds(source.__self__.arguments) == kinds(other.arguments)
            most = 0.6 if name.startswith("rows") else 0.33  # products of rows are functions that close over a layer
            assert few < most * len(bound), (size, few, len(bound))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", [*MODELS, *FOLDERS])
def test_calls_are_those_that_binding_gives_at_that_moment(
    name: str, target: GpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a start, where weights are joined, and shared memory grows and is written, between one node and the next."""
    calls_of_node, copied = template.Templates.calls, list[str]()

    def checked(self: template.Templates, c: Any, b: Any) -> Any:
        before = dict(c.contents)
        found, left = calls_of_node(self, c, b), dict(c.contents)
        c.contents.clear()
        c.contents.update(before)
        assert list(map(described, found)) == list(map(described, self._bind(c, b))), b.node
        assert {key: id(value) for key, value in c.contents.items()} == {key: id(value) for key, value in left.items()}
        copied.extend(b.node.op for one in found if "prepare" in vars(one))
        return found

    monkeypatch.setattr(template.Templates, "calls", checked)
    path, config = model(name, tmp_path, monkeypatch), EngineConfig(n_ctx=1024, n_batch=512, max_sequences=64)
    with open_model(path, [GpuBackend()], config) as opened:
        for size in (SIZES[0], SIZES[-1], *SIZES[1:-1]):
            plans_of(opened.engine, size)
    assert {"attention", "rope_set_rows"} <= {*copied}


@pytest.mark.slow
def test_weights_that_are_replaced_are_not_kept(
    target: GpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model("dense", tmp_path, monkeypatch)
    with open_model(path, [GpuBackend()], EngineConfig(n_ctx=1024, n_batch=512, max_sequences=64)) as opened:
        plans_of(opened.engine, SIZES[0])
        executor = opened.engine.load()
        (name, at, old), *_ = [
            (leaf.tensor.name, key, weakref.ref(executor._leaves[key]))
            for leaf, b in executor._leaf_uses() if leaf.op == "weight" and leaf.tensor.name.endswith("ffn_down.weight")
            for key in [(b, id(leaf))]
        ]
        executor.replace(opened.file.tensor(name))
        plans_of(opened.engine, SIZES[0])
        gc.collect()
        assert old() is None
        assert executor._leaves[at] is not None

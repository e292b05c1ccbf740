"""Attention over scattered pages on the CPU, held to the reference: head sizes, groups, contexts, threads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.bench.cases import Built, OpCase, run
from octavo.formats.spec import F32, AnyArray
from octavo.graph.executor import Executor
from octavo.graph.lower import lower
from octavo.graph.protocol import Backend
from octavo.graph.schedule import root, schedule
from octavo.jit.kernel_cache import cache_root, kernel_folder
from tests.backends.comparison import Difference, compare
from tests.backends.cpu.levels import environment
from tests.sampling import slow, some

STEPS = {
    "one token": (1, (0,)), "one after 63": (1, (63,)), "one after 64": (1, (64,)), "one after 700": (1, (700,)),
    "prompt": (20, (0,)), "more of a prompt": (41, (100,)), "three decode": (3, (1, 64, 200)),
    "some begin, some go on": (23, (0, 130, 5)), "one of each of nine": (9, tuple(range(60, 69))),
}


def held_to_reference(case: OpCase, threads: int = 2) -> Difference:
    built = case.build()
    return compare(case, run(built, [CpuBackend(threads=threads)]), run(built, [ReferenceBackend()]))


def attention(step: str, **shape: Any) -> OpCase:
    tokens, past = STEPS[step]
    return OpCase("attention", tokens, {"heads": 4, "kv_heads": 2, "dim": 64, **shape}, past=past)


@pytest.mark.few(1)
@pytest.mark.parametrize("step", ["one after 64", "more of a prompt"])
@pytest.mark.parametrize("dim", [64, *(slow(dim) for dim in (80, 16, 32, 112, 128, 256))])
def test_head_sizes(dim: int, step: str) -> None:
    found = held_to_reference(attention(step, dim=dim))
    assert found.ok, found


@pytest.mark.parametrize("step", ["one after 64", "some begin, some go on"])
@pytest.mark.parametrize(("heads", "kv_heads"), list(map(slow, [(8, 2), (14, 2), (2, 2), (8, 1), (32, 1)])))
def test_groups_of_heads(heads: int, kv_heads: int, step: str) -> None:
    found = held_to_reference(attention(step, heads=heads, kv_heads=kv_heads))
    assert found.ok, found


@pytest.mark.parametrize("cache", some(["f16", "f32"], 1))
@pytest.mark.parametrize("step", STEPS)
def test_contexts(step: str, cache: str) -> None:
    """Alone, and after norms and rope that write the cache in the same kernel."""
    found = held_to_reference(attention(step, cache=cache))
    assert found.ok, found
    case = attention(step, cache=cache, norms=1, interleaved=1)
    found = held_to_reference(OpCase("rope_set_rows", case.tokens, case.shape, past=case.past))
    assert found.ok, found


@pytest.mark.few(2)
@pytest.mark.parametrize("past", [(130, 5, 70, 0), (700, 64, 3)])
@pytest.mark.parametrize("limits", [{}, {"window": 40, "cap": 1}, slow({"window": 40})])
def test_some_decode_while_prompts_go_on(limits: dict[str, int], past: tuple[int, ...]) -> None:
    shape = {"heads": 4, "kv_heads": 2, "dim": 64, "decodes": 2, **limits}
    found = held_to_reference(OpCase("attention", 22, shape, past=past))
    assert found.ok, found


@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize("step", ["one token", "one after 63", "one after 700", "three decode", "prompt"])
def test_pages_are_split_among_any_number_of_threads(step: str, threads: int) -> None:
    """More threads than there are pages and heads, too."""
    found = held_to_reference(attention(step, heads=2, kv_heads=1), threads)
    assert found.ok, found


def rounded(values: AnyArray) -> F32:
    """What 8-bit codes of 32 values with an f16 scale keep of them."""
    blocks = np.asarray(values, np.float32).reshape(-1, 32)
    d = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.rint(np.divide(blocks, d, out=np.zeros_like(blocks), where=d > 0))
    return (codes * d.astype(np.float16).astype(np.float32)).reshape(values.shape)


def with_rounded_cache(built: Built) -> Built:
    """The same steps with k and v rounded already, so that a float32 cache holds what a q8_0 one would."""
    steps = [({n: rounded(x) if n in ("k", "v") else x for n, x in i.items()}, sizes) for i, sizes in built.steps]
    return Built(built.graph, tuple(steps), built.limits)


@pytest.mark.few(4)
@pytest.mark.parametrize("dim", some([64, 32, 128], 1))  # 64: kernels that whole models compile too
@pytest.mark.parametrize("step", STEPS)
def test_quantized_cache(step: str, dim: int) -> None:
    """Against the reference with a float32 cache of the rounded numbers; a tie may be rounded to either side."""
    quantized, plain = (attention(step, dim=dim, cache=cache) for cache in ("q8_0", "f32"))
    found = run(quantized.build(), [CpuBackend(threads=2)])
    expected = run(with_rounded_cache(plain.build()), [ReferenceBackend()])
    difference = compare(plain, found, expected)
    assert difference.nmse < 1e-7, difference


KINDS = (("int8", 0), ("int8", 1), ("fp8", 0), ("fp8", 1), ("int4", 0))
SCALED = [(*kind, step) for kind in KINDS for step in STEPS]
DECODING = {step for step, (tokens, past) in STEPS.items() if tokens == len(past)}
QUICK = {("int4", "one after 700"), ("int8", "three decode")}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("cache", "static", "step"),
    [c if (c[0], c[2]) in QUICK and not c[1] else slow(c) for c in SCALED],
)
def test_scales_of_heads(cache: str, static: int, step: str) -> None:
    """By default as they are read token by token; a prompt's kernel is made of the same functions."""
    shape = {"cache": cache, "static": 1} if static else {"cache": cache}
    found = held_to_reference(attention(step, **shape))
    assert found.ok, found


LATENT = {
    "96": {"heads": 4, "kv_heads": 1, "dim": 96, "shared": 64},
    "576": {"heads": 16, "kv_heads": 1, "dim": 576, "shared": 512},  # DeepSeek-V2-Lite's
    "two heads": {"heads": 34, "kv_heads": 2, "dim": 64, "shared": 64, "window": 20, "cap": 1, "sinks": 1},
    "all values": {"heads": 3, "kv_heads": 1, "dim": 128, "shared": 128},
}
LATENT_STEPS = ("one after 700", "three decode", "some begin, some go on", "more of a prompt")
LATENT_CASES = [
    (cache, shape, step) if (shape, step) == ("96", "one after 700")
    else slow((cache, shape, step))
    for cache in ("int8", "fp8", "int4") for shape in LATENT for step in LATENT_STEPS
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("cache", "shape", "step"), LATENT_CASES)
def test_keys_that_are_values_too(cache: str, shape: str, step: str) -> None:
    """In types of few bits; those of f16, f32 and q8_0 are op cases."""
    tokens, past = STEPS[step]
    found = held_to_reference(OpCase("attention", tokens, {**LATENT[shape], "cache": cache}, past=past))
    assert found.ok, found


@pytest.mark.parametrize("values", [0, np.nan, np.inf])
def test_int8_keys_that_are_values_too_and_are_zeros_or_no_numbers(values: float) -> None:
    """Zeros are attended to evenly; a NaN token makes NaN of whatever sees it."""
    case = OpCase("attention", 1, {**LATENT["96"], "cache": "int8"}, past=(70,))
    built = case.build()
    before, last = built.steps
    k = before[0]["k"].copy()
    k[5] = values
    q = np.zeros_like(last[0]["q"]) if values == 0 else last[0]["q"]
    steps = ({**before[0], "k": k}, before[1]), ({**last[0], "q": q}, last[1])
    found = run(Built(built.graph, steps, built.limits), [CpuBackend(threads=2)])
    expected = run(Built(built.graph, steps, built.limits), [ReferenceBackend()])
    if values == 0:
        assert compare(case, found, expected).ok
    else:
        assert not np.isfinite(found[-1]).any()


@pytest.mark.parametrize(
    ("cache", "static", "reason"), [("int4", 0, "multiples of 32"), ("int8", 1, "with static scales")]
)
def test_keys_that_are_values_too_and_run_elsewhere(cache: str, static: int, reason: str) -> None:
    """Blocks that are rotated back have to be whole; static scales no kernel has."""
    case = OpCase("attention", 1, {**LATENT["96"], "cache": cache, "shared": 48})
    node = next(n for n in case.build().graph.nodes if n.op == "attention")
    if static:
        kept = root(node.inputs[1])
        cache_of_scales = replace(kept, attrs={**kept.attrs, "static": np.ones(1, np.float32)})
        node = replace(node, inputs=(node.inputs[0], cache_of_scales, cache_of_scales, *node.inputs[3:]))
    supported, found = CpuBackend(threads=2).supports(node)
    assert not supported
    assert reason in found


@pytest.mark.parametrize("op", ["attention", "rope_set_rows"])
@pytest.mark.parametrize(("dim", "cache"), [(8, "f16"), (40, "f16"), (100, "f32"), (48, "q8_0")])
def test_heads_that_kernels_lack_run_elsewhere(dim: int, cache: str, op: str) -> None:
    """With a reason, and right; the cache is then the other backend's too."""
    shape = {"heads": 4, "kv_heads": 2, "dim": dim, "cache": cache, "norms": 1, "interleaved": 0}
    built = OpCase(op, 3, shape, past=(5, 70, 1)).build()
    backends: list[Backend] = [CpuBackend(threads=2), ReferenceBackend()]
    graph = lower(built.graph, backends)
    node = next(n for n in graph.nodes if n.op == "attention")
    supported, reason = backends[0].supports(node)
    assert not supported
    assert str(dim) in reason
    planned = schedule(graph, backends, built.limits)
    assert len(planned.fallbacks) == 1
    if cache != "q8_0":
        ready = Executor(planned, backends, built.limits)
        found = [ready.run(*step)[0] for step in built.steps]
        assert compare(OpCase(op, 3), found, run(built, [ReferenceBackend()])).ok


@pytest.mark.slow
def test_compiled_now_and_read_from_disk(tmp_path: Path) -> None:
    """What is kept on disk was optimized once more than what ran when it was compiled, and lost sums of two heads.

    The kernels of attention are compiled here, the others taken from where they are.
    """
    folder = kernel_folder()
    assert folder is not None
    copies = tmp_path / folder.relative_to(cache_root())
    copies.mkdir(parents=True)
    for kernel in folder.glob("*.kernel"):
        if b"9attention" not in kernel.read_bytes():  # the module in the mangled name
            shutil.copy(kernel, copies)
    code = (
        "from octavo.backends import select\n"
        "from octavo.bench.cases import OpCase, run\n"
        "from tests.backends.comparison import compare\n"
        "case = OpCase('attention', 1, {'heads': 2, 'kv_heads': 1, 'dim': 80}, past=(30,))\n"
        "built = case.build()\n"
        "print(compare(case, run(built, select('cpu', 1)), run(built, select('reference'))))\n"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment(None, tmp_path), cwd=Path(__file__).parents[3],
            capture_output=True, text=True, check=True,
        )
        assert done.stdout.strip().endswith("ok=True)"), done.stdout

"""The CPU levels below the host's, in processes of their own: what is compiled for them, and that it computes right."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llvmlite import binding, ir

from octavo.bench.cases import OpCase
from octavo.jit import host_cpu, simd
from octavo.jit.simd import codes, emit
from tests.backends.cpu.levels import ROOT, environment, machine_code, run_tests
from tests.backends.op_cases import CASES
from tests.sampling import slow

x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs an x86-64 CPU")

EXPECTED: dict[str | None, dict[str, Any]] = {
    "avxvnni": {"registers": ["xmm", "ymm"], "dots": ["vpdpbusd ymm"], "masks": False, "fma": True, "f16c": True},
    "avx2": {
        "registers": ["xmm", "ymm"], "dots": ["vpmaddubsw ymm", "vpmaddwd ymm"], "masks": False, "fma": True,
        "f16c": True,
    },
    "x86-64": {"registers": ["xmm"], "dots": ["pmaddwd xmm"], "masks": False, "fma": False, "f16c": False},
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all levels: none may be given what was compiled for another."""
    return tmp_path_factory.mktemp("kernels")


@x86
@pytest.mark.parametrize("level", [slow("avx2"), slow("avxvnni"), slow("x86-64")])
def test_machine_code_has_nothing_above_its_level(level: str, cache: Path) -> None:
    assert machine_code(environment(level, cache)) == {"level": level, **EXPECTED[level]}


@x86
@pytest.mark.slow
@pytest.mark.parametrize("name", ["haswell", "generic"])
def test_level_is_that_of_the_code_with_a_name_alone(name: str, cache: Path) -> None:
    """Numba keeps the host's features with another CPU's name, and none with the name "generic"."""
    found = machine_code(environment(None, cache, NUMBA_CPU_NAME=name))
    expected = {
        "avx512vnni": (["xmm", "ymm", "zmm"], ["vpdpbusd zmm"]),
        "avxvnni": (["xmm", "ymm"], ["vpdpbusd ymm"]),
        "avx2": (["xmm", "ymm"], ["vpmaddubsw ymm", "vpmaddwd ymm"]),
        "x86-64": (["xmm"], ["pmaddwd xmm"]),
    }
    assert (found["registers"], found["dots"]) == expected[found["level"]]
    assert found["level"] == (host_cpu.level() if name == "haswell" else "x86-64")


@x86
@pytest.mark.slow
@pytest.mark.parametrize("level", ["avx2", "x86-64"])
def test_simd_and_packing_on_lower_levels(level: str, tmp_path: Path) -> None:
    """These tests again, as this machine would pass them were it older; without those that emulate yet others."""
    files = ("../jit/test_simd.py", "../jit/test_simd_blocks.py", "cpu/test_pack.py")
    done = run_tests(level, tmp_path, *files, leaving_out="sdot or generic or (packed_rows and not 17)")
    assert "passed" in done
    assert "skipped" not in done


LAYOUTS = {"Q4_K", "Q6_K", "IQ4_NL", "Q8_0", "F16"}
"""Formats that differ in bits, groups, levels of scales, minima or tables."""


def selected() -> list[OpCase]:
    """Of each op and layout a case with whole tiles of tokens and a rest, of attention all kinds of steps."""
    chosen: dict[tuple[str, ...], OpCase] = {}
    for case in CASES:
        tokens = {"mul_mat": 31, "mul_mat_id": 5}.get(case.op, 9)
        layouts = {"Q4_K", "F16"} if case.op == "mul_mat_id" else LAYOUTS
        heads, cache = (case.shape.get("heads"), case.shape.get("dim")), case.shape.get("cache")
        if case.op == "attention":
            special = {"cap", "sinks"} & case.shape.keys()
            kind = cache == "f16" if special else heads == (4, 128) and cache != "f32"
            steps = (3,) if cache in ("int8", "fp8") else (1, 3, 20)
            if kind and case.tokens in steps and max(case.past, default=0) < 400:
                chosen[case.op, case.name] = case
        elif case.op == "get_rows" or (case.op == "quantized_attention" and heads != (4, 64)):
            continue  # the former by test_pack
        elif case.tokens == tokens and (len(case.formats) != 1 or case.formats[0] in layouts):
            variant = (str(case.shape.get(key)) for key in ("interleaved", "norms"))
            chosen.setdefault((case.op, *case.formats, *variant), case)
    return list(chosen.values())


@x86
@pytest.mark.parametrize(("level", "every"), [slow(("avx2", 1)), slow(("avx2", 3)), slow(("x86-64", 1))])
def test_ops_on_lower_levels(level: str, every: int, tmp_path: Path) -> None:
    cases = selected()[::every]
    done = run_tests(level, tmp_path, *(f"cpu/test_op_cases.py::test_op_case[{c.name}]" for c in cases), slow_too=True)
    assert done.startswith(f"{len(cases)} passed")


@x86
@pytest.mark.slow
@pytest.mark.parametrize("level", ["avx2", "x86-64"])
def test_all_ops_on_lower_levels(level: str, tmp_path: Path) -> None:
    assert "passed" in run_tests(level, tmp_path, "cpu/test_op_cases.py")


ARM = {
    "dotprod": ("+neon,+dotprod", "dot", ("sdot",), ("usdot", "smull")),
    "i8mm": ("+neon,+dotprod,+i8mm", "dot", ("usdot",), ("sdot",)),
    "plain": ("+neon", "dot", ("smull",), ("sdot",)),
    "table": ("+neon,+dotprod", "table", ("tbl",), ()),
    "f16": ("+neon,+dotprod", "f16", ("fcvtl", "fmla"), ("bl",)),
}


@pytest.mark.parametrize("name", ARM)
def test_arm_code_uses_its_instructions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for 64-bit Arm and looked at; tests/jit/test_simd_blocks.py runs the same code with them emulated."""
    features, kind, wanted, unwanted = ARM[name]
    enabled = frozenset(f[1:] for f in features.split(","))
    monkeypatch.setattr(host_cpu, "features", lambda: enabled)
    monkeypatch.setattr(host_cpu, "level", lambda: next((n for n in ("i8mm", "dotprod") if n in enabled), "generic"))
    assembly = arm_assembly(kind, features)
    instructions = {line.split()[0] for line in assembly.splitlines() if line.startswith("\t") and line[1] != "."}
    assert set(wanted) <= {i.removesuffix("2") for i in instructions}
    assert not set(unwanted) & instructions


@pytest.mark.parametrize(
    ("level", "wanted", "unwanted"),
    [("i8mm", {"usdot", "usmmla"}, {"sdot"}), slow(("dotprod", {"sdot"}, {"usdot", "usmmla"})),
     slow(("neon", {"smull"}, {"sdot", "usdot", "usmmla"}))],
)
def test_arm_products_use_their_instructions(
    level: str, wanted: set[str], unwanted: set[str], tmp_path: Path
) -> None:
    """Whole kernels, compiled here for Arm as they are for what runs under qemu."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_CPU")}
    env |= {"OCTAVO_CACHE": str(tmp_path), "OCTAVO_CPU_LEVEL": level, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", ARM_PRODUCTS], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = {name.removesuffix("2") for name in json.loads(done.stdout)}
    assert wanted <= found
    assert not unwanted & found
    assert "fmla" in found


ARM_PRODUCTS = """
import json, re
from tests.arm.compiler import aim_at_arm
aim_at_arm()
from octavo.jit.prepare import prepare
prepare()
from octavo.backends.cpu.matmul.kernel import mul_mat_kernel
from octavo.backends.cpu.weights.pack import smallest_layout
from octavo.formats import by_name
layout = smallest_layout(by_name("Q4_K"))
text = "".join(mul_mat_kernel(layout, n).compiled._library.get_asm_str() for n in (1, 4))
print(json.dumps(sorted(set(re.findall(r"^\\t([a-z][a-z0-9]*)", text, re.M)))))
"""


def arm_assembly(kind: str, features: str) -> str:
    """A function of addresses around one operation of `simd`, as an aarch64 compiler makes it."""
    module = ir.Module()
    module.triple = "aarch64-unknown-linux-gnu"
    function = ir.Function(module, ir.FunctionType(emit.VOID, [emit.I64] * 3), "f")
    b = ir.IRBuilder(function.append_basic_block())
    acc, x, y = function.args
    if kind == "dot":
        result = simd.dot4(
            b, emit.load_at(b, acc, emit.V_I32), emit.load_at(b, x, emit.V_U8), emit.load_at(b, y, emit.V_U8)
        )
    elif kind == "table":
        result = codes.shuffle(b, emit.load_at(b, x, ir.VectorType(emit.I8, 16)), emit.load_at(b, y, emit.V_U8))
    else:
        halves = emit.widen_f16(b, emit.load_at(b, x, ir.VectorType(emit.F16, 16)))
        result = emit.multiply_add(b, halves, emit.load_at(b, y, emit.V_F32), emit.load_at(b, acc, emit.V_F32))
    emit.store_at(b, acc, result)
    b.ret_void()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(module.triple).create_target_machine(cpu="generic", features=features, opt=3)
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    return machine.emit_assembly(parsed)

"""Levels of x86-64 that tests make Numba compile for, and what the machine code of kernels made for them uses.

Run as a module it compiles some kernels, runs none, and prints as JSON the level and the registers and instructions
that their machine code names. NUMBA_CPU_NAME alone leaves Numba the host's features, so both are set.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from octavo.bench.cases import OpCase, executor

ROOT = Path(__file__).parents[3]
SSE2 = "+64bit,+cmov,+cx8,+fxsr,+mmx,+sse,+sse2"
AVX2 = SSE2 + ",+avx,+avx2,+bmi,+bmi2,+cx16,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave"
LEVELS = {"x86-64": ("x86-64", SSE2), "avx2": ("haswell", AVX2), "avxvnni": ("alderlake", AVX2 + ",+avxvnni")}


def environment(level: str | None, cache: Path, **more: str) -> dict[str, str]:
    """The environment of a process that compiles for a level (None: the host's), with a cache of its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_CPU")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    if level is not None:
        env["NUMBA_CPU_NAME"], env["NUMBA_CPU_FEATURES"] = LEVELS[level]
    return {**env, "OCTAVO_CACHE": str(cache), **more}


def run_tests(
    level: str | None, cache: Path, *tests: str, leaving_out: str = "", only: str = "", slow_too: bool = False,
    plugin: str = "",
) -> str:
    """Run tests, by their paths from tests/backends, in a process of that level; the end of what pytest printed.

    Raises AssertionError, with all of it, unless every test passed.
    """
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(f"tests/backends/{t}" for t in tests)]
    command += ["-k", f"not ({leaving_out})"] if leaving_out else []
    command += ["-k", only] if only else []
    command += ["-n", "0", "-p", plugin] if plugin else []
    command += ["-m", ""] if slow_too else []
    done = subprocess.run(command, env=environment(level, cache), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"on {level}:\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip().splitlines()[-1]


def machine_code(env: dict[str, str]) -> dict[str, Any]:
    """What this module prints in a process with that environment."""
    command = [sys.executable, "-m", "tests.backends.cpu.levels"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


CASES = (
    OpCase("mul_mat", 9, {"n": 16, "k": 256}, ("Q4_K",)),
    OpCase("mul_mat", 2, {"n": 16, "k": 256}, ("IQ4_NL",)),
    OpCase("mul_mat", 2, {"n": 16, "k": 256}, ("Q6_K",)),
    OpCase("mul_mat", 2, {"n": 16, "k": 256}, ("F16",)),
    OpCase("attention", 1, {"heads": 2, "kv_heads": 1, "dim": 64}),
    OpCase("swiglu", 1, {"k": 40}),
)


def main() -> None:
    from octavo.backends.cpu import CpuBackend
    from octavo.jit import host_cpu

    text = ""
    for case in CASES:
        built = case.build()
        plan = executor(built, [CpuBackend(threads=1)]).plan(built.steps[0][1])
        calls: Any = [call for _, call in plan.calls]
        text += "".join(k.kernel.compiled._library.get_asm_str() for program in calls for k in program.calls)
    dots = re.findall(r"(v?pdpbusd|v?pmaddwd|v?pmaddubsw)\b[^\n]*%(.)mm", text)
    print(json.dumps({
        "level": host_cpu.level(), "dots": sorted({f"{name} {register}mm" for name, register in dots}),
        "registers": [r for r in ("xmm", "ymm", "zmm") if f"%{r}" in text], "masks": "%k1" in text,
        "fma": "vfmadd" in text, "f16c": "vcvtph2ps" in text,
    }))


if __name__ == "__main__":
    main()

"""The level that kernels are compiled for: equal on all CPUs that have it, and nothing above it in the code."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys

import pytest
from llvmlite import binding, ir

from octavo.errors import BackendError
from octavo.jit import arm_cpu, host_cpu
from octavo.jit.host_cpu import ARM_FEATURES, CHOSEN, NEON, V2, V3, V4, VNNI, arm_target, target_of

KNOWN = sorted(
    VNNI | {"avxvnni", "avx512vbmi", "avx512bf16", "avx512fp16", "amx-tile", "amx-int8", "amx-bf16", "gfni", "sse4a"}
)
"""Features that LLVM tells of, in these tests."""
AMX = {"avx512bf16", "amx-tile", "amx-int8", "amx-bf16"}
x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs an x86-64 CPU")


def found(has: frozenset[str] | set[str]) -> str:
    """Features as LLVM writes those of a host."""
    return ",".join(f"{'+' if name in has else '-'}{name}" for name in KNOWN)


def test_a_cpu_shares_what_is_compiled_with_one_of_its_level_that_lacks_what_is_above() -> None:
    """As a virtual machine does that is not given all that its CPU has."""
    whole = target_of(found(VNNI | {"avxvnni", "avx512vbmi", "avx512bf16", "gfni", "sse4a"}))
    assert whole == target_of(found(VNNI | {"avx512vbmi"})) == found(VNNI)


@pytest.mark.parametrize(
    ("has", "level"),
    [
        (V2, V2), (V2 | {"gfni"}, V2), (V3, V3), (V3 | {"sse4a"}, V3), (V3 | {"avxvnni", "gfni"}, V3 | {"avxvnni"}),
        (V4 | {"avx512vbmi"}, V4), (VNNI | {"avxvnni"}, VNNI), (VNNI | AMX | {"avx512fp16"}, VNNI | AMX),
        (VNNI | AMX - {"amx-int8"}, VNNI),
    ],
)
def test_code_is_made_for_the_best_level_and_for_nothing_above_it(has: frozenset[str], level: frozenset[str]) -> None:
    assert target_of(found(has)) == found(level)


@pytest.mark.parametrize("has", [VNNI - {"avx512cd"}, V3 - {"movbe"}, V2 - {"ssse3"}, frozenset()])
def test_a_cpu_of_no_level_gets_code_of_its_own(has: frozenset[str]) -> None:
    """One without a part of what is usual would do less at the level below."""
    assert target_of(found(has)) is None


def shuffled() -> str:
    """A function that changes the places of 64 bytes, as this version of LLVM reads it."""
    bytes_, module = ir.VectorType(ir.IntType(8), 64), ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [bytes_.as_pointer()] * 2), "shuffle")
    builder = ir.IRBuilder(function.append_basic_block())
    places = ir.Constant(ir.VectorType(ir.IntType(32), 64), [i * 37 % 64 for i in range(64)])
    value = builder.load(function.args[0])
    builder.store(builder.shuffle_vector(value, ir.Constant(bytes_, ir.Undefined), places), function.args[1])
    builder.ret_void()
    return str(module)


@x86
@pytest.mark.parametrize(("cpu", "more"), [("znver4", False), ("sapphirerapids", False), ("znver4", True)])
def test_features_that_are_off_stay_off_under_the_name_of_a_cpu_that_has_them(cpu: str, more: bool) -> None:
    """Bytes of 512 bits that change places are one instruction with VBMI, which both CPUs have."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = found(VNNI | {"avx512vbmi"} if more else VNNI)
    target = binding.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu=cpu, features=features, opt=3)
    text = machine.emit_assembly(binding.parse_assembly(shuffled()))
    assert "zmm" in text
    assert ("vpermb" in text or "vpermi2b" in text) == more


PROGRAM = "from octavo.jit import host_cpu; print(host_cpu.codegen().magic_tuple()[1], *sorted(host_cpu.features()))"


@x86
def test_what_is_asked_for_is_what_code_is_made_for() -> None:
    """A level that the environment names, Numba's own choice where it compiled something before, else the host's."""
    binding.initialize_native_target()
    host, all_found = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    before = "import numba; numba.njit('i8(i8)')(lambda x: x); "
    asked = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"}
    features = target_of(all_found) or all_found
    for program, environment, name, on in (
        (PROGRAM, {}, host, features),
        (PROGRAM, asked, "haswell", "+avx2,+fma,+f16c"),
        (before + PROGRAM, {}, host, all_found),
    ):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_CPU")}
        command = [sys.executable, "-c", program]
        out = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True).stdout
        assert out.split() == [name, *sorted(f[1:] for f in on.split(",") if f.startswith("+"))]


@pytest.mark.parametrize(
    ("has", "level", "handed_out", "why"),
    [
        (VNNI | AMX, "avx512vnni", True, ""),
        (VNNI | AMX, "avx512vnni", False, "the system does not hand AMX's tiles out"),
        (VNNI, "avx512vnni", True, "this CPU has no AMX"),
        (V3, "avx2", True, "this CPU has no AMX"),
    ],
)
def test_tiles_are_used_where_the_cpu_has_them_and_the_system_hands_them_out(
    monkeypatch: pytest.MonkeyPatch, has: frozenset[str], level: str, handed_out: bool, why: str
) -> None:
    monkeypatch.setattr(host_cpu, "features", lambda: frozenset(has))
    monkeypatch.setattr(host_cpu, "level", lambda: level)
    monkeypatch.setattr(host_cpu, "_has_permission", lambda: handed_out)
    assert host_cpu.why_no_tiles() == why
    assert host_cpu.has_tiles() == (why == "")
    assert why in host_cpu.described()
    assert host_cpu.described().startswith(level)


@pytest.mark.parametrize(("has", "level"), [
    (NEON, "neon"), (NEON | {"lse"}, "neon"), (NEON | {"lse", "dotprod"}, "dotprod"),
    (NEON | {"lse", "i8mm"}, "neon"), (NEON | {"lse", "dotprod", "i8mm"}, "i8mm"),
])
def test_arm_code_is_made_for_the_best_level(has: frozenset[str], level: str) -> None:
    assert set(arm_target(has).split(",")) == {f"+{name}" for name in ARM_FEATURES[level]}


def test_a_lower_level_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOSEN, "avx2")
    assert target_of(found(VNNI)) == found(V3)
    with pytest.raises(BackendError, match=r"OCTAVO_CPU_LEVEL=avx2: not a level of this CPU \(allowed: x86-64-v2\)"):
        target_of(found(V2))
    with pytest.raises(BackendError, match=r"allowed: dotprod, neon"):
        arm_target(ARM_FEATURES["dotprod"])
    monkeypatch.setenv(CHOSEN, "neon")
    assert arm_target(ARM_FEATURES["i8mm"]) == "+fp-armv8,+neon"


class Library:
    """A system's library, as ctypes has it, with one function."""

    def __init__(self, name: str, function: object) -> None:
        setattr(self, name, function)


def on_linux(hwcap: int, hwcap2: int) -> Library:
    class Auxval:
        restype = argtypes = None

        def __call__(self, entry: int) -> int:
            assert self.restype is ctypes.c_ulong
            return {16: hwcap, 26: hwcap2}[entry]

    return Library("getauxval", Auxval())


def on_macos(*names: str) -> Library:
    def sysctlbyname(name: bytes, value: object, size: object, new: None, new_size: int) -> int:
        if name.decode().removeprefix("hw.optional.arm.") not in names:
            return -1
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = 1  # type: ignore[arg-type]
        return 0

    return Library("sysctlbyname", sysctlbyname)


def on_windows(*numbers: int) -> Library:
    return Library("IsProcessorFeaturePresent", lambda number: int(number in numbers))


@pytest.mark.parametrize(("system", "library", "level"), [
    ("linux", on_linux(0x8FB, 0), "neon"),  # Cortex-A72
    ("linux", on_linux(0x119FFB, 0), "dotprod"),  # Neoverse N1
    ("linux", on_linux(0xECFFFFFB, 0x7F877FFF), "i8mm"),  # all that qemu has
    ("darwin", on_macos("FEAT_LSE", "FEAT_DotProd"), "dotprod"),  # M1
    ("darwin", on_macos("FEAT_LSE", "FEAT_DotProd", "FEAT_I8MM", "FEAT_BF16"), "i8mm"),  # M2
    ("win32", on_windows(30, 31), "neon"),
    ("win32", on_windows(30, 31, 34, 43), "dotprod"),
    ("win32", on_windows(30, 31, 34, 43, 66), "i8mm"),
])
def test_each_system_tells_of_arms_features(
    system: str, library: Library, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert arm_cpu.features() >= ARM_FEATURES[level]
    assert arm_target(arm_cpu.features()) == ",".join(f"+{name}" for name in sorted(ARM_FEATURES[level]))

"""Builds a platform wheel that has the usual kernels in it, so that the first start compiles none of them.

    python tools/build_wheel.py OUT [--cpu NAME=LEVEL ...]

The kernels are those that models of MODELS take in PRESETS, for this CPU, or for each that `--cpu` names: LLVM's name
of a CPU and a level of `octavo.jit.host_cpu.FEATURES` that this machine can run, as znver4=avx512vnni. The same Python,
Numba and LLVM find them; with others, on another CPU or for another format kernels are compiled as ever. Fails where
the wheel would grow by more than MOST.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

from numba.core.codegen import get_host_cpu_features

from octavo.bench import synthetic
from octavo.jit.host_cpu import FEATURES
from octavo.sizes import size

ROOT = Path(__file__).resolve().parents[1]
MODELS = "qwen3-0.6b", "llama3-8b", "gemma3-4b"
HEADS = (32, 8, 64), (9, 3, 64), (14, 2, 64), (12, 2, 128), (28, 4, 128)
"""Heads of queries and of keys, and values of each, of small Llamas, SmolLM2 and Qwen2.5."""
PRESETS = "Q4_K_M", "Q8_0", "Q4_0", "Q4_1", "Q5_K_M", "Q6_K", "F16", "BF16"
MOST = 10_000_000
"""Bytes that kernels may take in the wheel."""


def small_models(folder: Path) -> list[str]:
    """Models with the heads and the formats of real ones and few weights, and the demo model."""
    made = ["demo"]
    small = {shape: replace(synthetic.SHAPES[shape], n_layer=8, n_embd=256, n_ff=256, n_vocab=512) for shape in MODELS}
    wanted = [(shape, preset) for shape in MODELS for preset in PRESETS]
    for n_head, n_head_kv, head_dim in HEADS:
        name = f"heads-{n_head}-{n_head_kv}-{head_dim}"
        small[name] = replace(small["llama3-8b"], n_head=n_head, n_head_kv=n_head_kv, head_dim=head_dim)
        wanted.append((name, PRESETS[0]))
    synthetic.SHAPES.update(small)
    for shape, preset in wanted:
        made.append(str(folder / f"{shape}-{preset}.gguf"))
        synthetic.make(shape, preset, Path(made[-1]))
    return made


def of_cpu(cpu: str) -> dict[str, str]:
    """The environment in which Numba compiles for a CPU."""
    name, _, level = cpu.partition("=")
    if level not in FEATURES:
        raise SystemExit(f"--cpu is {cpu!r} (allowed: NAME=LEVEL, with LEVEL one of {', '.join(FEATURES)})")
    known = sorted(feature[1:] for feature in get_host_cpu_features().split(","))  # type: ignore[no-untyped-call]
    return {"NUMBA_CPU_NAME": name,
            "NUMBA_CPU_FEATURES": ",".join(f"{'+' if one in FEATURES[level] else '-'}{one}" for one in known)}


def pack(wheel: Path, kernels: Path, out: Path) -> Path:
    """The wheel again with kernels in it, for this Python and this kind of system."""
    python, system = "cp{}{}".format(*sys.version_info[:2]), re.sub("[-.]", "_", sysconfig.get_platform())
    tag, record, rows = f"{python}-{python}-{system}", "", list[str]()
    path = out / wheel.name.replace("py3-none-any", tag)
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:

        def put(name: str, content: bytes) -> None:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            rows.append(f"{name},sha256={digest},{len(content)}\n")
            new.writestr(name, content)

        for name in old.namelist():
            content = old.read(name)
            if name.endswith(".dist-info/RECORD"):
                record = name
                continue
            if name.endswith(".dist-info/WHEEL"):
                content = content.replace(b"py3-none-any", tag.encode()).replace(b"Purelib: true", b"Purelib: false")
            put(name, content)
        for file in sorted(kernels.glob("*/*.kernel")):
            put(f"octavo/jit/shipped/{file.relative_to(kernels).as_posix()}", file.read_bytes())
        new.writestr(record, "".join([*rows, f"{record},,\n"]))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cpu", action="append", metavar="NAME=LEVEL")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        cache, folder = Path(temporary) / "cache", Path(temporary) / "models"
        folder.mkdir()
        models = small_models(folder)
        for cpu in [None] if options.cpu is None else map(of_cpu, options.cpu):
            environment = os.environ | (cpu or {}) | {"OCTAVO_CACHE": str(cache)}
            for model in models:
                subprocess.run([sys.executable, "-m", "octavo", "warm", model, "--device", "cpu"], check=True,
                               env=environment)
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", temporary, str(ROOT)]
        subprocess.run(command, check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        options.out.mkdir(parents=True, exist_ok=True)
        made = pack(wheel, cache / "kernels", options.out)
        more = made.stat().st_size - wheel.stat().st_size
        count = len(list((cache / "kernels").glob("*/*.kernel")))
    if more > MOST:
        made.unlink()
        raise SystemExit(f"{count} kernels take {size(more)} (allowed: {size(MOST)}); name fewer CPUs")
    print(f"{made}: {count} kernels, {size(more)} more")


if __name__ == "__main__":
    main()

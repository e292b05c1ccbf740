"""Where and with what a result was measured. Nothing that names a host or a user."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import octavo
from octavo.backends.cores import cores

PACKAGES = ("numpy", "numba", "llvmlite")
NOTEWORTHY = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm")
"""CPU features that change which instructions kernels use, as Linux calls them."""


def machine() -> dict[str, Any]:
    """The CPU's name, cores and features, bytes of memory, and the operating system; None for what can't be found."""
    info = _cpuinfo()
    flags = set(info.get("flags", info.get("Features", "")).split())
    return {
        "cpu": info.get("model name") or platform.processor() or platform.machine(), "family": _family(info),
        "cores": cores(), "features": [f for f in NOTEWORTHY if f in flags], "memory": _memory(),
        "os": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str | None]:
    """Versions of Python, of this package and its commit, and of what its kernels are compiled with."""
    found: dict[str, str | None] = {"octavo": octavo.__version__, "commit": commit()}
    found["python"] = platform.python_version()
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def commit() -> str | None:
    """The commit of the checkout that this package runs from, with `-dirty` where its sources differ; else None."""
    package = Path(octavo.__file__).resolve().parent
    if not (package.parent.parent / ".git").exists():
        return None
    head = _git(package, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return f"{head}-dirty" if _git(package, "status", "--porcelain", "--untracked-files=no", ".") else head


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def shortened(arguments: Iterable[str]) -> str:
    """A command line without folders: each path is its last part."""
    return " ".join(os.path.basename(a.rstrip(os.sep)) if os.sep in a else a for a in arguments)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpuinfo() -> dict[str, str]:
    """The first processor of /proc/cpuinfo; empty where there is none."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _family(info: dict[str, str]) -> str | None:
    """Vendor, family and model: what tells CPUs apart whose names do not."""
    parts = [info.get(key) for key in ("vendor_id", "cpu family", "model")]
    return f"{parts[0]} family {parts[1]} model {parts[2]}" if all(parts) else None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None

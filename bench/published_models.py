"""Models in the ways in which they are published: how each is made of random weights, and its aims on an H200."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from octavo.bench import synthetic
from octavo.bench.synthetic import ModelShape
from octavo.bench.synthetic_folder import is_folder, make_folder

DECODE, LONG = (1, 8, 32, 128), 32768
"""Replies at a time, and the depth of a long context."""
PARTS = ("decode", "decode-256", "decode-512", "prompt", "start", "depth", "cache")
USUAL = ("decode", "decode-256", "prompt", "start")
"""Parts of every model, unless others are asked for."""


@dataclass(frozen=True)
class Published:
    """A model: what `octavo bench make` is given, and tokens a second that it is to reach, by test.

    more  parts that it has beside the usual ones
    """

    shape: str
    preset: str
    layout: str = "compressed-tensors"
    folder: bool = True
    static: bool = False
    aims: Mapping[str, float] = field(default_factory=dict)
    more: tuple[str, ...] = ()

    def path(self, folder: Path, name: str) -> Path:
        return folder / (name if self.folder else f"{name}.gguf")

    def make(self, path: Path, shape: str) -> None:
        if not self.folder:
            synthetic.make(shape, self.preset, path)
            return
        assert is_folder(self.preset, path)
        make_folder(shape, self.preset, path, layout=self.layout, static=self.static)


def remove(path: Path) -> None:
    """A file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _aims(*rates: float, prompt: float) -> dict[str, float]:
    """Of 1, 8, 32, 128 and, where there is a fifth, 256 replies, and of prompts of 2,048 tokens."""
    tests = [f"decode {n}" for n in (*DECODE, 256)[: len(rates)]]
    return {**dict(zip(tests, rates, strict=True)), "prompt 2048": prompt}


BF16 = _aims(270, 1900, 6700, 15000, 17500, prompt=44000)
EIGHT = _aims(460, 3200, 9500, 18000, 20500, prompt=55000)
W4A16 = _aims(680, 3600, 8500, 13000, 15000, prompt=38000)
W4A8 = _aims(700, 4400, 12000, 20000, 22000, prompt=60000)
Q4_K = _aims(640, 3600, 8500, 14000, 15000, prompt=38000)
GPT_OSS = _aims(800, 3000, 7000, 14000, prompt=45000)
A3B = _aims(900, 3000, 5500, 13000, prompt=40000)


def _llama(preset: str, aims: Mapping[str, float] | None = None, **others: object) -> Published:
    return replace(Published("llama3-8b", preset, aims=aims or {}), **others)  # type: ignore[arg-type]


MODELS = {
    "8b-bf16": _llama("BF16", BF16, more=("depth",)),
    "8b-bf16-gguf": _llama("BF16", BF16, folder=False),
    "8b-f16": _llama("F16"),
    "8b-fp8": _llama("fp8", EIGHT, more=("cache",)),
    "8b-fp8-tensor": _llama("fp8", static=True),
    "8b-fp8-block": _llama("fp8-block"),
    "8b-int8-w8a8": _llama("int8-w8a8", EIGHT),
    "8b-w4a16-g128": _llama("w4a16-g128", W4A16),
    "8b-w4a16-g128-gptq": _llama("w4a16-g128", W4A16, layout="gptq"),
    "8b-w4a16-g128-awq": _llama("w4a16-g128", W4A16, layout="awq"),
    "8b-w4a16-g64-awq": _llama("w4a16-g64", layout="awq"),
    "8b-w4a16-g32-gptq": _llama("w4a16-g32", layout="gptq"),
    "8b-w4a8": _llama("w4a8", W4A8),
    "8b-w4a8-g128": _llama("w4a8-g128", W4A8),
    "8b-w4a8-qqq": _llama("w4a8", layout="qqq"),
    "8b-w4a8-g128-qqq": _llama("w4a8-g128", layout="qqq"),
    "8b-nvfp4": _llama("nvfp4a16"),
    "8b-mxfp4": _llama("mxfp4a16"),
    "8b-q4_k_m": _llama("Q4_K_M", Q4_K, folder=False, more=("depth",)),
    "8b-q8_0": _llama("Q8_0", folder=False),
    "gpt-oss-20b-mxfp4": Published("gpt-oss-20b", "MXFP4_MOE", folder=False, aims=GPT_OSS),
    "30b-a3b-q4_k_m": Published("qwen3-30b-a3b", "Q4_K_M", folder=False, aims=A3B),
    "30b-a3b-w4a16-g128": Published("qwen3-30b-a3b", "w4a16-g128", aims=A3B),
}

SECONDS = {"answers": 4.0, "ready": 10.0}
"""Of a dense model with warm kernel caches."""
CAPTURED_MIB, SHARE_AT_DEPTH, PROMPT_AT_DEPTH = 1024, 0.75, 0.6
"""What captured steps may take; of the read limit after LONG tokens; of the rate of a short prompt with a long one."""
CACHE_FP8 = {"decode 256": 22000.0}
"""Tokens a second of fp8 weights with a cache of fp8."""


def tiny(shape: ModelShape) -> ModelShape:
    """A shape like it for a machine without a card."""
    small = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 128}
    keys = {key: small.get(key, value) for key, value in shape.keys.items()}
    return replace(shape, n_layer=2, n_embd=256, n_ff=256, n_head=4, n_head_kv=2, head_dim=64, n_vocab=512, keys=keys)

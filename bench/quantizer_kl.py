"""Measures how much of a divergence is luck, ours and llama.cpp's; writes bench/results/quantizer-kl-<date>.json.

    python bench/quantizer_kl.py [--ggml LIBRARY] [--presets Q4_K_M,IQ4_XS] [--orders N]

A model stays the same when the channels of its residual stream, of its feed-forward layers and of its heads' values are
put in another order, but other weights then share a block. The demo model is quantized in many orders, by Octavo and
with the same types by ggml's `ggml_quantize_chunk`, and the divergence from the original is measured for each.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import results_file
from octavo.evals import demo_text, divergence
from octavo.evals.eval_model import open_subject
from octavo.formats import QTensor, dequantize
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.quantizers import quantize_file
from octavo.runtime import resolve
from quantizer_error import Peer, find_peer, peer_version

CONTEXT = 512
ROWS = ("attn_output.weight", "ffn_down.weight")  # whose rows are channels of the residual stream

Array = np.ndarray[Any, Any]


class Orders:
    """The demo model with its channels in another order."""

    def __init__(self) -> None:
        file = GGUFFile.open(resolve("demo"))
        self.metadata, self.arch = (
            {k: file.metadata.typed(k) for k in file.metadata},
            file.metadata["general.architecture"],
        )
        self.weights = {name: dequantize(file.tensor(name)) for name in file.tensors}
        self.heads, self.kv_heads = (
            file.metadata[f"{self.arch}.attention.{k}"] for k in ("head_count", "head_count_kv")
        )

    def write(self, path: Path, seed: int) -> dict[str, Array]:
        """Write the model in an order drawn by `seed`, and give its weights as float32."""
        rng = np.random.default_rng(seed)
        stream = rng.permutation(self.weights["token_embd.weight"].shape[1])
        orders: dict[str, Array] = {}
        made = {name: self._weight(name, x, stream, rng, orders) for name, x in self.weights.items()}
        halves = {name: x.astype(np.float16) if x.ndim == 2 else x for name, x in made.items()}
        write_gguf(path, self.arch, self.metadata, halves)
        return {name: np.ascontiguousarray(x, np.float32) for name, x in halves.items()}

    def _weight(self, name: str, x: Array, stream: Array, rng: np.random.Generator, orders: dict[str, Array]) -> Array:
        layer, _, kind = name.removeprefix("blk.").partition(".")
        if x.ndim == 1:
            return x if "attn_q_norm" in name or "attn_k_norm" in name else x[stream]
        x = x[stream] if kind in ROWS else x[:, stream]
        if kind.startswith("ffn_"):
            hidden = self.weights[f"blk.{layer}.ffn_down.weight"].shape[1]
            order = orders.setdefault(f"ffn {layer}", rng.permutation(hidden))
            return x[:, order] if kind in ROWS else x[order]
        if kind in ("attn_v.weight", "attn_output.weight"):
            size = self.weights[f"blk.{layer}.attn_v.weight"].shape[0] // self.kv_heads
            within = orders.setdefault(
                f"value {layer}", np.stack([rng.permutation(size) for _ in range(self.kv_heads)])
            )
            if kind == "attn_v.weight":
                return x[(within + size * np.arange(self.kv_heads)[:, None]).reshape(-1)]
            shared = np.repeat(within, self.heads // self.kv_heads, axis=0)
            return x[:, (shared + size * np.arange(self.heads)[:, None]).reshape(-1)]
        return x


def encode_as(path: Path, out: Path, weights: dict[str, Array], peer: Peer) -> None:
    """The model at `path` with its quantized tensors encoded by the peer, types being the same."""
    file = GGUFFile.open(path)
    tensors = {}
    for name in file.tensors:
        tensor = file.tensor(name)
        if tensor.format.name not in ("F32", "F16", "BF16"):
            tensor = QTensor(tensor.format, tensor.shape, peer.encode(weights[name], tensor.format, None), name)
        tensors[name] = tensor
    write_gguf(out, file.metadata["general.architecture"], {k: file.metadata.typed(k) for k in file.metadata}, tensors)


def divergence_of(path: Path) -> float:
    with open_subject(path, CONTEXT) as model, open_subject("demo", CONTEXT) as base:
        return divergence(model, base, demo_text(base.tokenizer, "test").tokens, context=CONTEXT).kl.value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", type=Path, default=None, help="libggml-base of the peer")
    parser.add_argument("--peer-version", default=None, help="what to call it, where it is not installed here")
    parser.add_argument("--presets", default="Q4_K_M,IQ4_XS")
    parser.add_argument("--orders", type=int, default=10)
    options = parser.parse_args()
    peer, orders, rows = Peer(find_peer(options.ggml)), Orders(), []
    with tempfile.TemporaryDirectory() as folder:
        source, ours, theirs = (Path(folder) / f"{name}.gguf" for name in ("source", "ours", "theirs"))
        for preset in options.presets.split(","):
            pairs = []
            for seed in range(options.orders):
                weights = orders.write(source, seed)
                quantize_file(source, ours, preset)
                encode_as(ours, theirs, weights, peer)
                pairs.append((divergence_of(ours), divergence_of(theirs)))
            logs = np.log([our / their for our, their in pairs])
            rows.append({
                "preset": preset,
                "octavo": statistics.median(our for our, _ in pairs),
                "llama.cpp": statistics.median(their for _, their in pairs),
                "octavo_spread": float(np.std(np.log([our for our, _ in pairs]), ddof=1)),
                "ratio": float(np.exp(logs.mean())),
                "ratio_error": float(np.exp(logs.mean()) * logs.std(ddof=1) / np.sqrt(len(logs))),
                "kl": pairs,
            })
            print({key: value for key, value in rows[-1].items() if key != "kl"}, flush=True)
    described = results_file.described(**{"llama-cpp-python": options.peer_version or peer_version()})
    results_file.write("quantizer-kl", {**described, "orders": options.orders, "rows": rows})


if __name__ == "__main__":
    main()

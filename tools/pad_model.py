"""Writes a Llama with more channels that computes the same, so that its rows are whole blocks of K-quants.

    python tools/pad_model.py MODEL.gguf OUT.gguf [--width 768] [--seed 0]

Small models have rows of 576 or 640 values, for which K-quants have no whole blocks of 256, so their files are of other
types than a large model's. Here the residual stream gets channels that are zero: norms see a mean square that is
smaller by the share of channels there were, so their weights are multiplied by its root and their epsilon by it. Heads
of zeros are added with it, as many to each head of keys as it has. Then all channels are put in a random order
(`fold.shuffle`), or the zeros would lie in blocks of their own. With its own width a model of any architecture gets
another order alone, so that no block holds the values of a block of the file. Matrices are F16, as a float file has
them: values of a quantized file are first rounded to it, so what is made is the base of what it is compared with.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from octavo.calibrate.fold import shuffle
from octavo.formats import dequantize
from octavo.formats.spec import F32
from octavo.io.gguf import GGUFFile, write_gguf

READS = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "ffn_gate.weight", "ffn_up.weight", "token_embd.weight",
         "output.weight")
"""Matrices whose rows are channels of the residual stream; it gets those of WRITES."""
WRITES = ("attn_output.weight", "ffn_down.weight")
HEADS = {"attn_q.weight": "head_count", "attn_k.weight": "head_count_kv", "attn_v.weight": "head_count_kv"}


def pad(source: str | Path, out: str | Path, width: int = 768, seed: int | None = 0) -> None:
    """Write the Llama at `source` with rows of `width`, in the channel order of `seed` (None: zeros last), to `out`.

    A model of any architecture can have the width that it has: its channels are put in another order.

    Raises ValueError for a Llama whose heads do not divide the width, and for others that are to get another one.
    """
    with GGUFFile.open(source) as file:
        keys = {key: file.metadata.typed(key) for key in file.metadata}
        arch = str(file.metadata["general.architecture"])
        had = int(file.metadata[f"{arch}.embedding_length"])
        heads = {key: int(file.metadata[f"{arch}.attention.{key}"]) for key in ("head_count", "head_count_kv")}
        size = int(file.metadata.get(f"{arch}.attention.key_length", had // heads["head_count"]))
        more = {key: n * width // had for key, n in heads.items()}
        fits = arch == "llama" and width > had and all(more[key] * had == n * width for key, n in heads.items())
        if not fits and width != had:
            raise ValueError(f"{arch} of {heads} in {had} channels can't have {width}")
        tensors = {}
        for name in file.tensors:
            values = _padded(name, dequantize(file.tensor(name)), had, width, {k: n * size for k, n in more.items()})
            tensors[name] = values.astype(np.float16) if values.ndim > 1 else values
        changed = {
            f"{arch}.embedding_length": width, f"{arch}.attention.head_count": more["head_count"],
            f"{arch}.attention.head_count_kv": more["head_count_kv"], f"{arch}.attention.key_length": size,
            f"{arch}.attention.value_length": size, f"{arch}.rope.dimension_count": size,
        }
        eps = f"{arch}.attention.layer_norm_rms_epsilon"
        wider = {k: np.uint32(v) for k, v in changed.items()} if width != had else {}
        typed = {**keys, **wider, "general.file_type": np.uint32(1),
                 eps: np.float32(float(file.metadata[eps]) * had / width)}
    write_gguf(out, arch, typed, tensors)
    if seed is not None:
        with GGUFFile.open(out) as file, shuffle(file, seed) as other:
            mixed = {name: dequantize(other.tensor(name)) for name in file.tensors}
            mixed = {name: x.astype(np.float16) if x.ndim > 1 else x for name, x in mixed.items()}
        write_gguf(out, arch, typed, mixed)


def _padded(name: str, x: F32, had: int, width: int, rows: dict[str, int]) -> F32:
    kind = name.split(".", 2)[-1] if name.startswith("blk.") else name
    if x.ndim == 1:
        return np.pad(x, (0, width - had)) * np.float32((had / width) ** 0.5) if len(x) == had else x
    if kind in READS:
        x = np.pad(x, ((0, 0), (0, width - had)))
    if kind in HEADS:
        x = np.pad(x, ((0, rows[HEADS[kind]] - len(x)), (0, 0)))
    if kind in WRITES:
        x = np.pad(x, ((0, width - had), (0, rows["head_count"] - x.shape[1] if kind == WRITES[0] else 0)))
    return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    pad(options.model, options.out, options.width, options.seed)


if __name__ == "__main__":
    main()

# mypy: no-warn-return-any
"""How a language model answers, from a GGUF file to text: one file, NumPy only, to be read from top to bottom.

    python docs/engine_in_one_file.py "What is 12 times 7?"                  # the demo model that ships with Octavo
    python docs/engine_in_one_file.py model-q4_k_m.gguf "Hi" --temperature 0.8

It computes what Octavo computes (tests/test_engine_in_one_file.py holds the two together), only slowly. Each part names
the place in src/octavo where the fast one is.

    file -> weights -> tokens -> layers: norm, attention, feed-forward -> logits -> a token -> text
                          ^                                                     |
                          +-----------------------------------------------------+
"""

from __future__ import annotations

import argparse
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
DEMO = Path(__file__).parents[1] / "src/octavo/data/demo.gguf"

# 1. The file. GGUF is a header, key-value pairs, a table of tensors, and the tensors' bytes. (octavo.io.gguf)

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
BLOCKS = {0: (1, 4), 1: (1, 2), 8: (32, 34), 12: (256, 144), 14: (256, 210)}
"""Types read here: values and bytes of a block. F32, F16, Q8_0, Q4_K, Q6_K, which is all that Q4_K_M files contain."""


@dataclass
class Tensor:
    """A tensor as it is stored: its type, its shape [rows, values of a row] or [values], and its rows of bytes."""

    kind: int
    shape: tuple[int, ...]
    data: Array


class Reader:
    """Little-endian values from the beginning of a file on."""

    def __init__(self, data: Array) -> None:
        self.data, self.at = data, 0

    def scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        (value,) = struct.unpack("<" + code, self.data[self.at : self.at + size].tobytes())
        self.at += size
        return value

    def string(self) -> str:
        size = self.scalar("Q")
        self.at += size
        return self.data[self.at - size : self.at].tobytes().decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, count = self.scalar("I"), self.scalar("Q")
            return [self.value(inner) for _ in range(count)]
        return self.scalar(SCALARS[kind])


def read_gguf(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata by key, and tensors by name, whose bytes stay in the file until they are used."""
    data = np.memmap(path, np.uint8, "r")
    read = Reader(data)
    magic, version, tensors, pairs = read.scalar("4s"), read.scalar("I"), read.scalar("Q"), read.scalar("Q")
    if magic != b"GGUF" or version not in (2, 3):
        raise SystemExit(f"{path}: not a GGUF file of version 2 or 3")
    metadata = {read.string(): read.value(read.scalar("I")) for _ in range(pairs)}
    table = []
    for _ in range(tensors):
        name, dims = read.string(), read.scalar("I")
        shape = tuple(read.scalar("Q") for _ in range(dims))[::-1]  # stored with the innermost size first
        table.append((name, shape, read.scalar("I"), read.scalar("Q")))
    alignment = metadata.get("general.alignment", 32)
    start, found = -(-read.at // alignment) * alignment, {}
    for name, shape, kind, offset in table:
        if kind not in BLOCKS:
            raise SystemExit(f"{name}: type {kind} (read here: F32, F16, Q8_0, Q4_K, Q6_K)")
        values, nbytes = BLOCKS[kind]
        size = int(np.prod(shape)) // values * nbytes
        rows = data[start + offset : start + offset + size].reshape(*shape[:-1], -1)
        found[name] = Tensor(kind, shape, rows)
    return metadata, found


# 2. Weights. Every block format is one equation, with a scale and perhaps a minimum for each group of codes:
#    weight = scale * code - minimum. (octavo.formats)


@dataclass
class Quantized:
    """A matrix of N rows: codes int8 [N, groups, values of a group], scale and minimum float32 [N, groups]."""

    codes: Array
    scale: Array
    minimum: Array | None = None

    def rows(self, ids: Array) -> Array:
        values = self.codes[ids] * self.scale[ids][..., None]
        if self.minimum is not None:
            values -= self.minimum[ids][..., None]
        return values.reshape(len(ids), -1)


def half(raw: Array) -> Array:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def q8_0(block: Array) -> Quantized:
    """Of 32 values: a float16 scale, then 32 signed bytes."""
    return Quantized(block[..., 2:].view(np.int8), half(block[..., :2])[..., 0])


def q4_k(block: Array) -> Quantized:
    """Of 256 values: scales of scales and of minima, 8 scales and 8 minima of 6 bits, and 256 codes of 4 bits."""
    n = len(block)
    d, dmin = half(block[..., :2]), half(block[..., 2:4])  # [N, blocks, 1]
    a, b, c = block[..., 4:8], block[..., 8:12], block[..., 12:16]
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=-1)  # the last four keep two bits with the first
    minima = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=-1)
    packed = block[..., 16:].reshape(n, -1, 4, 1, 32)  # 32 bytes hold 64 codes: low nibbles, then high nibbles
    codes = np.concatenate([packed & 15, packed >> 4], axis=3).astype(np.int8)
    return Quantized(codes.reshape(n, -1, 32), (d * scales).reshape(n, -1), (dmin * minima).reshape(n, -1))


def q6_k(block: Array) -> Quantized:
    """Of 256 values: 256 times 4 bits, 256 times 2 bits, 16 signed scales, and the scale of these."""
    n = len(block)
    low = block[..., :128].reshape(n, -1, 2, 1, 64)
    high = block[..., 128:192].reshape(n, -1, 2, 1, 32)
    codes = np.concatenate([low & 15, low >> 4], axis=3).reshape(n, -1, 2, 4, 32)
    codes |= (np.concatenate([high >> shift for shift in (0, 2, 4, 6)], axis=3) & 3) << 4
    scale = half(block[..., 208:]) * block[..., 192:208].view(np.int8)
    return Quantized((codes.view(np.int8) - 32).reshape(n, -1, 16), scale.reshape(n, -1))


UNPACK = {8: q8_0, 12: q4_k, 14: q6_k}
Weight = Array | Quantized


def load(tensor: Tensor) -> Weight:
    """A tensor as floats, or as codes and scales."""
    if tensor.kind in UNPACK:
        _, nbytes = BLOCKS[tensor.kind]
        return UNPACK[tensor.kind](np.asarray(tensor.data).reshape(len(tensor.data), -1, nbytes))
    return tensor.data.view(np.float32 if tensor.kind == 0 else np.float16).reshape(tensor.shape).astype(np.float32)


# 3. Products. Activations become 8-bit codes as well, so a group of a row and a token is a dot product of integers, at
#    which CPUs (vpdpbusd, sdot) and GPUs (dp4a, int8 tensor cores) are fast. (octavo.backends.*.matmul)

Q8_1 = 32  # activations that share a scale


def q8_1(x: Array) -> tuple[Array, Array]:
    """Codes int8 [T, K] and scales float32 [T, K / 32] of activations [T, K]."""
    groups = x.reshape(len(x), -1, Q8_1)
    d = np.abs(groups).max(axis=-1) / np.float32(127)
    codes = np.rint(groups / np.where(d > 0, d, 1)[..., None]).astype(np.int8)
    return codes.reshape(x.shape), d


def matmul(x: Array, w: Weight) -> Array:
    """x [T, K] times the rows of w [N, K]: [T, N].

    sum of (scale * code - minimum) * (d * q)  =  scale * d * (code . q)  -  minimum * d * (sum of q)
    """
    if not isinstance(w, Quantized):
        return x @ w.T
    n, groups, size = w.codes.shape
    q, d = q8_1(x)
    q, d = q.reshape(len(x), groups, size).astype(np.int32), np.repeat(d, Q8_1 // size, axis=1)
    y = np.zeros((len(x), n), np.float32)
    for g in range(groups):
        dots = q[:, g] @ w.codes[:, g].T.astype(np.int32)  # exact
        y += dots * (d[:, g, None] * w.scale[:, g])
        if w.minimum is not None:
            y -= (d[:, g] * q[:, g].sum(axis=1))[:, None] * w.minimum[:, g]
    return y


# 4. Text to tokens and back: byte-level BPE. Bytes are written as printable characters, text is cut into words, and in
#    each word the pair with the lowest rank is merged until none has one. (octavo.text)

PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
CHARS = {byte: chr(byte) for byte in PRINTABLE}
CHARS |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in PRINTABLE)}
BYTES = {char: byte for byte, char in CHARS.items()}
WORDS = re.compile(  # Qwen's: contractions, letters with what leads them, single digits, punctuation, space
    r"'(?i:s|t|re|ve|m|ll|d)|(?:[^\r\n\w]|_)?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Tokenizer:
    """The vocabulary and merges of a file's metadata."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        kind = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre")
        if kind != ("gpt2", "qwen2"):
            raise SystemExit(f"tokenizer {kind} (read here: gpt2 with qwen2's words)")
        self.tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.ranks = {tuple(pair.split(" ")): i for i, pair in enumerate(metadata["tokenizer.ggml.merges"])}
        ends = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
        self.ends = {end for end in ends if end is not None}

    def encode(self, text: str) -> list[int]:
        found = []
        for word in WORDS.findall(text):
            parts = [CHARS[byte] for byte in word.encode("utf-8")]
            while len(parts) > 1:
                rank, i = min((self.ranks.get(pair, 1 << 30), i) for i, pair in enumerate(pairwise(parts)))
                if rank == 1 << 30:
                    break
                parts[i : i + 2] = [parts[i] + parts[i + 1]]
            found += [self.ids[part] for part in parts]
        return found

    def decode(self, tokens: list[int]) -> str:
        chars = "".join(self.tokens[token] for token in tokens)
        return bytes(BYTES[c] for c in chars if c in BYTES).decode("utf-8", "replace")

    def chat(self, question: str) -> list[int]:
        """A question in ChatML; where the vocabulary has none of it, the text to go on with."""
        if "<|im_start|>" not in self.ids:
            return self.encode(question)
        start, end, line = self.ids["<|im_start|>"], self.ids["<|im_end|>"], self.encode("\n")
        return [start, *self.encode(f"user\n{question}"), end, *line, start, *self.encode("assistant\n")]


# 5. The network, as functions of arrays. T tokens are computed at once: a prompt, or the one that was chosen last.
#    (octavo.models.dense.llama and qwen3 declare it, octavo.graph plans it, octavo.backends.reference defines its ops)

INTERLEAVED = {"llama": True, "qwen2": False, "qwen3": False}
"""Architectures read here, and whether rope turns neighbouring values, or a head's first half with its second."""


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight


def rope(x: Array, positions: Array, freqs: Array, interleaved: bool) -> Array:
    """Heads x [T, H, D], each pair of values turned by its position times its frequency."""
    angle = positions.astype(np.float32)[:, None, None] * freqs
    cos, sin, out, half = np.cos(angle), np.sin(angle), np.empty_like(x), x.shape[-1] // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(half), slice(half, None))
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def soft_max(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


class Cache:
    """Keys and values of all tokens so far, [layers, context, heads, D] as float16; `length` of them are there."""

    def __init__(self, layers: int, context: int, heads: int, dim: int) -> None:
        self.k, self.v = np.zeros((2, layers, context, heads, dim), np.float16)
        self.length = 0


def attention(q: Array, k: Array, v: Array) -> Array:
    """q [T, H, D] attends to k and v [S, Hkv, D], the last T of which are its own; H / Hkv heads share a key head."""
    tokens, heads, dim = q.shape
    k, v = (np.repeat(x.astype(np.float32), heads // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("thd,shd->hts", q, k, optimize=True) / np.float32(np.sqrt(dim))
    position = np.arange(len(k) - tokens, len(k))
    scores = np.where(np.arange(len(k)) <= position[:, None], scores, -np.inf)  # nobody sees what comes later
    return np.einsum("hts,shd->thd", soft_max(scores), v, optimize=True).reshape(tokens, -1)


class Model:
    """A Llama or Qwen: weights by name, and the numbers that say how they are used."""

    def __init__(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.arch = metadata["general.architecture"]
        if self.arch not in INTERLEAVED:
            raise SystemExit(f"architecture {self.arch} (read here: {', '.join(INTERLEAVED)})")
        hp = {key.removeprefix(self.arch + "."): value for key, value in metadata.items()}
        self.layers, self.heads = hp["block_count"], hp["attention.head_count"]
        self.kv_heads = hp.get("attention.head_count_kv", self.heads)
        self.dim = hp.get("attention.key_length", hp["embedding_length"] // self.heads)
        self.eps, self.context = hp["attention.layer_norm_rms_epsilon"], hp["context_length"]
        self.freqs = hp.get("rope.freq_base", 10000.0) ** (-np.arange(0, self.dim, 2, dtype=np.float32) / self.dim)
        self.weights: dict[str, Any] = {name.removesuffix(".weight"): load(tensor) for name, tensor in tensors.items()}
        if "rope_freqs" in self.weights:  # Llama 3.1
            self.freqs = self.freqs / self.weights["rope_freqs"]

    def cache(self, context: int) -> Cache:
        return Cache(self.layers, min(context, self.context), self.kv_heads, self.dim)

    def project(self, x: Array, name: str) -> Array:
        y = matmul(x, self.weights[name])
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def heads_of(self, x: Array, layer: str, which: str, positions: Array) -> Array:
        """Queries or keys [T, heads, D]: projected, normed where the model does that (Qwen3), and turned."""
        y = self.project(x, f"{layer}.attn_{which}").reshape(len(x), -1, self.dim)
        if f"{layer}.attn_{which}_norm" in self.weights:
            y = rms_norm(y, self.weights[f"{layer}.attn_{which}_norm"], self.eps)
        return rope(y, positions, self.freqs, INTERLEAVED[self.arch])

    def forward(self, tokens: list[int], cache: Cache) -> Array:
        """Logits [T, vocabulary] of tokens that follow those of the cache, which has them afterwards."""
        w, start, end = self.weights, cache.length, cache.length + len(tokens)
        positions, embedding = np.arange(start, end), w["token_embd"]
        x = embedding.rows(np.array(tokens)) if isinstance(embedding, Quantized) else embedding[tokens]
        for i in range(self.layers):
            layer = f"blk.{i}"
            h = rms_norm(x, w[f"{layer}.attn_norm"], self.eps)
            q = self.heads_of(h, layer, "q", positions)
            cache.k[i, start:end] = self.heads_of(h, layer, "k", positions)
            cache.v[i, start:end] = self.project(h, f"{layer}.attn_v").reshape(len(tokens), -1, self.dim)
            x = x + self.project(attention(q, cache.k[i, :end], cache.v[i, :end]), f"{layer}.attn_output")
            h = rms_norm(x, w[f"{layer}.ffn_norm"], self.eps)
            h = silu(self.project(h, f"{layer}.ffn_gate")) * self.project(h, f"{layer}.ffn_up")
            x = x + self.project(h, f"{layer}.ffn_down")
        cache.length = end
        return matmul(rms_norm(x, w["output_norm"], self.eps), w.get("output", embedding))


# 6. A token out of logits, and the loop. (octavo.runtime.sampling, octavo.runtime.generation)


def choose(logits: Array, temperature: float, top_k: int, top_p: float, rng: np.random.Generator) -> int:
    """The likeliest token, or one drawn from the top_k likeliest, of which those are kept that have top_p together."""
    if temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    shares = soft_max(logits[order].astype(np.float64))
    kept = order[np.cumsum(shares) - shares < top_p]
    return int(rng.choice(kept, p=soft_max(logits[kept].astype(np.float64) / temperature)))


def generate(model: Model, tokenizer: Tokenizer, prompt: list[int], most: int, **how: Any) -> Iterator[int]:
    """Tokens of a reply, until it ends, there are `most`, or the context is full."""
    if len(prompt) >= model.context:
        raise SystemExit(f"the prompt has {len(prompt)} tokens, and the context is {model.context}")
    cache = model.cache(len(prompt) + most)
    tokens = prompt
    for _ in range(min(most, model.context - len(prompt))):
        token = choose(model.forward(tokens, cache)[-1], **how)
        if token in tokenizer.ends:
            return
        yield token
        tokens = [token]  # all before it are in the cache


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A language model's engine in one file.")
    parser.add_argument("words", nargs="*", metavar="[MODEL] PROMPT", help="default: the demo model, and a question")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, default=40)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    *model_path, prompt = given.words or ["What is 12 times 7?"]
    metadata, tensors = read_gguf(model_path[0] if model_path else DEMO)
    tokenizer, model = Tokenizer(metadata), Model(metadata, tensors)
    how = {"temperature": given.temperature, "top_k": given.top_k, "top_p": given.top_p}
    reply: list[int] = []
    for token in generate(
        model, tokenizer, tokenizer.chat(prompt), given.max_tokens, rng=np.random.default_rng(given.seed), **how
    ):
        before = tokenizer.decode(reply)
        reply.append(token)
        sys.stdout.write(tokenizer.decode(reply)[len(before) :])
        sys.stdout.flush()
    print()


if __name__ == "__main__":
    try:
        main()
    except (OSError, KeyError, ValueError, struct.error) as error:  # a file that is damaged, or of another kind
        raise SystemExit(f"{type(error).__name__}: {error}") from None

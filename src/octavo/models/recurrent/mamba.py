"""Mamba: selective scans alone, each channel with steps and decays of its own (arXiv 2312.00752); and Falcon-Mamba."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.formats import dequantize
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.recurrent import mamba2
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader
from octavo.models.shared.ssd import MOST, as_vector
from octavo.models.shared.states import Hybrid, of_values, taps_of, without_attention, without_middle
from octavo.models.shared.weights import BIAS, Tensors, Weights, matrix, vector, with_scales

SIZES = {"taps": "ssm.conv_kernel", "inner": "ssm.inner_size", "keys": "ssm.state_size", "rank": "ssm.time_step_rank"}
NORMED = "ssm.dt_b_c_rms"
KEYS = frozenset({*SIZES.values(), NORMED})
NORM_EPS = 1e-6
"""What Falcon-Mamba's norms of steps, B and C add to the mean square, for which there is no key."""
WORDS = {"taps": "conv_kernel", "keys": "state_size", "rank": "time_step_rank"}
SPLIT = ("dt", "b", "c")
"""What a scan is told of a token, in the order of its rows in `ssm_x`."""


@dataclass(frozen=True, kw_only=True)
class Mamba(Hybrid):
    """Sizes of the layers that scan.

    taps      values of a channel that a convolution sees
    inner     channels of the scan
    keys      numbers that each channel keeps, which the papers call its state size
    rank      numbers that the steps of all channels are made of
    norm_eps  what norms of these numbers, of B and of C add to the mean square; 0 where there are no such norms
    """

    taps: int
    inner: int
    keys: int
    rank: int
    norm_eps: float

    @property
    def layer_state(self) -> int:
        return (self.taps - 1 + self.keys) * self.inner


def read_sizes(r: HyperparamReader) -> dict[str, int]:
    """The sizes of `Mamba`. Raises ModelError naming the key that is wrong."""
    sizes = {name: r.whole(field, 0, MOST) for name, field in SIZES.items()}
    for name, size in sizes.items():
        low, high = (2, 64) if name == "taps" else (1, MOST)
        if not low <= size <= high:
            raise r.error(SIZES[name], f"{size} does not fit", f"{low} to {high}")
    return sizes


def hparams(r: HyperparamReader) -> Mamba:
    hp, normed = without_attention(r), r.metadata.get_bool(r.key(NORMED), default=False)
    return hp.extended(
        Mamba, **read_sizes(r), attends=(False,) * hp.n_layer, norm_eps=NORM_EPS if normed else 0.0
    )


def scan_tensors(hp: Mamba) -> Tensors:
    """Those of a scan, without norms."""
    products = {
        "ssm_in.weight": matrix(2 * hp.inner, hp.n_embd),
        "ssm_x.weight": matrix(hp.rank + 2 * hp.keys, hp.inner),
        "ssm_dt.weight": matrix(hp.inner, hp.rank),
        "ssm_out.weight": matrix(hp.n_embd, hp.inner),
    }
    return with_scales(products) | {
        "ssm_conv1d.weight": matrix(hp.inner, hp.taps),
        "ssm_conv1d.bias": vector(hp.inner, optional=True),
        f"ssm_dt{BIAS}": vector(hp.inner),
        "ssm_a": matrix(hp.inner, hp.keys),
        "ssm_d": vector(hp.inner),
    }


def tensors(hp: Mamba) -> Tensors:
    return layers.model_tensors(hp, {"attn_norm.weight": vector(hp.n_embd), **scan_tensors(hp)})


def scan(g: GraphBuilder, hp: Mamba, b: Weights, h: Node, layer: int) -> Node:
    """[T, n_embd] normed -> [T, n_embd]."""
    x, gate = g.columns(layers.linear(g, b, "ssm_in", h), hp.inner, hp.inner)
    x = g.causal_conv(x, taps_of(b["ssm_conv1d"]), layer, silu=True, bias=b.get("ssm_conv1d.bias"))
    told = g.columns(layers.linear(g, b, "ssm_x", x), hp.rank, hp.keys, hp.keys)
    dt, before, after = (_normed(g, hp, b, name, part) for name, part in zip(SPLIT, told, strict=True))
    ssm_a = np.ascontiguousarray(dequantize(b["ssm_a"].tensor).T)  # [N, C]
    y = g.channel_scan(x, before, after, layers.linear(g, b, "ssm_dt", dt), ssm_a, as_vector(b["ssm_d"]), layer)
    return layers.linear(g, b, "ssm_out", g.swiglu(gate, y))


def _normed(g: GraphBuilder, hp: Mamba, b: Weights, name: str, x: Node) -> Node:
    """x normed, by the weight of this part's norm if there is one; x itself in models without such norms."""
    if not hp.norm_eps:
        return x
    weight, width = b.get(f"ssm_{name}_norm"), x.shape[1]
    assert isinstance(width, int)
    return g.rms_norm(x, weight or constant(np.ones(width, np.float32), f"{x.name}.ones"), hp.norm_eps)


def build(g: GraphBuilder, hp: Mamba, w: Weights) -> Node:
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        x = g.add(x, scan(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps), i))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for biases of matrices."""
    config.only_flags({"use_bias": False})
    width = config.size("hidden_size", LIMITS["embedding_length"])
    inner = config.size("intermediate_size", MOST, width * config.size("expand", 64, 2))
    return scan_keys(config, WORDS, inner) | mamba2.plain_keys(config)


def falcon_keys(config: Config) -> Keys:
    """Raises ModelError for norms of steps, B and C that add another number."""
    config.only({"mixer_rms_eps": NORM_EPS})
    return config_keys(config) | {NORMED: True}


def scan_keys(config: Config, words: dict[str, str], inner: int) -> Keys:
    """The sizes of a scan of so many channels, by the words of config.json. A rank of "auto" is a 16th of the width."""
    sizes = {name: config.size(words[name], MOST, default) for name, default in (("taps", 4), ("keys", 16))}
    word = words["rank"]
    auto = -(-config.size("hidden_size", LIMITS["embedding_length"]) // 16)
    sizes["rank"] = auto if config.values.get(word) == "auto" else config.size(word, MOST, auto)
    return {SIZES[name]: size for name, size in (sizes | {"inner": inner}).items()}


def remade(name: str, tensor: LazyTensor, hp: Mamba) -> LazyTensor:
    """A checkpoint's tensor as GGUF has it: A, and convolutions [C, K]."""
    if name.endswith(".ssm_a"):
        return of_values(tensor, lambda values: -np.exp(values))
    if name.endswith(".ssm_conv1d.weight") and len(tensor.shape) == 3:
        return without_middle(tensor)
    return tensor


def names(module: str) -> dict[str, str]:
    """Names of a scan's modules under one of a layer's, which ends with a dot."""
    found = {
        "in_proj": "ssm_in", "conv1d": "ssm_conv1d", "x_proj": "ssm_x", "dt_proj": "ssm_dt", "A_log": "ssm_a",
        "D": "ssm_d", "out_proj": "ssm_out",
    }
    return {f"{module}{name}": target for name, target in found.items()}


ARCH = Architecture(
    name="mamba",
    hparams=hparams,
    keys=KEYS,
    tensors=tensors,
    build=build,
    classes={"MambaForCausalLM": config_keys, "FalconMambaForCausalLM": falcon_keys},
    names={"norm": "attn_norm", **names("mixer.")},
    base=mamba2.ARCH.base,
    other_bases=mamba2.ARCH.other_bases,
    outer=mamba2.ARCH.outer,
    key_aliases=mamba2.ARCH.key_aliases,
    tied=True,
    remade=remade,
    writable=False,
)

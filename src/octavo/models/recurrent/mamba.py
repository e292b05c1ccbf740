"""Mamba: selective scans alone, each channel with steps and decays of its own (arXiv 2312.00752); and Falcon-Mamba."""

from dataclasses import dataclass, replace

import numpy as np

from octavo.formats import dequantize
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.models.recurrent import mamba2
from octavo.models.shared import layers
from octavo.models.shared.architecture import Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.conversion import of_scan
from octavo.models.shared.decoder import CustomPart, Decoder
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import MetadataReader
from octavo.models.shared.ssd import MOST, as_vector
from octavo.models.shared.states import Hybrid, taps_of
from octavo.models.shared.weights import BIAS, Tensors, Weights, matrix, vector

SIZES = {"taps": "ssm.conv_kernel", "inner": "ssm.inner_size", "keys": "ssm.state_size", "rank": "ssm.time_step_rank"}
NORMED = "ssm.dt_b_c_rms"
KEYS = tuple(
    Key(name, field, default=0, least=2 if name == "taps" else 1, limit=64 if name == "taps" else MOST)
    for name, field in SIZES.items()
)
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

    taps: int = 0
    inner: int = 0
    keys: int = 0
    rank: int = 0
    norm_eps: float = 0.0

    @property
    def layer_state(self) -> int:
        return (self.taps - 1 + self.keys) * self.inner


def complete(r: MetadataReader, hp: Mamba) -> Mamba:
    normed = r.flag(NORMED, default=False)
    return replace(hp, attends=(False,) * hp.n_layer, norm_eps=NORM_EPS if normed else 0.0)


def scan_tensors(hp: Mamba, layer: int) -> Tensors:
    """Those of a scan, without norms."""
    return layers.products({
        "ssm_in": (2 * hp.inner, hp.n_embd), "ssm_x": (hp.rank + 2 * hp.keys, hp.inner), "ssm_dt": (hp.inner, hp.rank),
        "ssm_out": (hp.n_embd, hp.inner),
    }) | {
        "ssm_conv1d.weight": matrix(hp.inner, hp.taps),
        "ssm_conv1d.bias": vector(hp.inner, optional=True),
        f"ssm_dt{BIAS}": vector(hp.inner),
        "ssm_a": matrix(hp.inner, hp.keys),
        "ssm_d": vector(hp.inner),
    }


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


def config_keys(config: Config) -> Keys:
    inner = config.size("intermediate_size", MOST, config.width * config.size("expand", 64, 2))
    return scan_keys(config, WORDS, inner) | mamba2.plain_keys(config)


def falcon_keys(config: Config) -> Keys:
    """Raises ModelError for norms of steps, B and C that add another number."""
    config.only({"mixer_rms_eps": NORM_EPS})
    return config_keys(config) | {NORMED: True}


def scan_keys(config: Config, words: dict[str, str], inner: int) -> Keys:
    """The sizes of a scan, by the words of config.json. A rank of "auto" is a 16th of the width."""
    sizes = {name: config.size(words[name], MOST, default) for name, default in (("taps", 4), ("keys", 16))}
    word = words["rank"]
    auto = -(-config.width // 16)
    sizes["rank"] = auto if config.values.get(word) == "auto" else config.size(word, MOST, auto)
    return {SIZES[name]: size for name, size in (sizes | {"inner": inner}).items()}


def names(module: str) -> dict[str, str]:
    """Names of a scan's modules under one of a layer's, which ends with a dot."""
    found = {
        "in_proj": "ssm_in", "conv1d": "ssm_conv1d", "x_proj": "ssm_x", "dt_proj": "ssm_dt", "A_log": "ssm_a",
        "D": "ssm_d", "out_proj": "ssm_out",
    }
    return {f"{module}{name}": target for name, target in found.items()}


ARCH = replace(
    mamba2.ARCH,
    name="mamba",
    network=Decoder(mixer=CustomPart(scan_tensors, scan), feed_forward=None),
    keys=(*KEYS, NORMED),
    sizes=Sizes(kind=Mamba, complete=complete, attention=False),
    classes={"MambaForCausalLM": config_keys, "FalconMambaForCausalLM": falcon_keys},
    names={"norm": "attn_norm", **names("mixer.")},
    tied=True,
    layout=TensorLayout(converted=lambda name, tensor, hp: of_scan(name, tensor)),
)

"""What models with layers of Mamba-2 (SSD) share: a selective scan behind a convolution, and a gated norm of groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from octavo.formats import dequantize
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import layers
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.conversion import in_rows, of_scan
from octavo.models.shared.decoder import CustomPart
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import LIMITS, MetadataReader, brief
from octavo.models.shared.states import Hybrid, taps_of
from octavo.models.shared.weights import Expected, Tensors, Weights, matrix, vector

INNER = "ssm.inner_size"
SIZES = {
    "taps": "ssm.conv_kernel", "keys": "ssm.state_size", "heads": "ssm.time_step_rank", "scan_groups": "ssm.group_count"
}
MOST = LIMITS["embedding_length"]


def keys_of(words: Mapping[str, str]) -> tuple[Key, ...]:
    """The rows of `Mamba2`, with the words of config.json for all but `inner`."""
    return (
        Key("taps", SIZES["taps"], words.get("taps", ()), default=0, least=2, limit=64),
        *(Key(name, SIZES[name], words.get(name, ()), default=0, least=1, limit=MOST)
          for name in ("keys", "heads", "scan_groups")),
        Key("inner", INNER, default=0, least=1, limit=MOST),
    )


@dataclass(frozen=True, kw_only=True)
class Mamba2(Hybrid):
    """Sizes of the layers that scan.

    scans    whether each layer has a selective scan, and so a state
    taps     values of a channel that a convolution sees
    inner    numbers of all heads of the scan
    keys     rows of a head's matrix, which the papers call its state size
    heads    of the scan
    scan_groups  of heads, which share rows of the matrices B and C
    """

    scans: tuple[bool, ...] = ()
    taps: int = 0
    inner: int = 0
    keys: int = 0
    heads: int = 0
    scan_groups: int = 0

    @property
    def channels(self) -> int:
        """Of the convolution: x of all heads, B and C of all groups."""
        return self.inner + 2 * self.scan_groups * self.keys

    @property
    def layer_state(self) -> int:
        return (self.taps - 1) * self.channels + self.keys * self.inner

    @property
    def state_values(self) -> int:
        return self.scans.count(True) * self.layer_state


def check(r: MetadataReader, hp: Mamba2) -> None:
    """Raises ModelError for heads that groups do not divide, or that do not divide the numbers of all."""
    if hp.heads % hp.scan_groups:
        raise r.error(SIZES["heads"], f"{hp.heads} does not fit", f"a multiple of {hp.scan_groups} groups")
    if hp.inner % hp.heads:
        raise r.error(INNER, f"{hp.inner} does not fit", f"a multiple of {hp.heads} heads")


def tensors(hp: Mamba2, layer: int) -> Tensors:
    """Those of a scan, without the norm before it."""
    rows, groups = hp.inner + hp.channels + hp.heads, hp.scan_groups
    norm = Expected((hp.inner,), row=True) if groups == 1 else matrix(groups, hp.inner // groups)
    return layers.products({"ssm_in": (rows, hp.n_embd), "ssm_out": (hp.n_embd, hp.inner)}) | {
        "ssm_conv1d.weight": matrix(hp.channels, hp.taps),
        "ssm_conv1d.bias": vector(hp.channels, optional=True),
        "ssm_dt.bias": vector(hp.heads),
        "ssm_a": matrix(hp.heads, 1),
        "ssm_d": matrix(hp.heads, 1),
        "ssm_norm.weight": norm,
    }


def scan(g: GraphBuilder, hp: Mamba2, b: Weights, h: Node, layer: int) -> Node:
    """[T, n_embd] normed -> [T, n_embd] (arXiv 2405.21060)."""
    gate, mixed, dt = g.columns(layers.linear(g, b, "ssm_in", h), hp.inner, hp.channels, hp.heads)
    mixed = g.causal_conv(mixed, taps_of(b["ssm_conv1d"]), layer, silu=True, bias=b.get("ssm_conv1d.bias"))
    x, *of_groups = g.columns(mixed, hp.inner, *[hp.scan_groups * hp.keys] * 2)
    before, after = (g.split_heads(part, hp.scan_groups) for part in of_groups)
    y = g.selective_scan(
        g.split_heads(x, hp.heads), before, after, dt, as_vector(b["ssm_a"]), b["ssm_dt.bias"], as_vector(b["ssm_d"]),
        layer,
    )
    return layers.linear(g, b, "ssm_out", _normed(g, hp, b, g.swiglu(gate, y), layer))


def _normed(g: GraphBuilder, hp: Mamba2, b: Weights, y: Node, layer: int) -> Node:
    """y [T, inner], each group of neighbours normed; y itself where there is no norm."""
    if b.get("ssm_norm") is None:
        return y
    weight = as_vector(b["ssm_norm"])
    if hp.scan_groups == 1:
        return g.rms_norm(y, weight, hp.eps)
    ones = constant(np.ones(hp.inner // hp.scan_groups, np.float32), f"blk.{layer}.ones")
    return g.mul(g.join_of_heads(g.rms_norm(g.split_heads(y, hp.scan_groups), ones, hp.eps)), weight)


SCAN = CustomPart(tensors, scan)


def as_vector(weight: Node) -> Node:
    """Numbers that are stored as a matrix."""
    return constant(dequantize(weight.tensor).reshape(-1), weight.name)


def config_keys(config: Config, words: Mapping[str, str]) -> Keys:
    """The numbers of all heads, by the words of config.json for those, and for the numbers of one, `size`.

    Raises ModelError for steps that have limits, which GGUF has no key for.
    """
    _refuse_limits(config, words["limit"])
    return {INNER: config.size(words["heads"], MOST) * config.size(words["size"], MOST)}


def with_head_size(config: Config, words: Mapping[str, str], width: int) -> Config:
    """config.json with the numbers of a head, which a `width` of all heads gives where it says "auto" or nothing.

    Raises ModelError for another number.
    """
    word, heads = words["size"], config.size(words["heads"], MOST)
    size = config.size(word, MOST) if config.values.get(word) not in (None, "auto") else width // heads
    if heads * size != width:
        raise config.error(word, f"does not make {width} numbers of {heads} heads", str(width // heads))
    return config.replaced({**config.values, word: size})


def _refuse_limits(config: Config, word: str) -> None:
    """Raise ModelError for steps with other limits than 0 and infinity, as transformers writes it or JSON might."""
    infinite = (float("inf"), "Infinity", {"__float__": "Infinity"})
    found = config.values.get(word)
    if found is None or (isinstance(found, list) and len(found) == 2 and found[0] == 0 and found[1] in infinite):
        return
    raise config.error(word, f"is {brief(found)}", "0 to infinity")


def layer_kinds(config: Config, word: str, kinds: dict[str, str]) -> list[str] | None:
    """What each layer is, in the words of `kinds`, of a list that has others for these. None: there is no list."""
    found = config.values.get(word)
    if found is None:
        return None
    if not isinstance(found, list | str) or not found or any(str(kind) not in kinds for kind in found):
        raise config.error(word, f"is {brief(found)}", f"a list of {', '.join(kinds)}")
    return [kinds[str(kind)] for kind in found]


def converted(name: str, tensor: LazyTensor, hp: Mamba2) -> LazyTensor:
    """A checkpoint's tensor as GGUF has it: rates, convolutions [C, K], and numbers of heads and groups in rows."""
    if name.endswith((".ssm_a", ".ssm_d")):
        return in_rows(of_scan(name, tensor), hp.heads)
    if name.endswith(".ssm_norm.weight") and hp.scan_groups > 1:
        return in_rows(tensor, hp.scan_groups)
    return of_scan(name, tensor)


def names(module: str) -> dict[str, str]:
    """Names of a scan's modules under one of a layer's, which ends with a dot."""
    found = {
        "in_proj": "ssm_in", "conv1d": "ssm_conv1d", "dt_bias": "ssm_dt.bias", "A_log": "ssm_a", "D": "ssm_d",
        "norm": "ssm_norm", "out_proj": "ssm_out",
    }
    return {f"{module}{name}": target for name, target in found.items()}

"""What models with layers of Mamba-2 (SSD) share: a selective scan behind a convolution, and a gated norm of groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.formats import by_name, dequantize, quantize_reference
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import layers
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import LIMITS, HyperparamReader
from octavo.models.shared.states import Hybrid, of_values, taps_of, without_middle
from octavo.models.shared.weights import Expected, Tensors, Weights, matrix, vector, with_scales

SIZES = {
    "taps": "ssm.conv_kernel", "inner": "ssm.inner_size", "keys": "ssm.state_size", "heads": "ssm.time_step_rank",
    "scan_groups": "ssm.group_count",
}
KEYS = frozenset(SIZES.values())
MOST = LIMITS["embedding_length"]


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

    scans: tuple[bool, ...]
    taps: int
    inner: int
    keys: int
    heads: int
    scan_groups: int

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


def read_sizes(r: HyperparamReader, *, ungrouped: bool = False) -> dict[str, int]:
    """The sizes of `Mamba2`. Raises ModelError naming the key that is wrong.

    ungrouped  a file says that there are 0 groups, where all heads are one
    """
    sizes = {name: r.whole(field, 0, MOST) for name, field in SIZES.items()}
    if ungrouped and sizes["scan_groups"]:
        raise r.error(SIZES["scan_groups"], f"{sizes['scan_groups']} does not fit", "0")
    sizes["scan_groups"] = 1 if ungrouped else sizes["scan_groups"]
    groups, heads = max(1, sizes["scan_groups"]), max(1, sizes["heads"])
    checks = {
        "taps": (2 <= sizes["taps"] <= 64, "2 to 64"),
        "keys": (sizes["keys"] > 0, "at least 1"),
        "scan_groups": (sizes["scan_groups"] > 0, "at least 1"),
        "heads": (sizes["heads"] > 0 and heads % groups == 0, f"a multiple of {groups} groups"),
        "inner": (sizes["inner"] > 0 and sizes["inner"] % heads == 0, f"a multiple of {heads} heads"),
    }
    for name, (fits, allowed) in checks.items():
        if not fits:
            raise r.error(SIZES[name], f"{sizes[name]} does not fit", allowed)
    return sizes


def tensors(hp: Mamba2) -> Tensors:
    """Those of a scan, without the norm before it."""
    products = {
        "ssm_in.weight": matrix(hp.inner + hp.channels + hp.heads, hp.n_embd),
        "ssm_out.weight": matrix(hp.n_embd, hp.inner),
    }
    groups = hp.scan_groups
    norm = Expected((hp.inner,), row=True) if groups == 1 else matrix(groups, hp.inner // groups)
    return with_scales(products) | {
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


def as_vector(weight: Node) -> Node:
    """Numbers that are stored as a matrix."""
    return constant(dequantize(weight.tensor).reshape(-1), weight.name)


def config_keys(config: Config, words: dict[str, str]) -> Keys:
    """The sizes, by the words of config.json for those but `inner`, and the one for the numbers of a head, `size`.

    Raises ModelError for steps that have limits, which GGUF has no key for.
    """
    _refuse_limits(config, words["limit"])
    sizes = {name: config.size(words[name], MOST) for name in ("taps", "keys", "heads", "scan_groups")}
    size = config.size(words["size"], MOST)
    return {SIZES[name]: number for name, number in sizes.items()} | {SIZES["inner"]: sizes["heads"] * size}


def with_head_size(config: Config, words: dict[str, str], width: int) -> Config:
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


def remade(name: str, tensor: LazyTensor, hp: Mamba2) -> LazyTensor:
    """A checkpoint's tensor as GGUF has it: A, convolutions [C, K], and numbers of heads and groups in rows."""
    if name.endswith(".ssm_a"):
        return in_rows(of_values(tensor, lambda values: -np.exp(values)), hp.heads)
    if name.endswith(".ssm_d"):
        return in_rows(tensor, hp.heads)
    if name.endswith(".ssm_norm.weight") and hp.scan_groups > 1:
        return in_rows(tensor, hp.scan_groups)
    if name.endswith(".ssm_conv1d.weight") and len(tensor.shape) == 3:
        return without_middle(tensor)
    return tensor


def in_rows(tensor: LazyTensor, rows: int) -> LazyTensor:
    """A vector as so many rows, in F32; the tensor itself where it does not come out even."""
    if len(tensor.shape) != 1 or tensor.shape[0] % rows:
        return tensor
    plain, shape = by_name("F32"), (rows, tensor.shape[0] // rows)
    return LazyTensor(
        tensor.name, plain, shape,
        lambda: quantize_reference(dequantize(tensor.load()).reshape(shape), plain, tensor.name),
    )


def names(module: str) -> dict[str, str]:
    """Names of a scan's modules under one of a layer's, which ends with a dot."""
    found = {
        "in_proj": "ssm_in", "conv1d": "ssm_conv1d", "dt_bias": "ssm_dt.bias", "A_log": "ssm_a", "D": "ssm_d",
        "norm": "ssm_norm", "out_proj": "ssm_out",
    }
    return {f"{module}{name}": target for name, target in found.items()}

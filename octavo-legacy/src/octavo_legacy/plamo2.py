"""PLaMo 2: Mamba-2's scan, told of by Mamba's matrices with norms, in turn with attention, norms before and behind."""

from dataclasses import dataclass, replace

import numpy as np

from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.dense import plamo3
from octavo.models.shared import layers, ssd
from octavo.models.shared.architecture import Architecture, Sizes, TensorLayout, Unwritten, VocabularyFile
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.conversion import in_shape, of_values
from octavo.models.shared.decoder import Attention, ByLayer, CustomPart, Decoder, FeedForward
from octavo.models.shared.reader import FF_WIDTH, HEADS, KV_HEADS, LIMITS, OR_NONE, WINDOW, MetadataReader, brief
from octavo.models.shared.ssd import INNER, SIZES, Mamba2, as_vector
from octavo.models.shared.states import taps_of
from octavo.models.shared.weights import Tensors, Weights, matrix, vector
from octavo.models.shared.windows import PATTERN, Windows

SPLIT = ("b", "c", "dt")
"""What a scan is told of a token, in the order of its rows in `ssm_x`."""
QK_EPS = 1e-6
"""What norms of q and k add to the mean square in the published code, whatever other norms add."""
WORDS = {"taps": ("mamba_d_conv", 4), "keys": ("mamba_d_state", 64), "heads": ("mamba_num_heads", 64)}
LOCAL_BASE = "rope.freq_base_swa"
GROUPS = SIZES["scan_groups"]


@dataclass(frozen=True, kw_only=True)
class Plamo2(Mamba2):
    """Scans whose B, C and steps are made of what is behind the convolution."""

    @property
    def channels(self) -> int:
        """Of the convolution: x of all heads, of which B and C are made behind it."""
        return self.inner

    @property
    def rank(self) -> int:
        """Numbers that the steps of all heads are made of, for which there is no key."""
        return max(64, self.n_embd // 16)


def complete(r: MetadataReader, hp: Plamo2) -> Plamo2:
    """Layers without heads of keys scan."""
    keys = r.sizes(KV_HEADS, hp.n_layer, some=True)
    if r.is_array(HEADS):
        for layer, (n, of_keys) in enumerate(zip(r.sizes(HEADS, hp.n_layer, some=True), keys, strict=True)):
            if (n > 0) != (of_keys > 0):
                raise r.error(HEADS, f"{n} of layer {layer}, which has {of_keys} heads of keys", "both or none")
    if groups := r.integer(GROUPS, 0):
        raise r.error(GROUPS, f"{groups} does not fit", "0")
    attends, local = tuple(n > 0 for n in keys), replace(hp.rope, base=r.real(LOCAL_BASE, hp.rope.base, 1.0))
    hp = replace(
        hp, scan_groups=1, attends=attends, scans=tuple(not attend for attend in attends), rope_local=local,
        windowed=tuple(a and b for a, b in zip(attends, hp.windowed, strict=True)),
    )
    ssd.check(r, hp)
    return hp


def attention_tensors(hp: Plamo2, layer: int) -> Tensors:
    norms = {"attn_q_norm.weight": hp.n_head, "attn_k_norm.weight": hp.n_head_kv}
    found = Attention(joined=True, bias=False).tensors(hp, layer)
    return found | {name: matrix(n, hp.head_dim) for name, n in norms.items()}


def scan_tensors(hp: Plamo2, layer: int) -> Tensors:
    """Norms of what a scan is told have names without an end."""
    shapes = {
        "ssm_in": (2 * hp.inner, hp.n_embd), "ssm_x": (hp.rank + 2 * hp.keys, hp.inner), "ssm_dt": (hp.heads, hp.rank),
        "ssm_out": (hp.n_embd, hp.inner),
    }
    sizes = dict(zip(SPLIT, (hp.keys, hp.keys, hp.rank), strict=True))
    return layers.products(shapes) | {
        "ssm_conv1d.weight": matrix(hp.inner, hp.taps),
        **{name: vector(hp.heads) for name in ("ssm_dt.bias", "ssm_a", "ssm_d")},
        **{f"ssm_{name}_norm": vector(size) for name, size in sizes.items()},
    }


def attention(g: GraphBuilder, hp: Plamo2, b: Weights, h: Node, layer: int) -> Node:
    q, k, v = layers.qkv(g, hp, b, h, joined=True)
    rope = layers.rotary(g, hp, b, layer)
    q, k = (rope(_normed(g, part, b[f"attn_{n}_norm"])) for n, part in (("q", q), ("k", k)))
    h = g.attention(q, k, v, layer=layer, scale=hp.attention_scale, window=hp.window(layer))
    return layers.linear(g, b, "attn_output", h)


def _normed(g: GraphBuilder, x: Node, weight: Node) -> Node:
    """x [T, H, D], each head normed and times weights of its own, [H, D]."""
    heads, size = weight.tensor.shape
    ones = constant(np.ones(size, np.float32), f"{weight.name}.ones")
    return g.split_heads(g.mul(g.join_of_heads(g.rms_norm(x, ones, QK_EPS)), as_vector(weight)), heads)


def scan(g: GraphBuilder, hp: Plamo2, b: Weights, h: Node, layer: int) -> Node:
    """[T, n_embd] normed -> [T, n_embd]: arXiv 2405.21060 with B, C and steps as arXiv 2312.00752 makes them."""
    gate, x = map(g.join_of_heads, g.halves(g.split_heads(layers.linear(g, b, "ssm_in", h), hp.heads)))
    x = g.causal_conv(x, taps_of(b["ssm_conv1d"]), layer, silu=True)
    told = g.columns(layers.linear(g, b, "ssm_x", x), hp.keys, hp.keys, hp.rank)
    before, after, dt = (
        g.rms_norm(part, b[f"ssm_{name}_norm."], hp.eps) for name, part in zip(SPLIT, told, strict=True)
    )
    steps = layers.linear(g, b, "ssm_dt", dt)  # with the bias that the scan would add
    none = constant(np.zeros(hp.heads, np.float32), f"blk.{layer}.zeros")
    y = g.selective_scan(
        g.split_heads(x, hp.heads), g.split_heads(before, 1), g.split_heads(after, 1), steps, as_vector(b["ssm_a"]),
        none, as_vector(b["ssm_d"]), layer,
    )
    return layers.linear(g, b, "ssm_out", g.swiglu(gate, y))


def config_keys(config: Config) -> Keys:
    head = config.size("head_dim", LIMITS["attention.key_length"], 128)
    sizes = {name: config.size(word, LIMITS["embedding_length"], usual) for name, (word, usual) in WORDS.items()}
    attends = _attends(config)
    kv_heads = config.size("num_key_value_heads", LIMITS[KV_HEADS], 4)
    return {
        **{SIZES[name]: size for name, size in sizes.items()},
        INNER: sizes["heads"] * head, GROUPS: 0,
        "attention.key_length": head, "attention.value_length": head, "rope.dimension_count": head,
        KV_HEADS: [kv_heads * attend for attend in attends], **_window_keys(config, attends),
    }


def _attends(config: Config) -> list[bool]:
    """Whether each layer has attention: the middle one of each group, or the last of few."""
    n = config.n_layer
    step = config.size("mamba_step", LIMITS["block_count"], 2)
    if step < 2:
        raise config.error("mamba_step", f"is {step}", "at least 2")
    middle = step // 2
    return [i == n - 1 if n <= middle else i % step == middle for i in range(n)]


def _window_keys(config: Config, attends: list[bool]) -> Keys:
    """The window of attention, which a token sees beside itself, and its rope; nothing where no layer has one."""
    whole = config.values.get("full_attention_idx") or []
    if not isinstance(whole, list) or any(type(i) is not int or not 0 <= i < len(attends) for i in whole):
        allowed = f"a list of layers, 0 to {len(attends) - 1}"
        raise config.error("full_attention_idx", f"is {brief(whole)}", allowed)
    windowed = [attend and i not in whole for i, attend in enumerate(attends)]
    if not any(windowed):
        return {}
    base = config.real("rope_theta", 1e4)
    return {
        WINDOW: config.size("attention_window_size", LIMITS[WINDOW] - 1, 2048) + 1, PATTERN: windowed,
        LOCAL_BASE: config.real("rope_local_theta", base),
    }


def converted(name: str, tensor: LazyTensor, hp: Plamo2) -> LazyTensor:
    """A checkpoint's tensor as GGUF has it: rates, convolutions [C, K], which MLX has as [C, K, 1], and norms."""
    if name.endswith(".ssm_a"):
        return of_values(tensor, lambda values: -np.exp(values))
    if name.endswith(".ssm_conv1d.weight"):
        return in_shape(tensor, (hp.inner, hp.taps))
    return plamo3.shifted(name, tensor, plamo3.SHIFTS)


ARCH = Architecture(
    name="plamo2",
    network=Decoder(
        mixer=ByLayer(
            lambda hp, i: hp.attends[i], CustomPart(attention_tensors, attention), CustomPart(scan_tensors, scan)
        ),
        feed_forward=FeedForward(joined=True), norms=plamo3.NORMS,
    ),
    keys=(*(key for key in ssd.keys_of({}) if key.field != GROUPS), GROUPS, LOCAL_BASE),
    windows=Windows(0),
    sizes=Sizes(kind=Plamo2, complete=complete, differs={HEADS: OR_NONE, KV_HEADS: OR_NONE, FF_WIDTH: OR_NONE}),
    only=plamo3.PLAIN | {"mamba_enabled": True},
    classes={"Plamo2ForCausalLM": config_keys},
    layer="layers.layers",
    names={module: name for module, name in ssd.names("mixer.").items() if name != "ssm_norm"} | plamo3.NAMES | {
        "mixer.bcdt_proj": "ssm_x", "mixer.dt_proj": "ssm_dt",
        **{f"mixer.{n}_weight": f"attn_{n}_norm" for n in "qk"},
        **{f"mixer.{n}_norm_weight": f"ssm_{n.lower()}_norm." for n in ("B", "C", "dt")},
    },
    key_aliases={"hidden_size_per_head": "head_dim"},
    layout=TensorLayout(converted=converted),
    ropes=("default",),
    tied=True,
    vocabulary=VocabularyFile(file="tokenizer.jsonl", pre="default"),
    unwritten=Unwritten(why=lambda hp: plamo3.WHY_UNWRITTEN),
)

"""Jamba: Mamba's scans with norms, in few layers attention without rope, in some experts (arXiv 2403.19887)."""

from dataclasses import dataclass, replace

from octavo.models.recurrent import mamba
from octavo.models.recurrent.mamba import SPLIT, Mamba
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.decoder import Attention, ByLayer, CustomPart, Decoder, Experts, FeedForward
from octavo.models.shared.reader import EXPERT_WIDTH, FF_WIDTH, KV_HEADS, LIMITS, OR_NONE, MetadataReader
from octavo.models.shared.weights import Tensors

ROUTER = "ffn_gate_inp"
WORDS = {"taps": "mamba_d_conv", "keys": "mamba_d_state", "rank": "mamba_dt_rank"}
PERIODS = {"attn": (8, 4), "expert": (2, 1)}
"""Every how many layers there is one with attention or with experts, and the first, where config.json does not say."""


@dataclass(frozen=True, kw_only=True)
class Jamba(Mamba):
    """Whether each layer has experts, beside what those that scan have."""

    routes: tuple[bool, ...] = ()


def complete(r: MetadataReader, hp: Jamba) -> Jamba:
    """Layers without heads of keys scan."""
    attends = tuple(n > 0 for n in r.sizes(KV_HEADS, hp.n_layer, some=True))
    return replace(hp, attends=attends, norm_eps=hp.eps, routes=_routes(r, hp.n_layer))


def _routes(r: MetadataReader, n_layer: int) -> tuple[bool, ...]:
    """Whether each layer has experts, as widths of these by layer say, or its router in files that have none."""
    if r.is_array(EXPERT_WIDTH):
        return tuple(n > 0 for n in r.sizes(EXPERT_WIDTH, n_layer, some=True))
    return tuple(f"blk.{i}.{ROUTER}.weight" in r.shapes for i in range(n_layer))


def scan_tensors(hp: Jamba, layer: int) -> Tensors:
    sizes = dict(zip(SPLIT, (hp.rank, hp.keys, hp.keys), strict=True))
    found = mamba.scan_tensors(hp, layer)
    for name, size in sizes.items():
        found |= layers.norms(size, f"ssm_{name}_norm")
    return found


def config_keys(config: Config) -> Keys:
    n = config.n_layer
    heads = config.n_head_kv
    width = config.width
    return mamba.scan_keys(config, WORDS, width * config.size("mamba_expand", 64, 2)) | _expert_keys(config, n) | {
        KV_HEADS: [heads * attends for attends in _layers_of(config, "attn", n)]
    }


def _expert_keys(config: Config, n: int) -> Keys:
    """Experts and their widths by layer; nothing where each layer has but one."""
    if config.size("num_experts", LIMITS["expert_count"], 16) == 1:
        return {}
    width = config.size("intermediate_size", LIMITS[FF_WIDTH])
    widths = [width * routes for routes in _layers_of(config, "expert", n)]
    return expert_keys(config, "num_experts") | {EXPERT_WIDTH: widths} if any(widths) else {}


def _layers_of(config: Config, kind: str, n: int) -> list[bool]:
    """Which of n layers are of a kind of PERIODS. Raises ModelError for a first one that is beyond a period."""
    word, (period, first) = f"{kind}_layer_offset", PERIODS[kind]
    period = config.size(f"{kind}_layer_period", LIMITS["block_count"], period)
    first = first if config.values.get(word) is None else config.count(word, LIMITS["block_count"])
    if first >= period:
        raise config.error(word, f"is {first}", f"0 to {period - 1}")
    return [i % period == first for i in range(n)]


FEED = "feed_forward"
EXPERTS = {
    module: name for module, name in names.moe(FEED, "gate_proj", "up_proj", "down_proj").items() if name != ROUTER
}

ARCH = Architecture(
    name="jamba",
    network=Decoder(
        mixer=ByLayer(lambda hp, i: hp.attends[i], Attention(rope="none"), CustomPart(scan_tensors, mamba.scan)),
        feed_forward=ByLayer(lambda hp, i: hp.routes[i], Experts(normalized=False), FeedForward()),
    ),
    keys=mamba.KEYS,
    sizes=Sizes(kind=Jamba, complete=complete, differs={KV_HEADS: OR_NONE, EXPERT_WIDTH: OR_NONE}),
    experts=None,
    only={"mamba_proj_bias": False, "mamba_inner_layernorms": True, "sliding_window": None},
    classes={"JambaForCausalLM": config_keys},
    names={
        "input_layernorm": "attn_norm", "pre_ff_layernorm": "ffn_norm", **names.ATTENTION, **mamba.names("mamba."),
        **{f"mamba.{name}_layernorm": f"ssm_{name}_norm" for name in SPLIT},
        **names.ffn(FEED), f"{FEED}.router": ROUTER, **EXPERTS,
    },
    outer=names.outer("embed_tokens", "final_layernorm"),
    layout=mamba.ARCH.layout,
)

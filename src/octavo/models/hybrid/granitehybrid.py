"""Granite 4: layers of Mamba-2 in place of most attention, with or without experts."""

from dataclasses import dataclass, replace

from octavo.models.dense import granite
from octavo.models.dense.granite import DENSE, HYBRID, ROPE, SHARED_WIDTH
from octavo.models.moe import granitemoe
from octavo.models.shared import ssd
from octavo.models.shared.architecture import Modules, Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.decoder import Attention, ByLayer, Decoder
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import FF_WIDTH, KV_HEADS, LIMITS, OR_NONE, MetadataReader
from octavo.models.shared.ssd import Mamba2

WORDS = {
    "taps": "mamba_d_conv", "keys": "mamba_d_state", "heads": "mamba_n_heads", "scan_groups": "mamba_n_groups",
    "size": "mamba_d_head", "limit": "time_step_limit",
}


@dataclass(frozen=True, kw_only=True)
class GraniteHybrid(Mamba2):
    """Whether attention has rope, beside what both kinds of layers have."""

    has_rope: bool = True


def complete(r: MetadataReader, hp: GraniteHybrid) -> GraniteHybrid:
    """Layers without heads of keys scan."""
    ssd.check(r, hp)
    attends = tuple(n > 0 for n in r.sizes(KV_HEADS, hp.n_layer, some=True))
    if not hp.n_expert and hp.n_ff_shared not in (0, hp.n_ff):
        problem = f"{hp.n_ff_shared} contradicts {FF_WIDTH} of a model without experts"
        raise r.error(SHARED_WIDTH, problem, f"0 or {hp.n_ff}")
    shared = hp.n_ff_shared if hp.n_expert else 0
    return replace(hp, n_ff_shared=shared, attends=attends, scans=tuple(not attend for attend in attends))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for kinds of layers and of positions that are unknown."""
    n = config.n_layer
    kinds = {"mamba": "scan", "linear_attention": "scan", "attention": "attend", "full_attention": "attend"}
    found = ssd.layer_kinds(config, "layer_types", kinds) or ["scan"] * n
    if len(found) != n:
        raise config.error("layer_types", f"has {len(found)} values", f"one for each of {n} layers")
    positions = config.values.get("position_embedding_type")
    if positions not in (None, "nope", "rope"):
        raise config.error("position_embedding_type", f"is {positions}", "nope or rope")
    heads = config.n_head_kv
    shared = config.size("shared_intermediate_size", LIMITS[FF_WIDTH])
    return _scan_keys(config) | {
        KV_HEADS: [heads * (kind == "attend") for kind in found], ROPE: positions == "rope",
        SHARED_WIDTH: shared, FF_WIDTH: shared,
    }


def _scan_keys(config: Config) -> Keys:
    """Sizes of the scan. Raises ModelError for heads that are not as long as the width and its expansion say."""
    width = config.width * config.size("mamba_expand", 64, 2)
    return ssd.config_keys(ssd.with_head_size(config, WORDS, width), WORDS)


def with_experts(config: Config) -> Keys:
    width = config.size("intermediate_size", LIMITS[FF_WIDTH])
    return config_keys(config) | expert_keys(config, "num_local_experts") | {FF_WIDTH: width}


ARCH = replace(
    granite.ARCH,
    name="granitehybrid",
    network=Decoder(
        mixer=ByLayer(
            lambda hp, i: hp.attends[i], Attention(output_bias=None, rope=lambda hp, i: hp.has_rope), ssd.SCAN
        ),
        feed_forward=granite.FEED_FORWARD,
    ),
    keys=(
        *(key for key in granite.KEYS if key != ROPE), granitemoe.SHARED, Key("has_rope", ROPE, default=True),
        *ssd.keys_of(WORDS),
    ),
    sizes=Sizes(kind=GraniteHybrid, complete=complete, differs={KV_HEADS: OR_NONE}),
    experts=None,
    classes={HYBRID: config_keys, f"{HYBRID} with num_local_experts": with_experts},
    only={"mamba_proj_bias": False},
    names=granitemoe.NAMES | ssd.names("mamba."),
    modules=Modules(by_class={HYBRID: DENSE}),
    layout=TensorLayout(converted=ssd.converted),
)

"""Nemotron-H and Nemotron Nano 2: each layer is a scan of Mamba-2, or attention without rope, or a feed-forward."""

from dataclasses import dataclass, replace

from octavo.models.shared import names, reader, ssd
from octavo.models.shared.architecture import Architecture, Modules, Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, ByLayer, Decoder, FeedForward, LayerPart
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import FF_WIDTH, HEADS, KV_HEADS, LIMITS, OR_NONE, MetadataReader
from octavo.models.shared.ssd import Mamba2

SCAN, ATTEND, FEED, EXPERTS = "scan", "attend", "feed", "experts"
PATTERN, KINDS = "hybrid_override_pattern", "layers_block_type"
LETTERS = {"M": SCAN, "*": ATTEND, "-": FEED, "E": EXPERTS}
OF_KINDS = {
    "mamba": SCAN, "linear_attention": SCAN, "attention": ATTEND, "full_attention": ATTEND, "mlp": FEED, "moe": EXPERTS,
}
WORDS = {
    "taps": "conv_kernel", "keys": "ssm_state_size", "heads": "mamba_num_heads", "scan_groups": "n_groups",
    "size": "mamba_head_dim", "limit": "time_step_limit",
}
KEYS: tuple[Key | str, ...] = (*ssd.keys_of(WORDS), reader.LAYER_NORM_EPS)
"""Some files say what norms add by the one key, and others by both."""
DIFFERS = {HEADS: OR_NONE, KV_HEADS: OR_NONE, FF_WIDTH: OR_NONE}


@dataclass(frozen=True, kw_only=True)
class NemotronH(Mamba2):
    """Layers that neither attend nor scan have a feed-forward."""


def complete(r: MetadataReader, hp: NemotronH) -> NemotronH:
    """Layers with heads of keys attend, those with a width have a feed-forward, and the others scan."""
    ssd.check(r, hp)
    keys, widths = (r.sizes(field, hp.n_layer, some=True) for field in (KV_HEADS, FF_WIDTH))
    both = next((i for i, (n, width) in enumerate(zip(keys, widths, strict=True)) if n and width), None)
    if both is not None:
        problem = f"{widths[both]} of layer {both}, which has attention"
        raise r.error(FF_WIDTH, problem, "0 in layers with heads of keys")
    scans = tuple(not n and not width for n, width in zip(keys, widths, strict=True))
    eps = hp.eps if r.has(reader.RMS_EPS) else r.real(reader.LAYER_NORM_EPS, hp.eps, high=1.0)
    return replace(hp, attends=tuple(n > 0 for n in keys), scans=scans, eps=eps)


def decoder(feed_forward: LayerPart) -> Decoder:
    """Each layer has one part only."""
    fed = ByLayer(lambda hp, i: hp.scans[i], ssd.SCAN, feed_forward)
    attention = Attention(output_bias=None, rope="none")
    return Decoder(mixer=ByLayer(lambda hp, i: hp.attends[i], attention, fed), feed_forward=None)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for experts, which are another architecture's."""
    return layer_keys(config, FEED, config.size("intermediate_size", LIMITS[FF_WIDTH]))


def layer_keys(config: Config, kind: str, width: int) -> Keys:
    """What each layer is, where those of a `kind` have a feed-forward of a width, and the sizes of the scan.

    Raises ModelError for another kind of feed-forward.
    """
    word = KINDS if config.values.get(KINDS) is not None else PATTERN
    found = ssd.layer_kinds(config, word, OF_KINDS if word == KINDS else LETTERS)
    if found is None:
        raise config.error(KINDS, "is missing", "what each layer is")
    other = {FEED, EXPERTS} - {kind}
    if other & set(found):
        raise config.error(word, "has layers with experts and others with one feed-forward", "one of the two")
    n, said = len(found), config.values.get("num_hidden_layers")
    if said not in (None, n):
        raise config.error(word, f"has {n} layers", f"{said}, as num_hidden_layers says")
    heads = config.n_head_kv
    eps = config.real("rms_norm_eps", 1e-5)
    return ssd.config_keys(config, WORDS) | {
        "block_count": n, reader.RMS_EPS: eps, reader.LAYER_NORM_EPS: eps,
        KV_HEADS: [heads * (each == ATTEND) for each in found],
        FF_WIDTH: [width * (each == kind) for each in found],
    }


NAMES = {"norm": "attn_norm", **ssd.names("mixer."), "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down"} | {
    module.replace("self_attn", "mixer"): name for module, name in names.ATTENTION.items()
}
OUTER = names.outer("embeddings", "norm_f")
OTHER_WORDS = {"layer_norm_epsilon": "rms_norm_eps", "attention_head_dim": "head_dim"}
CLASS = "NemotronHForCausalLM"

ARCH = Architecture(
    name="nemotron_h",
    network=decoder(FeedForward(activation="relu_squared", plain=True, bias=None)),
    keys=KEYS,
    sizes=Sizes(kind=NemotronH, complete=complete, differs=DIFFERS),
    classes={CLASS: config_keys},
    only={
        "use_bias": False, "mamba_proj_bias": False, "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu",
        "sliding_window": None,
    },
    names=NAMES,
    base="backbone.",
    modules=Modules(other_bases=("model.",)),
    outer=OUTER,
    unused=("mtp.",),
    key_aliases=OTHER_WORDS,
    layout=TensorLayout(converted=ssd.converted),
)

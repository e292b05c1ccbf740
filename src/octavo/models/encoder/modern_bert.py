"""ModernBERT: an encoder with norms before its parts, GeGLU, and in most layers windows to both sides and a rope."""

from dataclasses import dataclass

from octavo.models.encoder import bert
from octavo.models.shared.architecture import Architecture, Modules, RerankHead, Sizes
from octavo.models.shared.config import Config, Keys, local_rope
from octavo.models.shared.decoder import ByLayer, FeedForward, FullAttention, NormNames, TransformerEncoder, geglu_erf
from octavo.models.shared.hparams import Hyperparams, Key, local_base
from octavo.models.shared.reader import LIMITS, WINDOW
from octavo.models.shared.weights import Tensors, vector
from octavo.models.shared.windows import PATTERN, Windows, windowed_layers

PERIOD = 3
"""The first layer of each period sees all of a text, where a file does not say which ones do."""
ACTIVATION, POOLING = "hidden_activation", "classifier.pooling_type"
ACTIVATIONS = ("gelu", "silu")
POOLINGS = {"mean": 1, "cls": 2}
"""Numbers of `classifier.pooling_type`: what the classifier of a reranker is given."""


@dataclass(frozen=True, kw_only=True)
class ModernBert(Hyperparams):
    """The feed-forward's activation, of ACTIVATIONS."""

    activation: str = ACTIVATIONS[0]


class ModernEncoder(TransformerEncoder):
    """A file may have a reranker's head, whose first matrix has a norm and no bias."""

    def tensors(self, hp: ModernBert) -> Tensors:
        head = bert.head_tensors(hp) | {"cls.norm.weight": vector(hp.n_embd, optional=True)}
        del head["cls.bias"]
        return super().tensors(hp) | head


def config_keys(config: Config) -> Keys:
    keys: Keys = {}
    found = config.values.get("rope_parameters")
    full = found.get("full_attention") if isinstance(found, dict) else None
    for field, part, key, usual in (
        ("freq_base", full, "global_rope_theta", 160000.0),
        ("freq_base_swa", local_rope(config), "local_rope_theta", 10000.0),
    ):
        of_kind = isinstance(part, dict) and "rope_theta" in part
        keys[f"rope.{field}"] = config.real("rope_theta", of=part) if of_kind else config.real(key, usual)
    return keys | _window_keys(config)


def _window_keys(config: Config) -> Keys:
    """The window, and which layers have it."""
    n, listed = config.n_layer, config.values.get("layer_types") is not None
    period = config.size("global_attn_every_n_layers", LIMITS["block_count"], PERIOD)
    regular = [i % period != 0 for i in range(n)]
    windowed = windowed_layers(config, period) if listed else regular
    if not any(windowed):
        return {}
    window = config.size("local_attention", LIMITS[WINDOW], 128)
    return {WINDOW: window, PATTERN: period if windowed == regular else windowed}


def reranker(config: Config) -> Keys:
    """Raises ModelError for a classifier of more than one score, and one of another kind than GELU and a norm."""
    bert.require_one_label(config)
    config.only({"classifier_bias": False, "classifier_activation": "gelu"})
    pooling = config.one_of("classifier_pooling", tuple(POOLINGS), "cls")
    return config_keys(config) | {bert.POOLING: bert.RANK, POOLING: POOLINGS[pooling]}


ARCH = Architecture(
    name="modern-bert",
    network=ModernEncoder(
        mixer=FullAttention(joined=True, bias=False, freq_factors=True),
        feed_forward=ByLayer(
            lambda hp, i: hp.activation == "silu", FeedForward(joined=True),
            FeedForward(joined=True, activation=geglu_erf),
        ),
        norms=NormNames(optional=True), embedding_norm=True, freq_factors=False,
    ),
    keys=(
        local_base(), POOLING,
        Key("activation", ACTIVATION, ACTIVATION, choices=ACTIVATIONS, default="gelu", usual="gelu"),
    ),
    windows=Windows(PERIOD, first=True),
    sizes=Sizes(kind=ModernBert),
    layer_norms="norm_eps",
    only={"norm_bias": False, "attention_bias": False, "mlp_bias": False},
    classes={
        "ModernBertModel": config_keys, "ModernBertForMaskedLM": config_keys,
        "ModernBertForSequenceClassification": reranker,
    },
    names={
        "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "attn_norm": "attn_norm", "mlp_norm": "ffn_norm",
        "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down",
    },
    outer={
        "embeddings.tok_embeddings.weight": "token_embd.weight", "embeddings.norm.weight": "token_embd_norm.weight",
        "final_norm.weight": "output_norm.weight",
    },
    unused=("head.", "decoder.", "classifier."),
    modules=Modules(outer_by_class={
        "ModernBertForSequenceClassification": {
            "head.dense.weight": "cls.weight", "head.norm.weight": "cls.norm.weight",
            "classifier.weight": "cls.output.weight", "classifier.bias": "cls.output.bias",
        },
    }),
    rerank_head=RerankHead(activation="gelu", pooling="mean"),
    ropes=("default",),
    activation="gelu",
    tied=True,
)

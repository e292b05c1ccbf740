"""Jina BERT 2: an encoder whose attention falls with the distance (ALiBi) instead of positions, and GeGLU."""

from dataclasses import dataclass, replace

from octavo.models.encoder import bert
from octavo.models.encoder.bert import NO_ROPE, BertEncoder
from octavo.models.shared.architecture import Modules, Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import ByLayer, CustomPart, FeedForward, FullAttention, LayerPart, geglu_erf
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import MetadataReader
from octavo.models.shared.weights import vector


@dataclass(frozen=True, kw_only=True)
class JinaBert(bert.Bert):
    """Whether the feed-forward's gate is a matrix of its own, not the first half of `ffn_up`."""

    gate: bool = False


def complete(r: MetadataReader, hp: JinaBert) -> JinaBert:
    return replace(bert.complete(r, hp), gate="blk.0.ffn_gate.weight" in r.shapes)


def feed_forward(*, joined: bool) -> LayerPart:
    """GeGLU, whose last matrix alone has a bias."""
    found = FeedForward(activation=geglu_erf, joined=joined)
    return CustomPart(lambda hp, layer: found.tensors(hp, layer) | {"ffn_down.bias": vector(hp.n_embd)}, found.build)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for learned positions, for other feed-forwards and for other kinds of tokens."""
    bert.require_types(config)
    return NO_ROPE


ARCH = replace(
    bert.ARCH,
    name="jina-bert-v2",
    network=BertEncoder(
        mixer=FullAttention(output_bias=True, rope="none"),
        feed_forward=ByLayer(lambda hp, i: hp.gate, feed_forward(joined=False), feed_forward(joined=True)),
    ),
    keys=(Key("alibi", "attention.max_alibi_bias", default=8.0), bert.POOLING),
    sizes=Sizes(kind=JinaBert, complete=complete),
    classes=dict.fromkeys(("JinaBertModel", "JinaBertForMaskedLM"), config_keys),
    only={"position_embedding_type": "alibi", "feed_forward_type": "geglu", "is_decoder": False},
    names={name: part for name, part in bert.ARCH.names.items() if name.startswith("attention.")} | {
        "mlp.gated_layers": "ffn_up", "mlp.wo": "ffn_down", "mlp.layernorm": "layer_output_norm",
    },
    modules=Modules(rows=bert.ROWS),
    outer={name: gguf for name, gguf in bert.OUTER.items() if "embeddings." in name and "position" not in name},
    layout=TensorLayout(),
)

"""EmbeddingGemma: Gemma 3 whose tokens see all of a text, or with a window as far ahead as back; projections behind."""

from dataclasses import dataclass, replace

from octavo.models.dense import gemma3
from octavo.models.shared.architecture import Sizes
from octavo.models.shared.config import Config, Keys, head_keys
from octavo.models.shared.decoder import GEGLU, SANDWICH_NORMS, Decoder, FullAttention, TransformerEncoder
from octavo.models.shared.hparams import Hyperparams, local_base
from octavo.models.shared.reader import FF_WIDTH, LIMITS, MetadataReader, brief
from octavo.models.shared.weights import Tensors, matrix

DENSE = ("dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out")
"""Widths of the projections that an embedding goes through, one after the other; none where a file has no such key."""


@dataclass(frozen=True, kw_only=True)
class GemmaEmbedding(Hyperparams):
    """`dense` has the shapes of projections, [out, in]."""

    dense: tuple[tuple[int, int], ...] = ()


def complete(r: MetadataReader, hp: GemmaEmbedding) -> GemmaEmbedding:
    shapes = [[r.count(f"dense_{i}_feat_{end}", LIMITS[FF_WIDTH]) for end in ("out", "in")] for i in (2, 3)]
    dense = tuple((out, width) for out, width in shapes if out)
    joins = [hp.n_embd, *(n for shape in dense for n in shape[::-1])]
    if any(a != b for a, b in zip(joins[::2], joins[1::2], strict=False)):
        raise r.error(DENSE[0], f"widths {joins[1:]} do not follow {hp.n_embd}", "each of what comes")
    return replace(hp, dense=dense)


class GemmaEncoder(TransformerEncoder):
    """Projections of the embedding lie behind the layers."""

    def tensors(self, hp: GemmaEmbedding) -> Tensors:
        return Decoder.tensors(self, hp) | {f"dense_{i}.weight": matrix(*shape) for i, shape in enumerate(hp.dense, 2)}


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a model that looks back only, and for scores scaled by another size than the heads'."""
    if not config.flag("use_bidirectional_attention", False):
        raise config.error("use_bidirectional_attention", "is false", "true, in a Gemma3TextModel")
    keys = head_keys(config, 256) | gemma3.rope_bases(config)
    if (scalar := config.values.get("query_pre_attn_scalar", 256)) != (head := keys["attention.key_length"]):
        raise config.error("query_pre_attn_scalar", f"is {brief(scalar)}", f"{head}, as head_dim")
    return keys


ARCH = replace(
    gemma3.ARCH,
    name="gemma-embedding",
    network=GemmaEncoder(
        mixer=FullAttention(qk_norm="heads", freq_factors=True), feed_forward=GEGLU, norms=SANDWICH_NORMS,
        scaled_by_width=True,
    ),
    keys=(local_base(10000.0), *DENSE),
    sizes=Sizes(kind=GemmaEmbedding, complete=complete),
    classes={"Gemma3TextModel": config_keys},
    only={},
)

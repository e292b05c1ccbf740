"""Granite: Llama whose embeddings, scores, residuals and logits are each multiplied by a number."""


from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Modules, Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, Decoder, Experts, dense_or
from octavo.models.shared.hparams import Hyperparams, Key
from octavo.models.shared.reader import FF_WIDTH, LIMITS, MetadataReader, brief

SHARED_WIDTH = "expert_shared_feed_forward_length"
ROPE = "rope.scaling.finetuned"
"""Whether there is rope, which is what converters have this key for."""
KEYS = (
    Key("query_scale", "attention.scale", "attention_multiplier", default=0.0, usual=1.0),
    Key("embedding_scale", "embedding_scale", "embedding_multiplier", default=1.0, usual=1.0),
    Key("residual_scale", "residual_scale", "residual_multiplier", default=1.0, usual=1.0),
    Key("logit_scale", "logit_scale", "logits_scaling", default=1.0, usual=1.0, of=lambda divisor, hp: 1 / divisor),
    ROPE,
)
FEED_FORWARD = dense_or(Experts(shared="whole"))
NETWORK = Decoder(mixer=Attention(output_bias=None), feed_forward=FEED_FORWARD)


def complete(r: MetadataReader, hp: Hyperparams) -> Hyperparams:
    if not r.flag(ROPE, default=True):
        raise r.error(ROPE, "is false, a model without rope", "true")
    return hp


def without_scans(config: Config) -> Keys:
    """Of Granite 4 where all layers attend, which converters write as this architecture.

    Raises ModelError for experts, and for attention without rope.
    """
    if config.count("num_local_experts", LIMITS["expert_count"]):
        raise config.error("num_local_experts", "is not 0, and all layers have attention", "0")
    if (positions := config.values.get("position_embedding_type")) != "rope":
        raise config.error("position_embedding_type", f"is {brief(positions)}, and all layers have attention", "rope")
    return {FF_WIDTH: config.size("shared_intermediate_size", LIMITS[FF_WIDTH])}


HYBRID = "GraniteMoeHybridForCausalLM"
WITHOUT_SCANS = f"{HYBRID} with layer_types only attention full_attention"
DENSE = {"shared_mlp.input_linear": "ffn_gate ffn_up", "shared_mlp.output_linear": "ffn_down"}
"""The feed-forward of the class where there are no experts, in which it is called that of all tokens."""

ARCH = Architecture(
    name="granite",
    network=NETWORK,
    keys=KEYS,
    sizes=Sizes(complete=complete),
    interleaved=True,
    classes={"GraniteForCausalLM": lambda config: {}, WITHOUT_SCANS: without_scans},
    names=names.LLAMA,
    modules=Modules(by_class={WITHOUT_SCANS: DENSE}),
    ropes=("default", "linear", "yarn", "llama3"),
)

"""OLMoE: q and k normed as whole rows, and experts by their probabilities among all."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import expert_keys
from octavo.models.shared.decoder import Attention, Decoder, Experts

ARCH = Architecture(
    name="olmoe",
    network=Decoder(mixer=Attention(qk_norm="rows"), feed_forward=Experts(normalized=False)),
    experts=True,
    classes={"OlmoeForCausalLM": lambda config: expert_keys(config, "num_experts")},
    only={"norm_topk_prob": False, "attention_bias": False, "clip_qkv": None},
    names=names.NORMS | names.ATTENTION | names.QK_NORMS | names.moe("mlp", "gate_proj", "up_proj", "down_proj"),
)

"""SmallThinker: experts with ReLU gates, which the input of a layer's attention chooses; no rope without a window."""

from dataclasses import dataclass, replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.experts import GATE, SIGMOID, SOFTMAX
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import EXPERT_WIDTH, FF_WIDTH, LIMITS, WINDOW, MetadataReader, brief
from octavo.models.shared.weights import Tensors, Weights
from octavo.models.shared.windows import PATTERN, Windows


@dataclass(frozen=True, kw_only=True)
class SmallThinker(Hyperparams):
    """Whether scores of experts are sigmoids, otherwise a softmax."""

    by_sigmoid: bool = False


def complete(r: MetadataReader, hp: SmallThinker) -> SmallThinker:
    gate = r.count(GATE, LIMITS["expert_count"])
    if gate not in (SOFTMAX, SIGMOID):
        raise r.error(GATE, f"{gate} does not fit", f"{SOFTMAX} (softmax) or {SIGMOID} (sigmoid)")
    return replace(hp, by_sigmoid=gate == SIGMOID)


class ThinkerDecoder(Decoder):
    """What a layer is given chooses its experts."""

    def layer_tensors(self, hp: SmallThinker, layer: int) -> Tensors:
        return super().layer_tensors(hp, layer) | layers.norms(hp.n_embd, "ffn_norm") | layers.moe_tensors(hp)

    def build_layer(self, g: GraphBuilder, hp: SmallThinker, b: Weights, x: Node, i: int) -> Node:
        scores = g.mul_mat(b["ffn_gate_inp"], x)
        weights = g.sigmoid(scores) if hp.by_sigmoid else g.soft_max(scores)
        ids = g.top_k(weights, hp.n_expert_used)
        x = super().build_layer(g, hp, b, x, i)
        weights, h = g.normalize(g.gather(weights, ids)), g.rms_norm(x, b["ffn_norm"], hp.eps)
        return g.add(x, layers.through_experts(g, b, h, ids, weights, lambda gate, up: g.mul(g.relu(gate), up)))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for layers with rope and no window among others with windows, and for dense layers."""
    n = config.n_layer
    windowed, turned = _layout(config, "sliding_window_layout", n, 0), _layout(config, "rope_layout", n, 1)
    _layout(config, "moe_layer_layout", n, 1, only=1)
    if turned != (windowed if any(windowed) else [True] * n):
        allowed = "1 where sliding_window_layout has it, or everywhere if it has none"
        raise config.error("rope_layout", f"is {brief(config.values.get('rope_layout'))}", allowed)
    experts = config.size("moe_num_primary_experts", LIMITS["expert_count"])
    width = config.size("moe_ffn_hidden_size", LIMITS[FF_WIDTH])
    keys: Keys = {
        "expert_count": experts, "expert_used_count": config.size("moe_num_active_primary_experts", experts),
        EXPERT_WIDTH: width, FF_WIDTH: width,
        GATE: SOFTMAX if config.flag("moe_primary_router_apply_softmax", False) else SIGMOID,
    }
    if not any(windowed):
        return keys
    usual = [i % PERIOD != 0 for i in range(n)]
    window = config.size("sliding_window_size", LIMITS[WINDOW])
    return keys | {WINDOW: window} | ({} if windowed == usual else {PATTERN: windowed})


def _layout(config: Config, word: str, n: int, default: int, only: int | None = None) -> list[bool]:
    """A list of 0 and 1 for each layer."""
    found = config.values.get(word)
    found = [default] * n if found is None else found
    allowed = (0, 1) if only is None else (only,)
    if not isinstance(found, list) or len(found) != n or any(type(x) is not int or x not in allowed for x in found):
        raise config.error(word, f"is {brief(found)}", f"{' or '.join(map(str, allowed))} for each of {n} layers")
    return [x == 1 for x in found]


PERIOD = 4

ARCH = Architecture(
    name="smallthinker",
    network=ThinkerDecoder(mixer=Attention(bias=False, rope="window if any"), feed_forward=None),
    keys=(GATE,),
    windows=Windows(PERIOD, first=True),
    sizes=Sizes(kind=SmallThinker, complete=complete),
    experts=True,
    only={"moe_enable_secondary_experts": False, "moe_enable_early_router": True},
    classes={"SmallThinkerForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | {
        "block_sparse_moe.primary_router": "ffn_gate_inp",
        **{f"block_sparse_moe.experts.*.{part}": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    },
    ropes=("default", "linear", "yarn"),
)

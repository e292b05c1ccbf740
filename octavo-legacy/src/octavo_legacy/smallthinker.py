"""SmallThinker: experts with ReLU gates, which the input of a layer's attention chooses; no rope without a window."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.routed import GATE, SIGMOID, SOFTMAX
from octavo.models.shared.weights import Tensors, Weights
from octavo.models.shared.windows import PATTERN, read_windowed

PERIOD, WINDOW = 4, "attention.sliding_window"
"""The first layer of each group has neither window nor rope, where there are windows and a file does not say which."""


@dataclass(frozen=True, kw_only=True)
class SmallThinker(Hyperparams):
    """Whether scores of experts are sigmoids, otherwise a softmax."""

    by_sigmoid: bool


def hparams(r: HyperparamReader) -> SmallThinker:
    """Without a window all layers have rope."""
    hp = read_shared(r, has_experts=True)
    gate = r.whole(GATE, 0, LIMITS["expert_count"])
    if gate not in (SOFTMAX, SIGMOID):
        raise r.error(GATE, f"{gate} does not fit", f"{SOFTMAX} (softmax) or {SIGMOID} (sigmoid)")
    windowed = read_windowed(r, hp, PERIOD, first=True)
    return hp.extended(SmallThinker, windowed=windowed, by_sigmoid=gate == SIGMOID)


def tensors(hp: SmallThinker) -> Tensors:
    found = layers.model_tensors(hp, layers.attention_tensors(hp) | layers.moe_tensors(hp))
    return {
        name: want
        for name, want in found.items()
        if not name.endswith((".attn_q.bias", ".attn_k.bias", ".attn_v.bias"))
    }


def build(g: GraphBuilder, hp: SmallThinker, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        scores = g.mul_mat(b["ffn_gate_inp"], x)
        shares = g.sigmoid(scores) if hp.by_sigmoid else g.soft_max(scores)
        ids = g.top_k(shares, hp.n_expert_used)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        if hp.windowed[i] or not hp.n_window:
            q, k = rope(q), rope(k)
        h = g.attention(q, k, v, layer=i, scale=hp.attention_scale, window=hp.window(i))
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        shares = g.normalize(g.gather(shares, ids))
        x = g.add(x, layers.through_experts(g, b, h, ids, shares, lambda gate, up: g.mul(g.relu(gate), up)))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for layers with rope and no window among others with windows, and for dense layers."""
    n = config.size("num_hidden_layers", LIMITS["block_count"])
    windowed, turned = _layout(config, "sliding_window_layout", n, 0), _layout(config, "rope_layout", n, 1)
    _layout(config, "moe_layer_layout", n, 1, only=1)
    if turned != (windowed if any(windowed) else [True] * n):
        allowed = "1 where sliding_window_layout has it, or everywhere if it has none"
        raise config.error("rope_layout", f"is {brief(config.values.get('rope_layout'))}", allowed)
    config.only_flags({"moe_enable_secondary_experts": False, "moe_enable_early_router": True})
    experts = config.size("moe_num_primary_experts", LIMITS["expert_count"])
    width = config.size("moe_ffn_hidden_size", LIMITS["feed_forward_length"])
    keys: Keys = {
        "expert_count": experts, "expert_used_count": config.size("moe_num_active_primary_experts", experts),
        "expert_feed_forward_length": width, "feed_forward_length": width,
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


ARCH = Architecture(
    name="smallthinker",
    hparams=hparams,
    keys=frozenset({GATE, PATTERN}),
    tensors=tensors,
    build=build,
    classes={"SmallThinkerForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | {
        "block_sparse_moe.primary_router": "ffn_gate_inp",
        **{f"block_sparse_moe.experts.*.{part}": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    },
    ropes=("default", "linear", "yarn"),
    writable=False,
)

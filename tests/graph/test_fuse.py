"""Each fusion rule fires on its pattern, computes the same, and leaves alone what is not quite its pattern."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from octavo.graph import lower
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.chosen_adapters import with_adapters
from octavo.graph.factors import LowRank
from octavo.graph.fuse import RULES, quantize_activations
from octavo.graph.node import DType, Graph, Node
from octavo.graph.ops import apply
from octavo.graph.schedule import assign
from tests.graph.small import K, executor, fuse, given, ops_of, run, values, w


def mul_mat(weight: Node, x: Node) -> Node:
    return apply("mul_mat", weight, x, label=weight.name)


def norm(x: Node, weight: Node | None = None) -> Node:
    return apply("rms_norm", x, weight or w(K, name="norm"), eps=1e-5)


def q8(x: Node) -> Node:
    return apply("quantize", x, format="q8_1")


def same(graph: Graph, fused: Graph) -> None:
    assert len(fused.outputs) == len(graph.outputs)
    for tokens in (1, 3):
        for want, got in zip(run(graph, tokens), run(fused, tokens), strict=True):
            assert np.isfinite(want).all()
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def fires(rule: str, *outputs: Node, quantizes: Sequence[str] = ()) -> list[str]:
    """The ops after `rule`, which computes the same and has changed something."""
    graph = Graph.of(*outputs)
    fused = fuse(graph, [rule], quantizes)
    same(graph, fused)
    assert ops_of(fused) != ops_of(graph)
    return ops_of(fused)


def stays(rule: str, *outputs: Node, quantizes: Sequence[str] = ()) -> None:
    graph = Graph.of(*outputs)
    assert ops_of(fuse(graph, [rule], quantizes)) == ops_of(graph)


def test_nothing_is_fused_that_nobody_asks_for() -> None:
    x = given()
    graph = Graph.of(apply("swiglu", mul_mat(w(8, K), x), mul_mat(w(8, K, seed=1), x)))
    assert ops_of(fuse(graph, [])) == ops_of(graph)
    assert ops_of(fuse(graph, ["no_such_fusion"])) == ops_of(graph)


def test_mul_mat_concat() -> None:
    x = given()
    q, k, v = (mul_mat(w(n, K, seed=n), x) for n in (8, 4, 6))
    assert fires("mul_mat_concat", q, k, v) == ["mul_mat_concat", "columns", "columns", "columns"]
    split = apply("reshape", q, shape=("tokens", 2, 4))
    heads = apply("rms_norm", split, w(4), eps=1e-5)  # heads of columns are a view of a view
    ops = fires("mul_mat_concat", heads, apply("add", k, k), v)
    assert ops.count("mul_mat_concat") == 1
    assert ops.count("columns") == 3


def test_mul_mat_of_a_weight_with_a_scale() -> None:
    """And what is fused with a product afterwards is fused with this."""
    x, residual = given(), given("r", 8)
    scale = constant(np.linspace(0.5, 2, 8, dtype=np.float32), "w.scale")
    product = mul_mat(w(8, K), x)
    assert fires("mul_mat", apply("mul", product, scale)) == ["mul_mat"]
    stays("mul_mat", apply("mul", product, scale), apply("soft_max", product))
    stays("mul_mat", apply("mul", product, residual))
    stays("mul_mat", apply("mul", product, w(8)))
    shared = w(8, K)
    stays("mul_mat", apply("mul", mul_mat(shared, x), scale), mul_mat(shared, norm(x)))
    both = [apply("mul", mul_mat(w(8, K, seed=seed), x), scale) for seed in (1, 2)]
    graph = Graph.of(apply("add", both[0], residual), both[1])
    same(graph, fuse(graph, ["mul_mat", "mul_mat_add"]))
    assert sorted(ops_of(fuse(graph, ["mul_mat", "mul_mat_add"]))) == ["mul_mat", "mul_mat_add"]


def test_mul_mat_concat_add() -> None:
    x = given()
    products = [mul_mat(w(n, K, seed=n), x) for n in (8, 4, 6)]
    sums = [apply("add", y, w(n)) for y, n in zip(products, (8, 4, 6), strict=True)]
    assert fires("mul_mat_concat_add", *sums) == ["mul_mat_concat_add", "columns", "columns", "columns"]
    stays("mul_mat_concat_add", *sums[:2], products[2])
    stays("mul_mat_concat_add", *sums[:2], apply("add", products[2], given("residual", 6)))


def test_mul_mat_concat_stays() -> None:
    x, y = given("x"), given("y")
    stays("mul_mat_concat", mul_mat(w(8, K), x), mul_mat(w(8, K), y))
    ids = apply("top_k", x, k=2)
    stays("mul_mat_concat", mul_mat(w(8, K), x), apply("mul_mat_id", w(4, 8, K), x, ids))


@pytest.mark.parametrize("flipped", [False, True])
def test_mul_mat_add(flipped: bool) -> None:
    x, residual = given("x"), given("r", 8)
    product, bias = mul_mat(w(8, K), x), w(8, seed=3)
    biased = apply("add", product, bias)
    assert fires("mul_mat_add", biased) == ["mul_mat_add"]
    terms = (residual, biased) if flipped else (biased, residual)
    graph = Graph.of(apply("add", *terms))
    fused = fuse(graph, ["mul_mat_add"])
    same(graph, fused)
    (node,) = (n for n in fused.nodes if not n.is_leaf)
    assert (node.op, node.inputs[2:]) == ("mul_mat_add", (bias, residual))


def test_mul_mat_add_of_two_products_keeps_one_of_them() -> None:
    x = given()
    both = apply("add", mul_mat(w(8, K), x), mul_mat(w(8, K, seed=1), x))
    assert sorted(fires("mul_mat_add", both)) == ["mul_mat", "mul_mat_add"]


def test_mul_mat_add_takes_only_sums_that_are_read_once() -> None:
    x, bias = given(), w(8, seed=3)
    product = mul_mat(w(8, K), x)
    stays("mul_mat_add", apply("add", product, bias), apply("soft_max", product))
    stays("mul_mat_add", apply("add", product, product))
    stays("mul_mat_add", apply("mul", product, bias))
    biased = apply("add", product, bias)
    shared = apply("add", biased, given("r", 8)), apply("soft_max", biased)
    assert fires("mul_mat_add", *shared) == ["mul_mat_add", "add", "soft_max"], "the bias, but not the residual"


@pytest.mark.parametrize("op", ["rms_norm", "swiglu"])
def test_a_result_that_is_only_quantized(op: str) -> None:
    def source() -> Node:
        return norm(given()) if op == "rms_norm" else apply("swiglu", given(), given("y"))

    assert fires("", mul_mat(w(8, K), q8(source())), quantizes=[op]) == [f"{op}:q8_1", "mul_mat"]
    shared = source()
    stays("", mul_mat(w(8, K), q8(shared)), apply("soft_max", shared), quantizes=[op])
    stays("", mul_mat(w(8, K), q8(given())), quantizes=[op])
    stays("", mul_mat(w(8, K), source()), quantizes=[op])
    stays("", mul_mat(w(8, K), q8(source())), quantizes=["soft_max"])


def attention(
    *, norms: bool = True, k_freqs: float = 1.0, k_scale: float = 1.0, k_eps: float = 1e-5, turn: bool = True,
    dim: int = 8,
) -> Graph:
    g = GraphBuilder("f32", page_size=16)
    q, k, v = (given(n, 2, dim) for n in "qkv")
    freqs = w(dim // 2, name="freqs")
    other = freqs if k_freqs == 1 else w(dim // 2, seed=9, name="other")
    if norms:
        q = g.rms_norm(q, w(dim, name="q_norm"), 1e-5)
        k = g.rms_norm(k, w(dim, seed=1, name="k_norm"), k_eps)
    if turn:
        q, k = g.rope(q, freqs, 1.0, False), g.rope(k, other, k_scale, False)
    return Graph.of(g.attention(q, k, v, layer=0, scale=0.3))


def attend(graph: Graph, dim: int = 8) -> np.ndarray:
    """Two sequences, of 3 and 2 tokens."""
    from tests.graph.small import executor

    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal((5, 2, dim)).astype(np.float32) for n in "qkv"} | {
        "positions": np.array([0, 1, 2, 0, 1]), "starts": np.array([0, 3, 5]),
        "pages": np.array([[2, 0, 0, 0], [1, 0, 0, 0]]), "rows": np.array([32, 33, 34, 16, 17]),
    }
    return executor(graph).run(inputs, {"tokens": 5, "sequences": 2, "boundaries": 3})[0]


@pytest.mark.parametrize("norms", [True, False])
def test_rope_set_rows(norms: bool) -> None:
    graph = attention(norms=norms)
    fused = fuse(graph, ["rope_set_rows"])
    assert ops_of(fused) == ["rope_set_rows", "after", "after", "attention"]
    np.testing.assert_allclose(attend(fused), attend(graph), rtol=1e-6, atol=1e-6)


def test_rope_set_rows_keeps_norms_that_differ() -> None:
    graph = attention(k_eps=0.5)
    fused = fuse(graph, ["rope_set_rows"])
    assert ops_of(fused).count("rms_norm") == 2
    assert "rope_set_rows" in ops_of(fused)
    np.testing.assert_allclose(attend(fused), attend(graph), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("change", [{"k_freqs": 2.0}, {"k_scale": 2.0}, {"turn": False}], ids=str)
def test_rope_set_rows_stays_where_q_and_k_are_not_turned_alike(change: dict[str, float]) -> None:
    graph = attention(**change)  # type: ignore[arg-type]
    assert ops_of(fuse(graph, ["rope_set_rows"])) == ops_of(graph)


def test_attention_that_is_only_quantized() -> None:
    (attended,) = attention(dim=16).outputs
    graph = Graph.of(mul_mat(w(8, 32), q8(attended)))
    fused = fuse(graph, ["rope_set_rows"], ["attention"])
    assert ops_of(fused) == ["rope_set_rows", "after", "after", "attention:q8_1", "mul_mat"]
    np.testing.assert_allclose(attend(fused, 16), attend(graph, 16), rtol=1e-6, atol=1e-6)
    unchanged = Graph.of(*graph.outputs, apply("soft_max", attended))
    assert ops_of(fuse(unchanged, [], ["attention"])) == ops_of(unchanged), "it is read otherwise too"


def test_activations_are_quantized_once_for_all_that_read_them() -> None:
    x = given()
    h = norm(x)
    ids = apply("top_k", x, k=2)
    wide, narrow = w(8, K, name="wide"), w(8, K, seed=1, name="narrow")
    outputs = (mul_mat(wide, h), mul_mat(wide, h), mul_mat(narrow, h), apply("mul_mat_id", w(4, 8, K), h, ids))

    def wanted(tensor: object, *_: object) -> DType:
        return "f32" if getattr(tensor, "name", "") == "narrow" else "q8_1"

    graph = quantize_activations(Graph.of(*outputs), wanted)
    assert ops_of(graph).count("quantize") == 1
    (quantized,) = (n for n in graph.nodes if n.op == "quantize")
    first, second, third, experts = graph.outputs
    assert first.inputs[1] is second.inputs[1] is experts.inputs[1] is quantized
    assert third.inputs[1].op == "rms_norm"
    assert ops_of(quantize_activations(graph, wanted)) == ops_of(graph), "what is quantized is not quantized again"


def chosen() -> Node:
    return apply("top_k", given("order", 6), k=3)


def experts_of(x: Node, ids: Node) -> Node:
    return apply("mul_mat_id", w(6, 8, K), x, ids)


def test_mul_mat_id_gated() -> None:
    ids, x = chosen(), apply("swiglu", given("gate", 3, K), given("up", 3, K))
    assert fires("mul_mat_id_gated", experts_of(x, ids)) == ["top_k", "mul_mat_id_gated"]


def test_products_of_both_halves_are_one() -> None:
    x, ids = given(), chosen()
    gate, up = (apply("mul_mat_id", w(6, K, K, seed=i), x, ids) for i in range(2))
    found = fires("mul_mat_id_gated", experts_of(apply("swiglu", gate, up), ids))
    assert found == ["top_k", "mul_mat_id_concat", "columns", "columns", "mul_mat_id_gated"]
    apart = apply("swiglu", gate, apply("mul_mat_id", w(6, K, K, seed=2), given("y"), ids))
    assert "mul_mat_id_concat" not in fires("mul_mat_id_gated", experts_of(apart, ids))
    read_twice = fires("mul_mat_id_gated", experts_of(apply("swiglu", gate, up), ids), apply("gelu_erf", up))
    assert "mul_mat_id_concat" not in read_twice


def biased(name: str, n: int, ids: Node) -> Node:
    return apply("add_rows", given(name, 3, n), w(6 * n, seed=n), ids)


def test_mul_mat_id_gated_adds_biases() -> None:
    ids = chosen()
    x = apply("clamped_swiglu", biased("gate", K, ids), biased("up", K, ids), slope=1.7, limit=0.5)
    assert fires("mul_mat_id_gated", experts_of(x, ids)) == ["top_k", "mul_mat_id_gated"]
    one = apply("swiglu", biased("gate", K, ids), given("up", 3, K))
    assert fires("mul_mat_id_gated", experts_of(one, ids)) == ["top_k", "add_rows", "mul_mat_id_gated"]


def test_mul_mat_id_gated_takes_only_values_that_are_read_once() -> None:
    ids, x = chosen(), apply("swiglu", given("gate", 3, K), given("up", 3, K))
    stays("mul_mat_id_gated", experts_of(x, ids), experts_of(apply("gelu_erf", x), ids))
    stays("mul_mat_id_gated", experts_of(given("gate", 3, K), ids))


def shared(x: Node, *, normalized: bool, probabilities: str = "soft_max") -> Node:
    """The sum of x [T, 3, 8] by shares of three of six experts."""
    ids, found = chosen(), apply(probabilities, given("logits", 6))
    shares = apply("gather", found, ids)
    return apply("weighted_sum", x, apply("normalize", shares) if normalized else shares)


@pytest.mark.parametrize("normalized", [False, True])
def test_sum_experts(normalized: bool) -> None:
    total = shared(given("x", 3, 8), normalized=normalized)
    assert fires("sum_experts", total) == ["top_k", "sum_experts"]
    plus = given("plus", 8)
    for terms in ((plus, total), (total, plus)):
        assert fires("sum_experts", apply("add", *terms)) == ["top_k", "sum_experts"]
    again = apply("add", plus, total), apply("rms_norm", total, w(8), eps=1e-5)
    assert fires("sum_experts", *again) == ["top_k", "sum_experts", "add", "rms_norm"], "the sum is read by others, too"
    assert fires("sum_experts", apply("add", total, w(8))) == ["top_k", "sum_experts", "add"], "a row is not a term"
    assert fires("sum_experts", apply("add", total, total)) == ["top_k", "sum_experts", "add"]


def test_sum_experts_of_a_soft_max_of_few_logits_with_biases() -> None:
    ids, logits = chosen(), given("logits", 6)
    shares = apply("soft_max", apply("gather", logits, ids))
    total = apply("weighted_sum", biased("x", 8, ids), shares)
    assert fires("sum_experts", total) == ["top_k", "sum_experts"]
    assert fires("sum_experts", apply("add", given("plus", 8), total)) == ["top_k", "sum_experts"]
    others = apply("top_k", given("others", 6), k=3)
    stays("sum_experts", apply("weighted_sum", given("x", 3, 8), apply("soft_max", given("shares", 3))))
    apart = apply("weighted_sum", biased("x", 8, others), shares)
    assert fires("sum_experts", apart) == ["top_k", "add_rows", "top_k", "sum_experts"]


def test_sum_experts_is_of_a_soft_max() -> None:
    x = given("x", 3, 8)
    stays("sum_experts", shared(x, normalized=True, probabilities="sigmoid"))
    stays("sum_experts", apply("weighted_sum", x, given("shares", 3)))


def test_soft_max_top_k() -> None:
    probabilities = apply("soft_max", given("logits", 6))
    ids = apply("top_k", probabilities, k=2)
    assert fires("soft_max_top_k", ids) == ["soft_max_top_k"]
    both = fires("soft_max_top_k", ids, apply("gather", probabilities, ids))
    assert sorted(both) == ["gather", "soft_max", "soft_max_top_k"]
    stays("soft_max_top_k", chosen())


def test_rules_work_on_one_anothers_results() -> None:
    x, residual = given(), given("r", 8)
    h = q8(norm(x))
    gate, up = mul_mat(w(K, K), h), mul_mat(w(K, K, seed=1), h)
    ffn = mul_mat(w(8, K, seed=2), q8(apply("swiglu", gate, up)))
    graph = Graph.of(apply("add", residual, ffn))
    fused = fuse(graph, RULES, ["rms_norm"])
    products = ["mul_mat_concat", "columns", "columns"]
    assert ops_of(fused) == ["rms_norm:q8_1", *products, "swiglu", "quantize", "mul_mat_add"]
    same(graph, fused)


def test_nodes_of_one_backend_are_assigned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rules replace some of them."""
    asked = list[Graph]()
    monkeypatch.setattr(lower, "assign", lambda graph, *more: asked.append(graph) or assign(graph, *more))
    test_rules_work_on_one_anothers_results()
    assert len(asked) == 1


def test_lora() -> None:
    """What adapters add to joined products is one op, and the same."""
    x = given()
    q, k, v = (mul_mat(w(n, K, seed=n, name=f"{n}.weight"), x) for n in (8, 4, 6))
    graph = with_adapters(Graph.of(q, k, v, mul_mat(w(5, 8, name="5.weight"), q)), 2, 3)
    fused = fuse(graph, ["mul_mat_concat", "lora"])
    assert ops_of(fused) == ["mul_mat_concat", "lora", "columns", "columns", "columns", "mul_mat", "lora"]
    added = {f"{n}.weight": LowRank(w(3, k).tensor, w(n, 3, seed=1).tensor) for n, k in ((8, K), (6, K), (5, 8))}
    rows, starts = np.array([2, 0, 1], np.int32), np.array([0, 1, 2], np.int32)
    inputs = {**values(graph, 3), "adapter_rows": rows, "adapter_starts": starts}
    found = []
    for one in (graph, fused, Graph.of(q, k, v)):
        made = executor(one)
        made.put_adapter(0, added)
        made.put_adapter(1, {"8.weight": added["8.weight"]})
        found.append(made.run(inputs, {"tokens": 3}))
    for want, got in zip(found[0], found[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    changed = [np.abs(a - b).max(axis=1) > 1e-3 for a, b in zip(found[0], found[2], strict=False)]
    assert [one.tolist() for one in changed] == [[True, False, True], [False] * 3, [False, False, True]]
    assert ops_of(fuse(graph, ["lora"])).count("lora") == 4


def test_every_rule_is_tried() -> None:
    of_experts = {"mul_mat_id_gated", "sum_experts", "soft_max_top_k"}
    of_products = {"mul_mat", "mul_mat_concat", "mul_mat_concat_add", "mul_mat_add"}
    assert set(RULES) == {*of_products, "rope_set_rows", "lora", *of_experts}

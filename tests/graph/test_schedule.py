"""Schedules: where nodes run, what is copied, and that memory is shared by values never alive at once only."""

from __future__ import annotations

import logging
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given as with_
from hypothesis import settings
from hypothesis import strategies as st

from octavo.backends.reference import ReferenceBackend, ops
from octavo.errors import GraphError
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Graph, Node, bind
from octavo.graph.ops import ALIASES, apply
from octavo.graph.schedule import ALIGNMENT, Schedule, Split, on_first, root, schedule
from octavo.runtime import Engine, EngineConfig
from tests.graph.small import LIMITS, K, Limited, executor, fuse, given, ops_of, run, values, w


def placed(weight: Node, reader: Node) -> int:
    """A weight called "b..." belongs on the second backend."""
    return int(weight.name.startswith("b"))


def chain() -> Graph:
    """a, then b, then a: two products on the second backend between others."""
    x = given()
    a = apply("mul_mat", w(K, K, name="a1"), x, label="a1")
    b = apply("mul_mat", w(K, K, name="b1"), a, label="b1")
    b = apply("add", apply("mul_mat", w(K, K, name="b2"), a, label="b2"), b, label="sum")
    return Graph.of(apply("mul_mat", w(5, K, name="a2"), b, label="a2"))


def splits(s: Schedule) -> list[tuple[int, list[str]]]:
    return [(split.backend, [n.op for n in split.nodes]) for split in s.splits]


def test_one_backend_is_one_split_without_copies() -> None:
    s = schedule(chain(), [ReferenceBackend()], LIMITS)
    assert splits(s) == [(0, ["mul_mat", "mul_mat", "mul_mat", "add", "mul_mat"])]
    assert s.fallbacks == ()


def test_a_node_is_put_into_a_split_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    made = Split.__init__

    def counted(split: Split, backend: int, nodes: tuple[Node, ...]) -> None:
        sizes.append(len(nodes))
        made(split, backend, nodes)

    monkeypatch.setattr(Split, "__init__", counted)
    for n in (20, 320):
        x = given()
        for i in range(n):
            x = apply("mul_mat", w(K, K, name=f"a{i}"), x)
        sizes.clear()
        schedule(Graph.of(x), [ReferenceBackend()], LIMITS)
        assert sum(sizes) == n


def test_values_are_copied_once_at_each_seam() -> None:
    backends = [Limited("first"), Limited("second")]
    s = schedule(chain(), backends, LIMITS, place=placed)
    assert splits(s) == [
        (0, ["mul_mat"]),
        (1, ["copy", "mul_mat", "mul_mat", "add"]),
        (0, ["copy", "mul_mat"]),
    ]
    assert {b.backend for b in s.buffers.values()} == {0, 1}
    assert len(s.memory) == 2
    got = executor(chain(), backends, placed).run(values(chain(), 3), {"tokens": 3})
    np.testing.assert_array_equal(got[0], executor(chain()).run(values(chain(), 3), {"tokens": 3})[0])


def test_a_node_without_weights_stays_where_its_last_input_was_made() -> None:
    x = given()
    a = apply("mul_mat", w(K, K, name="a"), x)
    b = apply("mul_mat", w(K, K, name="b"), apply("soft_max", a))
    s = schedule(Graph.of(apply("add", a, b)), [Limited("first"), Limited("second")], LIMITS, place=placed)
    assert splits(s) == [(0, ["mul_mat", "soft_max"]), (1, ["copy", "copy", "mul_mat", "add"])]


def test_what_needs_only_inputs_is_made_where_it_is_read() -> None:
    """Also a view of another's value. So the first backend has nothing to do once the second one has begun."""
    x, p = given(), given("p", 2, dtype="f32")
    both = apply("mul_mat", w(2 * K, K, name="a"), x)
    first, second = (apply("columns", both, start=start, size=K) for start in (0, K))
    b = apply("mul_mat", w(K, K, name="b"), apply("add", first, apply("soft_max", first)))
    late = apply("columns", apply("mul_mat", w(4, 2, name="b2"), apply("soft_max", p)), start=0, size=4)
    c = apply("add", b, second)
    graph = Graph.of(c, apply("mul_mat", w(4, 4, name="b3"), late), apply("soft_max", p))
    s = schedule(graph, [Limited("first"), Limited("second")], LIMITS, place=placed)
    assert [backend for backend, _ in splits(s)] == [0, 1, 0]
    assert splits(s)[0][1] == ["mul_mat", "columns", "soft_max", "add"]
    assert splits(s)[1][1].count("copy") == 2
    assert splits(s)[2][1] == ["soft_max"], "an output, and made once more where it is read"
    made = executor(graph, [Limited("first"), Limited("second")], placed)
    for got, want in zip(run(graph, make=lambda _: made), run(graph), strict=True):
        np.testing.assert_array_equal(got, want)


def test_constants_draw_nothing_to_them() -> None:
    x = apply("mul_mat", w(16, K, name="b"), given())
    turned = apply("rope", apply("reshape", x, shape=("tokens", 2, 8)), given("p", dtype="i32"),
                   constant(np.ones(4), "freqs"), scale=1.0, interleaved=False)
    s = schedule(Graph.of(turned), [Limited("first"), Limited("second")], LIMITS, place=placed)
    assert splits(s) == [(1, ["mul_mat", "reshape", "rope"])]


def test_a_fallback_is_logged_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    x = given()
    graph = Graph.of(apply("soft_cap", apply("soft_max", apply("soft_cap", x, cap=2.0)), cap=3.0))
    backends = [Limited("fast", "soft_cap"), Limited("slow")]
    with caplog.at_level(logging.WARNING, "octavo"):
        s = schedule(graph, backends, LIMITS)
    reason = "soft_cap runs on slow, not on fast: no soft_cap here"
    assert [r.getMessage() for r in caplog.records] == [reason]
    assert s.fallbacks == (reason,)
    assert splits(s)[0][0] == 1
    with pytest.raises(GraphError, match=f"{reason} .strict: no fallbacks"):
        schedule(graph, backends, LIMITS, strict=True)


def test_strict_accepts_what_runs_where_it_is_meant_to() -> None:
    assert schedule(chain(), [Limited("a"), Limited("b")], LIMITS, place=placed, strict=True).fallbacks == ()


def test_what_no_backend_runs_is_an_error_with_every_reason() -> None:
    graph = Graph.of(apply("soft_cap", given(), cap=2.0, label="caps"))
    with pytest.raises(GraphError) as caught:
        schedule(graph, [Limited("one", "soft_cap"), Limited("two", "soft_cap", "add")], LIMITS)
    assert str(caught.value) == ("no backend runs soft_cap (caps): one: no soft_cap here; two: no soft_cap here")


def attention() -> Graph:
    g = GraphBuilder("f32", page_size=16)
    q, k, v = (given(n, 2, 8) for n in "qkv")
    freqs = w(4, name="freqs")
    return Graph.of(g.attention(g.rope(q, freqs, 1.0, False), g.rope(k, freqs, 1.0, False), v, layer=0, scale=0.3))


@pytest.mark.parametrize(
    ("fused", "refused"),
    [(False, "attention"), (False, "set_rows"), (False, "rope"),
     (True, "attention"), (True, "rope_set_rows"), (True, "after")],
)
def test_a_cache_is_written_where_it_is_read_by_a_backend_that_can(fused: bool, refused: str) -> None:
    graph = fuse(attention(), ["rope_set_rows"] if fused else [])
    backends = [Limited("first", refused), Limited("second")]
    s = schedule(graph, backends, LIMITS)
    cached = {"attention", "set_rows", "rope_set_rows", "after"} & set(ops_of(graph))
    where = {s.backends[id(n)] for n in s.graph.nodes if n.op in cached}
    assert len(where) == 1
    run = [n for n in s.graph.nodes if not n.is_leaf]
    assert all(backends[s.backends[id(n)]].supports(n)[0] for n in run)
    assert not any(i.op == "copy" for n in run if n.op == "attention" for i in n.inputs[1:3]), "no cache is copied"


def test_layers_on_two_backends_compute_the_same(architecture) -> None:  # type: ignore[no-untyped-def]
    def layers(weight: Node, reader: Node) -> int:
        part = weight.name.split(".")
        return int(part[1]) % 2 if part[0] == "blk" else 0

    config = EngineConfig(n_ctx=128, cache_type="f32")
    one = Engine(architecture, [ReferenceBackend()], config)
    backends = [Limited("first"), Limited("second")]
    two = Engine(architecture, backends, config, place=layers)
    assert [s.backend for s in two.schedule.splits] == [0, 1, 0]
    tokens = np.random.default_rng(0).integers(0, 256, 100).tolist()
    np.testing.assert_array_equal(two.logits(tokens), one.logits(tokens))
    mixed = Engine(architecture, [Limited("first", "swiglu", "rope"), Limited("second", "rms_norm")], config, layers)
    assert len(mixed.schedule.fallbacks) == 3
    np.testing.assert_array_equal(mixed.logits(tokens), one.logits(tokens))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random graph over [tokens, K] values: sums, products with weights of either backend, views, several outputs."""
    made = [given("x"), given("y")]
    for i in range(draw(st.integers(1, 25))):
        a, b = (draw(st.sampled_from(made)) for _ in "ab")
        kind = draw(st.sampled_from(["add", "soft_max", "a", "b", "view", "columns"]))
        if kind == "add":
            node = apply("add", a, b)
        elif kind == "soft_max":
            node = apply("soft_max", a)
        elif kind == "view":
            split = apply("reshape", a, shape=("tokens", 4, K // 4))
            node = apply("reshape", apply("soft_max", split), shape=("tokens", K))
        elif kind == "columns":
            wide = apply("mul_mat_concat", a, w(3, K, seed=i, name=f"b{i}"), w(K, K, seed=i, name="a"))
            node = apply("columns", wide, start=3, size=K)
        else:
            node = apply("mul_mat", w(K, K, seed=i, name=f"{kind}{i}"), a)
        made.append(node)
    outputs = draw(st.lists(st.sampled_from([n for n in made if not n.is_leaf]), min_size=1, max_size=3, unique_by=id))
    return Graph.of(*outputs)


def lifetimes(s: Schedule) -> dict[int, tuple[int, int]]:
    """id of each value with memory of its own -> the step that makes it, the last that reads it (or a view of it)."""
    order = {id(n): step for step, n in enumerate(s.graph.nodes)}
    ends = {id(n): order[id(n)] for n in s.graph.nodes}
    for node in s.graph.nodes:
        for source in node.inputs:
            owner = root(source)
            ends[id(owner)] = max(ends[id(owner)], order[id(node)])
    for output in s.graph.outputs:
        ends[id(root(output))] = len(order)
    return {key: (order[key], ends[key]) for key in s.buffers}


def naive(graph: Graph, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Every node by itself, in memory of its own."""
    made: dict[int, np.ndarray] = {}
    for node in graph.nodes:
        if node.op == "input":
            made[id(node)] = inputs[node.name]
        elif node.op == "weight":
            made[id(node)] = ReferenceBackend().load(node.tensor)
        else:
            made[id(node)] = getattr(ops, node.op)(*(made[id(i)] for i in node.inputs), **node.attrs)
    return [made[id(o)] for o in graph.outputs]


@settings(max_examples=80, deadline=None)
@with_(graph=graphs(), two=st.booleans())
def test_no_two_values_alive_at_once_share_memory(graph: Graph, two: bool) -> None:
    backends = [Limited("first"), Limited("second", "soft_max")] if two else [ReferenceBackend()]
    place = placed if two else on_first
    s = schedule(graph, backends, LIMITS, place=place)
    alive = lifetimes(s)
    assert alive.keys() == {id(n) for n in s.graph.nodes if not n.is_leaf and n.op not in ALIASES}
    for a, b in combinations(alive, 2):
        first, second = s.buffers[a], s.buffers[b]
        if first.backend == second.backend and alive[a][0] <= alive[b][1] and alive[b][0] <= alive[a][1]:
            assert first.offset + first.nbytes <= second.offset or second.offset + second.nbytes <= first.offset
    for node in s.graph.nodes:
        if id(node) in s.buffers:
            buffer = s.buffers[id(node)]
            assert buffer.offset % ALIGNMENT == 0
            assert buffer.nbytes >= 4 * np.prod(bind(node.shape, LIMITS))
            assert buffer.offset + buffer.nbytes <= s.memory[buffer.backend]
    inputs = values(graph, 5)
    given_inputs = {"x": np.zeros((5, K), np.float32), "y": np.zeros((5, K), np.float32), **inputs}
    got = executor(graph, backends, place).run(given_inputs, {"tokens": 5})
    for value, want in zip(got, naive(graph, inputs), strict=True):
        np.testing.assert_array_equal(value, want)


def test_memory_is_reused() -> None:
    x = given()
    for i in range(20):
        x = apply("add", x, apply("mul_mat", w(K, K, seed=i), x))
    s = schedule(Graph.of(x), [ReferenceBackend()], LIMITS)
    one = 4 * K * LIMITS["tokens"]
    assert sum(b.nbytes for b in s.buffers.values()) == 40 * one
    assert s.memory == (3 * one,), "a value, the product with it and their sum"


class InPlace(ReferenceBackend):
    """Puts sums of a product and a term where the term lies."""

    def adds_in_place(self, node: Node) -> bool:
        return True


@pytest.mark.parametrize("read_later", [False, True])
def test_a_term_that_nothing_reads_later_gives_its_memory_to_the_sum(read_later: bool) -> None:
    """Not one that is read later, nor what a step is given."""
    term = apply("soft_max", given("y", K))
    total = apply("mul_mat_add", w(K, K), given(), term)
    last = apply("mul", total, term) if read_later else apply("soft_cap", total, cap=2.0)
    graph = Graph.of(last, apply("mul_mat_add", w(K, K), given(), given("z", K)))
    made = schedule(graph, [InPlace()], LIMITS)
    same = made.buffers[id(total)] == made.buffers[id(term)]
    assert same != read_later
    found = run(graph, make=lambda graph: executor(graph, [InPlace()]))
    for result, expected in zip(found, run(graph), strict=True):
        np.testing.assert_array_equal(result, expected)

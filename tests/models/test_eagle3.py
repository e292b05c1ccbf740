"""EAGLE-3 heads, against a computation in NumPy that shares no code with theirs; which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends import select
from octavo.errors import ModelError
from octavo.formats import dequantize
from octavo.graph.builder import GraphBuilder
from octavo.graph.executor import Executor
from octavo.graph.node import Graph
from octavo.graph.schedule import schedule
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.models.shared.eagle3 import UNKNOWN, is_eagle3, read_eagle3, spread
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.speculation.open_head import open_draft_file
from tests.models.eagle3_heads import KEPT, TARGET, tensors, write, write_folder
from tests.runtime import tiny

TOKENS = np.random.default_rng(2).integers(0, 250, 11).tolist()
EPS = 1e-5


def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight)


def turned(x: np.ndarray) -> np.ndarray:
    """Rope on neighbours, x [T, H, D] at positions from 0."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
    pairs = x[..., ::2] + 1j * x[..., 1::2]
    pairs = pairs * np.exp(1j * angles)[:, None]
    return np.asarray(np.stack([pairs.real, pairs.imag], -1).reshape(x.shape))


def silu_ffn(b: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    gate = x @ b["ffn_gate"].T
    return np.asarray((gate / (1 + np.exp(-gate)) * (x @ b["ffn_up"].T)) @ b["ffn_down"].T)


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    n = len(q)
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], 1) for each in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf))
    return np.asarray(np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v).reshape(n, -1))


def expected(
    w: dict[str, np.ndarray], model: dict[str, np.ndarray], tokens: list[int], hidden: np.ndarray, *, normed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and hidden states of all positions, in float64."""
    b = {name.removeprefix("blk.0.").removesuffix(".weight"): value.astype(np.float64) for name, value in w.items()}
    table = w.get("token_embd.weight", model["token_embd.weight"])
    h = rms(hidden, b["attn_norm_2"])
    both = np.concatenate([rms(table[tokens], b["attn_norm"]), h], -1)
    q, k, v = (
        (both @ b[f"attn_{name}"].T).reshape(len(tokens), n, -1)
        for name, n in (("q", tiny.N_HEAD), ("k", tiny.N_HEAD_KV), ("v", tiny.N_HEAD_KV))
    )
    x = (h if normed else hidden) + attended(turned(q), turned(k), v) @ b["attn_output"].T
    x = x + silu_ffn(b, rms(x, b["ffn_norm"]))
    y = rms(x, b["output_norm"])
    logits = y @ w.get("output.weight", model["output.weight"]).astype(np.float64).T
    if "d2t" in w:
        logits, some = np.full((len(x), tiny.N_VOCAB), np.float32(UNKNOWN)), logits
        logits[:, KEPT] = some
    return logits, x


def residuals(weights: dict[str, np.ndarray], tokens: list[int]) -> list[np.ndarray]:
    """What each layer of the tiny model reads, and what the last one gives."""
    found = [weights["token_embd.weight"][tokens].astype(np.float64)]
    for i in range(2):
        b = {n.removeprefix(f"blk.{i}.").removesuffix(".weight"): v for n, v in weights.items() if f"blk.{i}." in n}
        x, n = found[-1], len(tokens)
        h = rms(x, b["attn_norm"])
        q, k, v = ((h @ b[f"attn_{name}"].T).reshape(n, -1, tiny.HEAD_DIM) for name in "qkv")
        q, k = rms(q, b["attn_q_norm"]), rms(k, b["attn_k_norm"])
        order = np.arange(tiny.HEAD_DIM).reshape(2, -1).T.reshape(-1)  # halves, as neighbours
        q, k = turned(q[..., order]), turned(k[..., order])
        x = x + attended(q, k, v) @ b["attn_output"].T
        found.append(x + silu_ffn(b, rms(x, b["ffn_norm"])))
    return found


CASES: list[tuple[dict[str, bool], dict[str, Any]]] = [
    ({}, {}),
    ({"reduced": False}, {"norm_before_residual": True}),
    ({"own": False, "normed": True}, {"norm_before_fc": True}),
    ({}, {"target_layers": None, "extract_layers": list(TARGET)}),
]


@pytest.mark.few(2)
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize(("made", "more"), CASES)
def test_it_computes_what_numpy_does(
    device: str, made: dict[str, bool], more: dict[str, Any], tmp_path: Path
) -> None:
    """Of the model's own states, and of what the head gave itself; in one pass, and in several."""
    weights, head = tiny.tensors(), tensors(**made)
    tiny.write(tmp_path / "m.gguf", weights=weights)
    write(tmp_path / "head.gguf", head, **more)
    with GGUFFile.open(tmp_path / "m.gguf") as file, GGUFFile.open(tmp_path / "head.gguf") as of_head:
        assert is_eagle3(of_head)
        found = read_eagle3(of_head, read_model(file))
        config, backends = EngineConfig(n_ctx=64, cache_type="f32"), select(device, 1)
        engine = Engine(found.main, backends, config, head=found)
        guessing = Engine(found, backends, config, shares=engine)
        text, sequence, own = TOKENS[:-1], Sequence(), Sequence()
        engine.step([Feed(sequence, text, len(text))])
        assert sequence.hidden is not None
        features = np.concatenate([residuals(weights, text)[i] for i in TARGET], -1)
        if made.get("normed"):
            features = rms(features, head["enc.output_norm.weight"])
        hidden = np.stack(sequence.hidden.rows)
        assert np.abs(hidden - features @ head["fc.weight"].T).max() < 1e-3

        def wanted(tokens: list[int], states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return expected(head, weights, tokens, states, normed=bool(more.get("norm_before_residual")))

        want, given = wanted(TOKENS[1:], hidden)
        got = guessing.step([Feed(own, TOKENS[1:7], 6, hidden=hidden[:6])])
        assert np.abs(got - want[:6]).max() < 1e-3
        assert np.abs(guessing.hidden - given[:6]).max() < 1e-3
        got = guessing.step([Feed(own, TOKENS[7:], 1, hidden=hidden[6:])])
        assert np.abs(got - want[-1:]).max() < 1e-3
        last = int(got.argmax())
        want, _ = wanted([*TOKENS[1:], last], np.concatenate([hidden, given[-1:]]))
        got = guessing.step([Feed(own, [last], 1, hidden=guessing.hidden)])
        assert np.abs(got - want[-1:]).max() < 1e-3


@pytest.mark.parametrize("speculators", [False, True])
def test_a_folder_is_read_as_the_file_that_it_would_be(speculators: bool, tmp_path: Path) -> None:
    weights = tensors()
    tiny.write(tmp_path / "m.gguf")
    write(tmp_path / "head.gguf", weights)
    folder = write_folder(tmp_path / "head", weights, speculators=speculators)
    with GGUFFile.open(tmp_path / "m.gguf") as file, GGUFFile.open(tmp_path / "head.gguf") as of_head:
        main = read_model(file)
        want = read_eagle3(of_head, main)
        got = read_eagle3(open_draft_file(folder, main), main)
        assert got.hparams == want.hparams
        assert set(got.file.tensors) == set(of_head.tensors)
        for name in of_head.tensors:
            assert np.array_equal(dequantize(got.file.tensor(name)), dequantize(of_head.tensor(name))), name


def test_the_layers_that_a_folder_does_not_name(tmp_path: Path) -> None:
    """The second, the middle one and the third from last, of a model of eight."""
    tiny.write(tmp_path / "m.gguf", weights=tiny.tensors(n_layer=8), keys={"qwen3.block_count": 8})
    folder = write_folder(tmp_path / "head", tensors(), eagle_config=None)
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        main = read_model(file)
        assert read_eagle3(open_draft_file(folder, main), main).hparams.target_layers == (2, 4, 5)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("", {"target_hidden_size": 128}, "target_hidden_size: is 128, but the model is 264 wide"),
    ("", {"target_layers": [0, 1, 3]}, "target_layers: names layer 3, but the model has 2"),
    ("", {"target_layers": [1]}, "target_layers: is .1. .allowed: three layers"),
    ("", {"target_layers": [1] * 99}, "target_layers: names 99 layers .allowed: three layers"),
    ("", {"target_layers": None}, "target_layers: is missing"),
    ("", {"block_count": 2}, "block_count: is 2"),
    ("", {"fc_norm": True}, "fc_norm: is true"),
    ("blk.0.ffn_up.weight", {}, "ffn_up.weight: is missing"),
    ("fc.weight", {}, "fc.weight: is missing"),
    ("d2t", {}, "output.weight: shape .40, 264. contradicts"),
]


@pytest.mark.parametrize(("without", "more", "problem"), REFUSED)
def test_heads_that_do_not_fit_are_refused(without: str, more: dict[str, Any], problem: str, tmp_path: Path) -> None:
    tiny.write(tmp_path / "m.gguf")
    write(tmp_path / "head.gguf", {name: value for name, value in tensors().items() if name != without}, **more)
    _refused(tmp_path / "head.gguf", tmp_path / "m.gguf", problem)


def _refused(head: Path, model: Path, problem: str) -> None:
    with GGUFFile.open(model) as file:
        main = read_model(file)
        with pytest.raises(ModelError, match=problem):
            read_eagle3(open_draft_file(head, main), main)


def test_tensors_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    tiny.write(tmp_path / "m.gguf")
    twice = KEPT.astype(np.int64)
    twice[1] = twice[0]
    for tokens in (twice, KEPT.astype(np.int64) + tiny.N_VOCAB):
        write(tmp_path / "head.gguf", tensors() | {"d2t": tokens})
        _refused(tmp_path / "head.gguf", tmp_path / "m.gguf", "d2t: names a token twice, or one that is not in")
    for part in (0.5, 0.001):
        write(tmp_path / "head.gguf", tensors() | {"d2t": KEPT.astype(np.float32) + np.float32(part)})
        _refused(tmp_path / "head.gguf", tmp_path / "m.gguf", "d2t: .* .allowed: different whole numbers of 0 to")
    head = tensors()
    order = np.full(head["fc.weight"].shape[1], 1e9, np.float32)
    write(tmp_path / "head.gguf", head | {"fc.order": order})
    with GGUFFile.open(tmp_path / "m.gguf") as file, GGUFFile.open(tmp_path / "head.gguf") as of_head:
        main = read_model(file)
        with pytest.raises(ModelError, match=r"fc.order: does not name each column once"):
            main.graph(tap=read_eagle3(of_head, main).tap)
    write(tmp_path / "head.gguf", tensors() | {"conf_proj.weight": np.ones((4, 4), np.float32)})
    _refused(tmp_path / "head.gguf", tmp_path / "m.gguf", "conf_proj.weight.: is not part of this architecture")


@pytest.mark.parametrize("kept", [[30], [3, 9, 250], list(range(40)), list(range(tiny.N_VOCAB))[::-1]])
def test_logits_of_a_few_tokens_are_spread(kept: list[int]) -> None:
    """In few operations, however few tokens there are."""
    g, x = GraphBuilder(), np.random.default_rng(0).standard_normal((2, len(kept))).astype(np.float32)
    graph = Graph.of(spread(g, g.hidden(len(kept)), np.array(kept, np.float32), tiny.N_VOCAB))
    assert len(graph.nodes) < 50
    sizes, backends = {"tokens": 2, "outputs": 2, "sequences": 1, "boundaries": 2}, select("reference", 1)
    (got,) = Executor(schedule(graph, backends, sizes), backends, sizes).run({"hidden": x}, sizes)
    want = np.full((2, tiny.N_VOCAB), np.float32(UNKNOWN))
    want[:, kept] = x
    assert np.array_equal(got, want)


def test_a_head_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    tiny.write(tmp_path / "m.gguf", keys={"tokenizer.ggml.tokens": [*tiny.TOKENS[:-1], "she"]})
    write(tmp_path / "head.gguf", tensors())
    _refused(tmp_path / "head.gguf", tmp_path / "m.gguf", "another vocabulary: token 258 is .* in the head")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"architectures": ["EagleLlamaForCausalLM"]}, "architectures: is EagleLlamaForCausalLM, a head that Octavo"),
        ({"norm_output": True}, "norm_output: is true"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state: is false"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["a"]}}, "layer_ids: is .'a'."),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["a"] * 9999}}, r"layer_ids: is .{,200}\.\.\. .allowed"),
        ({"num_local_experts": 8}, "num_local_experts: is .8. .allowed: null"),
        ({"draft_vocab_size": -1}, "draft_vocab_size: .* .allowed: 1 to "),
        ({"draft_vocab_size": "x"}, "draft_vocab_size: is .x."),
        ({"draft_vocab_size": 39}, "draft_vocab_size: is 39, but d2t has 40 .allowed: 40"),
        ({"vocab_size": 100}, "vocab_size|token_embd"),
        ({"hidden_act": "gelu"}, "hidden_act: is .gelu."),
    ],
)
def test_folders_that_are_not_understood_are_refused(more: dict[str, Any], problem: str, tmp_path: Path) -> None:
    tiny.write(tmp_path / "m.gguf")
    _refused(Path(write_folder(tmp_path / "head", tensors(), **more)), tmp_path / "m.gguf", problem)

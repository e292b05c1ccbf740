"""The layer that guesses tokens, against a computation in NumPy that shares no code with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends import select
from octavo.errors import ModelError
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.models.shared.next_layer import head_of, read_next_layer
from octavo.models.shared.refusal import is_next_layer
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.runtime import tiny
from tests.runtime.speculation.heads import LAYERS, block, write_head, write_with_head

TOKENS = np.random.default_rng(2).integers(0, 250, 11).tolist()
EPS = 1e-5


def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    normed: np.ndarray = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight
    return normed


def turned(x: np.ndarray) -> np.ndarray:
    """Rope on halves of heads, x [T, H, D] at positions from 0."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def expected(w: dict[str, np.ndarray], tokens: list[int], hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits and hidden states of all positions, in float64."""
    b = {name.removeprefix(f"blk.{LAYERS}.").removesuffix(".weight"): value.astype(np.float64)
         for name, value in w.items() if name.startswith(f"blk.{LAYERS}.")}
    both = np.concatenate([rms(w["token_embd.weight"][tokens], b["nextn.enorm"]), rms(hidden, b["nextn.hnorm"])], -1)
    x = both @ b["nextn.eh_proj"].T
    h, n = rms(x, b["attn_norm"]), len(tokens)
    q = turned(rms((h @ b["attn_q"].T).reshape(n, tiny.N_HEAD, -1), b["attn_q_norm"]))
    k = turned(rms((h @ b["attn_k"].T).reshape(n, tiny.N_HEAD_KV, -1), b["attn_k_norm"]))
    v = (h @ b["attn_v"].T).reshape(n, tiny.N_HEAD_KV, -1)
    k, v = (np.repeat(each, tiny.N_HEAD // tiny.N_HEAD_KV, 1) for each in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(tiny.HEAD_DIM)
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    x = x + np.einsum("hij,jhd->ihd", weights, v).reshape(n, -1) @ b["attn_output"].T
    h = rms(x, b["ffn_norm"])
    gate = h @ b["ffn_gate"].T
    x = x + (gate / (1 + np.exp(-gate)) * (h @ b["ffn_up"].T)) @ b["ffn_down"].T
    given = rms(x, b["nextn.shared_head_norm"])
    return given @ w["output.weight"].T, given


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("apart", [False, True])
def test_it_computes_what_numpy_does(device: str, apart: bool, tmp_path: Path) -> None:
    """Of true hidden states, and of what it gave itself; in one pass, and in several."""
    weights, head = tiny.tensors(), block()
    path = tmp_path / "m.gguf"
    if apart:
        tiny.write(path, weights=weights)
        write_head(tmp_path / "head.gguf", head)
    else:
        write_with_head(path, weights, head)
    with GGUFFile.open(path) as file, GGUFFile.open(tmp_path / "head.gguf" if apart else path) as of_head:
        main = read_model(file)
        assert is_next_layer(of_head) == apart
        found = read_next_layer(of_head, main) if apart else head_of(main)
        assert found is not None
        backends = select(device, 1)
        config = EngineConfig(n_ctx=64, cache_type="f32")
        engine = Engine(main, backends, config, head=found)
        guessing = Engine(found, backends, config, shares=engine)
        text, sequence, own = TOKENS[:-1], Sequence(), Sequence()
        logits = engine.step([Feed(sequence, text, len(text))])
        assert sequence.hidden is not None
        hidden = np.stack(sequence.hidden.rows)
        assert np.abs(hidden @ weights["output.weight"].T - logits).max() < 1e-3, "behind the last norm"
        want, given = expected(weights | head, TOKENS[1:], hidden)
        got = guessing.step([Feed(own, TOKENS[1:7], 6, hidden=hidden[:6])])
        assert np.abs(got - want[:6]).max() < 1e-3
        assert np.abs(guessing.hidden - given[:6]).max() < 1e-3
        got = guessing.step([Feed(own, TOKENS[7:], 1, hidden=hidden[6:])])
        assert np.abs(got - want[-1:]).max() < 1e-3
        last = int(got.argmax())
        want, _ = expected(weights | head, [*TOKENS[1:], last], np.concatenate([hidden, given[-1:]]))
        got = guessing.step([Feed(own, [last], 1, hidden=guessing.hidden)])
        assert np.abs(got - want[-1:]).max() < 1e-3
        shared = [key for key in guessing.load()._by_name() if key[1] in ("token_embd.weight", "output.weight")]
        for key in shared:
            assert guessing.load()._by_name()[key] is engine.load()._by_name()[key], "in memory once"
        assert len(shared) == 2


def test_without_a_head_the_graph_is_as_before(tmp_path: Path) -> None:
    write_with_head(tmp_path / "m.gguf", tiny.tensors(), block())
    tiny.write(tmp_path / "plain.gguf")
    ops = []
    for name in ("m.gguf", "plain.gguf"):
        with GGUFFile.open(tmp_path / name) as file:
            graph = read_model(file).graph()
            ops.append([(node.op, node.name, node.shape) for node in graph.nodes])
            assert len(graph.outputs) == 1
    assert ops[0] == ops[1]


@pytest.mark.parametrize(
    ("without", "more", "problem"),
    [
        ("nextn.eh_proj", {}, "nextn.eh_proj.weight: is missing"),
        ("ffn_up", {}, "ffn_up.weight: is missing"),
        ("", {"qwen3.attention.head_count": 2}, "a model with attention.head_count 2; this one has 4$"),
        ("", {"qwen3.rope.freq_base": 5e5}, "a model with rope.freq_base 500000.0; this one has "),
        ("", {"qwen3.block_count": 11}, "a model with 10 layers; this one has 2$"),
        ("", {"qwen3.nextn_predict_layers": 0}, "no layer guesses tokens"),
        ("", {"tokenizer.ggml.tokens": ["?"] * 9}, "another vocabulary: token 0 is .[?]. in the head and"),
    ],
)
def test_heads_that_do_not_fit_are_refused(without: str, more: dict[str, int], problem: str, tmp_path: Path) -> None:
    head = {name: value for name, value in block().items() if not without or without not in name}
    write_head(tmp_path / "head.gguf", head, **more)
    tiny.write(tmp_path / "m.gguf")
    with (
        GGUFFile.open(tmp_path / "m.gguf") as file, GGUFFile.open(tmp_path / "head.gguf") as of_head,
        pytest.raises(ModelError, match=problem),
    ):
        read_next_layer(of_head, read_model(file))


def test_a_head_of_another_context_fits(tmp_path: Path) -> None:
    """Without yarn nothing is computed with it: it is used as far as its model is."""
    write_head(tmp_path / "head.gguf", block(), **{"qwen3.context_length": 8})
    tiny.write(tmp_path / "m.gguf")
    with GGUFFile.open(tmp_path / "m.gguf") as file, GGUFFile.open(tmp_path / "head.gguf") as of_head:
        main = read_model(file)
        head = read_next_layer(of_head, main)
        assert head.count == 1
        assert head.hparams.n_ctx_train == main.hparams.n_ctx_train


def test_an_embedding_of_its_own_goes_before_the_models(tmp_path: Path) -> None:
    """In the model's file by a name of its own, in a file of its own by the model's."""
    own = np.roll(tiny.tensors()["token_embd.weight"], 1, 0)
    tiny.write(tmp_path / "m.gguf")
    write_with_head(tmp_path / "both.gguf", tiny.tensors(), block() | {f"blk.{LAYERS}.nextn.embed_tokens.weight": own})
    write_head(tmp_path / "head.gguf", block() | {"token_embd.weight": own})
    hidden, found = np.ones((3, tiny.N_EMBD), np.float32), []
    for path, apart in (("both.gguf", ""), ("m.gguf", "head.gguf")):
        with GGUFFile.open(tmp_path / path) as file, GGUFFile.open(tmp_path / (apart or path)) as of_head:
            main = read_model(file)
            head = read_next_layer(of_head, main) if apart else head_of(main)
            assert head is not None
            config = EngineConfig(n_ctx=64, cache_type="f32")
            engine = Engine(main, select("reference"), config, head=head)
            guessing = Engine(head, select("reference"), config, shares=engine)
            found.append(guessing.step([Feed(Sequence(), [5, 6, 7], 3, hidden=hidden)]))
    want, _ = expected(tiny.tensors() | block() | {"token_embd.weight": own}, [5, 6, 7], hidden)
    assert all(np.abs(got - want).max() < 1e-3 for got in found)


def test_a_head_is_no_model(tmp_path: Path) -> None:
    write_head(tmp_path / "head.gguf", block())
    with GGUFFile.open(tmp_path / "head.gguf") as file, pytest.raises(ModelError, match="which --draft takes"):
        read_model(file)


def test_a_file_that_lacks_tensors_of_its_head_has_none(tmp_path: Path) -> None:
    head = {name: value for name, value in block().items() if "hnorm" not in name}
    write_with_head(tmp_path / "m.gguf", tiny.tensors(), head)
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert head_of(read_model(file)) is None

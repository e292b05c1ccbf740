"""Heads of several layers: each makes one guess, of the same positions, as NumPy has it; replies are the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.backends import select
from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelError
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.models.shared.architecture import NextLayer
from octavo.models.shared.next_layer import head_of, read_next_layer
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.sampling.sampler import SamplingParams
from octavo.runtime.speculation.layered_drafter import LayeredDrafter, head_drafter
from tests.models.test_next_layer import expected
from tests.runtime import tiny
from tests.runtime.speculation.heads import LAYERS, blocks, several, write_head, write_with_head
from tests.runtime.speculation.test_verification import DRAWN, GREEDY, PENALTY, PROMPTS, replies, request

HOT = SamplingParams(temperature=1.0, seed=11)
TEXTS = [np.random.default_rng(i).integers(0, 250, n).tolist() for i, n in enumerate((40, 2, 64))]


def engines(main: ModelSpec, device: str = "reference") -> tuple[Engine, LayeredDrafter]:
    head = head_of(main)
    assert head is not None
    config = EngineConfig(n_ctx=256, cache_type="f32", max_sequences=4)
    engine = Engine(main, select(device, 1), config, head=head)
    drafter = head_drafter(Engine(head, engine.backends, config, shares=engine), 259)
    assert isinstance(drafter, LayeredDrafter)
    return engine, drafter


def draft_of(main: ModelSpec, weights: dict[str, np.ndarray], text: list[int], count: int) -> list[int]:
    """The likeliest tokens after a text, by the definition: each layer over the whole text and the draft so far."""
    how, head = main.architecture.next_layer, head_of(main)
    assert how is not None
    config, sequence = EngineConfig(n_ctx=256, cache_type="f32"), Sequence()
    engine = Engine(main, [ReferenceBackend()], config, head=head)
    engine.step([Feed(sequence, text[:-1])])
    assert sequence.hidden is not None
    hidden = of_model = np.stack(sequence.hidden.rows)
    draft = list[int]()
    for layer in range(count):
        own = {name.replace(f"blk.{LAYERS + layer}.", f"blk.{LAYERS}."): value for name, value in weights.items()
               if not name.startswith("blk.") or name.startswith(f"blk.{LAYERS + layer}.")}
        logits, given = expected(own, [*text, *draft][1 + layer :], hidden)
        draft.append(int(logits[-1].argmax()))
        hidden = given if how.chained else of_model
    return draft


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("chained", [True, False])
def test_drafts_are_those_of_the_definition(device: str, chained: bool, tmp_path: Path) -> None:
    """As texts grow, where drafts were right or wrong, of several requests at once, and of other lengths."""
    weights = tiny.tensors() | blocks(3)
    path = write_with_head(tmp_path / "m.gguf", weights, {}, **several(3))
    with GGUFFile.open(path) as file:
        main = read_model(file)
        main = replace(main, architecture=replace(main.architecture, next_layer=NextLayer(chained=chained)))
        engine, drafter = engines(main, device)
        requests = [request(text) for text in TEXTS]
        for lengths in ((3, 3, 3), (1, 1, 1), (3, 2, 1), (2, 3, 0), (3, 3, 3)):
            for one in requests:
                text = one.tokens[len(one.sequence) : -1]
                engine.prefill(one.sequence, text)
            made = drafter.drafts(dict(zip(requests, lengths, strict=True)))
            assert [len(made.get(one, [])) for one in requests] == list(lengths)
            for i, one in enumerate(requests):
                draft = made.get(one, [])
                assert draft == draft_of(main, weights, list(one.tokens), len(draft))
                for token in (*draft[:i], 7):  # some of what was drafted is right, and one token is another
                    one.tokens.append(token)
        for one in requests:
            one.state = one.state.FINISHED
        drafter.drafts({})
        assert [own.pool.held for own in drafter.engines] == [0, 0, 0]


@pytest.mark.usefixtures("_free")
@pytest.mark.parametrize("params", [GREEDY, DRAWN, HOT, PENALTY])
def test_the_same_tokens(params: SamplingParams, tmp_path: Path) -> None:
    path = write_with_head(tmp_path / "m.gguf", tiny.tensors(), blocks(3), **several(3))
    with GGUFFile.open(path) as file:
        main, prompts = read_model(file), (*PROMPTS, TEXTS[2])
        config = EngineConfig(n_ctx=256, cache_type="f32", max_sequences=4, speculate="mtp")
        _, want = replies(Engine(main, [ReferenceBackend()], config), *(request(p, params) for p in prompts))
        head = head_of(main)
        assert head is not None
        engine = Engine(main, [ReferenceBackend()], config, head=head)
        core = EngineCore(engine, head=Engine(head, [ReferenceBackend()], config, shares=engine))
        for _ in range(2):  # again with prompts that are in the cache
            requests = [request(p, params) for p in prompts]
            for one in requests:
                core.add(one)
            while not core.scheduler.idle:
                core.step()
            assert [list(one.output_tokens) for one in requests] == want
        assert core.stats().drafted_tokens > 0


@pytest.mark.usefixtures("_free")
@pytest.mark.parametrize("apart", [False, True])
def test_layers_that_are_right_take_few_steps(apart: bool, tmp_path: Path) -> None:
    """Also in a file of their own; a draft has as many tokens as there are layers."""
    weights, head, path = tiny.alphabet(endless=True), blocks(3, exact=True), tmp_path / "m.gguf"
    own: dict[str, Any] = {"draft": write_head(tmp_path / "head.gguf", head, **several(3))} if apart else {}
    if apart:
        tiny.write(path, weights=weights)
    else:
        write_with_head(path, weights, head, **several(3))
    with octavo.load(path, device="cpu", threads=1, n_ctx=128, speculate="mtp", weight_cache=False, **own) as model:
        one = request([97], most=61)
        model.core.add(one)
        list(model.core.drain())
        assert bytes(one.output_tokens).decode() == "".join(tiny.ALPHABET[(i + 1) % 26] for i in range(61))
        stats = model.core.stats()
        assert stats.accepted_tokens == stats.drafted_tokens == 42
        assert stats.steps == 19  # four of them go without a draft, to be measured


def test_a_file_that_lacks_later_layers_has_those_before(tmp_path: Path) -> None:
    head = {name: value for name, value in blocks(3).items() if not name.startswith(f"blk.{LAYERS + 1}.attn_q")}
    path = write_with_head(tmp_path / "m.gguf", tiny.tensors(), head, **several(3))
    write_head(tmp_path / "head.gguf", blocks(2), **several(2))
    with GGUFFile.open(path) as file, GGUFFile.open(tmp_path / "head.gguf") as apart:
        main = read_model(file)
        found = head_of(main)
        assert found is not None
        assert found.later == ()
        assert len(read_next_layer(apart, main).later) == 1


@pytest.mark.parametrize(("layer", "left"), [(0, 0), (1, 1)])
def test_what_a_file_lacks_is_named(layer: int, left: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lacks = f"blk.{LAYERS + layer}.ffn_up.weight"
    head = {name: value for name, value in blocks(3).items() if name != lacks}
    path = write_with_head(tmp_path / "m.gguf", tiny.tensors(), head, **several(3))
    octavo.load(path, device="reference", n_ctx=64).close()
    (told,) = [message for message in caplog.messages if lacks in message]
    assert told.endswith(f"tensor {lacks}: is missing, so that {left} of 3 layers guess tokens")
    if not left:
        with pytest.raises(ModelError, match=f"{lacks}: is missing"):
            octavo.load(path, device="reference", n_ctx=64, speculate="mtp")


def test_a_layer_of_the_model_is_none_that_guesses(tmp_path: Path) -> None:
    """A count that is too large would make a smaller model of the file."""
    more = {"qwen3.nextn_predict_layers": 2}
    path = write_with_head(tmp_path / "m.gguf", tiny.tensors(), blocks(1), **more)
    lacks = f"blk.{LAYERS - 1}.nextn.eh_proj.weight"
    with pytest.raises(ModelError, match=f"qwen3.nextn_predict_layers: is 2, but tensor {lacks} is missing"):
        octavo.load(path, device="reference", n_ctx=64, speculate="off")


@pytest.mark.slow
@pytest.mark.usefixtures("_free")
def test_on_a_gpu(tmp_path: Path) -> None:
    """Its kernels, interpreted, in steps that are padded."""
    path = write_with_head(tmp_path / "m.gguf", tiny.alphabet(endless=True), blocks(2, exact=True), **several(2))
    with GGUFFile.open(path) as file:
        main = read_model(file)
        head = head_of(main)
        assert head is not None
        config = EngineConfig(n_ctx=64, max_sequences=2, speculate="draft")
        engine = Engine(main, [GpuBackend()], config, head=head)
        own = Engine(head, engine.backends, config, shares=engine)
        core, texts = replies(engine, *(request([97 + i], most=12) for i in range(2)), n_known=260, head=own)
        assert [bytes(text).decode() for text in texts] == [tiny.ALPHABET[1:13], tiny.ALPHABET[2:14]]
        assert core.stats().accepted_tokens == core.stats().drafted_tokens > 5

"""Adapters that requests choose: in one step with others, each request has the numbers that it has alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import octavo
from octavo.backends.cpu import CpuBackend
from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.errors import AdapterError, FileError, ModelError, UnknownAdapterError, UsageError
from octavo.runtime.adapter_pool import AdapterPool, Mix, Taken
from octavo.runtime.cache.page_pool import Sequence as Tokens
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.loading import open_model
from octavo.runtime.model import Model
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request
from tests.models.adapters import Factors, factors, write_lora_gguf

MIXES: Sequence[Mix] = ((), (("a", 1.0),), (("b", 1.0),), (("a", 0.3),), (("b", 1.0), ("a", -0.7)), (("small", 1.0),))
QUESTION = "What is 12 times 7?"


def weights(model: Model, *parts: str) -> dict[str, tuple[int, ...]]:
    """The shapes of some weights of all layers."""
    return {name: info.shape for name, info in model.file.tensors.items() if name.split(".")[-2] in parts}


def write(folder: Path, name: str, model: Model, parts: Sequence[str], rank: int, seed: int, size: float = 1.0) -> str:
    pairs: dict[str, Factors] = {}
    for weight, (n, k) in weights(model, *parts).items():
        a, b = factors(n, k, rank, seed)
        pairs[weight] = a, b * np.float32(size)
    path = folder / f"{name}.gguf"
    return str(write_lora_gguf(path, pairs, model.file.metadata["general.architecture"], alpha=rank))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Adapters of the demo model: of all products, of some with another rank, of one; and what is refused."""
    folder = tmp_path_factory.mktemp("adapters")
    every = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    with octavo.load("demo", device="reference") as model:
        return {
            "a": write(folder, "a", model, every, 8, 1, 4.0),
            "b": write(folder, "b", model, ("attn_q", "attn_v"), 3, 2, 9.0),
            "small": write(folder, "small", model, ("ffn_up",), 1, 3, 9.0),
            "wide": write(folder, "wide", model, ("attn_q",), 17, 4),
            "nan": write(folder, "nan", model, ("attn_q",), 4, 5, float("nan")),
        }


def opened(backend: Any, **more: Any) -> Model:
    config = EngineConfig(n_ctx=256, max_sequences=8, max_loras=8, max_lora_rank=16, speculate="lookup", **more)
    return open_model("demo", [backend], config)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with opened(CpuBackend(threads=2)) as found:
        yield found


@pytest.fixture
def pool(model: Model, paths: dict[str, str]) -> AdapterPool:
    return pool_of(model.engine, paths)


def pool_of(engine: Engine, paths: dict[str, str], *names: str) -> AdapterPool:
    made = AdapterPool(engine)
    for name in names or ("a", "b", "small"):
        made.load(made.read(name, paths[name]))
    return made


class Alone(NamedTuple):
    """What a model has that is loaded with the adapters of a mix: logits after the first tokens, and a reply."""

    logits: np.ndarray
    reply: list[int]


@pytest.fixture(scope="module")
def alone(paths: dict[str, str], model: Model) -> list[Alone]:
    found = []
    for mix in MIXES:
        lora = {paths[name]: scale for name, scale in sorted(mix)}
        with octavo.load("demo", device="cpu", threads=2, lora=lora, n_ctx=256) as one:
            core = EngineCore(one.engine, n_known=one.tokenizer.n_vocab)
            (reply,) = computed(core, [request(prompt_of(model), None)])
            found.append(Alone(one.logits(prompt_of(model)[:15]), reply))
    return found


def prompt_of(model: Model) -> list[int]:
    return model.encode_prompt(" ".join([QUESTION] * 8))


def request(prompt: Sequence[int], taken: Taken | None) -> Request:
    sampler = make_sampler(SamplingParams(temperature=0.0))
    if taken is None:
        return Request(prompt, sampler, max_tokens=24)
    return Request(prompt, sampler, max_tokens=24, cache_salt=taken.key, adapter=taken.slot)


def computed(core: EngineCore, requests: Sequence[Request]) -> list[list[int]]:
    """The replies to requests, in steps together."""
    for one in requests:
        core.add(one)
    while not core.scheduler.idle:
        for output in core.step():
            assert output.finish_reason != "error", output.request.failure
    return [list(one.output_tokens) for one in requests]


def test_logits_are_those_of_the_model_with_the_adapter(
    model: Model, pool: AdapterPool, alone: Sequence[Alone]
) -> None:
    """To the bit: prompts in one step, and then tokens of all, of which one has no adapter."""
    engine, prompt, taken = model.engine, prompt_of(model), [pool.take(mix) for mix in MIXES]
    sequences = [Tokens(adapter=None if one is None else one.slot) for one in taken]
    prompts = engine.step([Feed(s, prompt[: 9 + i], outputs=3) for i, s in enumerate(sequences)])
    more = engine.step([Feed(s, [prompt[9 + i]]) for i, s in enumerate(sequences)])
    assert not np.array_equal(prompts[:3], prompts[3:6])
    for i, mix in enumerate(MIXES):
        found = np.concatenate([prompts[3 * i : 3 * i + 3], more[i : i + 1]])
        assert np.array_equal(found, alone[i].logits[6 + i : 10 + i]), mix
    for sequence in sequences:
        engine.release(sequence)


def test_replies_together_are_those_alone(model: Model, pool: AdapterPool, alone: Sequence[Alone]) -> None:
    """With drafts, and again with prefixes in the cache, of which none is another adapter's."""
    core = EngineCore(model.engine, n_known=model.tokenizer.n_vocab)
    expected = [one.reply for one in alone]
    assert len(set(map(tuple, expected))) > 3
    for mixes, replies in ((MIXES, expected), (MIXES[::-1], expected[::-1])):
        before, taken = core.scheduler.cached_tokens, [pool.take(mix) for mix in mixes]
        assert computed(core, [request(prompt_of(model), one) for one in taken]) == replies
    assert core.scheduler.cached_tokens - before >= len(MIXES) * 64


def test_a_step_without_adapters_is_that_of_a_model_without_them(model: Model) -> None:
    with octavo.load("demo", device="cpu", threads=2, n_ctx=256) as plain:
        tokens = plain.encode_prompt(QUESTION)
        before = model.engine._adapted.n_launched  # type: ignore[union-attr]
        assert np.array_equal(model.engine.logits(tokens), plain.logits(tokens))
        assert model.engine._adapted.n_launched == before  # type: ignore[union-attr]


@pytest.mark.slow
def test_on_a_gpu(random_path: str, tmp_path: Path) -> None:
    """Its kernels, interpreted: near the reference's numbers, for several adapters in one step."""
    path = write_lora_gguf(tmp_path / "it.gguf", {
        "blk.0.attn_q.weight": factors(64, 264), "blk.1.ffn_down.weight": factors(264, 48),
        "blk.1.ffn_up.weight": factors(48, 264), "output.weight": factors(260, 264),
    }, "qwen3")
    found = []
    for backend in (GpuBackend(), ReferenceBackend()):
        config = EngineConfig(n_ctx=64, max_sequences=8, max_loras=2)
        with open_model(random_path, [backend], config) as model:
            pool = AdapterPool(model.engine)
            pool.load(pool.read("it", path))
            one, half = pool.take((("it", 1.0),)), pool.take((("it", -2.0),))
            assert one is not None
            assert half is not None
            slots = (one.slot, None, half.slot, one.slot)
            feeds = [Feed(Tokens(adapter=slot), [5, 6, 7] if slot == half.slot else [5]) for slot in slots]
            found.append(model.engine.step(feeds))
    assert np.abs(found[0] - found[1]).max() < 0.03 * np.abs(found[1]).max()
    assert np.abs(found[1][0] - found[1][1]).max() > 0.1 * np.abs(found[1]).max()


def test_slots(model: Model, paths: dict[str, str]) -> None:
    """Loaded adapters keep theirs; other mixes take turns in the rest, and none is taken from a request."""
    pool = pool_of(model.engine, paths)
    held = [pool.take((("a", scale),)) for scale in (0.1, 0.2, 0.3, 0.4, 0.5)]
    again = pool.take((("a", 0.1),))
    assert again == held[0]
    with pytest.raises(AdapterError, match="all 8 slots for adapters are taken"):
        pool.take((("a", 0.6),))
    assert pool.take((("a", 1.0),)) is not None
    assert held[4] is not None
    pool.give_back(held[4])
    other = pool.take((("a", 0.6),))
    assert other is not None
    assert other.slot == held[4].slot
    assert pool.take((("a", 0.0),)) is None
    with pytest.raises(AdapterError, match="all 8 slots"):
        pool.take((("b", 0.5),))


def test_names(model: Model, pool: AdapterPool, paths: dict[str, str]) -> None:
    pool.load(pool.read("a", paths["a"]))
    with pytest.raises(UsageError, match="'a' is loaded already"):
        pool.load(pool.read("a", paths["b"]))
    with pytest.raises(UnknownAdapterError, match=r"no adapter 'c' \(adapters: 'a', 'b', 'small'\)"):
        pool.take((("c", 1.0),))
    taken = pool.take((("b", 1.0),))
    assert taken is not None
    pool.unload("b")
    with pytest.raises(UnknownAdapterError, match="no adapter 'b'"):
        pool.take((("b", 1.0),))
    with pytest.raises(UnknownAdapterError):
        pool.unload("b")
    for i in range(5):  # of the slots that are left, none is the one that a request is computed with
        other = pool.take((("a", 0.1 + i),))
        assert other is not None
        assert other.slot != taken.slot


def test_what_is_refused(model: Model, pool: AdapterPool, paths: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has the rank 17 \(allowed: up to 16; see --max-lora-rank\)"):
        pool.read("wide", paths["wide"])
    with pytest.raises(AdapterError, match="NaN or Inf"):
        pool.read("nan", paths["nan"])
    with pytest.raises(FileError):
        pool.read("none", tmp_path / "none.gguf")
    name, (n, k) = next(iter(weights(model, "attn_q").items()))
    arch = model.file.metadata["general.architecture"]
    rows, width = model.file.tensors["token_embd.weight"].shape
    down, up = factors(width, rows)
    wrong: dict[str, dict[str, Factors]] = {
        "changes a weight of shape": {name: factors(n, k + 1)},
        "is not a tensor of the model": {"blk.0.other.weight": factors(n, k)},
        "is an embedding or of experts": {"token_embd.weight": (np.ascontiguousarray(down.T), up)},
    }
    for words, pairs in wrong.items():
        path = write_lora_gguf(tmp_path / "wrong.gguf", pairs, arch)
        with pytest.raises(ModelError, match=re.escape(words)):
            pool.read("wrong", path)
    with pytest.raises(ModelError, match=r"general\.architecture"):
        pool.read("other", write_lora_gguf(tmp_path / "other.gguf", {name: factors(n, k)}, "llama"))
    assert set(pool.adapters) == {"a", "b", "small"}


def test_a_file_that_changes(model: Model, paths: dict[str, str], tmp_path: Path) -> None:
    """What is loaded stays as it was; another scale of it is refused."""
    path = tmp_path / "changing.gguf"
    path.write_bytes(Path(paths["small"]).read_bytes())
    pool = AdapterPool(model.engine)
    pool.load(pool.read("it", path))
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    assert pool.take((("it", 1.0),)) is not None
    with pytest.raises(AdapterError, match="has changed since it was loaded"):
        pool.take((("it", 0.5),))


def test_engines_that_have_none() -> None:
    with pytest.raises(UsageError, match="max_loras"):
        open_model("demo", [CpuBackend(threads=2)], EngineConfig(n_ctx=64, max_loras=2000))

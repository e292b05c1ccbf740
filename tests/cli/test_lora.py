"""`--lora`: what commands take, say and show of adapters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import octavo as package
from octavo.cli.serve.options import AdapterOptions
from octavo.errors import ModelError, UsageError
from octavo.io.gguf import write_gguf
from octavo.server.engine.engine_model import load_model
from octavo.server.serve_options import EngineOptions
from octavo.server.worker import make_loop
from tests.cli.conftest import Run
from tests.models.adapters import factors, write_lora_gguf, write_peft
from tests.runtime.tiny import ALPHABET, N_EMBD, N_FF, N_VOCAB

GREEDY = ("--temp", "0", "-n", "30")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An adapter that lets the alphabet be said in another order."""
    a, b = factors(N_VOCAB, N_EMBD)
    path = tmp_path_factory.mktemp("lora") / "other.gguf"
    return str(write_lora_gguf(path, {"output.weight": (a, 100 * b)}, "qwen3", general__base_model__0__name="Letters"))


@pytest.fixture(scope="module")
def peft(tmp_path_factory: pytest.TempPathFactory) -> str:
    modules = {f"model.layers.0.mlp.{part}_proj": factors(N_FF, N_EMBD) for part in ("up", "gate")}
    return str(write_peft(tmp_path_factory.mktemp("lora") / "peft", modules, base_model_name_or_path="a/b"))


def test_run(octavo: Run, alphabet: str, gguf: str, peft: str) -> None:
    plain = octavo("run", alphabet, "hi", *GREEDY)
    assert plain.out == ALPHABET + "\n"
    changed = octavo("run", alphabet, "hi", *GREEDY, "--lora", gguf, "--lora", peft)
    assert (changed.status, changed.err) == (0, "")
    assert changed.out != plain.out
    assert octavo("run", alphabet, "hi", *GREEDY, "--lora", f"{gguf}=0", "--lora", f"{peft}=1e-9").out == plain.out
    assert octavo("run", alphabet, "hi", *GREEDY, "--lora", f"{gguf}=0.5").out != plain.out


def test_load(alphabet: str, gguf: str, peft: str) -> None:
    def text(lora: object) -> str:
        with package.load(alphabet, device="reference", lora=lora) as model:  # type: ignore[arg-type]
            return str(model.generate("hi", temperature=0.0, max_tokens=30))

    assert text(None) == text({gguf: 0}) == ALPHABET
    assert text(gguf) == text(Path(gguf)) == text([gguf]) == text({gguf: 1.0}) != ALPHABET
    with package.load(alphabet, device="reference", lora={gguf: 0.5, peft: 2}) as model:
        assert model.lora == ((gguf, 0.5), (peft, 2.0))
        assert repr(model).endswith("lora other.gguf x 0.5, lora peft x 2)")


def test_a_server_loads_them(alphabet: str, gguf: str) -> None:
    options = EngineOptions(alphabet, device="reference", n_ctx=64, max_sequences=1, lora=((gguf, 0.5),))
    with load_model(options) as served, package.load(alphabet, device="reference", lora={gguf: 0.5}) as model:
        assert np.array_equal(served.logits([104, 105]), model.logits([104, 105]))


def test_kl_is_of_the_model_with_it_from_the_one_without(octavo: Run, alphabet: str, gguf: str, text: str) -> None:
    def kl(*lora: str) -> float:
        arguments = ("eval", "kl", alphabet, text, "--base", alphabet, "--ctx-size", "32", "--device", "reference")
        return float(json.loads(octavo(*arguments, "--json", *lora).out)["kl"]["value"])

    assert kl() == 0
    assert kl("--lora", gguf) > 0.1


def test_embed_and_bench(octavo: Run, alphabet: str, models: tuple[str, str], peft: str) -> None:
    def vectors(*lora: str) -> list[list[float]]:
        got = octavo("embed", models[0], "a", "--pooling", "mean", "--device", "reference", "--json", *lora)
        return list(json.loads(got.out)["embeddings"])

    assert np.abs(np.subtract(vectors(), vectors("--lora", f"{peft}=10"))).max() > 1e-4
    got = octavo("bench", "model", alphabet, "-p", "4", "-n", "0", "-r", "1", "--device", "reference", "--lora",
                 f"{peft}=2", "--json")
    assert json.loads(got.out)["lora"] == [{"name": "peft", "scale": 2.0}]
    failed = octavo("bench", "model", alphabet, "--lora", peft, "--peer", "llama.cpp")
    assert failed.error() == "octavo: error: --peer has no adapters (allowed: --lora without --peer)"


def test_errors(octavo: Run, alphabet: str, gguf: str, peft: str) -> None:
    for value, said in {
        f"{gguf}=half": f"--lora has the scale 'half' (allowed: a number, as in {gguf}=0.5)",
        f"{gguf}=nan": "--lora has the scale 'nan'",
        "none.gguf": "none.gguf: there is no such file or folder",
        alphabet: "general.type: is 'model' (allowed: 'adapter')",
        f"{peft}/adapter_model.safetensors": "is a file of a PEFT folder: give the folder that it lies in",
        f"{peft}/adapter_config.json": "is a file of a PEFT folder",
        "demo": "demo.gguf, general.type: is 'model' (allowed: 'adapter')",
    }.items():
        assert said in octavo("run", alphabet, "hi", "--lora", value).error()
    assert f"--lora names {gguf} twice" in octavo("run", alphabet, "hi", "--lora", gguf, "--lora", f"{gguf}=2").error()
    for adapter in (gguf, peft):
        assert "is an adapter (LoRA), no model: run its base model" in octavo("run", adapter, "hi").error()


def test_a_path_with_an_equals_sign(octavo: Run, alphabet: str, gguf: str, tmp_path: Path) -> None:
    path = tmp_path / "x=2"
    path.write_bytes(Path(gguf).read_bytes())
    assert octavo("run", alphabet, "hi", *GREEDY, "--lora", str(path)).out != ALPHABET + "\n"
    assert octavo("run", alphabet, "hi", *GREEDY, "--lora", f"{path}=0").out == ALPHABET + "\n"


def test_inspect(octavo: Run, gguf: str, peft: str) -> None:
    shown = octavo("inspect", peft).out.splitlines()
    assert shown[:8] == [
        "peft", f"file           {peft}", "kind           LoRA adapter", "architecture   not said",
        "base model     a/b", "rank           4", "alpha          6", "multiplied by  1.5",
    ]
    assert "changes        gate_proj (1), up_proj (1)" in shown
    found = json.loads(octavo("inspect", gguf, "--json", "--tensors", "--check").out)
    assert {key: found[key] for key in ("kind", "architecture", "base", "ranks", "alpha", "factors", "modules")} == {
        "kind": "lora", "architecture": "qwen3", "base": "Letters", "ranks": {"4": 1}, "alpha": 6.0, "factors": [1.5],
        "modules": {"output": 1},
    }
    assert [row["name"] for row in found["tensors"]] == ["output.weight.lora_a", "output.weight.lora_b"]
    assert found["non_finite"] == {}
    for option, *value in (("--graph",), ("-c", "64"), ("--cache-type", "int8")):
        assert f"{option} is of a model" in octavo("inspect", gguf, option, *value).error()
    assert "general.base_model.0.name  Letters" in octavo("inspect", gguf, "--metadata").out
    assert "output.weight.lora_b" in octavo("inspect", gguf, "--tensors").out


def test_inspect_of_a_configuration_with_objects(octavo: Run, tmp_path: Path) -> None:
    said = {"rank_pattern": {"up_proj": 4}, "alpha_pattern": {}, "layers_to_transform": None}
    path = write_peft(tmp_path / "peft", {"model.layers.0.mlp.up_proj": factors(N_FF, N_EMBD)}, **said)
    shown = octavo("inspect", str(path), "--metadata").out
    assert 'rank_pattern         {"up_proj": 4}' in shown
    assert "alpha_pattern        {}" in shown
    found = json.loads(octavo("inspect", str(path), "--json").out)["metadata"]
    assert found["rank_pattern"] == {"up_proj": 4}


def test_inspect_finds_nan(octavo: Run, tmp_path: Path) -> None:
    keys = {"general.type": "adapter", "adapter.type": "lora"}
    values = np.full((4, 8), np.nan, np.float32)
    write_gguf(tmp_path / "a.gguf", "llama", keys, {"x.weight.lora_a": values, "x.weight.lora_b": values.T.copy()})
    failed = octavo("inspect", str(tmp_path / "a.gguf"), "--check")
    assert "NaN or Inf in 2 of 2 tensors: x.weight.lora_a (32 values)" in failed.err


def test_adapters_that_requests_choose(gguf: str, peft: str, alphabet: str) -> None:
    given = AdapterOptions(lora_modules=[f"other={gguf}", f"p={peft}"])
    assert given.of_engine((), False) == {
        "lora_modules": (("other", gguf), ("p", peft)), "max_loras": 4, "max_lora_rank": None,
    }
    later = AdapterOptions(lora_init_without_apply=True, max_loras=3).of_engine(((gguf, 0.5),), False)
    assert later == {"lora_modules": (("other", gguf),), "max_loras": 3, "max_lora_rank": None, "lora": ()}
    assert AdapterOptions().of_engine(((gguf, 1.0),), False)["max_loras"] == 0
    for options, words in (
        ({"lora_modules": [gguf]}, "NAME=ADAPTER"), ({"lora_modules": ["a:b=x"]}, "NAME=ADAPTER"),
        ({"lora_modules": [f"a={gguf}", f"a={peft}"]}, "two adapters are called 'a'"),
        ({"lora_modules": [f"a={gguf}", f"b={peft}"], "max_loras": 1}, "--max-loras is 1, but there are 2"),
        ({"max_lora_rank": 8}, "--max-lora-rank needs"),
    ):
        with pytest.raises(UsageError, match=words):
            AdapterOptions(**options).of_engine((), False)  # type: ignore[arg-type]
    engine = EngineOptions(alphabet, device="reference", n_ctx=64, max_sequences=1, max_loras=4,
                           lora_modules=(("other", gguf), ("p", peft)))
    loop = make_loop(engine, lambda message: None)
    with loop.model:
        assert list(loop.adapters.adapters) == ["other", "p"]
        assert loop.model.engine.config.max_lora_rank == 16
    with pytest.raises(ModelError, match="has the rank 4"):
        make_loop(replace(engine, max_lora_rank=2), lambda message: None)

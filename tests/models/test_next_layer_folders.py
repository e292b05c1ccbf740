"""Layers that guess tokens in checkpoints, against transformers: a model of one such layer that is given embeddings."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import octavo
from octavo.backends.reference import ReferenceBackend
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.models.shared.head import HeadSpec
from octavo.models.shared.next_layer import head_of
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.convert import folders
from tests.models.table import TOKENS, save_only
from tests.models.tiny_checkpoints import TABLE
from tests.runtime.speculation.test_verification import request

FEW = TOKENS[:9]
SHARED = {"eh_proj": "mtp.fc", "enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden",
          "norm": "mtp.norm"}


@dataclass(frozen=True)
class Published:
    """How a family has them: what a model of one such layer is configured with, how many there are, where they lie.

    layer   the beginning of the names of a layer
    names   of what it has beside others, where that is not in the layer by the usual names
    parts   of names in the layer that differ from those of other layers
    shift   what is added to the weights of norms
    normed  hidden states are those behind the last norm, and what the layer gives is
    """

    one: dict[str, Any]
    count: int
    layer: Callable[[int], str]
    names: dict[str, str]
    parts: dict[str, str]
    shift: float
    normed: bool
    chained: bool = True


FULL, LOCAL = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}, {
    "num_hidden_layers": 1, "layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]}
OF_QWEN = Published(FULL, 1, "mtp.layers.{}.".format, SHARED, {}, 1.0, normed=True)
FAMILIES = {
    "qwen35": OF_QWEN, "qwen35moe": OF_QWEN, "qwen3next": OF_QWEN,
    "exaone-moe": replace(OF_QWEN, one=LOCAL, shift=0.0),
    "mimo2": Published(
        LOCAL, 3, "model.mtp.layers.{}.".format, {"norm": "final_layernorm"},
        {"post_attention_layernorm": "pre_mlp_layernorm"}, 0.0, normed=False, chained=False),
    "step35": Published(
        {**LOCAL, "swiglu_limits": None, "swiglu_limits_shared": None}, 2, lambda i: f"model.layers.{3 + i}.",
        {"norm": "transformer.shared_head.norm"}, {}, 1.0, normed=False),
}


def inside(model: Any, **given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What the last norm of a model of transformers is given, and what it gives, [T, width]."""
    decoder, seen = model.get_decoder(), []
    decoder = getattr(decoder, "language_model", decoder)
    handle = decoder.norm.register_forward_hook(lambda _, given, found: seen.extend((given[0], found)))
    with torch.no_grad():
        decoder(**given, use_cache=False)
    handle.remove()
    return seen[0][0], seen[1][0]


def published(folder: Path, name: str) -> tuple[Any, list[dict[str, Any]]]:
    """Save a checkpoint with such layers; the model of transformers without, and of each layer its own things."""
    how, case = FAMILIES[name], TABLE[name]
    main = save_only(folder, case)
    path, made = folder / "model.safetensors", []
    stored = load_file(path)
    for i in range(how.count):
        torch.manual_seed(20 + i)
        options = case.options | how.one | {"vocab_size": 300 + i}
        one = save_only(folder.parent / f"layer{i}", replace(case, options=options))
        with torch.no_grad():
            for parameter in one.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        one.save_pretrained(folder.parent / f"layer{i}")
        own = load_file(folder.parent / f"layer{i}" / "model.safetensors")
        width = one.get_input_embeddings().weight.shape[1]
        more = {n: 0.1 * torch.randn(width) + 1 - how.shift for n in ("enorm", "hnorm")}
        more |= {"eh_proj": torch.randn(width, 2 * width) * (2 * width) ** -0.5}
        ends = ("model.norm.weight", "language_model.norm.weight")
        more["norm"] = next(value for key, value in own.items() if key.endswith(ends))
        for part, value in more.items():
            named = how.names.get(part, part)
            stored[named + ".weight" if named.startswith("mtp.") else f"{how.layer(i)}{named}.weight"] = value.clone()
        for key, value in own.items():
            if "layers.0." in key and "visual" not in key:
                part = key.partition("layers.0.")[2]
                for theirs, ours in how.parts.items():
                    part = part.replace(theirs, ours)
                stored[how.layer(i) + part] = value.clone()
        made.append(more | {"model": one})
    save_file(stored, path)
    if how.layer(0).startswith("model.layers"):
        text = json.loads((folder / "config.json").read_text())["text_config"]
        text |= {"num_nextn_predict_layers": how.count, "mtp_layer_types": ["sliding_attention"] * how.count}
        folders.edit(folder, "config.json", text_config=text)
    return main, made


def expected(main: Any, made: list[dict[str, Any]], how: Published, eps: float) -> list[np.ndarray]:
    """Logits of each layer at all positions that it has tokens for."""
    tokens = torch.tensor([FEW])
    hidden = of_model = inside(main, input_ids=tokens)[how.normed]
    embedding, output = main.get_input_embeddings().weight, main.get_output_embeddings().weight

    def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (weight + how.shift)
        return normed

    found = []
    for i, one in enumerate(made):
        given = embedding[tokens[0, 1 + i :]]
        both = torch.cat([rms(given, one["enorm"]), rms(hidden[: len(given)], one["hnorm"])], -1)
        before, normed = inside(one["model"], inputs_embeds=(both @ one["eh_proj"].T)[None])
        found.append((normed @ output.T).detach().numpy())
        hidden = (normed if how.normed else before) if how.chained else of_model
    return found


def found(main: ModelSpec) -> list[np.ndarray]:
    head, config = head_of(main), EngineConfig(n_ctx=64, cache_type="f32")
    assert head is not None
    engine, sequence = Engine(main, [ReferenceBackend()], config, head=head), Sequence()
    engine.step([Feed(sequence, FEW)])
    assert sequence.hidden is not None
    hidden = of_model = np.stack(sequence.hidden.rows)
    logits, specs = [], list[HeadSpec]((head, *head.later))
    for i, spec in enumerate(specs):
        tokens, own = FEW[1 + i :], Engine(spec, engine.backends, config, shares=engine)
        given = hidden if spec.reads_given else of_model
        logits.append(own.step([Feed(Sequence(), tokens, len(tokens), hidden=given[: len(tokens)])]))
        hidden = own.hidden
    return logits


@pytest.mark.parametrize("name", FAMILIES)
def test_they_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """From the folder, and from the file that is made of it."""
    main, made = published(tmp_path / "hf", name)
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    with open_model_file(tmp_path / "hf") as folder, GGUFFile.open(tmp_path / "m.gguf") as file:
        for one in (folder, file):
            spec = read_model(one)
            want = expected(main, made, FAMILIES[name], spec.hparams.eps)
            got = found(spec)
            assert [len(logits) for logits in got] == [len(FEW) - 1 - i for i in range(FAMILIES[name].count)]
            for ours, theirs in zip(got, want, strict=True):
                assert np.abs(ours - theirs).max() < 1e-4 * max(1.0, np.abs(theirs).max())


@pytest.mark.parametrize("name", ["qwen35", "mimo2"])
def test_the_same_text(name: str, tmp_path: Path) -> None:
    published(tmp_path / "hf", name)
    texts, counts = [], []
    for how in ("off", "mtp"):
        with octavo.load(tmp_path / "hf", device="reference", n_ctx=128, speculate=how) as model:  # type: ignore[arg-type]
            made = [request(FEW, most=20), request(FEW[:3], most=20)]
            for one in made:
                model.core.add(one)
            list(model.core.drain())
            texts.append([list(one.output_tokens) for one in made])
            counts.append(model.core.stats().drafted_tokens)
    assert texts[0] == texts[1]
    assert counts[0] == 0 < counts[1]


def test_layers_that_are_not_understood_are_left_out(tmp_path: Path) -> None:
    """Of two with what lies outside of them nothing says which it belongs to; the model is read."""
    published(tmp_path / "hf", "qwen35")
    path = tmp_path / "hf" / "model.safetensors"
    stored = load_file(path)
    more = {key.replace("mtp.layers.0.", "mtp.layers.1."): value.clone() for key, value in stored.items()
            if key.startswith("mtp.layers.0.")}
    save_file(stored | more, path)
    with open_model_file(tmp_path / "hf") as folder:
        assert head_of(read_model(folder)) is None


def unknown(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return stored | {"mtp.layers.0.foo.weight": torch.ones(4)}


def cut(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return stored | {"mtp.fc.weight": stored["mtp.fc.weight"][:5].clone()}


def twice(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return stored | {"mtp.layers.0.eh_proj.weight": stored["mtp.fc.weight"].clone()}


@pytest.mark.parametrize(("change", "told"), [
    (unknown, "mtp.layers.0.foo.weight': is not part of this architecture$"),
    (cut, r"nextn.eh_proj.weight': shape \[5, "),
    (twice, r"mtp\.(fc|layers\.0\.eh_proj)\.weight': has the place of 'mtp\.(fc|layers\.0\.eh_proj)\.weight'"),
])
def test_faulty_layers_are_left_out(
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], told: str, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The model is read without, and so is the file that is made of it; who asks for them is told why they aren't."""
    published(tmp_path / "hf", "qwen35")
    path = tmp_path / "hf" / "model.safetensors"
    save_file(change(load_file(path)), path)
    caplog.set_level(logging.WARNING, "octavo")
    for how in ("off", "auto"):
        caplog.clear()
        octavo.load(tmp_path / "hf", device="reference", n_ctx=64, speculate=how).close()  # type: ignore[arg-type]
        assert [message for message in caplog.messages if "layers that guess tokens are left out: " in message]
        assert len(caplog.messages) == 1
    with pytest.raises(ModelError, match=told):
        octavo.load(tmp_path / "hf", device="reference", n_ctx=64, speculate="mtp")
    caplog.clear()
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    assert "layers that guess tokens are left out: " in caplog.text
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert read_model(file).hparams.n_next == 0


def test_tensors_of_no_layer_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    published(tmp_path / "hf", "mimo2")
    path = tmp_path / "hf" / "model.safetensors"
    stored = load_file(path)
    save_file(stored | {f"model.mtp.layers.{n}.enorm.weight": torch.ones(4) for n in ("00", "99999")}, path)
    with open_model_file(tmp_path / "hf") as folder:
        head = head_of(read_model(folder))
    assert head is not None
    assert head.count == 3
    (told,) = caplog.messages
    assert "tensor 'model.mtp.layers.00.enorm.weight' and 1 more are left out" in told

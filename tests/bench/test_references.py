"""What benchmarks against other people's code are given: models with experts as transformers has them, and rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import transformers

from octavo import load
from octavo.quantizers import quantize_checkpoint
from tests.models.checkpoints import CASES, make
from tests.runtime import tiny
from tests.sampling import slow

TOKENS = [[5, 17, 250, 3, 99, 120, 7, 31], [8, 8, 200, 41, 2, 77, 130, 64]]
Script = Callable[[str], ModuleType]


@pytest.fixture
def qqq(script: Script) -> ModuleType:
    return script("reference_qqq")


def linear(model: torch.nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]


@torch.no_grad()
def test_experts_as_linear_layers_compute_the_same(script: Script) -> None:
    model, tokens = make(CASES["qwen3moe"]), torch.tensor(TOKENS)
    wanted = model(tokens).logits
    assert not any("experts" in name for name in linear(model))
    script("references").experts_apart(model)
    wrong = (model(tokens).logits - wanted).abs().max()
    assert wrong <= script("references").SAME * wanted.abs().max()
    names = {f"model.layers.1.mlp.experts.7.{part}_proj" for part in ("gate", "up", "down")}
    assert names <= {*linear(model)}
    assert sum("experts" in name for name in linear(model)) == 2 * 8 * 3
    assert not any(name.endswith("mlp.gate") for name in linear(model)), "the router is none of them"


def test_experts_of_another_form_are_refused(script: Script) -> None:
    stacked = torch.nn.Parameter(torch.zeros(2, 4, 3))
    model, experts = torch.nn.Module(), torch.nn.Module()
    experts.gate_up_proj, experts.is_transposed = stacked, True
    model.experts = experts
    with pytest.raises(ValueError, match=r"experts experts have biases, or rows that are columns \(allowed: "):
        script("references").experts_apart(model)


@torch.no_grad()
@pytest.mark.parametrize("arch", ["qwen3", "qwen3moe"])
def test_folders_are_what_transformers_reads(arch: str, script: Script, tmp_path: Path) -> None:
    source = tiny.write(tmp_path / "m.gguf", arch)
    folder = script("references").write_folder(source, tmp_path / "floats")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with load(source, device="cpu", n_ctx=64, cache_type="f32") as ours:
        logits = ours.logits(TOKENS[0])
    np.testing.assert_allclose(logits, model(torch.tensor([TOKENS[0]])).logits[0].numpy(), atol=1e-4)


def test_layers_that_were_rounded(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.widen(monkeypatch)
    source = tiny.write(tmp_path / "m.gguf", "qwen3moe")
    quantize_checkpoint(source, tmp_path / "made", "w4a16-g128", ignore=["blk.0.attn_q"])
    found = script("references").rounded_layers(tmp_path / "made")
    attention = {f"model.layers.{i}.self_attn.{part}_proj" for i in range(2) for part in "qkvo"}
    experts = {f"model.layers.{i}.mlp.experts.{n}.{part}_proj"
               for i in range(2) for n in range(4) for part in ("gate", "up", "down")}
    assert found == attention - {"model.layers.0.self_attn.q_proj"} | experts


class Nearest:
    """Stands for the authors' GPTQ: what it is given is counted, and weights are rounded to nearest."""

    given: ClassVar[list[int]] = []

    def __init__(self, layer: torch.nn.Linear) -> None:
        self.layer, self.columns, self.nsamples, self.H, self.tokens = layer, layer.in_features, 0, None, 0
        self.quantizer: Any = None

    def add_batch(self, given: torch.Tensor, out: torch.Tensor) -> None:
        self.nsamples, self.tokens = self.nsamples + 1, self.tokens + given.shape[:-1].numel()

    def fasterquant(self, groupsize: int, **_: Any) -> tuple[torch.Tensor, ...]:
        assert (self.tokens == 0) == (self.H is not None), "without tokens there is a matrix in place of sums"
        self.given.append(self.tokens)
        rows = self.layer.weight.data
        scales = rows.unflatten(1, (-1, rows.shape[1] if groupsize < 0 else groupsize)).abs().amax(-1) / 7
        wide = scales.repeat_interleave(rows.shape[1] // scales.shape[1], 1)
        rows.copy_((rows / wide).round() * wide)
        return scales, scales


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["w4a8", slow("w4a8-g128")])
def test_the_authors_rounding_of_experts(
    scheme: str, qqq: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each expert of a checkpoint is what was made of it, also one that no token was sent to."""
    tiny.widen(monkeypatch)
    monkeypatch.setattr(Nearest, "given", given := [])
    weights = tiny.tensors("qwen3moe")
    weights["token_embd.weight"] *= 16
    weights["token_embd.weight"][:, 0] = 8  # larger than all that is added to it, so the last expert is never chosen
    for layer in range(2):
        weights[f"blk.{layer}.ffn_gate_inp.weight"][3, 0] = -100
    source = tiny.write(tmp_path / "m.gguf", "qwen3moe", weights=weights)
    quantizer = SimpleNamespace(Quantizer=lambda: SimpleNamespace(configure=lambda *a, **k: None))
    authors = qqq.Authors(SimpleNamespace(gptq=SimpleNamespace(GPTQ=Nearest), quant=quantizer), TOKENS)
    quantize_checkpoint(source, tmp_path / "made", scheme, method=authors)
    of_experts = [n for block in np.array_split(given, 2) for n in block[4:]]
    assert sum(of_experts) == 2 * 3 * 2 * sum(map(len, TOKENS)), "two experts of each layer, three matrices each"
    assert of_experts.count(0) == 2 * 3
    with load(source, device="cpu", n_ctx=64) as base, load(tmp_path / "made", device="cpu", n_ctx=64) as made:
        wanted, found = base.logits(TOKENS[0]), made.logits(TOKENS[0])
    assert np.corrcoef(wanted.ravel(), found.ravel())[0, 1] > 0.97


def row(order: int, scheme: str, method: str, rotate: bool, kl: float) -> dict[str, Any]:
    return {"order": order, "scheme": scheme, "method": method, "rotate": rotate, "kl": [kl, 0.1]}


def test_rows_are_in_the_same_order_whichever_came_first(qqq: ModuleType) -> None:
    rows = [row(i, scheme, *way, 1.0) for i in range(10, 12) for scheme in ("w4a8", "w4a8-g128") for way in qqq.WAYS]
    mixed = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    assert qqq.sorted_rows(mixed) == rows


def test_ratios_are_of_orders_that_have_both(qqq: ModuleType) -> None:
    rows = [
        row(0, "w4a8", "authors", True, 4.0), row(0, "w4a8", "gptq", True, 2.0), row(0, "w4a8", "qqq", False, 4.0),
        row(1, "w4a8", "authors", True, 1.0), row(1, "w4a8", "gptq", True, 2.0), row(2, "w4a8", "gptq", True, 9.0),
        row(1, "w4a8-g128", "gptq", True, 5.0),
    ]
    assert qqq.ratios(rows) == pytest.approx({"w4a8 gptq rotated": 1.0, "w4a8 qqq": 1.0})


def test_going_on_with_a_result(script: Script, tmp_path: Path) -> None:
    how = {"model": "demo", "samples": 16, "chunks": 12, "authors": {"gptq.py": "1f"}}
    described = {"command": "x", "date": "2026-11-26", "machine": {"cores": 2}, "versions": {"torch": "2"}}
    rows = [row(0, "w4a8", "authors", True, 4.0)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**described, **how, "before": [{"date": "2026-11-25"}], "ratios": {}, "rows": rows}))
    assert script("references").go_on(path, how) == (rows, [{"date": "2026-11-25"}, described])
    with pytest.raises(ValueError, match=r"a.json has samples 16 \(allowed: 8, as this run\)"):
        script("references").go_on(path, {**how, "samples": 8})


def test_orders_that_a_result_has_all_rows_of(script: Script) -> None:
    rows = [{"order": order, "method": method} for order, method in [(2, "a"), (2, "b"), (0, "a"), (1, "a"), (1, "b")]]
    assert script("reference_gptq").whole_orders(rows, 2) == ([*rows[:2], *rows[3:]], {1, 2})

"""Methods that scale channels of folds, and the one that tries all: what they gain, and what each refuses."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

from octavo.calibrate.schemes.scheme_method import KINDS
from octavo.errors import NonFiniteError, UsageError
from octavo.huggingface.schemes import CHECKPOINT_SCHEMES
from octavo.torch import SCHEMES, Fold, QuantLinear, quantize_
from octavo.torch.quantize import FOLDING, METHODS
from tests.torch_api.blocks import Decoder, Stack, all_folds, inputs

QKV = ["layers.0.q", "layers.0.k", "layers.0.v"]
TRIED = inputs(9)[4:]


def test_there_is_what_the_command_has() -> None:
    assert SCHEMES is CHECKPOINT_SCHEMES
    assert {*KINDS} - {*METHODS} == {"rptq"}
    assert {*FOLDING} == {"awq", "smoothquant", "qqq", "auto"}


def made(scheme: str, method: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    if method in FOLDING:
        options.setdefault("folds", all_folds())
    batches = None if method == "rtn" else [x.to(dtype) for x in inputs()]
    return quantize_(Stack().eval().to(dtype), scheme, method=method, calibration=batches, **options)


@torch.no_grad()
def lost(model: Any, dtype: torch.dtype = torch.float32) -> float:
    x, right = torch.cat(TRIED), Stack().eval()
    want = right(x)["logits"]
    return float((model(x.to(dtype))["logits"].float() - want).norm() / want.norm())


GAINS = {
    ("int8-w8a8", "smoothquant"): 0.8, ("w4a16-g128", "awq"): 0.8, ("w4a8", "qqq"): 0.7, ("w4a8-g128", "auto"): 0.7,
    ("fp8", "smoothquant"): 1.0, ("w4a16", "awq"): 0.8, ("nvfp4a16", "qqq"): 0.8, ("mxfp4a16", "auto"): 0.8,
    ("w8a16", "awq"): 0.9, ("fp8-block", "auto"): 1.0, ("int8-w8a8", "auto"): 0.8, ("w4a8", "smoothquant"): 0.95,
    ("w4a8-g128", "qqq"): 0.7, ("w4a16-g128", "auto"): 0.7,
}
"""How much of the error of rounding a method may leave."""


@pytest.mark.few(3)
@pytest.mark.parametrize(("scheme", "method"), [
    pytest.param(*pair, marks=() if i < 4 else pytest.mark.slow) for i, pair in enumerate(GAINS)
])
def test_a_method_errs_less_than_rounding(scheme: str, method: str) -> None:
    model = made(scheme, method)
    assert sum(isinstance(layer, QuantLinear) for layer in model.modules()) == 14
    assert lost(model) < GAINS[scheme, method] * lost(made(scheme, "rtn"))


@pytest.mark.parametrize("method", ["qqq", pytest.param("auto", marks=pytest.mark.slow)])
def test_what_a_method_made_is_stored_and_copied(method: str) -> None:
    model, x = made("w4a16-g128", method, torch.bfloat16), TRIED[0].bfloat16()
    assert lost(model, torch.bfloat16) < 0.2
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = quantize_(Stack().eval().bfloat16(), "w4a16-g128")
    other.load_state_dict(torch.load(file, weights_only=True))
    with torch.no_grad():
        right = model(x)["logits"]
        assert torch.equal(other(x)["logits"], right)
        assert torch.equal(copy.deepcopy(model)(x)["logits"], right)


@pytest.mark.slow
def test_sums_with_the_original_model_are_those_of_qronos_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take twice the time of a Hessian, and as much memory."""

    def refuse(*_: object) -> None:
        raise AssertionError("vectors of the original model were counted")

    monkeypatch.setattr("octavo.calibrate.runner.open_stage.CrossHessian", refuse)
    assert lost(made("w4a16-g128", "gptq")) < lost(made("w4a16-g128", "rtn"))
    with pytest.raises(AssertionError, match="were counted"):
        made("w4a16-g128", "qronos")


def test_layers_that_stay_take_scales_up() -> None:
    """Readers that are skipped go along; folds that no quantized layer reads stay as they are."""
    model = made("int8-w8a8", "smoothquant", skip=("lm_head", "*.k", "*.down", "*.o"))
    layer, plain = model.layers[0], Decoder()
    assert type(layer.k) is nn.Linear
    assert not torch.equal(layer.k.weight, plain.k.weight)
    assert torch.equal(layer.down.weight, plain.down.weight)
    assert lost(model) < lost(made("int8-w8a8", "rtn", skip=("lm_head", "*.k", "*.down", "*.o")))


def test_auto_without_folds_chooses_between_codes() -> None:
    with_none = made("w4a8", "auto", folds=())
    assert torch.equal(with_none.get_parameter("layers.0.norm1.weight"), Decoder().norm1.weight)
    assert lost(with_none) < 0.8 * lost(made("w4a8", "rtn"))


def test_what_methods_refuse() -> None:
    model, batches = Stack(), inputs(1)
    for scheme, options, named in (
        ("w4a8", {"method": "rptq", "calibration": batches}, r"'rptq' of a torch module.*\(allowed: smoothquant"),
        ("w4a8", {"method": "spin"}, r"'spin' \(allowed: rtn, gptq, qronos, awq, smoothquant, qqq, auto\)"),
        ("w4a8", {"method": "awq", "calibration": batches}, r"awq without folds.*folds_of\(model\)"),
        ("w4a8", {"method": "gptq", "calibration": batches, "folds": all_folds()}, "folds with method gptq"),
        ("w4a8", {"folds": all_folds()}, r"folds with method rtn, which scales no channels \(allowed: with awq"),
        ("w4a8", {"method": "qqq", "folds": all_folds()}, "qqq without batches"),
        ("fp8-block", {"method": "qqq", "calibration": batches, "folds": all_folds()}, "qqq does not apply to fp8"),
        ("fp8-block", {"method": "gptq", "calibration": batches}, r"does not apply to fp8-block.*\(allowed: rtn, awq"),
    ):
        with pytest.raises(UsageError, match=named):
            quantize_(model, scheme, **options)
    assert not any(isinstance(layer, QuantLinear) for layer in model.modules())


def test_rows_whose_errors_can_not_make_up_for_each_other() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 4))
    with pytest.raises(UsageError, match=r"gptq of layers whose inputs are not multiples of 4: 1 \(6\)"):
        quantize_(model, "int8-w8a8", method="gptq", calibration=[torch.randn(9, 8)])
    quantize_(model, "int8-w8a8", method="auto", calibration=[torch.randn(9, 8)])
    assert isinstance(model[1], QuantLinear)


def test_numbers_that_are_none_are_named() -> None:
    batches = inputs(2)
    batches[1][0, 0, 0] = float("nan")
    for method in ("smoothquant", "auto"):
        with pytest.raises(NonFiniteError, match=r"layers\.0\.q"):
            quantize_(Stack(), "w4a8", method=method, calibration=batches, folds=all_folds())
    for method in ("awq", "auto"):
        wrong = Stack()
        with torch.no_grad():
            wrong.layers[0].v.bias.fill_(float("inf"))  # type: ignore[union-attr]
        with pytest.raises(NonFiniteError, match=r"layers\.0\.o"):
            quantize_(wrong, "w4a8", method=method, calibration=inputs(2), folds=[Fold("layers.0.norm1", QKV)])

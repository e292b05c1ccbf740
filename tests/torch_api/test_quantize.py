"""Models whose layers are replaced: which are, which stay, and what is refused before any is."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from octavo.errors import NonFiniteError, UsageError
from octavo.torch import SCHEMES, QuantLinear, quantize_
from octavo.torch.folds import inputs_of, layers_in_order, sharing


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(128, 256), nn.Linear(128, 256, False), nn.Linear(256, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return y


class Model(nn.Module):
    """Two blocks, one of which is passed twice, and a head that shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 128)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.again = self.blocks[0]
        self.lm_head = nn.Linear(128, 50, False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in (*self.blocks, self.again):
            x = block(x)
        y: torch.Tensor = self.lm_head(x)
        return y


IDS = torch.arange(12).reshape(2, 6)


def quantized(model: nn.Module) -> list[str]:
    return [name for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, QuantLinear)]


@pytest.mark.few(5)
@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_a_model(scheme: str) -> None:
    model = Model().eval()
    right = model(IDS)
    assert quantize_(model, scheme) is model
    assert type(model.lm_head) is nn.Linear
    assert len(quantized(model)) == 9
    assert model.again.gate is model.blocks[0].gate
    assert not model.blocks[1].gate.training
    y = model(IDS)
    assert 0 < (y - right).norm() / right.norm() < (0.2 if scheme.startswith("w4") else 0.05)
    other = Model().eval()
    quantize_(other, scheme).load_state_dict(model.state_dict())
    assert torch.equal(other(IDS), y)


@pytest.mark.parametrize(
    ("skip", "left"),
    [
        ("*.down", {"gate", "up"}),
        (("*.gate", "blocks.*.up"), {"up", "down"}),  # the names begin within what is given
        (lambda name, layer: layer.bias is None, {"gate", "down"}),
    ],
)
def test_what_stays(skip: Any, left: set[str]) -> None:
    found = quantized(quantize_(Model().blocks, "int8-w8a8", skip=skip))
    assert set(found) == {f"{i}.{name}" for i in (0, 1) for name in left}


def test_a_head_is_quantized_where_nothing_is_skipped() -> None:
    model = quantize_(Model(), "fp8", skip=())
    assert "lm_head" in quantized(model)
    assert model.get_parameter("embedding.weight").dtype == torch.float32


@torch.no_grad()
def test_layers_of_torch_keep_what_others_read() -> None:
    """Attention reads its output's weight itself, and in inference a whole encoder layer reads all, unless told not to:
    it says so."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True).eval()
    x = torch.randn(2, 5, 128)
    right = layer(x)
    quantize_(layer, "int8-w8a8")
    assert quantized(layer) == ["linear1", "linear2"]
    with pytest.raises(RuntimeError, match="must have the same dtype"):
        layer(x)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        assert (layer(x) - right).norm() / right.norm() < 0.03
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_a_layer_itself_and_one_in_a_list() -> None:
    layer = nn.Linear(128, 8)
    made = quantize_(layer, "w4a8")
    assert isinstance(made, QuantLinear)
    assert type(layer) is nn.Linear
    model = quantize_(nn.Sequential(layer, nn.ReLU(), layer), "w4a8")
    assert isinstance(model, nn.Sequential)
    assert model[0] is model[2]
    assert isinstance(model[0], QuantLinear)


def test_what_is_refused_leaves_all_as_it_was() -> None:
    model: Any = nn.Sequential(nn.Linear(256, 100), nn.Linear(100, 60), nn.Linear(60, 128))
    with pytest.raises(UsageError, match=r"multiples of 128: 1 \(100\), 2 \(60\) \(allowed"):
        quantize_(model, "w4a8-g128")
    with pytest.raises(UsageError, match=r"scheme 'q4' .allowed: int8-w8a8"):
        quantize_(model, "q4")
    with torch.no_grad():
        model[2].weight[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match="2: the weight holds NaN or Inf"):
        quantize_(model, "int8-w8a8")
    assert not quantized(model)
    assert quantized(quantize_(model, "w4a8", skip=["1", "2"])) == ["0"]
    with pytest.raises(UsageError, match=r"no nn.Linear to quantize in ReLU \(skipped: lm_head, \*.lm_head\)"):
        quantize_(nn.ReLU(), "fp8")
    with pytest.raises(UsageError, match=r"no nn.Linear to quantize in Sequential \(skipped: \*\)"):
        quantize_(model, "fp8", skip="*")


def batches(n: int = 6) -> list[torch.Tensor]:
    return list(torch.randint(50, (n, 2, 40), generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize(("scheme", "method"), [("w4a8-g128", "gptq"), *(
    pytest.param(s, m, marks=pytest.mark.slow) for s in SCHEMES if s != "fp8-block" for m in ("gptq", "qronos")
)])
@torch.no_grad()
def test_a_method_errs_less_than_rounding(scheme: str, method: str) -> None:
    torch.manual_seed(2)
    right, lost = Model().eval(), {}
    for name in ("rtn", method):
        model = quantize_(Model().eval(), scheme, method=name, calibration=None if name == "rtn" else batches())
        assert len(quantized(model)) == 9
        assert model.get_submodule("again.gate") is model.get_submodule("blocks.0.gate")
        lost[name] = float((model(IDS) - right(IDS)).square().mean())
    assert lost[method] < (0.9 if scheme.startswith("w4") else 1.0) * lost["rtn"]


@pytest.mark.parametrize("method", ["gptq", "qronos"])
def test_batches_run_without_dropout_and_leave_each_mode_as_it_was(method: str) -> None:
    def made(*, training: bool) -> nn.Module:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(128, 128), nn.Dropout(0.3), nn.BatchNorm1d(128), nn.Linear(128, 8))
        model.train(training)[2].eval()  # one part whose mode is not the whole's
        return quantize_(model, "w4a8", method=method, calibration=[torch.randn(64, 128)])

    model, right = made(training=True), made(training=False)
    assert [part.training for part in model.modules()] == [True, True, True, False, True]
    for name, value in right.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.parametrize("training", [True, False])
def test_batches_run_through_layers_that_encoders_read_past(*, training: bool) -> None:
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    quantize_(layer.train(training), "w4a8", method="gptq", calibration=[torch.randn(2, 32, 128)])
    assert quantized(layer) == ["linear1", "linear2"]
    assert torch.backends.mha.get_fastpath_enabled()


def test_batches_in_any_iterable() -> None:
    """A DataLoader makes a list of each sample's arguments, as nn.Module takes them."""

    def made(calibration: Any) -> dict[str, torch.Tensor]:
        model = quantize_(Model(), "w4a8", method="gptq", calibration=calibration)
        return model.state_dict()

    ids = batches(3)
    right = made(ids)
    loader = DataLoader(TensorDataset(torch.cat(ids)), batch_size=2)
    for other in (iter(ids), (x for x in ids), tuple(ids), [(x,) for x in ids], [{"ids": x} for x in ids], loader):
        found = made(other)
        assert all(torch.equal(found[name], value) for name, value in right.items())


def test_layers_are_seen_in_the_order_of_their_calls() -> None:
    model = Model()
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    calls = layers_in_order(model, reversed(layers.values()), IDS)
    names = {layer: name for name, layer in layers.items()}
    assert [names[layer] for layer in calls] == [
        *(f"blocks.{i}.{end}" for i in (0, 1) for end in ("gate", "up", "down")), "lm_head",
    ]
    assert list(calls.values()) == [2, 2, 2, 1, 1, 1, 1]
    first, second = inputs_of(model, model.blocks[0].down, 2, IDS)  # type: ignore[union-attr, arg-type]
    assert first.shape == second.shape == (2, 6, 256)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_floats_end_when_their_layer_is_replaced(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    weights, alive = [ref(layer.weight) for layer in model], list[int]()  # type: ignore[arg-type]
    make = QuantLinear.from_linear.__func__  # type: ignore[attr-defined]

    def made(cls: Any, *given: Any) -> QuantLinear:
        gc.collect()
        alive.append(sum(weight() is not None for weight in weights))
        layer: QuantLinear = make(cls, *given)
        return layer

    monkeypatch.setattr(QuantLinear, "from_linear", classmethod(made))
    quantize_(model, "int8-w8a8", method=method, calibration=None if method == "rtn" else [torch.randn(40, 8)])
    assert alive == [4, 3, 2, 1]


def test_layers_that_are_given_the_same() -> None:
    """They are known by the tensor, in all calls, as long as nothing was written to it in between."""

    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x) + self.b(x)
            x.add_(1)
            y = y + self.c(x)
            y = y + self.d(x.clone())
            made: torch.Tensor = y + self.b(x)
            return made

    model = Written()
    names = {layer: name for name, layer in model.named_modules()}
    found = sharing(model, [model.a, model.b, model.c, model.d], torch.randn(2, 8))
    assert {names[layer]: names[other] for layer, other in found.items()} == {"a": "a", "b": "b", "c": "c", "d": "d"}
    block: Any = Model()
    layers = [layer for layer in block.modules() if isinstance(layer, nn.Linear)]
    found = sharing(block, layers, IDS)
    assert found[block.blocks[0].up] is found[block.blocks[0].gate] is block.blocks[0].gate
    assert found[block.blocks[0].down] is block.blocks[0].down
    assert found[block.blocks[1].up] is block.blocks[1].gate


def test_methods_that_lack_something() -> None:
    model = Model()
    model.unused = nn.Linear(128, 128)
    for options, named in (
        ({"method": "spin"}, r"method 'spin' \(allowed: rtn, gptq, qronos, awq, smoothquant, qqq, auto\)"),
        ({"method": "gptq"}, "without batches"),
        ({"method": "gptq", "calibration": iter(())}, "without batches"),
        ({"method": "gptq", "calibration": batches(1)}, "no batch goes through unused"),
        ({"method": "gptq", "calibration": IDS}, r"calibration is a Tensor \(allowed: a list, DataLoader"),
        ({"method": "gptq", "calibration": {"ids": IDS}}, r"calibration is a dict \(allowed: .*\[batch\]"),
        ({"method": "gptq", "calibration": "text.txt"}, "calibration is a str"),
        ({"method": "gptq", "calibration": 7}, "calibration is a int"),
        ({"method": "gptq", "calibration": [IDS, "text"]}, r"batch 1 of calibration is a str \(allowed: a tensor"),
        ({"calibration": batches(1)}, "calibration with method rtn"),
    ):
        with pytest.raises(UsageError, match=named):
            quantize_(model, "w4a8", **options)  # type: ignore[arg-type]
    assert not quantized(model)
    wrong = Model()
    wrong.embedding.weight.data[7] = float("nan")
    with pytest.raises(NonFiniteError, match=r"blocks\.0\.gate"):
        quantize_(wrong, "w4a8", method="gptq", calibration=batches(), skip=("lm_head",))

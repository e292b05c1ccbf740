"""Folds that a user names: exact where they are right, and refused by name where they are not."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from octavo.errors import UsageError
from octavo.torch import Fold, quantize_
from octavo.torch.folds import open_folds, require_exact
from tests.torch_api.blocks import DIM, SHARES, Decoder, Stack, all_folds, folds, inputs


def tried(model: nn.Module, given: list[Fold]) -> None:
    require_exact(model, open_folds(model, given), inputs(1)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_change_weights_and_no_output(dtype: torch.dtype) -> None:
    model = Stack().eval().to(dtype)
    before, x = {name: p.clone() for name, p in model.named_parameters()}, inputs(1)[0].to(dtype)
    right = model(x)["logits"]
    opened = open_folds(model, all_folds())
    require_exact(model, opened, x)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())  # as they were before it was tried
    rng = np.random.default_rng(1)
    for fold in opened:
        fold.scale(rng.uniform(0.2, 5, fold.size))
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert {"layers.0.norm1.weight", "layers.0.norm1.bias", "layers.1.v.bias", "layers.0.down.weight"} < changed
    assert not {"lm_head.weight", "layers.0.o.bias", "layers.0.down.bias", "layers.0.q.bias"} & changed
    off = (model(x)["logits"] - right).float().norm() / right.float().norm()
    assert off < (1e-5 if dtype == torch.float32 else 0.02)


def test_outputs_of_a_part_of_a_layer() -> None:
    """Values that one layer makes with queries and keys: only their rows are scaled."""

    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.o = nn.Linear(64, 256), nn.Linear(128, 64)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (y.unflatten(-1, (-1, DIM)).transpose(-2, -3) for y in self.qkv(x).split((128, 64, 64), -1))
            y = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            made: Tensor = self.o(y.transpose(-2, -3).flatten(-2))
            return made

    model, x = Fused(), torch.randn(2, 5, 64)
    before = model.qkv.weight.detach().clone()
    (fold,) = open_folds(model, [Fold("qkv", ["o"], index=[192 + i for i in SHARES])])
    require_exact(model, [fold], x)
    fold.scale(np.full(fold.size, 3.0))
    assert torch.equal(model.qkv.weight[:192], before[:192])
    torch.testing.assert_close(model.qkv.weight[192:], before[192:] / 3)


def test_a_norm_that_adds_to_its_weight() -> None:
    class PlusOneNorm(nn.RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.rms_norm(x, (64,), 1 + self.weight, 1e-6)

    model = nn.Sequential(PlusOneNorm(64), nn.Linear(64, 64))
    x = torch.randn(3, 64)
    with pytest.raises(UsageError, match=r"fold into '0': scales of its channels change the module's outputs"):
        require_exact(model, open_folds(model, [Fold("0", ["1"])]), x)
    require_exact(model, open_folds(model, [Fold("0", ["1"], offset=1)]), x)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (Fold("norm1", ["q", "k"]), r"'norm1': scales of its channels change the module's outputs, by .* \(allowed"),
        (Fold("gate", ["down"]), "'gate': scales of its channels change"),  # through silu
        (Fold("v", ["o"], index=list(range(64)) * 2), "'v': scales of its channels change"),
        (Fold("norm2", ["gate", "up", "q"]), "'norm2': q is given something else than|'norm2': .* is given something"),
        (Fold("norm3", ["q"]), r"'norm3': Decoder has no 'norm3' among its named_modules\(\)"),
        (Fold("norm1", ["q", "w"]), "'norm1': Decoder has no 'w'"),
        (Fold("norm1", ["norm2"]), "'norm1': norm2 is a RMSNorm, not an nn.Linear"),
        (Fold("", ["q"]), r"'': it is a Decoder \(allowed: an nn.Linear, or a norm with a weight"),
        (Fold("norm1", "q"), "linears are 'q'"),
        (Fold("norm1", []), r"linears are \[\]"),
        (Fold("v", ["o"]), r"'v': 64 outputs are read as 128 inputs \(allowed: as many, or index="),
        (Fold("v", ["o"], index=[0, 1]), r"'v': index is int64 \[2\] \(allowed: integers \[128\] from 0 to 63\)"),
        (Fold("v", ["o"], index=[64] * 128), r"'v': index is int64 \[128\] \(allowed"),
        (Fold("norm2", ["gate", "down"]), r"several sizes, gate \(128\), down \(256\)"),
        (Fold("up", ["down"], offset=1), "offset is 1 of an nn.Linear"),
        (("norm1", ["q"]), r"folds\[0\] is a tuple, not an octavo.torch.Fold"),
    ],
    ids=str,
)
def test_folds_that_are_none(wrong: Any, named: str) -> None:
    model = Decoder()
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(UsageError, match=named):
        quantize_(model, "int8-w8a8", method="smoothquant", calibration=inputs(2), folds=[wrong])
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert type(model.q) is nn.Linear


def test_folds_in_each_others_way() -> None:
    model = Decoder()
    with pytest.raises(UsageError, match="'norm1': it is the same layer as that of the fold into 'norm1'"):
        tried(model, [Fold("norm1", ["q"]), Fold("norm1", ["k", "v"])])
    with pytest.raises(UsageError, match="'norm2': q reads the fold into 'norm1' as well"):
        tried(model, [Fold("norm1", ["q", "k", "v"]), Fold("norm2", ["gate", "up", "q"])])


def test_what_can_take_no_scales() -> None:
    plain = nn.Sequential(nn.LayerNorm(64, elementwise_affine=False), nn.Linear(64, 64))
    with pytest.raises(UsageError, match="'0': it is a LayerNorm"):
        open_folds(plain, [Fold("0", ["1"])])
    tied = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    tied[3].weight = tied[1].weight
    with pytest.raises(UsageError, match="'0': 1 and 3 share a weight"):
        open_folds(tied, [Fold("0", ["1"])])
    ids = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Flatten(0), _Largest())
    with pytest.raises(UsageError, match="outputs hold no tensor of floats"):
        require_exact(ids, open_folds(ids, [Fold("0", ["1"])]), torch.randn(2, 64))


class _Largest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax()


def test_layers_passed_twice_and_folds_of_copies() -> None:
    """A layer in two places is one layer: what is folded once holds in both."""
    model = nn.Sequential(Decoder(), Decoder())
    model.append(model[0])
    given = folds("0.") + folds("1.")
    tried(model, given)
    with pytest.raises(UsageError, match="it is the same layer"):
        tried(model, given + folds("2."))
    tried(copy.deepcopy(model), given)

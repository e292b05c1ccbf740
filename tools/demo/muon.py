"""Muon: momentum whose update is made orthogonal (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/)."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

# A quintic iteration that drives all singular values of a matrix near 1.
QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonal(g: Tensor) -> Tensor:
    """The nearest orthogonal matrices, roughly, of a stack [n, rows, columns] with rows <= columns."""
    a, b, c = QUINTIC
    x = g.bfloat16() if g.is_cuda else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        y = x @ x.mT
        x = a * x + (b * y + c * y @ y) @ x
    return x


class Muon(torch.optim.Optimizer):
    """For matrices only. Matrices of one shape are stacked, so that a step is a handful of batched products."""

    def __init__(self, matrices: list[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.02) -> None:
        shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            shapes[matrix.shape].append(matrix)
        groups = [{"params": group} for group in shapes.values()]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "decay": decay})
        self.orthogonal = torch.compile(orthogonal) if matrices[0].is_cuda else orthogonal

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            matrices = group["params"]
            gradient = torch.stack([matrix.grad for matrix in matrices])
            state = self.state[matrices[0]]
            velocity = state.setdefault("velocity", torch.zeros_like(gradient))
            velocity.lerp_(gradient, 1 - group["momentum"])
            update = gradient.lerp(velocity, group["momentum"])
            rows, columns = update.shape[-2:]
            update = self.orthogonal(update.mT).mT if rows > columns else self.orthogonal(update)
            step = group["lr"] * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["decay"])
            torch._foreach_add_(matrices, list(update.float().unbind()), alpha=-step)

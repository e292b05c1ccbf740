"""Launches of the kernel that finds what groups of rows are clipped to before they are rounded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.backends.gpu.calibration.clip_search_kernel import clip_search_kernel

GROUPS, GROUPS_INTERPRETED = 8, 256
"""Groups of a program."""


def clip_search(groups: Tensor, weights: Tensor, shrinks: Sequence[float], kind: str, scale: str, bits: int) -> Tensor:
    """The parts of their range, of `shrinks`, that groups [N, groups, G] are best clipped to: float32 [N, groups].

    weights  float32 [groups, G], of a row's squared errors
    kind     "symmetric", "zero_point" or "affine": the encoder
    scale    "f16", "bf16" or "f32": how scales are stored
    """
    n, in_row, group = groups.shape
    count, chosen = n * in_row, torch.empty((n, in_row), dtype=torch.float32, device=groups.device)
    of_program = GROUPS if groups.is_cuda else GROUPS_INTERPRETED
    tried = torch.tensor(shrinks, dtype=torch.float32, device=groups.device)
    clip_search_kernel[(-(-count // of_program),)](
        groups, weights, tried, chosen, count, in_row, len(shrinks), KIND=kind, SCALE=scale, TOP=(1 << bits) - 1,
        GROUP=group, GROUPS=of_program, num_warps=4, num_stages=1, enable_fp_fusion=False,
    )
    return chosen

"""`gptq` where the Hessian is a tensor of torch: on its device, rows of weights too."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.backends.gpu.calibration.clip_search import clip_search
from octavo.calibrate.hessian.damping import Order
from octavo.calibrate.hessian.torch_hessian import TorchFactor
from octavo.calibrate.methods.gptq.gptq_rows import LEAST_GAIN, SHRINKS, GptqRows, encoded
from octavo.calibrate.methods.gptq.torch_sweep import sweep
from octavo.calibrate.row_batches import made_in_parts
from octavo.calibrate.torch_arrays import VALUES, is_tensor
from octavo.calibrate.torch_rows import GroupEncoder, TorchPlanes, decoded, encoder_of, tensor_of
from octavo.errors import NonFiniteError, UsageError
from octavo.formats import BlockFormat
from octavo.formats.spec import F32
from octavo.quantizers.encoding.encoder import rows_of
from octavo.quantizers.matrix_tiles import spans


def gptq(
    weight: Any, hessian: Tensor, fmt: BlockFormat, importance: Any, cross: Any, order: Order, damp: float,
    rounds: int, factor: Any, threads: int | None,
) -> GptqRows:
    """The same as `quantize.gptq`, on the device of `hessian`."""
    rows = weight if is_tensor(weight) else tensor_of(rows_of(weight, fmt), hessian.device)
    k = rows.shape[1]
    _require_square(hessian, "hessian", k)
    for values, name in ((rows, "weight"), (hessian, "hessian")):
        _require_finite(values, name)
    if bool((hessian.diagonal() < 0).any()):
        at = int(hessian.diagonal().argmin())
        raise UsageError(f"hessian is {float(hessian[at, at]):g} at column {at} of its diagonal (allowed: 0 or more)")
    factor = TorchFactor.of(hessian, order, damp) if factor is None else factor
    target = rows
    if cross is not None:
        _require_square(cross, "cross", k)
        target = _corrected(rows, hessian, cross, factor.added)
    weights = hessian.diagonal().float().cpu().numpy() if importance is None else np.asarray(importance, np.float32)
    plain = _encoded(rows, fmt, weights, threads)
    start = plain if target is rows else _encoded(target, fmt, weights, threads)
    if not rows.numel():
        none = np.zeros(len(rows), np.float32)
        return GptqRows(plain.host(), fmt, none, none, 0.0, 0, factor.damping)
    found = sweep(target, start, fmt, factor, rounds)
    before = found.before if target is rows else _errors(target, plain, fmt, hessian)
    better = found.after < before * (1 - LEAST_GAIN)
    after = torch.where(better, found.after, before)
    return GptqRows(
        found.planes.where(better, plain).host(), fmt, before.cpu().numpy(), after.cpu().numpy(), found.bound,
        int(better.sum()), factor.damping,
    )


def _require_square(matrix: Tensor, name: str, k: int) -> None:
    if matrix.shape != (k, k):
        raise UsageError(f"{name} of shape {tuple(matrix.shape)} for rows of {k} values (allowed: ({k}, {k}))")


def _require_finite(values: Tensor, name: str) -> None:
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        row, column = divmod(int((~finite).view(-1).int().argmax()), values.shape[1])
        raise NonFiniteError(f"{name}: {float(values[row, column])} at row {row}, column {column}")


def _corrected(rows: Tensor, hessian: Tensor, cross: Tensor, damping: float) -> Tensor:
    """The weights that give from quantized inputs, as nearly as can be, what `rows` give from the original ones."""
    h, right = hessian.double(), cross.T.to(torch.float64, copy=True)
    right.diagonal().add_(damping)
    h = h.clone() if h is hessian else h
    h.diagonal().add_(damping)
    solved = torch.linalg.solve(h, right, left=False)  # = right @ (H + damping)^-1
    parts = spans(len(rows), max(1, VALUES // len(h)))
    return torch.cat(made_in_parts(parts, lambda part: (rows[part].double() @ solved).float()))


def _encoded(rows: Tensor, fmt: BlockFormat, weights: F32, threads: int | None) -> TorchPlanes:
    """What the format's own encoder makes of rows, errors weighted: here for rows of groups, else on the host."""
    encoder = encoder_of(fmt)
    if encoder is None or fmt.gguf is not None:
        return TorchPlanes.of(encoded(rows.cpu().numpy(), fmt, weights, threads), rows.device)
    weighing = torch.from_numpy(np.ascontiguousarray(weights)).to(rows.device).view(-1, fmt.group)
    parts = spans(len(rows), max(1, VALUES // rows.shape[1])) or [slice(0, 0)]
    return TorchPlanes.joined(made_in_parts(parts, lambda part: _searched(rows[part], fmt, weighing, encoder)))


def _searched(rows: Tensor, fmt: BlockFormat, weighing: Tensor, encoder: GroupEncoder) -> TorchPlanes:
    """Rows by the format's plain encoder, each group clipped to the part of its range that leaves the least error."""
    groups = rows.view(len(rows), rows.shape[1] // fmt.group, fmt.group)
    if not rows.numel():
        return encoder(rows)
    part = clip_search(groups, weighing, SHRINKS.tolist(), encoder.kind, fmt.fields[0].kind, fmt.bits)[..., None]
    low, high = groups.aminmax(dim=2, keepdim=True)
    return encoder(groups.clamp(low.clamp(max=0) * part, high.clamp(min=0) * part).view_as(rows))


def _errors(target: Tensor, plain: TorchPlanes, fmt: BlockFormat, hessian: Tensor) -> Tensor:
    """e^T H e of each row of what the encoder made, against the weights that are aimed at."""
    off = target - decoded(plain, fmt)
    return ((off @ hessian.float()) * off).sum(1)

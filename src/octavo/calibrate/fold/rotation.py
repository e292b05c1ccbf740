"""Rotations: the residual stream (R1) and heads' values (R2) times orthogonal matrices, which spread outliers.

A model computes the same where all that writes to the stream is turned and all that reads it is turned back (QuaRot,
arXiv 2404.00456; SpinQuant, arXiv 2405.16406). Norms that the stream goes through must have no weights of their own;
theirs are multiplied into the matrices that follow first. A layer norm takes the mean away, so with these the matrix
maps a vector of equal values to itself. Nothing is centred, which would change what a model with RMS norms computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from octavo.calibrate.fold.find import find_folds
from octavo.calibrate.fold.fold import (
    F64,
    ChangedFile,
    ChannelFold,
    FoldPart,
    TensorChanges,
    by_channel,
    from_channels,
    places_of,
    scaled,
)
from octavo.calibrate.fold.region import Ints
from octavo.errors import ModelError, tensor_label
from octavo.formats import dequantize
from octavo.formats.codec import require_finite
from octavo.formats.rotation import hadamard
from octavo.formats.spec import F32
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.quantizers.matrix_tiles import spans

VALUES = 1 << 17
"""That are turned at a time: 40 bytes each are there for them."""
OUTPUT, EMBEDDING = "output.weight", "token_embd.weight"


@dataclass(frozen=True, eq=False)
class RandomRotation:
    """A random orthogonal matrix Q [n, n]: a Hadamard matrix, and for the odd factor of n any other, times signs.

    odd    orthogonal [m, m], n = m * 2^p, its first column of equal values
    signs  1 or -1 [n]
    mean   Q keeps vectors of equal values as they are
    """

    odd: F64
    signs: F64
    mean: bool = False

    @classmethod
    def random(cls, n: int, rng: np.random.Generator, *, mean: bool = False) -> RandomRotation:
        m = n // (n & -n)
        first = np.ones((m, 1))
        odd, _ = np.linalg.qr(np.concatenate([first, rng.normal(size=(m, m - 1))], axis=1))
        signs = rng.choice([-1.0, 1.0], n)
        signs[0] = 1.0
        return cls(odd * np.sign(odd[0, 0]), signs, mean)

    def turn(self, x: F64) -> F64:
        """x [..., n] @ Q, where Q is diag(signs) A, or A diag(signs) A^T if the mean is kept."""
        return self._mix(self._mix(x) * self.signs, transposed=True) if self.mean else self._mix(x * self.signs)

    def _mix(self, x: F64, *, transposed: bool = False) -> F64:
        """x A, or x A^T: A is the Kronecker product of a Hadamard matrix, which is symmetric, and the odd one."""
        m = len(self.odd)
        y = x.reshape(*x.shape[:-1], x.shape[-1] // m, m) @ (self.odd.T if transposed else self.odd)
        mixed = hadamard(y.swapaxes(-1, -2)).swapaxes(-1, -2)
        out: F64 = mixed.reshape(x.shape) / np.sqrt(y.shape[-2])
        return out


def rotate(file: GGUFFile, *, stream: bool = True, heads: bool = True, seed: int = 0) -> ChangedFile:
    """The model of `file` with its residual stream turned (R1), and the values of each head (R2).

    An output matrix that is the embedding becomes a tensor of its own. Raises ModelError for a model whose stream can't
    be turned: one with norms behind attention or feed-forward, or an encoder; NonFiniteError naming a norm.
    """
    rng, changes = np.random.default_rng(seed), TensorChanges()
    if stream:
        _require_stream(read_model(file))
        if OUTPUT not in file.tensors:
            changes.copied[OUTPUT] = EMBEDDING
    model = read_model(ChangedFile(file, changes))
    for fold in find_folds(model, "rotations"):
        if stream and _is_stream(fold):
            _merge_norms(model, fold, changes)
            mean = any(node.op == "layer_norm" for node in model.graph().nodes)
            _turn(fold, RandomRotation.random(fold.size, rng, mean=mean), changes)
        elif heads and not _norms(fold):
            _turn(fold, RandomRotation.random(int(np.bincount(fold.blocks)[0]), rng), changes)
    return ChangedFile(file, changes)


def rotate_possible(file: GGUFFile, *, seed: int = 0) -> tuple[ChangedFile, ModelError | None]:
    """The model of `file` with all turned that can be: as of `rotate`, or heads' values alone, and then why.

    Raises ModelError where nothing can be turned, and NonFiniteError as `rotate` does.
    """
    try:
        return rotate(file, seed=seed), None
    except ModelError as error:
        turned = rotate(file, stream=False, seed=seed)
        if not any(name in turned.changes for name in file.tensors):
            raise
        return turned, error


def _is_stream(fold: ChannelFold) -> bool:
    return any(part.tensor == EMBEDDING for part in fold.parts)


def _norms(fold: ChannelFold) -> list[str]:
    return [part.tensor for part in fold.parts if part.end == "norm"]


def _require_stream(model: ModelSpec) -> None:
    if not any(map(_is_stream, find_folds(model, "rotations"))):
        problem = f"architecture {model.architecture.name} has no residual stream that can be turned"
        raise ModelError(problem, file=model.file.path)


def _merge_norms(model: ModelSpec, stream: ChannelFold, changes: TensorChanges) -> None:
    """Multiply the weights of the stream's norms into the matrices that follow, and leave ones."""
    names, file = set(_norms(stream)), model.file
    for fold in find_folds(model, "scales"):
        for name in names.intersection(_norms(fold)):
            names.remove(name)
            weights = dequantize(file.tensor(name)).astype(np.float64)
            require_finite(weights, tensor_label(name))
            if not weights.all() and any(part.end == "vector" for part in fold.parts):
                raise ModelError("has a weight of 0 beside a bias", file=file.path, field=f"tensor {name}")
            changes.add_fold(fold, _merging(fold, name, weights))
    for name in sorted(names):
        if (dequantize(file.tensor(name)) != 1).any():
            problem = "is multiplied with what goes into the residual stream, which can't be turned then"
            raise ModelError(problem, file=file.path, field=f"tensor {name}", allowed="ones")


def _merging(fold: ChannelFold, norm: str, weights: F64) -> Callable[[FoldPart, F32], F32]:
    """The change of each part of a fold that begins with a norm of these weights."""
    place = next(part.index for part in fold.parts if part.tensor == norm)
    scales = np.ones(fold.size)
    scales[place] = weights

    def merged(part: FoldPart, values: F32) -> F32:
        return np.ones_like(values) if part.tensor == norm else scaled(part, scales, values)

    return merged


def _turn(fold: ChannelFold, rotation: RandomRotation, changes: TensorChanges) -> None:
    """Each block of a fold turned; norms, whose weights are ones, stay."""
    blocks = [np.flatnonzero(fold.blocks == block) for block in range(int(fold.blocks.max()) + 1)]
    for part in fold.parts:
        if part.end != "norm":
            changes.add(part.tensor, _turning(part, blocks, rotation))


def _turning(part: FoldPart, blocks: list[Ints], rotation: RandomRotation) -> Callable[[F32], F32]:
    places = places_of(part)
    channels = part.index[places]
    copies = [places[np.isin(channels, block)].reshape(len(block), -1).T for block in blocks]  # [copies, n]

    def turned(values: F32) -> F32:
        out = by_channel(part, values).copy()  # [channels, others], or [others, channels, 1]
        for some in spans(out.size // len(part.index), max(1, VALUES // len(part.index))):
            taken = out[some] if out.ndim == 3 else out[:, some]
            for mine in copies:
                x = taken[..., mine, :].swapaxes(-1, -2).astype(np.float64)  # [..., copies, others, n]
                taken[..., mine, :] = rotation.turn(x).swapaxes(-1, -2)
        return from_channels(part, out, values.shape)

    return turned

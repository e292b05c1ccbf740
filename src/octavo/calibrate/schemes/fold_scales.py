"""Scales for a whole model: its folds, tried with samples of what its products are given."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from octavo.calibrate.fold import find_folds
from octavo.calibrate.fold.fold import F64, NONE, ChangedFile, ChannelFold, FoldPart, TensorChanges, scaled
from octavo.calibrate.methods.channel_scales import ChosenScales, FoldProducts, Rounding, Search, as_they_are
from octavo.calibrate.runner import Layerwise, OpenStage, ProductInput, Samples
from octavo.formats.spec import F32
from octavo.graph.protocol import Backend
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.quantizers.job.scheme_method import FoldScales
from octavo.quantizers.statistics.outliers import channels

TOKENS = 512
"""Tokens of an input with which scales are tried."""
FEWEST = 32
"""Tokens of an expert without which its scales are ones."""


@dataclass(frozen=True, eq=False)
class ScaledModel:
    """A model with scales.

    file     as it reads with them
    choices  what was chosen
    left     folds that were left as they are
    scales   float32 of each fold's channels, by its name, where they are not all ones
    """

    file: ChangedFile
    choices: Sequence[FoldScales]
    left: Sequence[str]
    scales: Mapping[str, F32]


@dataclass(frozen=True, eq=False)
class _Reader:
    """A product of a fold, and what it is given."""

    part: FoldPart
    given: ProductInput
    weight: F32


def scale_model(
    file: GGUFFile, backends: Sequence[Backend], samples: Samples, method: Search, weight: Rounding,
    activation: Rounding = as_they_are, in_experts: Rounding | None = None, *, folder: str | None = None,
    by_rows: bool = True, kept: Container[str] = (),
) -> ScaledModel:
    """Choose scales for all folds of a model, each by the error of the products that read it, rounded.

    method  as in `octavo.calibrate.methods.METHODS`
    weight, activation  how products are rounded
    in_experts  how what experts are given is rounded, if not as other inputs are
    folder   in which values of all samples are kept, in files; None: they are in memory
    by_rows  as of `FoldProducts`
    kept     weights that are not rounded: they take scales up, and have no say in them

    The model is run once, as it is: scales of one fold change nothing for others. Left as they are: q and k, which no
    product reads, an output matrix, and channels that several heads of latent attention share. Raises what `Layerwise`
    and `find_folds` raise.
    """
    model, folds = read_model(file), {fold.name: fold for fold in find_folds(read_model(file), "scales")}
    searched = dict[str, tuple[F32 | None, list[FoldScales]]]()
    fold_of = {
        part.tensor: (fold, part)
        for fold in folds.values()
        for part in fold.readers
        if _is_rounded(part.tensor) and part.tensor not in kept
    }
    waiting = dict[str, list[_Reader]]()
    for stage in Layerwise(model, backends, samples, folder=folder).run() if fold_of else ():
        for fold, readers in _readers(stage, fold_of, waiting):
            rounding = in_experts if in_experts and any(r.given.experts for r in readers) else activation
            pairs = [
                (name, at, replace(pair, by_rows=by_rows)) for name, at, pair in _pairs(fold, readers, weight, rounding)
            ]
            if pairs:
                searched[fold.name] = _search(fold, readers, pairs, method)
    chosen = {name: scales for name, (scales, _) in searched.items() if scales is not None}
    choices = [choice for _, found in searched.values() for choice in found]
    left = tuple(name for name in folds if name not in searched)
    return ScaledModel(with_scales(file, chosen), choices, left, chosen)


def _search(
    fold: ChannelFold, readers: list[_Reader], pairs: Sequence[tuple[str, np.ndarray, FoldProducts]], method: Search
) -> tuple[F32 | None, list[FoldScales]]:
    """Scales of a fold's channels, some of them for each pair, None for ones; and what was chosen."""
    scales, choices = np.ones(fold.size), list[FoldScales]()
    for name, places, pair in pairs:
        found = method(pair)
        scales[places] = found.scales
        choices.append(_choice(name, found, pair, readers))
    return scales.astype(np.float32) if (scales != 1).any() else None, choices


def _choice(name: str, found: ChosenScales, pair: FoldProducts, readers: list[_Reader]) -> FoldScales:
    least, largest = float(found.scales.min()), float(found.scales.max())
    read = tuple(reader.part.tensor for reader in readers)
    columns = np.abs(pair.inputs).max(axis=0) if pair.absmax is None else pair.absmax
    return FoldScales(
        name, found.how, found.setting, found.before, found.after, least, largest, read, channels(columns)
    )


def with_scales(file: GGUFFile, scales: Mapping[str, F32]) -> ChangedFile:
    """A model's file with scales of its folds' channels, by the folds' names."""
    changes = TensorChanges()
    for fold in find_folds(read_model(file), "scales"):
        if fold.name in scales:
            changes.add_fold(fold, _scaling(scales[fold.name].astype(np.float64)))
    return ChangedFile(file, changes)


def _is_rounded(name: str) -> bool:
    """Whether a weight of a product is one that is rounded: not a router, nor the output matrix."""
    return name.startswith("blk.") and "_inp" not in name


def _scaling(scales: F64) -> Callable[[FoldPart, F32], F32]:
    return lambda part, values: scaled(part, scales, values)


def _readers(
    stage: OpenStage, fold_of: Mapping[str, tuple[ChannelFold, FoldPart]], waiting: dict[str, list[_Reader]]
) -> list[tuple[ChannelFold, list[_Reader]]]:
    """The folds whose last product is in a stage, with all their products; others wait.

    Experts come after a router, so a stage later than an expert that all tokens go through.
    """
    whole = []
    for given in stage.inputs:
        for name in given.names:
            if name in fold_of:
                fold, part = fold_of[name]
                found = waiting.setdefault(fold.name, [])
                found.append(_Reader(part, given, stage.weight(name)))
                if len(found) == sum(of is fold for of, _ in fold_of.values()):
                    whole.append((fold, waiting.pop(fold.name)))
    return whole


def _pairs(
    fold: ChannelFold, readers: list[_Reader], weight: Rounding, activation: Rounding
) -> list[tuple[str, np.ndarray, FoldProducts]]:
    """Name, channels of the fold and pair: one where all products read the same channels, else one for each expert."""
    if any((reader.part.index == NONE).any() for reader in readers):
        return []
    own = [r for r in readers if r.given.experts and r.given.vectors.ndim == 3]
    if not own:
        given = readers[-1].given  # the last reader's vectors are those of this stage
        columns = readers[-1].part.index[: given.size]
        matrices = tuple(r.weight.reshape(-1, r.given.size) for r in readers)
        some, met = given.some(TOKENS), replace(given, experts=0, ids=None).statistics()  # experts' tokens together
        pair = FoldProducts(matrices, some, weight, activation, columns, met.absmax[0], met.mean_abs[0])
        return [(fold.name, np.arange(fold.size), pair)]
    reader = own[0]
    index = reader.part.index.reshape(reader.given.experts, -1)
    if len(own) > 1 or len(np.unique(index)) < index.size:
        return []
    met = reader.given.statistics()
    return [
        (f"{fold.name}, expert {e}", index[e], FoldProducts(
            (reader.weight[e],), reader.given.some(TOKENS, e), weight, activation, np.arange(len(index[e])),
            met.absmax[e], met.mean_abs[e]))
        for e in range(reader.given.experts) if reader.given.tokens(e) >= FEWEST
    ]

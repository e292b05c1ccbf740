"""The folds of a model, found in its graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import numpy as np

from octavo.calibrate.fold.fold import NONE, ChannelFold, FoldPart
from octavo.calibrate.fold.region import FIXED, Bools, ChannelPlace, Flow, Ints, Region, Rule
from octavo.calibrate.fold.rules import ORDERS, ROTATIONS, SCALES
from octavo.errors import GraphError, ModelError
from octavo.graph.node import Graph, Node
from octavo.models import ModelSpec
from octavo.models.shared.latent_kv import SplitFile

Kind = Literal["scales", "orders", "rotations"]
_RULES: Mapping[Kind, tuple[Mapping[str, Rule], int]] = {
    "scales": (SCALES, -1), "orders": (ORDERS, 1), "rotations": (ROTATIONS, 1),
}
_SEEDS = ("set_rows", "rms_norm", "layer_norm", "mul_mat", "mul_mat_id", "columns", "get_rows")


def find_folds(model: ModelSpec, kind: Kind = "scales") -> tuple[ChannelFold, ...]:
    """All changes of a kind that leave what a model computes as it is, in the order of its graph.

    scales     each channel by a number of its own: norms and what reads them, v and o, up and down, q and k, the last
               norm and an output matrix that is not the embedding
    orders     channels of a block in another order: the residual stream, a feed-forward's width, heads' values
    rotations  channels of a block times an orthogonal matrix: heads' values, and the residual stream, if its norms are
               ones and, with layer norms, the matrix keeps the mean

    None changes a tensor that is made of another when a file is read, see `models.unsplit`: what the file has is
    changed. Nothing here knows architectures: a graph is made of ops, and what an op lets through is a rule. Raises
    ModelError naming the architecture whose graph has an op without one.
    """
    rules, inverse = _RULES[kind]
    graph = model.graph(vectors=_has_more(model))
    try:
        flow = Flow(graph, rules, model.file.tensors, inverse=inverse)
    except GraphError as error:
        raise ModelError(f"architecture {model.architecture.name}: {error}", file=model.file.path) from None
    made = model.file.made if isinstance(model.file, SplitFile) else frozenset()
    return tuple(fold for fold in _folds_of(flow, _seeds(graph)) if made.isdisjoint(part.tensor for part in fold.parts))


def _has_more(model: ModelSpec) -> bool:
    """Whether a file's vectors are read too, by a classifier or as embeddings, so that these must stay."""
    pooling = f"{model.architecture.name}.pooling_type" in model.file.metadata
    return pooling or any(name.startswith("cls.") for name in model.file.tensors)


def _seeds(graph: Graph) -> Iterator[Node]:
    """Values that a fold may begin with: first what caches hold, so that its channels are counted as they lie there."""
    for ops in (_SEEDS[:1], _SEEDS[1:]):
        yield from (node for node in graph.nodes if node.op in ops)


def _folds_of(flow: Flow, seeds: Iterable[Node]) -> list[ChannelFold]:
    place_of = {id(node): i for i, node in enumerate(flow.graph.nodes)}
    seen: dict[ChannelPlace, Bools] = {}
    found: list[tuple[int, ChannelFold]] = []
    for seed in seeds:
        start = flow.value(seed)
        channels = ~seen.get(start, np.zeros(start.size, np.bool_))
        if not channels.any():
            continue
        region = Region(flow, start, channels)
        if region.grow() and (fold := _fold(region, seed.name)):
            found.append((place_of[id(seed)], fold))
            for place, labels in region.labels.items():
                seen[place] = seen.get(place, np.False_) | (_free(region, labels) != 0)
    return [fold for _, fold in sorted(found, key=lambda item: item[0])]


def _free(region: Region, labels: Ints) -> Ints:
    """Labels, 0 where a channel stays."""
    roots = region.roots(labels)
    return np.where(np.abs(roots) == FIXED, 0, roots)


def _fold(region: Region, name: str) -> ChannelFold | None:
    """The fold of a region; None where nothing makes up for what changes."""
    weights = {place: _free(region, labels) for place, labels in region.labels.items() if place.end}
    weights = {place: labels for place, labels in weights.items() if labels.any()}
    if len(weights) < 2:
        return None
    channels = np.unique(np.concatenate([np.abs(labels) for labels in weights.values()]))
    channels = channels[channels != 0]
    parts = tuple(_parts(weights, channels))
    return ChannelFold(name, len(channels), parts, _blocks(region, channels, parts))


def _parts(weights: Mapping[ChannelPlace, Ints], channels: Ints) -> Iterator[FoldPart]:
    for place, labels in weights.items():
        assert isinstance(place.key, str)
        assert place.end
        for sign in (-1, 1):
            mine = np.sign(labels) == sign
            if mine.any():
                index = np.where(mine, np.searchsorted(channels, np.abs(labels)), NONE)
                yield FoldPart(place.key, place.end, index, sign)


def _blocks(region: Region, channels: Ints, parts: tuple[FoldPart, ...]) -> Ints:
    """Channels of one block are in the same groups wherever these are kept apart, and as often in each part."""
    kept = [line[channels] for place in region.groups for line in _by_root(region, place)]
    counts = [np.bincount(part.index[part.index != NONE], minlength=len(channels)) for part in parts]
    blocks: Ints = np.unique(np.stack(kept + counts), axis=1, return_inverse=True)[1].reshape(-1)
    return blocks


def _by_root(region: Region, place: ChannelPlace) -> tuple[Ints, Ints]:
    """The first and the last group that each label, or one that is tied to it, is in at a place."""
    lowest, highest = region.groups[place]
    first, last = np.full_like(lowest, np.iinfo(np.int64).max), np.full_like(highest, -1)
    np.minimum.at(first, region.parent, lowest)
    np.maximum.at(last, region.parent, highest)
    return first, last

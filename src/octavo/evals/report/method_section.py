"""What the page's section shows on a method's run, from the record that the model keeps of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from octavo.evals.report import pictures
from octavo.evals.report.cells import Parts, Table, number, percent
from octavo.evals.report.findings import ModelFindings
from octavo.evals.report.pictures import LayerPair
from octavo.evals.report.tensor_labels import in_flow, place
from octavo.quantizers.job.quantization_record import MethodRecord, WeightRecord
from octavo.quantizers.job.scheme_method import FoldScales
from octavo.quantizers.statistics.outliers import OutlierChannels

MOST_INPUTS = 12
"""Rows of the table of inputs whose channels stand out."""


class Input(NamedTuple):
    """What weights of a layer read: their kinds and names, its channels, and these before they were scaled."""

    layer: int | None
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    channels: OutlierChannels
    before: OutlierChannels | None

    @property
    def was(self) -> OutlierChannels:
        """Its channels before they were scaled, if they were."""
        return self.before or self.channels


def calibration(model: ModelFindings) -> Parts | None:
    """What a method made of the model: errors before and after, scales, and channels that stand out."""
    record = model.record
    if record is None:
        return None
    parts = {"errors": _errors(record), "scales": _scales(record), "channels": _channels(record)}
    return {"about": record.about, "target": record.target, **parts}


def _errors(record: MethodRecord) -> Parts | None:
    """Errors of products by layer and kind, and what was chosen for each weight."""
    by_kind = weights_by_kind(record)
    if not by_kind:
        return None
    kinds = []
    for kind, found in by_kind.items():
        before, after = root_mean(w.before for w in found), root_mean(w.error for w in found)
        chosen = ", ".join(f"{how} {count}" for how, count in Counter(w.how for w in found).most_common())
        kinds.append([kind, str(len(found)), percent(before), percent(after), _ratio(after, before), chosen])
    tried = list(dict.fromkeys(way for w in record.weights for way in w.tried if way != "nearest"))
    weights = [
        [w.name, w.how, percent(w.before), percent(w.error), _ratio(w.error, w.before),
         *(percent(w.tried.get(way)) for way in tried)]
        for w in record.weights
    ]
    before_after, lines = ["nearest", "as made", "ratio"], _lines(by_kind)
    ways = ["weight", "chosen", *before_after, *(f"by {way}" for way in tried)]
    return {
        "picture": pictures.errors_picture(lines) if lines else None,
        "kinds": Table("Errors of products by kind of weight", ["kind", "weights", *before_after, "chosen"], kinds,
                       (1, 2, 3, 4)),
        "weights": len(weights),
        "choices": Table("What was chosen, and what each way errs", ways, weights, range(2, len(ways))),
    }


def _scales(record: MethodRecord) -> Parts | None:
    """The scales of channels that were chosen, and what they gain."""
    if not record.scales:
        return None
    rows = [
        [s.fold, _way(s), "–" if s.setting is None else number(s.setting, 3), number(s.before, 3), number(s.after, 3),
         _ratio(s.after, s.before), number(s.least, 3), number(s.largest, 3)]
        for s in record.scales
    ]
    headings = ["channels", "chosen", "setting", "error without", "error with", "ratio", "least scale", "largest scale"]
    spans = scales_by_kind(record)
    return {
        "taken": ", ".join(f"{way} {count} times" for way, count in Counter(map(_way, record.scales)).most_common()),
        "picture": pictures.spans_picture(spans) if spans else None,
        "folds": len(rows),
        "table": Table("Scales of channels", headings, rows, range(2, 8)),
    }


def _channels(record: MethodRecord) -> Parts | None:
    """Channels of inputs that stand out from the others."""
    inputs = inputs_of(record)
    if not inputs:
        return None
    rows = [
        [", ".join(i.names), f"{i.channels.size:,}", f"{i.before.peak:#.3g}" if i.before else "–",
         f"{i.channels.peak:#.3g}", ", ".join(f"{at} ({size:.3g})" for at, size in i.was.largest)]
        for i in sorted(inputs, key=lambda i: -max(i.channels.peak, i.was.peak))[:MOST_INPUTS]
    ]
    lines: dict[str, list[tuple[int | None, float, float]]] = {}
    for i in sorted(inputs, key=lambda i: in_flow(i.kinds[0])):
        lines.setdefault(", ".join(i.kinds), []).append((i.layer, i.was.peak, i.channels.peak))
    peaks = _layered(lines)
    headings = ["input of", "channels", "peak before", "peak", "largest channels"]
    return {
        "picture": pictures.peaks_picture(peaks) if peaks else None,
        "scaled": any(i.before for i in inputs),
        "table": Table("Inputs whose channels stand out most", headings, rows, (1, 2, 3)),
    }


def weights_by_kind(record: MethodRecord) -> dict[str, list[WeightRecord]]:
    """Weights of each kind, kinds in the order in which data goes through them."""
    found: dict[str, list[WeightRecord]] = {}
    for weight in sorted(record.weights, key=lambda w: in_flow(place(w.name).kind)):
        found.setdefault(place(weight.name).kind, []).append(weight)
    return found


def _lines(by_kind: dict[str, list[WeightRecord]]) -> dict[str, list[LayerPair]]:
    """Errors before and after of each kind's weights in layers, in percent."""
    return _layered({
        kind: [(place(w.name).layer, 100 * w.before, 100 * w.error) for w in found] for kind, found in by_kind.items()
    })


def _layered(lines: Mapping[str, Sequence[tuple[int | None, float, float]]]) -> dict[str, list[LayerPair]]:
    """What lies in layers, in their order; kinds of which nothing does are left out."""
    found = {kind: sorted(LayerPair(at, *pair) for at, *pair in line if at is not None) for kind, line in lines.items()}
    return {kind: line for kind, line in found.items() if line}


def scales_by_kind(record: MethodRecord) -> dict[str, list[LayerPair]]:
    """Least and largest scale of folds by their kinds; experts of a layer together."""
    found: dict[str, dict[int | None, tuple[float, float]]] = {}
    for s in record.scales:
        layer, kind = place(s.fold.partition(",")[0])
        low, high = found.setdefault(kind, {}).get(layer, (s.least, s.largest))
        found[kind][layer] = min(low, s.least), max(high, s.largest)
    return _layered({kind: [(at, *span) for at, span in of.items()] for kind, of in found.items()})


def inputs_of(record: MethodRecord) -> list[Input]:
    """The distinct inputs of weights: those of one layer with the same channels are one."""
    before = {reader: s.channels for s in record.scales if "," not in s.fold for reader in s.readers}
    shared: dict[tuple[int | None, OutlierChannels], list[str]] = {}
    for w in record.weights:
        if w.channels is not None:
            shared.setdefault((place(w.name).layer, w.channels), []).append(w.name)
    return [
        Input(layer, tuple(place(name).kind for name in names), tuple(names), channels, before.get(names[0]))
        for (layer, channels), names in shared.items()
    ]


def root_mean(errors: Iterable[float]) -> float:
    """The root of the mean square."""
    squares = [x * x for x in errors]
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0


def _way(scaled: FoldScales) -> str:
    return "ones" if scaled.setting is None else scaled.how


def _ratio(after: float, before: float) -> str:
    return f"{after / before:.2f}" if before else "–"

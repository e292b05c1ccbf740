"""The page's section on a method's run, from the record that the model keeps of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from octavo.evals.report import method_pictures
from octavo.evals.report.findings import ModelFindings
from octavo.evals.report.markup import NOTHING, Html, details, number, paragraph, percent, picture, section, table
from octavo.evals.report.markup import text as safe
from octavo.evals.report.method_pictures import Pair
from octavo.evals.report.names import in_flow, place
from octavo.quantizers.calibration.outliers import Channels
from octavo.quantizers.job.prepared import Scaled
from octavo.quantizers.job.record import Record, WeightRecord

MOST_INPUTS = 12
"""Rows of the table of inputs whose channels stand out."""


class Input(NamedTuple):
    """What weights of a layer read: their kinds and names, its channels, and these before they were scaled."""

    layer: int | None
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    channels: Channels
    before: Channels | None


def calibration(model: ModelFindings) -> Html:
    """What a method made of the model: errors before and after, scales, and channels that stand out."""
    record = model.record
    if record is None:
        return NOTHING
    parts = [paragraph(_about(record)), *_errors(record), *_scales(record), *_channels(record)]
    return section("calibration", "What the method did", *parts)


def _about(record: Record) -> Html:
    about = record.about
    turned = " of the turned model" if about.rotate else ""
    caches = f" Caches of {safe(about.kv)} have scales of what they held." if about.kv else ""
    return Html(
        f"Weights were made by <code>{safe(about.method)}</code> for {safe(record.target)}, over {about.samples:,}"
        f" windows of the text {safe(about.text)}{turned}: {about.tokens:,} tokens, whose SHA-256 begins with"
        f" <code>{safe(about.sha256[:16])}</code>.{caches} This is what that run recorded in the model."
    )


def _errors(record: Record) -> list[Html]:
    """Errors of products by layer and kind, and what was chosen for each weight."""
    by_kind = weights_by_kind(record)
    if not by_kind:
        return []
    rows = []
    for kind, found in by_kind.items():
        before, after = (root_mean(getattr(w, end) for w in found) for end in ("before", "error"))
        chosen = Counter(w.how for w in found)
        rows.append(
            [safe(kind), Html(str(len(found))), percent(before), percent(after), _ratio(after, before),
             safe(", ".join(f"{how} {count}" for how, count in chosen.most_common()))]
        )  # fmt: skip
    about = (
        "Errors are of what products give over the calibration text: the root of the squared difference from the"
        " original's over the squared outputs. <em>Nearest</em> is the same weight by the encoder alone, given the same"
        " inputs."
    )
    lines = _lines(by_kind)
    caption = "Errors of products by layer. Dashed: with nearest codes. Line: as the method made them."
    return [
        paragraph(Html(about)),
        picture(method_pictures.errors_picture(lines), Html(caption)) if lines else NOTHING,
        table("Errors of products by kind of weight", ["kind", "weights", "nearest", "as made", "ratio", "chosen"],
              rows, numbers=(1, 2, 3, 4)),
        details(f"What was chosen for {len(record.weights):,} weights", _choices(record.weights)),
    ]  # fmt: skip


def _choices(weights: Sequence[WeightRecord]) -> Html:
    ways = list(dict.fromkeys(way for w in weights for way in w.tried if way != "nearest"))
    rows = [
        [safe(w.name), safe(w.how), percent(w.before), percent(w.error), _ratio(w.error, w.before),
         *(percent(w.tried.get(way)) for way in ways)]
        for w in weights
    ]  # fmt: skip
    headings = ["weight", "chosen", "nearest", "as made", "ratio", *(f"by {way}" for way in ways)]
    return table("What was chosen, and what each way errs", headings, rows, numbers=range(2, len(headings)))


def _scales(record: Record) -> list[Html]:
    """The scales of channels that were chosen, and what they gain."""
    if not record.scales:
        return []
    rows = [
        [safe(s.fold), safe(_way(s)), Html("–") if s.setting is None else number(s.setting, 3), number(s.before, 3),
         number(s.after, 3), _ratio(s.after, s.before), number(s.least, 3), number(s.largest, 3)]
        for s in record.scales
    ]  # fmt: skip
    taken = Counter(map(_way, record.scales))
    about = (
        "Channels between two parts of the model were divided by scales in one and multiplied in the other. Chosen"
        " were "
        + ", ".join(f"{safe(way)} {count} times" for way, count in taken.most_common())
        + ". Errors are mean squares of what the rounded products that read the channels err, without scales and with"
        " them."
    )
    headings = ["channels", "chosen", "setting", "error without", "error with", "ratio", "least scale", "largest scale"]
    found = table("Scales of channels", headings, rows, numbers=range(2, 8))
    parts = [paragraph(Html(about)), details(f"Scales of {len(rows):,} folds", found)]
    if spans := scales_by_kind(record):
        caption = "Scales by layer, from the least to the largest. Dotted: 1, which changes nothing."
        parts.insert(1, picture(method_pictures.spans_picture(spans), Html(caption)))
    return parts


def _channels(record: Record) -> list[Html]:
    """Channels of inputs that stand out from the others."""
    inputs = inputs_of(record)
    if not inputs:
        return []
    worst = sorted(inputs, key=lambda i: -max(i.channels.peak, i.before.peak if i.before else 0.0))[:MOST_INPUTS]
    rows = [
        [safe(", ".join(i.names)), Html(f"{i.channels.size:,}"), _times(i.before), _times(i.channels),
         safe(_named(i.before or i.channels))]
        for i in worst
    ]  # fmt: skip
    about = (
        "A channel that is much larger than the others costs them precision where activations are rounded, and weights"
        " that read it matter more. A peak is the largest magnitude of any channel over that of the median channel, on"
        " the calibration text."
    )
    lines, caption = _peaks(inputs), "Peaks of inputs by layer."
    if any(i.before for i in inputs):
        caption += " Dashed: before channels were scaled. Line: as they are."
    headings = ["input of", "channels", "peak before", "peak", "largest channels"]
    return [
        paragraph(Html(about)),
        picture(method_pictures.peaks_picture(lines), Html(caption)) if lines else NOTHING,
        table("Inputs whose channels stand out most", headings, rows, numbers=(1, 2, 3)),
    ]


def weights_by_kind(record: Record) -> dict[str, list[WeightRecord]]:
    """Weights of each kind, kinds in the order in which data goes through them."""
    found: dict[str, list[WeightRecord]] = {}
    for weight in record.weights:
        found.setdefault(place(weight.name).kind, []).append(weight)
    return dict(sorted(found.items(), key=lambda item: in_flow(item[0])))


def _lines(by_kind: dict[str, list[WeightRecord]]) -> dict[str, list[Pair]]:
    """Errors before and after of each kind's weights in layers, in percent."""
    lines = {
        kind: [(place(w.name).layer, 100 * w.before, 100 * w.error) for w in found] for kind, found in by_kind.items()
    }
    return _layered(lines)


def _layered(lines: Mapping[str, Sequence[tuple[int | None, float, float]]]) -> dict[str, list[Pair]]:
    """What lies in layers, in their order; kinds of which nothing does are left out."""
    found = {kind: sorted(Pair(at, *pair) for at, *pair in line if at is not None) for kind, line in lines.items()}
    return {kind: line for kind, line in found.items() if line}


def scales_by_kind(record: Record) -> dict[str, list[Pair]]:
    """Least and largest scale of folds by their kinds; experts of a layer together."""
    found: dict[str, dict[int | None, tuple[float, float]]] = {}
    for s in record.scales:
        layer, kind = place(s.fold.partition(",")[0])
        low, high = found.setdefault(kind, {}).get(layer, (s.least, s.largest))
        found[kind][layer] = min(low, s.least), max(high, s.largest)
    return _layered({kind: [(at, *span) for at, span in of.items()] for kind, of in found.items()})


def inputs_of(record: Record) -> list[Input]:
    """The distinct inputs of weights: those of one layer with the same channels are one."""
    before = {reader: s.channels for s in record.scales if "," not in s.fold for reader in s.readers}
    shared: dict[tuple[int | None, Channels], list[str]] = {}
    for w in record.weights:
        if w.channels is not None:
            shared.setdefault((place(w.name).layer, w.channels), []).append(w.name)
    return [
        Input(layer, tuple(place(name).kind for name in names), tuple(names), channels, before.get(names[0]))
        for (layer, channels), names in shared.items()
    ]


def _peaks(inputs: Sequence[Input]) -> dict[str, list[Pair]]:
    """Peaks before and as they are, by the kinds that read an input."""
    found: dict[str, list[tuple[int | None, float, float]]] = {}
    for i in sorted(inputs, key=lambda i: in_flow(i.kinds[0])):
        was = i.channels if i.before is None else i.before
        found.setdefault(", ".join(i.kinds), []).append((i.layer, was.peak, i.channels.peak))
    return _layered(found)


def root_mean(errors: Iterable[float]) -> float:
    """The root of the mean square."""
    squares = [x * x for x in errors]
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0


def _way(scaled: Scaled) -> str:
    return "ones" if scaled.setting is None else scaled.how


def _ratio(after: float, before: float) -> Html:
    return Html(f"{after / before:.2f}") if before else Html("–")


def _times(channels: Channels | None) -> Html:
    return Html("–") if channels is None else Html(f"{channels.peak:#.3g}")


def _named(channels: Channels) -> str:
    return ", ".join(f"{at} ({size:.3g})" for at, size in channels.largest)

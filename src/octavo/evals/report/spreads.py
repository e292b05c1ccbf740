"""What the page's sections show on how weights, codes and scales lie, and the table of all tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from octavo.evals.report import pictures
from octavo.evals.report.cells import Table, number, percent, size
from octavo.evals.report.findings import I64, CodeSteps, ModelFindings, TensorFindings, by_kind
from octavo.evals.report.sections import Parts

MOST_PANELS = 12


def weights(model: ModelFindings) -> Parts | None:
    """How weights of each kind of tensor are spread, as histograms and as a table."""
    members_of = _largest(by_kind(model.matrices))
    counts = {kind: _sum(t.weights.counts for t in members) for kind, members in members_of.items()}
    rows = []
    for kind, members in members_of.items():
        peak = max(members, key=lambda t: _ratio(t.weights.largest, t.weights.rms))
        seen = sum(int(t.weights.counts.sum()) + t.weights.outside for t in members)
        rms = [t.weights.rms for t in members]
        rows.append(
            [kind, f"{seen:,}", number(min(rms)), number(max(rms)),
             number(_ratio(peak.weights.largest, peak.weights.rms), 3), peak.name,
             percent(sum(t.weights.outside for t in members) / max(1, seen), 3)]
        )
    headings = [
        "kind",
        "values seen",
        "least rms",
        "largest rms",
        "largest weight / rms",
        "which is in",
        "beyond 8 rms",
    ]
    if not rows:
        return None
    return {
        "picture": pictures.weights_picture(counts),
        "table": Table("Weights by kind of tensor", headings, rows, numbers=(1, 2, 3, 4, 6)),
    }


def codes(model: ModelFindings) -> Parts | None:
    """How often each code of a type is used, and how many bits codes carry."""
    by_type: dict[str, list[I64]] = {}
    for t in model.tensors:
        if t.codes is not None:
            by_type.setdefault(t.type, []).append(t.codes)
    counts = {kind: _sum(found) for kind, found in list(by_type.items())[:MOST_PANELS]}
    if not counts:
        return None
    rows = [
        [kind, str(len(found)), number(pictures.entropy(found)), number(math.log2(len(found))),
         str(int((found == 0).sum())), percent(float(found[0]) / found.sum(), 3),
         percent(float(found[-1]) / found.sum(), 3)]
        for kind, found in counts.items()
    ]
    headings = ["type", "codes", "entropy, bits", "of", "never used", "lowest code", "highest code"]
    return {
        "picture": pictures.codes_picture(counts),
        "table": Table("Codes by type", headings, rows, numbers=(1, 2, 3, 4, 5, 6)),
    }


def scales(model: ModelFindings) -> Parts | None:
    """The steps between codes, layer by layer and by kind of tensor."""
    known = [t for t in model.tensors if t.steps is not None]
    if not known:
        return None
    members_of = _largest(by_kind([t for t in known if t.place.layer is not None]))
    layers: dict[str, dict[int, CodeSteps]] = {}
    for kind, members in members_of.items():
        layers[kind] = {t.place.layer: t.steps for t in members if t.place.layer is not None and t.steps is not None}
    rows = []
    for kind, members in by_kind(known).items():
        steps = [t.steps for t in members if t.steps is not None]
        medians = [s.median for s in steps]
        rows.append(
            [kind, number(min(s.low for s in steps)), number(min(medians)), number(max(medians)),
             number(max(s.high for s in steps)), percent(max(s.zeros for s in steps), 3)]
        )
    headings = ["kind", "least 5 %", "least median", "largest median", "largest 95 %", "most groups at 0"]
    return {
        "picture": pictures.scales_picture(layers) if layers else None,
        "table": Table("Steps by kind of tensor", headings, rows, numbers=(1, 2, 3, 4, 5)),
    }


def tensors(model: ModelFindings) -> Table:
    """A row for every tensor."""
    rows = [
        [t.name, " × ".join(map(str, t.shape)), t.type, t.base_type or "–", size(t.nbytes),
         number(t.bits), percent(t.error), number(t.weights.rms),
         number(pictures.entropy(t.codes)) if t.codes is not None else "–",
         number(t.steps.median) if t.steps else "–"]
        for t in model.tensors
    ]
    headings = ["tensor", "shape", "type", "in the base", "size", "bits per weight",
                f"error as {model.trial}" if model.trial else "error", "rms", "entropy, bits",
                "median step"]
    return Table("Every tensor, in the order of the file", headings, rows, numbers=(4, 5, 6, 7, 8, 9))


def _largest(kinds: dict[str, list[TensorFindings]]) -> dict[str, list[TensorFindings]]:
    """At most `MOST_PANELS` kinds, those with the most bytes, in their order."""
    kept = sorted(kinds, key=lambda kind: -sum(t.nbytes for t in kinds[kind]))[:MOST_PANELS]
    return {kind: members for kind, members in kinds.items() if kind in kept}


def _sum(counts: Iterable[I64]) -> I64:
    total: I64 = np.sum(list(counts), axis=0)
    return total


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0

"""Running a model stage by stage over samples of tokens: what products are given, and weights replaced on the way."""

from octavo.evals.layerwise.inputs import ProductInput
from octavo.evals.layerwise.open_stage import OpenStage
from octavo.evals.layerwise.runner import Layerwise
from octavo.evals.layerwise.samples import Samples
from octavo.evals.layerwise.values import Journal, note_kept, remove_journal

__all__ = [
    "Journal",
    "Layerwise",
    "OpenStage",
    "ProductInput",
    "Samples",
    "note_kept",
    "remove_journal",
]

"""Running a model stage by stage over samples of tokens: what products are given, and weights replaced on the way.

Comes in: a model, backends and samples. Goes out: stages, each with the inputs of its products before it is run. Begin
with `layerwise.py`, which keeps values from stage to stage; `open_stage.py` is what products are given, and
`journal.py` keeps what is done.
"""

from octavo.calibrate.runner.journal import Journal
from octavo.calibrate.runner.layerwise import Layerwise
from octavo.calibrate.runner.open_stage import OpenStage, ProductInput
from octavo.calibrate.runner.samples import Samples

__all__ = ["Journal", "Layerwise", "OpenStage", "ProductInput", "Samples"]

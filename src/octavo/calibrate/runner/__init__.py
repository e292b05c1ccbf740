"""Running a model stage by stage over samples of tokens: what products are given, and weights replaced on the way.

Comes in: a model, backends and samples. Goes out: stages, each with the inputs of its products before it is run. Begin
with `layerwise.py`; `product_input.py` is what a product is given, `kept_values.py` keeps values from stage to stage,
and `journal.py` says which stages are done.
"""

from octavo.calibrate.runner.journal import Journal
from octavo.calibrate.runner.layerwise import Layerwise
from octavo.calibrate.runner.open_stage import OpenStage
from octavo.calibrate.runner.product_input import ProductInput
from octavo.calibrate.runner.samples import Samples

__all__ = ["Journal", "Layerwise", "OpenStage", "ProductInput", "Samples"]

"""Ops on each value by itself, an expression each, which every backend compiles with its own functions.

In: a function of values and numbers below `@pointwise`. Out: `POINTWISE`, from which builder, backends, folds and op
cases take what they need. Begin with `expression`. All modules of this folder are imported: a new op is a new file.
"""

import importlib
import pkgutil

from octavo.graph.pointwise.expression import POINTWISE, Pointwise, pointwise

__all__ = ["POINTWISE", "Pointwise", "find_ops", "pointwise"]


def find_ops() -> None:
    """Import the modules of this folder, whose ops are known from then on."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)


find_ops()

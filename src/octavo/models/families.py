"""Where Octavo's own architectures are: modules of the families' folders, each named as its architecture."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache

from octavo.models import dense, encoder, hybrid, moe, recurrent


@cache
def own_modules() -> Mapping[str, str]:
    """Dotted names of modules by their last part. None is imported."""
    families = (dense, moe, hybrid, recurrent, encoder)
    found = (m.name for f in families for m in pkgutil.iter_modules(f.__path__, f"{f.__name__}."))
    return {name.rpartition(".")[2]: name for name in found}

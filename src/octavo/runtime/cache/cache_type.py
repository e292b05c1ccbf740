"""Whether a model's keys and values can be kept in a type of the cache."""

from __future__ import annotations

from octavo.errors import UsageError
from octavo.formats.cache import CACHE_FORMATS
from octavo.graph.builder import CacheType


def require_heads(cache_type: CacheType, dim: int) -> None:
    """Raise UsageError unless heads of `dim` values can be kept so."""
    kept = CACHE_FORMATS[cache_type]
    if not kept.fits(dim):
        kind = f"{'an' if cache_type.startswith('i') else 'a'} {cache_type} cache"
        raise UsageError(f"{kind} needs heads of a multiple of {kept.group} values; these have {dim}")

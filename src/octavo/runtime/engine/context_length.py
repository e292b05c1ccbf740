"""How long a context may be: what the model was made for, and no longer than its sliding window."""

from __future__ import annotations

import logging

from octavo.errors import UsageError
from octavo.models import ModelSpec

log = logging.getLogger("octavo")

DEFAULT_CONTEXT = 4096


def default_context(model: ModelSpec) -> int:
    """The context where none is asked for; a log line where a sliding window makes it shorter."""
    hp, most = model.hparams, min(model.hparams.n_ctx_train, DEFAULT_CONTEXT)
    if hp.n_ctx_most < most:
        log.info("%s: a context of %d tokens, its sliding window", model.file.path, hp.n_ctx_most)
    return min(most, hp.n_ctx_most)


def context_of(model: ModelSpec, n_ctx: int | None) -> int:
    """The context that was asked for: None is the default, 0 as long as the model can have it here."""
    return default_context(model) if n_ctx is None else n_ctx or model.hparams.n_ctx_most


def require_context(model: ModelSpec, n_ctx: int) -> None:
    """Raises UsageError for a context that is longer than the model can have here."""
    hp, most = model.hparams, model.hparams.n_ctx_most
    if n_ctx <= most:
        return
    if most < hp.n_ctx_train:
        why = f"the model has a sliding window of {most} tokens, which no longer context is computed with"
    else:
        why = f"the model was made for {most} tokens"
    raise UsageError(f"n_ctx is {n_ctx}, but {why} (allowed: 1 to {most})", argument="n_ctx")

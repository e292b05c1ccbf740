"""In words where drafts of a model's replies come from."""

from __future__ import annotations

from octavo.io.hub.download_cache import shown_name
from octavo.models.shared.eagle3 import Eagle3Head
from octavo.runtime.engine.engine import Engine
from octavo.sizes import size


def sources(engine: Engine, head: Engine | None, draft: Engine | None) -> str:
    """As "grammars, the text, replies before, demo-mtp.gguf (MTP head, 0.9 MB)"; "none" where nothing drafts."""
    if engine.pool.states is not None and engine.on_device:
        return "none, as there are layers with states on a GPU"
    lookup = engine.config.speculate in ("auto", "lookup")
    found = ["the text", "replies before"] if lookup else []
    if head is not None:
        own, kind = head.model.file is engine.model.file, "EAGLE-3" if isinstance(head.model, Eagle3Head) else "MTP"
        found.append(f"the model's own layer ({kind})" if own else _named(head, f"{kind} head"))
    if draft is not None:
        found.append(_named(draft, "draft model"))
    return ", ".join(["grammars", *found]) if found else "none"


def _named(engine: Engine, what: str) -> str:
    file = engine.model.file
    return f"{shown_name(file.path)} ({what}, {size(file.nbytes)})"

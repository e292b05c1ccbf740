"""Where drafts of a model's replies come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo.io.gguf import GGUFFile
from octavo.io.hub.download_cache import shown_name
from octavo.runtime.engine.engine import Engine
from octavo.runtime.speculation.drafter import MOST_TOKENS
from octavo.runtime.speculation.layered_drafter import most_tokens
from octavo.sizes import size

Kind = Literal["grammar", "text", "replies", "mtp", "eagle3", "draft"]
WORDS: dict[Kind, str] = {
    "grammar": "grammars", "text": "the text", "replies": "replies before", "mtp": "MTP head", "eagle3": "EAGLE-3 head",
    "draft": "draft model",
}


@dataclass(frozen=True)
class DraftSource:
    """One of them.

    tokens  of a draft at the most
    file    of the head or draft model; None for what has none
    own     it is a layer in the model's own file
    """

    kind: Kind
    tokens: int = MOST_TOKENS
    file: GGUFFile | None = None
    own: bool = False

    @property
    def words(self) -> str:
        what = WORDS[self.kind]
        if self.own:
            return f"the model's own layer ({what.removesuffix(' head')})"
        return what if self.file is None else f"{shown_name(self.file.path)} ({what}, {size(self.file.nbytes)})"


def draft_sources(engine: Engine, head: Engine | None, draft: Engine | None) -> list[DraftSource]:
    """All of a model's, the first to be asked first; none where nothing drafts."""
    if engine.pool.states is not None and engine.on_device:  # steps of several tokens round states otherwise
        return []
    lookup = engine.config.speculate in ("auto", "lookup")
    found = [DraftSource("text"), DraftSource("replies")] if lookup else []
    if head is not None:
        from octavo.models.shared.eagle3 import Eagle3Head

        kind: Kind = "eagle3" if isinstance(head.model, Eagle3Head) else "mtp"
        found.append(DraftSource(kind, most_tokens(head), head.model.file, own=head.model.file is engine.model.file))
    if draft is not None:
        found.append(DraftSource("draft", file=draft.model.file))
    return [DraftSource("grammar"), *found] if found else []


def in_words(sources: Sequence[DraftSource]) -> str:
    """As "grammars, the text, replies before, demo-mtp.gguf (MTP head, 0.9 MB)"."""
    return ", ".join(source.words for source in sources) or "none"

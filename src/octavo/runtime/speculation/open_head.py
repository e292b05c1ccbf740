"""Opening a head beside its model: that of the model's own file, or one in a file or folder of its own."""

from __future__ import annotations

import logging
import os
from typing import Any

from octavo.errors import FileError, ModelError, OctavoError, UsageError
from octavo.graph.protocol import Backend
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.io.hub.download_cache import shown_name
from octavo.io.missing_model import require_there
from octavo.io.model_path import resolve
from octavo.models import ModelSpec, read_model
from octavo.models.shared.head import HeadSpec
from octavo.models.shared.next_layer import head_of, missing_tensor, read_next_layer
from octavo.models.shared.refusal import is_next_layer
from octavo.runtime.engine.engine import Engine
from octavo.runtime.engine.engine_config import EngineConfig, Speculate
from octavo.runtime.speculation.layered_drafter import needed_by
from octavo.runtime.speculation.open_draft import require_fit, require_memory, require_way_back
from octavo.runtime.text_embedding import is_embedding_model
from octavo.text import Tokenizer

log = logging.getLogger("octavo")


def read_head(file: GGUFFile, main: ModelSpec) -> HeadSpec | None:
    """The head in a file; None for a file that has a model.

    Raises ModelError for a head of another model, and where the model gives no hidden states.
    """
    from octavo.models.shared.eagle3 import is_eagle3, read_eagle3

    if not is_next_layer(file) and not is_eagle3(file):
        return None
    return read_eagle3(file, main) if is_eagle3(file) else read_next_layer(file, main)


def open_draft_file(path: str | os.PathLike[str], main: ModelSpec) -> GGUFFile:
    """The file of what drafts for a model, by a path or a name: of a model or a head; or a folder of either.

    Raises UsageError where nothing is there.
    """
    found = resolve(path)
    try:
        require_there(found)
    except FileError as error:
        raise UsageError(f"draft: {error}", argument="draft") from None
    if os.path.isdir(found):
        from octavo.huggingface.eagle3_folder import is_eagle3_folder, open_eagle3_folder

        if is_eagle3_folder(found):
            return open_eagle3_folder(found, main.hparams)
    return open_model_file(found)


def require_is_head(file: GGUFFile, wanted: Speculate) -> None:
    """Raise UsageError where a head is wanted and the file that is to draft has a model."""
    if wanted == "mtp":
        problem = f"speculate is mtp, but {file.path} is a draft model, no head (allowed: auto, draft)"
        raise UsageError(problem, argument="speculate")


def require_draft(
    path: str | os.PathLike[str], main: ModelSpec, vocabulary: Tokenizer, wanted: Speculate = "draft"
) -> None:
    """Raise OctavoError for a draft model, or a head, that can't draft for a model, whatever is free."""
    if is_embedding_model(main):
        raise UsageError("draft: there is no draft model for a model that makes embeddings", argument="draft")
    with open_draft_file(path, main) as file:
        if read_head(file, main) is None:
            require_is_head(file, wanted)
            require_fit(read_model(file), vocabulary)


def own_head(main: ModelSpec, config: EngineConfig, backend: Backend) -> HeadSpec | None:
    """The head in a model's own file, where `config.speculate` is auto or mtp; None where there is none.

    With auto one that can't be used is left out, which a line in the log tells; with mtp it raises what `require_head`
    does, or ModelError where there is none.
    """
    asked = config.speculate == "mtp"
    if not asked and (config.speculate != "auto" or config.embeds or is_embedding_model(main)):
        return None
    head, missing = head_of(main), missing_tensor(main)
    try:
        if missing is not None:
            whole = 0 if head is None else head.count
            problem = f"is missing, so that {whole} of {main.hparams.n_next} layers guess tokens"
            fault = ModelError(problem, file=main.file.path, field=f"tensor {missing}")
            if head is None:
                raise fault
            log.warning("%s", fault)
        if head is None and asked:
            problem = "has no layer that guesses tokens (MTP), or none that can be computed"
            problem += "; --draft HEAD (draft=HEAD) takes a head in a file of its own"
            raise main.file.head_fault or ModelError(problem, file=main.file.path)
        if head is not None:
            require_head(head, config, backend)
        return head
    except OctavoError as error:
        if asked:
            raise
        log.warning("%s: its layer that guesses tokens is left out: %s", shown_name(main.file.path), error)
        return None


def require_head(head: HeadSpec, config: EngineConfig, backend: Backend) -> None:
    """Raise UsageError or ModelError where the engine of a head's model, first on this backend, can have no head."""
    main, ranks = head.main, 1 if backend.communicator is None else backend.communicator.ranks
    if config.embeds or is_embedding_model(main):
        raise UsageError("draft: there is no head for a model that makes embeddings", argument="draft")
    stages = config.pipeline if isinstance(config.pipeline, int) else len(config.pipeline)
    for option, parts in (("tensor_parallel", ranks), ("pipeline", stages)):
        if parts > 1:
            otherwise = "speculate lookup" if head.file is main.file else "no draft"
            problem = f"{option} is {parts}, but a head computes with a whole model (allowed: 1, or {otherwise})"
            raise UsageError(problem, argument=option)
    require_way_back(main, backend)
    main.graph(tap=head.tap)


def open_head(head: HeadSpec, main: Engine) -> Engine:
    """The engine of a head, of its first layer if there are several, with a cache for as many sequences as its model's,
    whose weights are not read yet.

    Raises HostMemoryError, or BackendError of a GPU's memory, where it does not fit beside the model.
    """
    config: dict[str, Any] = {name: getattr(main.config, name) for name in ("max_sequences", "cache_type", "n_batch")}
    config |= {"n_ctx": main.n_ctx, "n_pages": main.pool.n_pages}
    engine = Engine(head, main.backends, EngineConfig(**config), shares=main)
    require_memory(main, needed_by(engine), "its head")
    return engine

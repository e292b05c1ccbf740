"""Whether a model can be served with its settings, as far as its file's head tells: before anybody asks for it."""

from __future__ import annotations

from octavo.router.catalog import KnownModel


def require_settings(known: KnownModel) -> None:
    """Raise OctavoError for settings that the model's server would refuse: context, cache, adapters, template, device.

    No weights are read, and nothing is made ready on a device.
    """
    from octavo.huggingface import open_model_file
    from octavo.io.model_path import resolve
    from octavo.models import read_model
    from octavo.replicas.local import require_gpu
    from octavo.runtime.argument_checks import integer
    from octavo.runtime.cache.page_pool import page_bytes
    from octavo.runtime.engine.engine_limits import context_of, require_context
    from octavo.runtime.lora_adapters import with_adapters
    from octavo.server.routes.template_variables import usual_variables
    from octavo.text import Tokenizer

    engine, server = known.engine, known.server
    if engine.device not in ("auto", "cpu", "reference"):
        require_gpu()
    with open_model_file(resolve(engine.path)) as file:
        spec = with_adapters(read_model(file), engine.lora)
        require_context(spec, context_of(spec, engine.n_ctx))
        if engine.kv_memory is not None:
            integer("kv_memory", engine.kv_memory, page_bytes(spec.graph(cache_type=engine.cache_type)))
        if server.template_text or server.chat_template or server.variables or server.reasoning != "auto":
            tokenizer = Tokenizer.from_gguf(file)
            if server.template_text is not None:
                template = tokenizer.own_template(server.template_text)
            else:
                template = tokenizer.chat_template(server.chat_template)
            usual_variables(server.variables, server.reasoning, [template])


def require_draft_fits(known: KnownModel) -> None:
    """Raise OctavoError for a draft model with which the model can't be loaded; see `open_draft`."""
    from octavo.huggingface import open_model_file
    from octavo.io.model_path import resolve
    from octavo.models import read_model
    from octavo.runtime.engine.engine_config import asked_speculation
    from octavo.runtime.speculation.open_draft import require_undivided
    from octavo.runtime.speculation.open_head import require_draft
    from octavo.text import Tokenizer

    engine = known.engine
    if engine.draft is not None:
        require_undivided(engine.tensor_parallel)
        wanted = asked_speculation(engine.speculate, engine.draft)
        with open_model_file(resolve(engine.path)) as file:
            require_draft(engine.draft, read_model(file), Tokenizer.from_gguf(file), wanted)

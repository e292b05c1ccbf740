"""Fields that would change a reply and are not done: with which values they change nothing, by families of requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Rule = tuple[str, Callable[[Any], bool]]
"""What is allowed, in words, and whether a value is."""
Rules = Mapping[str, Rule]

ABSENT: Rule = ("none", lambda value: value in ([], {}, "", False))
"""For what there is no way to do."""


def only(*values: Any) -> Rule:
    """Values that leave a reply as it is."""
    return " or ".join(map(json.dumps, values)), lambda value: value in values and not isinstance(value, bool | list)


def up_to(most: float) -> Rule:
    """Numbers that leave a reply as it is."""
    return f"{most} or less", lambda value: isinstance(value, int | float) and value <= most


FALSE: Rule = ("false", lambda value: value is False)
TRUE: Rule = ("true", lambda value: value is True)
SAMPLING: Rules = {
    "dynatemp_range": only(0), "mirostat": only(0), "adaptive_target": up_to(-1e-9), "min_keep": up_to(1),
    "n_indent": up_to(0), "image_data": ABSENT, "grammar_lazy": FALSE,
    "preserved_tokens": ABSENT, "use_beam_search": FALSE, "bad_words": ABSENT, "allowed_token_ids": ABSENT,
    "include_stop_str_in_output": FALSE, "skip_special_tokens": TRUE, "logits_processors": ABSENT,
    "prompt_logprobs": ("none", lambda value: False),
}
"""Of llama-server and vLLM: what chooses tokens, or says which are shown."""
TEMPLATE: Rules = {"chat_template": ("none: the model's own is used", lambda value: False)}
OPENAI: Rules = {
    **SAMPLING, "moderation": ABSENT, "post_sampling_probs": FALSE, "verbose": FALSE,
    "n_probs": ("0: logprobs and top_logprobs say how likely tokens are", lambda value: value == 0),
}
CHAT: Rules = {
    **OPENAI, **TEMPLATE, "audio": ABSENT, "modalities": ('["text"]', lambda value: value == ["text"]),
    "web_search_options": ABSENT, "verbosity": only("medium"), "documents": ABSENT, "echo": FALSE,
}
COMPLETIONS: Rules = {**OPENAI}
FORMS: Rules = {
    **dict.fromkeys(("response_format", "grammar", "json_schema", "structured_outputs", "guided_json", "guided_regex",
                     "guided_choice", "guided_grammar"), ("none: text.format, or output_config.format", ABSENT[1])),
    "n": only(1), "logit_bias": ABSENT,
}
"""Of chats, which routes of other names and forms don't have."""
KEPT: Rule = ("none: conversations go on by previous_response_id, or as a whole by input", ABSENT[1])
RESPONSES: Rules = {
    **SAMPLING, **TEMPLATE, **FORMS, "conversation": KEPT, "prompt": KEPT,
    "context_management": ABSENT, "moderation": ABSENT, "personality": ABSENT, "image": ABSENT,
    "access_programs": ABSENT,
}
NATIVE: Rules = SAMPLING
INFILL: Rules = {name: rule for name, rule in NATIVE.items() if name != "n_indent"}
"""Editors send it with each request. It ends a reply earlier; without it the reply is the same as far as it goes."""
EMBEDDINGS: Rules = {"embd_normalize": only(2)}
RERANK: Rules = {
    "rank_fields": ABSENT, "max_tokens_per_doc": ABSENT, "max_chunks_per_doc": only(1), "softmax": FALSE,
    "truncate_prompt_tokens": ABSENT, "truncate": FALSE, "instruction": ABSENT,
}
KEEPS_ALL = {"type": "clear_thinking_20251015", "keep": "all"}
MESSAGES: Rules = {
    **SAMPLING, **TEMPLATE, **FORMS, "container": ABSENT, "mcp_servers": ABSENT, "thread": ABSENT,
    "compaction": ABSENT,
    "context_management": (
        f"edits that keep all: {json.dumps(KEEPS_ALL)}",
        lambda value: isinstance(value, dict) and all(one == KEEPS_ALL for one in value.get("edits") or ()),
    ),
}
OLLAMA_IMAGES: Rules = {"images": ("none: this model takes text", ABSENT[1])}
OLLAMA: Rules = {"_debug_render_only": FALSE}
OLLAMA_GENERATE: Rules = {
    **OLLAMA, **OLLAMA_IMAGES, "template": ("none: the model's own is used", ABSENT[1]),
    **dict.fromkeys(("width", "height", "steps"), ("none: this model makes text", ABSENT[1])),
}
OLLAMA_OPTIONS: Rules = {**SAMPLING, "tfs_z": only(1), "penalize_newline": TRUE}


def refuse(rules: Rules, body: Mapping[str, Any]) -> None:
    """Raises ValueError for a field that would change a reply."""
    for name in sorted(rules.keys() & body.keys()):
        allowed, harmless = rules[name]
        value = body[name]
        if value is not None and not harmless(value):
            why = f": {allowed.removeprefix('none: ')}" if allowed.startswith("none: ") else f" (allowed: {allowed})"
            raise ValueError(f"{name}: {json.dumps(value)[:60]} is not supported{why}")

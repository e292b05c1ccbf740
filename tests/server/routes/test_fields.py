"""Every field of OpenAI's, Anthropic's and llama-server's requests: it is done, refused by name, or cannot matter."""

from __future__ import annotations

import json
import re
from typing import Any, get_type_hints

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import input_token_count_params, response_create_params

from octavo.runtime.output.thinking import Thinking
from octavo.server.generation.request import GenerationRequest, sampling_of
from octavo.server.routes.anthropic_schema import CountRequest, MessagesRequest
from octavo.server.routes.llama_server_schema import NativeRequest
from octavo.server.routes.ollama_schema import (
    MEANINGLESS,
    OllamaChatRequest,
    OllamaGenerateRequest,
    Options,
)
from octavo.server.routes.responses_schema import ResponsesRequest
from octavo.server.routes.schema import Body, ChatRequest, CompletionRequest, EmbeddingRequest, Sampling
from tests.server.constraints.test_numbers import text_and_tokens
from tests.server.live_server import Server

WHO = ("metadata", "user", "safety_identifier", "service_tier", "user_profile_id", "workspace_id", "inference_geo")
KEEPING = ("store", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "cache_control")
HARMLESS: dict[str, str] = {
    **dict.fromkeys(WHO, "who asks, where, and at what price"),
    **dict.fromkeys(KEEPING, "what a provider keeps: nothing is kept here but prompts, with the same replies"),
    "prediction": "a guess of the reply, which makes it no other one",
    "background_options": "of background, which is refused",
    "max_tool_calls": "of tools that a provider runs, of which there are none",
    "truncation": "of input that does not fit, which is a 400 that says so",
    "betas": "a header", "speed": "how fast it is", "diagnostics": "of a provider's cache", "billing_policy": "prices",
    "fallbacks": "of models that decline", "fallback_credit_token": "of fallbacks",
    "cache_prompt": "replies are the same with the cache and without",
    "id_slot": "places of a step are not fixed things",
    "n_cache_reuse": "as cache_prompt", "n_keep": "of contexts that are shifted, which none is",
    "n_discard": "as n_keep", "sse_ping_interval": "comments of a stream",
    "backend_sampling": "where tokens are chosen",
    "verbose": "on /completion nothing differs",
    "dynatemp_exponent": "of dynatemp_range",
    **dict.fromkeys(("mirostat_tau", "mirostat_eta"), "of mirostat"), "adaptive_decay": "of adaptive_target",
    **dict.fromkeys(("reasoning_budget_start_tag", "reasoning_budget_end_tags", "reasoning_budget_end_tag",
                     "reasoning_control"), "of reasoning_budget_tokens"),
    "grammar_triggers": "of grammar_lazy",
    **dict.fromkeys(("chat_format", "generation_prompt", "parse_tool_calls", "chat_parser", "reasoning_format",
                     "continue_final_message", "echo"), "of chats: replies of /completion are text as it comes"),
    "stream_options": "of OpenAI's routes",
    **dict.fromkeys(("truncate", "shift"), "of what does not fit, which is a 400 that says so"),
    **dict.fromkeys(MEANINGLESS, "of Ollama's options: of how a model is loaded, or of what is refused"),
}
LLAMA = """verbose timings_per_token stream stream_options cache_prompt return_tokens return_progress sse_ping_interval
n_predict max_completion_tokens max_tokens n_indent n_keep n_discard n_cmpl n n_cache_reuse t_max_predict_ms
response_fields top_k top_p min_p top_n_sigma xtc_probability xtc_threshold typical_p temperature dynatemp_range
dynatemp_exponent repeat_last_n repeat_penalty frequency_penalty presence_penalty dry_multiplier dry_base
dry_allowed_length dry_penalty_last_n mirostat mirostat_tau mirostat_eta adaptive_target adaptive_decay seed n_probs
logprobs min_keep backend_sampling post_sampling_probs lora dry_sequence_breakers json_schema grammar grammar_lazy
chat_format reasoning_format generation_prompt parse_tool_calls chat_parser continue_final_message echo
preserved_tokens grammar_triggers reasoning_control reasoning_budget_tokens reasoning_budget_start_tag
reasoning_budget_end_tags reasoning_budget_end_tag reasoning_budget_message logit_bias ignore_eos stop samplers
id_slot prompt image_data""".split()
"""Fields of llama-server's /completion, from its schema (tools/server/server-schema.cpp)."""
LLAMA_CHAT = """messages tools tool_choice parallel_tool_calls response_format json_schema grammar stop stream
add_generation_prompt chat_template_kwargs reasoning_format reasoning_effort thinking_budget_tokens
reasoning_budget_tokens continue_final_message logprobs top_logprobs top_k top_p min_p temperature seed n_predict
repeat_penalty repeat_last_n samplers return_progress timings_per_token lora n_probs post_sampling_probs verbose
cache_prompt ignore_eos logit_bias""".split()
"""What its chats read of these, and what is theirs alone."""
OLLAMA_CHAT = """model messages stream format keep_alive tools options think truncate shift _debug_render_only logprobs
top_logprobs""".split()
"""Fields of Ollama's /api/chat, from api/types.go, as are those that follow."""
OLLAMA_GENERATE = """model prompt suffix system template context stream raw format keep_alive images options think
truncate shift _debug_render_only logprobs top_logprobs width height steps""".split()
OLLAMA_OPTIONS = """num_ctx num_batch num_gpu main_gpu use_mmap num_thread draft_num_predict num_keep seed num_predict
top_k top_p min_p typical_p repeat_last_n temperature repeat_penalty presence_penalty frequency_penalty stop numa
low_vram f16_kv logits_all vocab_only use_mlock embedding_only tfs_z mirostat mirostat_tau mirostat_eta
penalize_newline""".split()
FAMILIES: list[tuple[type[Body], Any]] = [
    (ChatRequest, chat_create_params.CompletionCreateParamsBase), (ChatRequest, LLAMA_CHAT),
    (CompletionRequest, completion_create_params.CompletionCreateParamsBase),
    (EmbeddingRequest, embedding_create_params.EmbeddingCreateParams),
    (ResponsesRequest, response_create_params.ResponseCreateParamsBase),
    (ResponsesRequest, input_token_count_params.InputTokenCountParams),
    (MessagesRequest, message_create_params.MessageCreateParamsBase),
    (MessagesRequest, beta_create_params.MessageCreateParamsBase),
    (CountRequest, message_count_tokens_params.MessageCountTokensParams), (NativeRequest, LLAMA),
    (OllamaChatRequest, OLLAMA_CHAT), (OllamaGenerateRequest, OLLAMA_GENERATE), (Options, OLLAMA_OPTIONS),
]


@pytest.mark.parametrize(("kind", "fields"), FAMILIES, ids=lambda one: getattr(one, "__name__", "llama-server"))
def test_every_field_is_done_or_refused_or_cannot_matter(kind: type[Body], fields: Any) -> None:
    names = fields if isinstance(fields, list) else get_type_hints(fields)
    done, refused = set(kind.model_fields), set(kind.refuses)
    assert not done & refused
    assert not {name for name in names if name not in done | refused | set(HARMLESS)}


ASK: list[Any] = [{"role": "user", "content": "Hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 1}, "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/responses": {"input": "x", "max_output_tokens": 1}, "/v1/messages": {"messages": ASK, "max_tokens": 1},
    "/completion": {"prompt": "x", "n_predict": 1},
}
EVERYWHERE: list[tuple[str, Any, Any]] = [
    ("lora", [{"id": 0, "scale": 1}], []), ("dynatemp_range", 0.5, 0.0), ("mirostat", 2, 0),
    ("adaptive_target", 0.3, -1.0), ("min_keep", 5, 0), ("n_indent", 2, 0), ("preserved_tokens", ["<a>"], []),
    ("grammar_lazy", True, False), ("bad_words", ["x"], []),
    ("samplers", ["temperature", "top_k"], ["dry", "top_k", "temperature"]), ("samplers", "tk", "edskypmxt"),
    ("samplers", ["infill"], ["penalties"]), ("samplers", 5, None),
]
SOME: list[tuple[str, str, Any, Any]] = [
    ("/v1/chat/completions", "modalities", ["text", "audio"], ["text"]),
    ("/v1/chat/completions", "audio", {"voice": "x"}, None), ("/v1/chat/completions", "verbosity", "low", "medium"),
    ("/v1/chat/completions", "web_search_options", {"a": 1}, None),
    ("/v1/chat/completions", "post_sampling_probs", True, False), ("/v1/chat/completions", "verbose", True, False),
    ("/v1/chat/completions", "chat_template", "{{ 1 }}", None),
    ("/v1/completions", "n_probs", 3, 0),
    ("/v1/responses", "conversation", "conv_1", None),
    ("/v1/responses", "context_management", [{"type": "compaction"}], []), ("/v1/responses", "grammar", "x", None),
    ("/v1/responses", "text", {"verbosity": "low"}, {"verbosity": "medium"}),
    ("/v1/responses", "reasoning", {"mode": "pro"}, {"mode": "standard"}), ("/v1/responses", "n", 2, 1),
    ("/v1/messages", "container", "c", None), ("/v1/messages", "mcp_servers", [{"url": "x"}], []),
    ("/v1/messages", "context_management", {"edits": [{"type": "clear_tool_uses_20250919"}]},
     {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    ("/v1/messages", "context_management", [], {}),
    ("/v1/messages", "output_config", {"task_budget": {"type": "tokens", "total": 9}}, {"effort": "low"}),
    ("/completion", "image_data", [{"id": 1}], []), ("/completion", "reasoning_budget_tokens", 0, -1),
    ("/v1/completions", "thinking_budget_tokens", 64, -1),
]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("name", "wrong", "right"), EVERYWHERE)
def test_what_would_change_any_reply_is_refused(server: Server, path: str, name: str, wrong: Any, right: Any) -> None:
    require_refused(server, path, name, wrong, right)


@pytest.mark.parametrize(("path", "name", "wrong", "right"), SOME)
def test_what_would_change_a_reply_is_refused(server: Server, path: str, name: str, wrong: Any, right: Any) -> None:
    require_refused(server, path, name, wrong, right)


def require_refused(server: Server, path: str, name: str, wrong: Any, right: Any) -> None:
    status, _, answer = server.send("POST", path, {**BODIES[path], name: wrong})
    error = json.loads(answer)["error"]
    assert status == 400
    assert name in error["message"]
    assert not re.search(r"True|False|None|[ \[{]'", error["message"]), error  # JSON's words, and its quotation marks
    assert error.get("param", name) == name
    for value in (right, None):
        status, _, answer = server.send("POST", path, {**BODIES[path], name: value})
        assert status == 200, answer


@pytest.mark.parametrize("path", BODIES)
def test_settings_of_the_sampler_count_on_all_routes(server: Server, path: str) -> None:
    tokens = server.post("/tokenize", content=" a b c d e f g h i j k l m n o p q r s t u v w x y z")["tokens"]
    ends = sorted({*tokens, *range(256)})
    body = {**BODIES[path], "stop_token_ids": ends, "seed": 1, "min_p": 0.0, "repeat_penalty": 1.1, "top_k": 1}
    body = {name: 64 if name in ("max_tokens", "max_output_tokens", "n_predict") else v for name, v in body.items()}
    without = {name: value for name, value in body.items() if name != "stop_token_ids"}
    assert text_and_tokens(server.post(path, **body))[1] < text_and_tokens(server.post(path, **without))[1]


def test_samplers_that_are_not_named_are_off(server: Server) -> None:
    settings = server.post(
        "/completion", prompt="x", n_predict=1, samplers=["top_k"], top_k=1, temperature=3.0, min_p=0.5,
        presence_penalty=1.0,
    )["generation_settings"]
    assert (settings["top_k"], settings["temperature"], settings["min_p"]) == (1, 1, 0)
    assert (settings["top_p"], settings["presence_penalty"], settings["repeat_penalty"]) == (1, 0, 1)


def test_thinking_that_stays_in_the_text(server: Server) -> None:
    service = server.service
    sampling = sampling_of(service, Sampling.model_validate({}), {})
    tokens = service.tokenizer.encode("<think>a</think>b", add_special=False, parse_special=False)
    found = []
    for shows in (False, True):
        thinking = Thinking("<think>", "</think>")
        generation = GenerationRequest([[1]], sampling, 0, thinking=thinking, shows_thinking=shows)
        detail = generation.parser(service, [1])
        deltas = [*detail.push(tokens), *detail.finish()]
        found.append(("".join(d.content for d in deltas), "".join(d.reasoning for d in deltas)))
    assert found == [("b", "a"), ("<think>a</think>b", "")]


def test_fields_of_a_completion_that_are_asked_for(server: Server) -> None:
    body = {"prompt": "12 times 7 is", "n_predict": 4, "temperature": 0}
    whole = server.post("/completion", **body)
    fields = ["content", "generation_settings/n_predict", "prompt", "nothing", "timings/nothing/more"]
    assert server.post("/completion", **body, response_fields=fields) == {
        "content": whole["content"], "generation_settings/n_predict": 4, "prompt": whole["prompt"],
    }
    assert server.post("/completion", **body, response_fields=[]).keys() == whole.keys()


def test_several_replies_to_a_completion(server: Server) -> None:
    body = {"prompt": "12 times 7 is", "n_predict": 3, "temperature": 0}
    one = server.post("/completion", **body)
    for name in ("n", "n_cmpl"):
        several = server.post("/completion", **body, **{name: 2})
        assert [(reply["index"], reply["content"], reply["prompt"]) for reply in several] == [
            (i, one["content"], one["prompt"]) for i in range(2)
        ]

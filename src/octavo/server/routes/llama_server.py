"""llama-server's own routes: /completion, /infill, /tokenize, /detokenize, /apply-template, /props and others."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import exp
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from octavo.runtime.output.reply import LogProbs
from octavo.server.constraints.response_format import effort_of, held, usable_grammar
from octavo.server.engine.engine_protocol import Prefill, SlotKind
from octavo.server.generation.handle import ChoiceState, CompletionOutput, RequestHandle
from octavo.server.generation.logprobs import finite
from octavo.server.generation.request import (
    GenerationRequest,
    most_tokens,
    refuse_budget,
    sampling_of,
    seed_of,
    shows_progress,
    stops_of,
    turn_of,
)
from octavo.server.generation.service import Service
from octavo.server.http.api_errors import ApiError, bad
from octavo.server.http.background import in_thread_if_long
from octavo.server.http.sse import event, to_json
from octavo.server.routes.answer import answered, body_of, json_response, key_of, service_of, unless_left
from octavo.server.routes.chat import encode_chat_text, size_of_messages
from octavo.server.routes.completions import effort
from octavo.server.routes.infill import infill_prompt
from octavo.server.routes.llama_server_schema import (
    DetokenizeRequest,
    InfillRequest,
    NativeRequest,
    SlotRequest,
    TemplateRequest,
    TokenizeRequest,
)
from octavo.server.routes.schema import MOST_PROMPTS, Sampling

SLOT_ACTIONS: tuple[SlotKind, ...] = get_args(SlotKind)
STOP_TYPES = {"length": "limit", "context": "limit", "time": "limit"}


async def _job_of(service: Service, body: NativeRequest, key: str) -> GenerationRequest:
    """What a request of /completion comes to. Raises ApiError, OctavoError."""
    generation = await in_thread_if_long(effort(body), _request_without_grammar, service, body, key)
    return replace(generation, grammar=await held(service, body, usable_grammar))


def _request_without_grammar(service: Service, body: NativeRequest, key: str) -> GenerationRequest:
    """The same but for its grammar. Raises ApiError, OctavoError."""
    service.require_generation()
    refuse_budget(body)
    most = most_tokens(service, body.n_predict, body.max_completion_tokens, body.max_tokens)
    sampling = sampling_of(service, body, _biases(service, body.logit_bias))
    return GenerationRequest(
        prompts=_prompts(service, body, most), sampling=sampling, seed=seed_of(service, body),
        stop=stops_of(body), max_tokens=most, logprobs=(body.n_probs or body.logprobs) or None,
        n=body.n_cmpl or body.n or 1, after_sampling=bool(body.post_sampling_probs), progress=shows_progress(body),
        cache_salt=service.cache_salt(key, body.cache_salt), slot=body.id_slot, goes_on=True,
        fills=isinstance(body, InfillRequest),
        adapters=service.adapters.of(body.model, body.lora), **turn_of(body, key),
    )


def _prompts(service: Service, body: NativeRequest, most: int | None) -> list[list[int]]:
    """The tokens of prompts, each a text, tokens, or both mixed. Raises ApiError for those that can't be computed."""
    if isinstance(body, InfillRequest):
        return [infill_prompt(service, body, most)]
    given, reply = body.prompt, most != 0
    parts: list[Any] = given if isinstance(given, list) and not _is_one(given) else [given]
    if len(parts) > MOST_PROMPTS:
        raise bad(f"there are {len(parts)} prompts (allowed: up to {MOST_PROMPTS})", "prompt")
    prompts = [_mixed(service, part if isinstance(part, list) else [part]) for part in parts]
    for prompt in prompts:
        service.require_fitting(prompt, "prompt", reply=reply)
    return prompts


def _is_one(given: list[Any]) -> bool:
    """Whether a list is one prompt, as tokens are in it, and not several."""
    return any(isinstance(part, int) for part in given)


def _mixed(service: Service, parts: Sequence[int | str]) -> list[int]:
    """The tokens of a prompt of texts and tokens. It begins as a text does where a text is what it begins with."""
    found: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            service.require_short(part, "prompt")
            found += service.tokenizer.encode(part, add_special=i == 0)
        else:
            found.append(part)
    return found


def _biases(service: Service, given: object) -> dict[int, float]:
    """llama-server's logit_bias: pairs, or a mapping, of a token or a text and a number, or false for never."""
    named = isinstance(given, dict)
    pairs = list(given.items()) if isinstance(given, dict) else given if isinstance(given, list) else []
    found: dict[int, float] = {}
    for pair in pairs:
        if len(pair) != 2 or isinstance(pair[0], bool | float) or isinstance(pair[1], str) or pair[1] is True:
            raise bad(
                f"logit_bias has {json.dumps(pair)[:60]} (allowed: a token or a text, and a number or false)",
                "logit_bias",
            )
        what, value = pair
        if named and what.isascii() and what.isdigit():
            what = int(what[:10])
        tokens = [what] if isinstance(what, int) else service.tokenizer.encode(what, add_special=False)
        bias = -100.0 if value is False else float(value)
        found |= dict.fromkeys(tokens, max(-100.0, min(100.0, bias)))
    return found


class NativeReply:
    """Writes a reply as llama-server's /completion does."""

    def __init__(self, service: Service, body: NativeRequest, handle: RequestHandle) -> None:
        self.service, self.body, self.handle = service, body, handle

    def begin(self) -> bytes:
        return b""

    def events(self, outputs: list[CompletionOutput]) -> bytes:
        written = []
        for one in outputs:
            choice, content = self.handle.choices[one.choice], _content(one)
            written += [self._part(one.choice, "", [], at) for at in one.progress]
            if content or one.logprobs:
                written.append(self._part(one.choice, content, one.tokens) | self._probabilities([one]))
            if one.finish is not None:
                written.append(self._last(one.choice, choice, "", []))
        return b"".join(event(to_json(part)) for part in written)

    def _part(self, i: int, content: str, tokens: list[int], at: Prefill | None = None) -> dict[str, Any]:
        """A piece of a stream; `at`: how far the prompt is read."""
        choice = self.handle.choices[i]
        more: dict[str, Any] = {"timings": choice.timings(at)} if self.body.timings_per_token else {}
        if at is not None:
            more["prompt_progress"] = choice.progress(at)
        return {"index": i, "content": content, "tokens": tokens, "stop": False, "id_slot": self.handle.slot,
                "tokens_predicted": choice.tokens, "tokens_evaluated": choice.n_prompt, **more}

    def end(self) -> bytes:
        return b""

    def error(self, error: ApiError) -> bytes:
        return event(to_json(error.body(native=True)))

    def whole(self, found: Sequence[Sequence[CompletionOutput]]) -> Any:
        """What is answered without a stream: an object, or for several prompts a list."""
        parts = []
        for i, outputs in enumerate(found):
            content = "".join(map(_content, outputs))
            tokens = [token for one in outputs for token in one.tokens] if self.body.return_tokens else []
            parts.append(self._last(i, self.handle.choices[i], content, tokens, outputs))
        several = len(parts) > 1 or (isinstance(self.body.prompt, list) and not _is_one(self.body.prompt))
        return parts if several else parts[0]

    def _last(
        self, i: int, choice: ChoiceState, content: str, tokens: list[int], outputs: Sequence[CompletionOutput] = ()
    ) -> dict[str, Any]:
        kind = STOP_TYPES.get(choice.end or "", "eos" if choice.stopped is None else "word")
        generation = self.handle.request
        return self._wanted({
            "index": i, "content": content, "tokens": tokens, "id_slot": self.handle.slot, "stop": True,
            "model": self.service.options.name, "tokens_predicted": choice.tokens,
            "tokens_evaluated": choice.n_prompt,
            "generation_settings": settings(generation),
            "prompt": self.service.tokenizer.decode(generation.prompts[i // generation.n]),
            "has_new_line": "\n" in content,
            "truncated": choice.end == "context", "stop_type": kind, "stopping_word": choice.stopped or "",
            "tokens_cached": choice.n_prompt + choice.tokens, "timings": choice.timings(), **choice.why(),
            **self._probabilities(outputs),
        })

    def _wanted(self, reply: dict[str, Any]) -> dict[str, Any]:
        """The fields of a reply that are asked for; those of fields within others by both names."""
        if not self.body.response_fields:
            return reply
        found: dict[str, Any] = {}
        for name in self.body.response_fields:
            value: Any = reply
            for key in name.split("/"):
                value = value.get(key, self) if isinstance(value, dict) else self
            if value is not self:
                found[name] = value
        return found

    def _probabilities(self, outputs: Sequence[CompletionOutput]) -> dict[str, Any]:
        if self.handle.request.logprobs is None or not outputs:
            return {}
        pairs = [pair for one in outputs for pair in zip(one.tokens, one.logprobs, strict=True)]
        return {"completion_probabilities": [self._probability(*pair) for pair in pairs]}

    def _probability(self, token: int, one: LogProbs) -> dict[str, Any]:
        top = [self._entry(*pair) for pair in one.likely]
        name = "top_probs" if self.handle.request.after_sampling else "top_logprobs"
        return {**self._entry(token, one.token), name: top}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        data = self.service.tokenizer.token_bytes(token)
        text = data.decode(errors="replace")
        likely = {"prob": exp(logprob)} if self.handle.request.after_sampling else {"logprob": finite(logprob)}
        return {"id": token, "token": text, "bytes": list(data), **likely}


def _content(one: CompletionOutput) -> str:
    return "".join(delta.content for delta in one.deltas)


def settings(generation: GenerationRequest) -> dict[str, Any]:
    """How tokens are chosen, by llama-server's names."""
    found = asdict(generation.sampling)
    found["logit_bias"] = [{"token": token, "bias": bias} for token, bias in generation.sampling.logit_bias.items()]
    more = {"seed": generation.seed, "stop": list(generation.stop), "n_probs": generation.logprobs or 0,
            "n_predict": -1 if generation.max_tokens is None else generation.max_tokens}
    return {**found, **more, "max_tokens": more["n_predict"]}


async def completion(request: Request) -> Response:
    """Continue a text, as llama-server does."""
    return await _completed(request, await body_of(request, NativeRequest))


async def _completed(request: Request, body: NativeRequest) -> Response:
    service = service_of(request)
    handle = RequestHandle(service, await _job_of(service, body, key_of(request)))
    reply = NativeReply(service, body, handle)
    return await answered(request, handle, reply, stream=body.stream)


async def infill(request: Request) -> Response:
    """Fill in what is between two texts, as llama-server does."""
    return await _completed(request, await body_of(request, InfillRequest))


async def tokenize(request: Request) -> Response:
    """The tokens of a text, which may be more than a prompt can have where its length alone does not tell that."""
    body, service = await body_of(request, TokenizeRequest), service_of(request)
    tokenizer, text = service.tokenizer, body.content or body.prompt or ""
    service.require_short(text, "content" if body.prompt is None else "prompt")
    special = bool(body.add_special) if body.prompt is None else body.add_special_tokens is not False
    tokens = await in_thread_if_long(len(text), tokenizer.encode, text, special, body.parse_special is not False)
    if body.prompt is not None:
        return json_response({"tokens": tokens, "count": len(tokens), "max_model_len": service.info.n_ctx})
    if not body.with_pieces:
        return json_response({"tokens": tokens})
    return json_response({"tokens": [{"id": token, "piece": _piece(tokenizer.token_bytes(token))} for token in tokens]})


async def tokenizer_info(request: Request) -> Response:
    """What vLLM tells of a tokenizer: how texts begin and end, and the chat template."""
    service = service_of(request)
    return json_response({**_ends(service, None), "chat_template": service.template.source})


def _ends(service: Service, nothing: str | None) -> dict[str, str | None]:
    """The tokens that texts begin and end with; `nothing` for one that there is not."""
    tokenizer = service.tokenizer
    ids = (("bos_token", tokenizer.bos_id), ("eos_token", tokenizer.eos_id))
    return {name: nothing if i is None else tokenizer.texts[i] for name, i in ids}


def _piece(data: bytes) -> str | list[int]:
    """A token's text, or its bytes where they are a part of a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(request: Request) -> Response:
    """The text of tokens."""
    body, tokenizer = await body_of(request, DetokenizeRequest), service_of(request).tokenizer
    if (token := max(body.tokens, default=0)) >= tokenizer.n_vocab:
        raise bad(f"tokens: token {token} is not in the vocabulary (allowed: 0 to {tokenizer.n_vocab - 1})", "tokens")
    text = await in_thread_if_long(len(body.tokens), tokenizer.decode, body.tokens)
    return json_response({"content": text, "prompt": text})


async def apply_template(request: Request) -> Response:
    """Messages as the model's template writes them."""
    body, service = await body_of(request, TemplateRequest), service_of(request)
    size = effort_of(body, size_of_messages(body.messages))
    return json_response({"prompt": await in_thread_if_long(size, encode_chat_text, service, body)})


async def props(request: Request) -> Response:
    """What is served, and with what settings."""
    service = service_of(request)
    info, options, plain = service.info, service.options, Sampling.model_validate({})
    usual = GenerationRequest((), sampling_of(service, plain, {}), options.seed, max_tokens=most_tokens(service))
    of_tools = service.tool_template
    more = {} if of_tools is None else {"chat_template_tool_use": of_tools.source}
    return json_response({
        "default_generation_settings": {"n_ctx": info.n_ctx, "params": settings(usual)},
        "total_slots": info.max_sequences, "model_path": service.path, "model_alias": options.name,
        "chat_template": service.template.source, **_ends(service, ""), "build_info": service.fingerprint,
        "modalities": {"vision": False, "audio": False}, "is_sleeping": False, **more,
        "drafts": [{"kind": one.kind, "file": one.file, "max_tokens": one.tokens} for one in info.drafts],
    })


async def slots(request: Request) -> Response:
    """What each place of a step does, as llama-server has it; here places are not fixed things."""
    service = service_of(request)
    info, running = service.info, service.client.stats.running
    return json_response([
        {"id": i, "n_ctx": info.n_ctx, "speculative": bool(info.drafts), "is_processing": i < running}
        for i in range(info.max_sequences)
    ])


async def slot_action(request: Request) -> Response:
    """Save a slot to a file, restore it, or erase it, as `action` says."""
    service, asked = service_of(request), request.query_params.get("action")
    if service.slots is None or service.options.slot_path is None:
        raise ApiError(501, "slots are saved where the server was started with --slot-save-path FOLDER",
                       type="not_supported_error")
    action = next((one for one in SLOT_ACTIONS if one == asked), None)
    if action is None:
        raise bad(f"action is {asked!r} (allowed: {', '.join(SLOT_ACTIONS)})", "action")
    number = int(text) if (text := request.path_params["number"]).isdecimal() and len(text) < 10 else -1
    slot, salt, path, name = service.slots[number], service.cache_salt(key_of(request), None), "", ""
    if action != "erase":
        name = (await body_of(request, SlotRequest)).filename
        path = os.path.join(service.options.slot_path, name)
    tokens = slot.tokens if slot.salt == salt else []
    if not tokens and action != "restore":
        raise bad(f"slot {number} holds no conversation of this client", "id_slot")
    if slot.adapters and action != "restore":
        named = ", ".join(repr(name) for name, _ in slot.adapters)
        raise bad(f"slot {number} was computed with the adapter {named} (allowed to {action}: conversations without "
                  "adapters)", "id_slot")
    done = await unless_left(request, service.client.slot(action, [] if action == "restore" else tokens, salt, path))
    if action == "erase":
        service.slots.put(number, [], salt)
        return json_response({"id_slot": number, "n_erased": done.n})
    file, timing = {"id_slot": number, "filename": name}, {f"{action}_ms": 1000 * done.seconds}
    if action == "save":
        return json_response({**file, "n_saved": done.n, "n_written": done.nbytes, "timings": timing})
    service.slots.put(number, done.tokens, salt)
    return json_response({**file, "n_restored": done.n, "n_read": done.nbytes, "timings": timing})

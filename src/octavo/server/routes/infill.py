"""Fill-in-the-middle: prompts of what is before and after a reply, by the tokens that code models have for that.

Source: `format_prompt_infill` of llama-server; with tokens for repositories and files, other files come first, as
Qwen2.5-Coder was trained with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.server.generation.service import Service
from octavo.server.http.api_errors import ApiError
from octavo.server.routes.llama_server_schema import ExtraText, InfillRequest

NEEDED = ("prefix", "suffix", "middle")
REPO, FILE = "myproject\n", "filename\n"
"""Names of the repository and of the file, where requests have none."""
BETWEEN = "\n\n--- snippet ---\n\n"
"""Before each part of another file, for models without a token for that."""
USUAL = 256
"""Tokens that are left for a reply of no limit, where a prompt has to be cut."""


def fim_tokens(service: Service) -> Mapping[str, int]:
    """The model's tokens for it, by their roles. Raises ApiError for a model that has none."""
    service.require_generation()
    found = service.tokenizer.fim
    if missing := [role for role in NEEDED if role not in found]:
        raise ApiError(
            501, f"{service.options.name} can't fill in the middle: its vocabulary has no {' and no '.join(missing)} "
            "token for that, as code models have (Qwen2.5-Coder, StarCoder2, Granite Code, CodeLlama)",
            code="infill_not_supported",
        )
    return found


def around(service: Service, prefix: Sequence[int], suffix: Sequence[int], most: int | None) -> list[int]:
    """The prompt of a reply between tokens. Of a text that is longer than the context, what is next to the reply stays.

    `most`: tokens that the reply may have; None for no limit. Raises ApiError as `fim_tokens` does.
    """
    return _laid_out(service, (), prefix, suffix, most)


def infill_prompt(service: Service, body: InfillRequest, most: int | None) -> list[int]:
    """The prompt of a request of /infill, see `around`. Of other files the last ones stay."""
    fim = fim_tokens(service)
    prefix = [*_tokens(service, body.input_prefix, "input_prefix"), *_tokens(service, body.prompt, "prompt")]
    return _laid_out(service, _others(service, fim, body.input_extra or ()), prefix,
                     _tokens(service, body.input_suffix, "input_suffix"), most)


def _laid_out(
    service: Service, others: Sequence[int], prefix: Sequence[int], suffix: Sequence[int], most: int | None
) -> list[int]:
    fim, tokenizer = fim_tokens(service), service.tokenizer
    begin = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    reply = USUAL if most is None else most
    room = service.most_tokens - len(begin) - len(NEEDED) - min(max(reply, 1), service.most_tokens // 2)
    after = min(len(suffix), max(room - len(prefix), room // 4))
    before = min(len(prefix), room - after)
    more = min(len(others), room - after - before)
    return [
        *begin, *others[len(others) - more :], fim["prefix"], *prefix[len(prefix) - before :],
        fim["suffix"], *suffix[:after], fim["middle"],
    ]


def _others(service: Service, fim: Mapping[str, int], extras: Sequence[ExtraText]) -> list[int]:
    """Parts of other files, each with its name or a line before it."""
    found = [fim["repo"], *_tokens(service, REPO)] if "repo" in fim else []
    for i, one in enumerate(extras):
        name = [fim["sep"], *_tokens(service, f"{one.filename}\n")] if "sep" in fim else _tokens(service, BETWEEN)
        found += [*name, *_tokens(service, one.text, f"input_extra.{i}")]
    return [*found, fim["sep"], *_tokens(service, FILE)] if "sep" in fim else found


def _tokens(service: Service, given: str | Sequence[int | str], param: str = "") -> list[int]:
    """Tokens of a text, or of a list of texts and tokens; no control token is found in them."""
    found: list[int] = []
    for part in [given] if isinstance(given, str) else given:
        if isinstance(part, str):
            service.require_short(part, param.partition(".")[0])
            found += service.tokenizer.encode(part, add_special=False, parse_special=False)
        else:
            found.append(part)
    return found

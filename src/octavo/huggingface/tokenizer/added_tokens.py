"""The added tokens of a folder: of tokenizer.json, and of the files beside it that may say otherwise.

As in transformers, tokenizer_config.json's `added_tokens_decoder` comes before tokenizer.json; where there is none,
special_tokens_map.json and added_tokens.json count. Tokens that these call special are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from octavo.errors import TokenizerError
from octavo.io.gguf.header_limits import MAX_STRINGS as MAX_TOKENS
from octavo.io.safetensors import Checkpoint
from octavo.text.added_token_edges import FLAGS, KEYS, MODEL, flags_by_name
from octavo.text.fields import Fields
from octavo.text.vocab import SPACE, read_vocab

CONFIG, MAP, OLDER = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
ROLES = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")
MORE = ("additional_special_tokens", "extra_special_tokens")
KNOWN = frozenset({"id", "content", "special", "__type", *FLAGS})
"""What an entry may have."""


@dataclass(frozen=True)
class AddedToken:
    """A token that text is cut at before anything else; `special`: one that no plain text gives.

    lstrip, rstrip  white space beside it belongs to it
    single_word     it is only found where no word goes on beside it
    normalized      it is looked for when those that are not were found, in the text that the normalizer makes, and is
                    normalized itself
    """

    id: int
    text: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


def read_added(entry: Any, number: Any, file: str, field: str) -> AddedToken:
    """An entry of a file. Raises TokenizerError for one without id and content, and for what is not known in it."""
    is_known = isinstance(entry, dict) and isinstance(entry.get("content"), str)
    if not (is_known and type(number) is int and 0 <= number <= MAX_TOKENS):
        problem = f"holds {str(entry)[:80]}" if field == "added_tokens" else f"has {str(number)[:40]!r}"
        raise TokenizerError(
            problem, file=file, field=field, allowed=f"objects with content, and ids, 0 to {MAX_TOKENS}"
        )
    if unknown := [key for key in entry if key not in KNOWN]:
        problem = f"{entry['content'][:40]!r} has {unknown[0][:40]!r}"
        raise TokenizerError(problem, file=file, field=field, allowed=", ".join(sorted(KNOWN)))
    special = entry.get("special") is True
    flags = {flag: entry.get(flag, flag == "normalized" and not special) is True for flag in FLAGS}
    return AddedToken(number, entry["content"], special, **flags)


def added_beside(
    checkpoint: Checkpoint, known: Mapping[int, AddedToken], ids: Mapping[str, int]
) -> dict[int, AddedToken]:
    """All added tokens: those that tokenizer.json has, `known`, and what other files say; `ids`: of its vocabulary.

    Raises TokenizerError for entries that are wrong, and for two tokens of one id.
    """
    found = dict(known)
    config = checkpoint.json(CONFIG) or {}
    listed = config.get("added_tokens_decoder")
    for token in _decoder(checkpoint, listed) if isinstance(listed, dict) else _older(checkpoint, config):
        number = ids.get(token.text, token.id)
        other = next((text for text in (found[number].text,) if text != token.text), None) if number in found else None
        if other is not None:
            problem, file = f"{token.text[:40]!r} and {other[:40]!r} have one id, {number}", checkpoint.path(CONFIG)
            raise TokenizerError(problem, file=file, field="added_tokens_decoder", allowed="an id each")
        if isinstance(listed, dict) or number not in found:
            found[number] = replace(token, id=number)
    texts = {token.text for token in found.values()}
    further = set(_further(roles(checkpoint)))
    for key, entry in _special_entries(roles(checkpoint)):
        number = ids.get(text := _text(entry), 1 + max((*ids.values(), *found), default=0))
        flags = entry if isinstance(entry, dict) else {"content": text}
        file = checkpoint.path(_file_of(config, entry))
        said = read_added({**flags, "special": True}, min(number, MAX_TOKENS), file, key)
        if text not in texts and (text in ids or (ids and text in further)):
            found[number] = replace(said, id=number)
            texts.add(text)
    return found


def _decoder(checkpoint: Checkpoint, listed: Mapping[str, Any]) -> Iterator[AddedToken]:
    file, field = checkpoint.path(CONFIG), "added_tokens_decoder"
    for key, entry in listed.items():
        yield read_added(entry, int(key) if re.fullmatch("[0-9]{1,7}", key) else key, file, field)


def _older(checkpoint: Checkpoint, config: Mapping[str, Any]) -> Iterator[AddedToken]:
    special = {_text(entry) for _, entry in _special_entries(roles(checkpoint))}
    for text, number in (checkpoint.json(OLDER) or {}).items():
        yield replace(
            read_added({"content": text}, number, checkpoint.path(OLDER), text[:40]),
            special=text in special, normalized=text not in special,
        )


def roles(checkpoint: Checkpoint) -> dict[str, Any]:
    """tokenizer_config.json; with what an older special_tokens_map.json says where it lists no added tokens."""
    config = checkpoint.json(CONFIG) or {}
    return config if "added_tokens_decoder" in config else config | (checkpoint.json(MAP) or {})


def _file_of(config: Mapping[str, Any], entry: Any) -> str:
    """Which file says something of a special token."""
    return CONFIG if "added_tokens_decoder" in config or entry in config.values() else MAP


def _special_entries(said: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The tokens that have a role, by its key, and further special ones: texts, or objects with one."""
    entries = [(f"{role}_token", said.get(f"{role}_token")) for role in ROLES]
    return [(key, entry) for key, entry in (*entries, *_further_entries(said)) if _text(entry)]


def _further(said: Mapping[str, Any]) -> list[str]:
    """Texts of tokens without a role; transformers puts those that it does not know behind the vocabulary."""
    return [text for _, entry in _further_entries(said) if (text := _text(entry))]


def _further_entries(said: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in MORE:
        more = said.get(name)
        for entry in more.values() if isinstance(more, dict) else more if isinstance(more, list) else ():
            yield name, entry


def _text(entry: Any) -> str:
    """A token's text, empty where there is none."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else ""


def flag_keys(
    added: Mapping[int, AddedToken], words: Mapping[str, Any], named: Mapping[str, Any], normal: Callable[[str], str]
) -> dict[str, Any]:
    """Octavo's keys of these tokens, in a vocabulary `words`.

    named   metadata that names of models go by: a list without tokens keeps llama.cpp's rules by name off
    normal  what the normalizer makes of a text

    Raises TokenizerError for a token that the normalizer makes another text of which can't be looked for here.
    """
    fields = Fields({**named, **words})
    vocab = read_vocab(fields)
    listed = {flag: sorted(i for i, t in added.items() if i < len(vocab) and getattr(t, flag)) for flag in FLAGS}
    plain = [t.text for t in added.values() if not t.normalized]
    listed["normalized"] = [
        i
        for i in listed["normalized"]
        if _changes(added[i], normal, words[MODEL]) or any(text in added[i].text for text in plain)
    ]
    by_name = flags_by_name(fields, vocab)
    return {key: np.array(listed[f] or [-1], np.int32) for f, key in KEYS.items() if listed[f] or by_name[f]}


def _changes(token: AddedToken, normal: Callable[[str], str], model: str) -> bool:
    """Whether a token is looked for as another text than its own. Raises TokenizerError for one that can't be here."""
    text = normal(token.text)
    if text in (token.text, token.text.replace(" ", SPACE)):
        return False
    if (model == "llama" and text == SPACE + token.text.replace(" ", SPACE)) or (
        model == "bert" and len(text) == len(token.text)
    ):
        return True
    problem = f"added token {token.text[:40]!r} is normalized, to {text[:40]!r}"
    raise TokenizerError(problem, field="normalized", allowed="false, or a token that the normalizer leaves as it is")

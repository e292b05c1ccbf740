"""Which tokens end a reply, as a folder says it: one id or a list of them, in several files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.errors import TokenizerError
from octavo.io.safetensors import Checkpoint
from octavo.text.fields import Fields
from octavo.text.specials import ENDS, find_specials
from octavo.text.vocab import TOKENS, TYPES, TokenKind, read_vocab

GENERATION, KEY = "generation_config.json", "eos_token_id"
EOS, EOT, EOM = (f"tokenizer.ggml.{role}_token_id" for role in ("eos", "eot", "eom"))
_log = logging.getLogger(__name__)


def listed_ends(checkpoint: Checkpoint, keys: Mapping[str, Any]) -> list[int]:
    """The ids that generation_config.json and config.json say end a reply, in their order; `keys` of the vocabulary.

    A list always counts. One id of config.json does where generation_config.json has none, as in transformers, and any
    single one only if it is a special token, unless nothing else names an end: configurations of transformers have
    2 where nobody said anything. Raises TokenizerError for what is neither an id nor a list of them; ids that no token
    has are left out with a warning.
    """
    n_vocab, types = len(keys[TOKENS]), keys[TYPES]
    said: list[int] = []
    text = checkpoint.config.get("text_config")
    places = [(GENERATION, checkpoint.json(GENERATION) or {}), ("config.json", checkpoint.config)]
    for file, config in (*places, ("config.json", text if isinstance(text, dict) else {})):
        found = config.get(KEY)
        ids = _ids(checkpoint, file, found)
        if isinstance(found, list):
            said += ids
        elif not said:
            said += [i for i in ids if EOS not in keys or not (0 <= i < n_vocab and types[i] == TokenKind.NORMAL)]
    ends = list(dict.fromkeys(said))
    for token in (i for i in ends if not 0 <= i < n_vocab):
        _log.warning("%s: token %d ends a reply and is not in the vocabulary; left out", checkpoint.folder, token)
    return [i for i in ends if 0 <= i < n_vocab]


def _ids(checkpoint: Checkpoint, file: str, value: Any) -> list[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(i) is not int for i in ids):
        allowed = "the id of a token, or a list of them"
        raise TokenizerError(f"is {str(value)[:80]}", file=checkpoint.path(file), field=KEY, allowed=allowed)
    return ids


def end_keys(ends: list[int], keys: dict[str, Any]) -> dict[str, Any]:
    """What GGUF says of `ends`, beside the `keys` of a vocabulary and its roles.

    llama.cpp has a key for one end of a text, of a turn and of a message each, and knows others by their texts; those
    that are left go there. Ollama reads all of them, in a list.
    """
    if not ends:
        return {}
    added = {} if EOS in keys else {EOS: ends[0]}
    fields = Fields(keys | added)
    found = find_specials(fields, read_vocab(fields), {})
    rest = [i for i in ends if i not in found.stop_ids]
    is_free = EOT not in keys and found.roles.get("eot", found.roles["eos"]) == found.roles["eos"]
    free = [*([EOT] if is_free and len(rest) > 1 else []), *([EOM] if "eom" not in found.roles else [])]
    added |= dict(zip(free, rest, strict=False))
    return added | ({ENDS: np.array(ends, np.int32)} if ends != [found.roles["eos"]] else {})

"""Which tokens have a role, and the chat template, as GGUF's keys."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from octavo.errors import TemplateError, TokenizerError
from octavo.huggingface.tokenizer.added_tokens import roles as roles_said
from octavo.huggingface.tokenizer.tokenizer_json import TokenizerJson
from octavo.io.regular_file import read_text
from octavo.io.safetensors import Checkpoint
from octavo.text.tokenizer import BEGIN, END

ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator", "mask": "mask"}
"""Roles by what configurations and GGUF's keys call them."""
BERT = {"sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
"""The tokens of WordPiece tokenizers, where a configuration does not name them."""
CONFIG, KEY = "tokenizer_config.json", "tokenizer.chat_template"
MAX_TEMPLATE_BYTES = 1 << 20
MORE_TEMPLATES, MOST_TEMPLATES = "additional_chat_templates", 32
"""The folder of templates with names, and how many there may be."""


def special_tokens(checkpoint: Checkpoint, tokenizer: TokenizerJson | None, tokens: list[str]) -> dict[str, Any]:
    """Ids of the tokens that have a role, and whether a text begins and ends with them.

    Raises TokenizerError for a role that names an id outside the vocabulary.
    """
    config, ids = roles_said(checkpoint), {text: i for i, text in enumerate(tokens)}
    if tokenizer is not None and tokenizer.kind == "WordPiece":
        config = {**BERT, **config, "bos_token": config.get("cls_token", "[CLS]")}
    keys: dict[str, Any] = {}
    roles: dict[str, int] = {}
    for role, name in ROLES.items():
        token = _token_of(checkpoint, config, role, ids, len(tokens))
        if token is not None:
            roles[role] = keys[f"tokenizer.ggml.{name}_token_id"] = token
    for (role, key), found in zip((("bos", BEGIN), ("eos", END)), _around(tokenizer, config), strict=True):
        flag = config.get(f"add_{role}_token")
        if found is None and not isinstance(flag, bool):
            continue
        if found and len(found) == 1 and role not in roles:
            roles[role] = keys[f"tokenizer.ggml.{role}_token_id"] = found[0]
        keys[f"tokenizer.ggml.add_{role}_token"] = flag if found is None else found == [roles.get(role)]
        if found and found != [roles.get(role)]:
            keys[key] = np.array(found, np.int32)
    if tokenizer is not None and keys.get("tokenizer.ggml.add_eos_token"):
        keys["tokenizer.ggml.add_sep_token"] = _separates(tokenizer)
    return keys


def _token_of(checkpoint: Checkpoint, config: dict[str, Any], role: str, ids: dict[str, int], n: int) -> int | None:
    entry = config.get(f"{role}_token")
    text = entry.get("content") if isinstance(entry, dict) else entry
    if isinstance(text, str) and text in ids:
        return ids[text]
    number = checkpoint.config.get(f"{role}_token_id")
    if type(number) is not int or (number < 0 and role == "pad"):
        return None
    if not 0 <= number < n:
        file, field = checkpoint.path("config.json"), f"{role}_token_id"
        raise TokenizerError(
            f"token {number} is not in the vocabulary", file=file, field=field, allowed=f"0 to {n - 1}"
        )
    return number


def _around(tokenizer: TokenizerJson | None, config: dict[str, Any]) -> tuple[list[int] | None, list[int] | None]:
    """The ids that tokenizer.json puts before and after a text.

    None where another file says: there is no tokenizer.json, or it leaves that to a flag of the configuration.
    """
    if tokenizer is None:
        return None, None
    if not tokenizer.values.get("post_processor") and ("add_bos_token" in config or "add_eos_token" in config):
        return None, None
    plain, full = (tokenizer.encode("a", special=added) for added in (False, True))
    before = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0)
    return full[:before], full[before + len(plain) :]


def _separates(tokenizer: TokenizerJson) -> bool:
    """Whether two texts have more between them than what ends a text."""
    plain, one, two = tokenizer.encode("a"), tokenizer.encode("a", special=True), tokenizer.encode_pair("a", "a")
    before = next((i for i in range(len(one)) if one[i : i + len(plain)] == plain), 0)
    return len(two) > 2 * len(one) - before


def chat_templates(checkpoint: Checkpoint) -> dict[str, Any]:
    """The chat template, or those of several names; that of chat_template.jinja before any in tokenizer_config.json.

    Further ones are files of a folder, under their names. Raises TemplateError for what is not text, and for more
    templates than there may be, FileError for a file that can't be read or is none.
    """
    found: Any = _template_file(checkpoint, "chat_template.jinja")
    for name in (CONFIG, "chat_template.json"):
        found = (checkpoint.json(name) or {}).get("chat_template") if found is None else found
    if found is not None and not isinstance(found, str | list):
        raise TemplateError(f"{checkpoint.path(CONFIG)}: chat_template is {type(found).__name__} (allowed: text)")
    keys: dict[str, Any] = {} if not isinstance(found, str) else {KEY: found}
    for entry in found if isinstance(found, list) else ():
        if not (isinstance(entry, dict) and all(isinstance(entry.get(k), str) for k in ("name", "template"))):
            raise TemplateError(f"{checkpoint.path(CONFIG)}: an entry of chat_template lacks its name or template")
        keys[_key_of(entry["name"])] = entry["template"]
    for name in named_templates(checkpoint.folder):
        template = _template_file(checkpoint, os.path.join(MORE_TEMPLATES, name))
        assert template is not None
        keys[_key_of(name.removesuffix(".jinja"))] = template
    names = [key.removeprefix(f"{KEY}.") for key in keys if key != KEY]
    return keys | ({f"{KEY}s": names} if names else {})


def named_templates(folder: str) -> list[str]:
    """The files of a checkpoint's further templates, in their own folder. Raises TemplateError for too many."""
    path = os.path.join(folder, MORE_TEMPLATES)
    found = sorted(name for name in os.listdir(path) if name.endswith(".jinja")) if os.path.isdir(path) else []
    if len(found) > MOST_TEMPLATES:
        raise TemplateError(f"{path}: has {len(found)} templates (allowed: {MOST_TEMPLATES})")
    return found


def _key_of(name: str) -> str:
    """GGUF's key of a template."""
    plain = re.sub("[^A-Za-z0-9]", "_", name)
    return KEY if plain == "default" else f"{KEY}.{plain}"


def _template_file(checkpoint: Checkpoint, name: str) -> str | None:
    path = checkpoint.path(name)
    return read_text(path, MAX_TEMPLATE_BYTES).replace("\r\n", "\n") if os.path.exists(path) else None

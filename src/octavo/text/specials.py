"""Which tokens have a role: begin, end, pad ..., and which of them end a generation.

Files name some by id; for the others llama.cpp goes by the texts that known models give to such tokens, and so does
this, in the order below where a vocabulary has more than one. A token found so counts as a control token.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from octavo.text.fields import Fields
from octavo.text.vocab import TokenKind, Vocab

ENDS = "tokenizer.ggml.eos_token_ids"
"""All ids that end a reply. Ollama's converter writes the key, and Octavo's; llama.cpp doesn't read it."""
_log = logging.getLogger(__name__)

# Role: its metadata keys under "tokenizer.ggml." (the later one wins), then the texts that such tokens are known by.
_ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bos": (("bos_token_id",), ()),
    "eos": (("eos_token_id",), ()),
    "unk": (("unknown_token_id",), ()),
    "pad": (("padding_token_id",), ()),
    "sep": (("seperator_token_id",), ()),
    "mask": (("mask_token_id",), ()),
    "eot": (
        ("eot_token_id",),
        (
            *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>"),
            *("_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"),
        ),
    ),
    "eom": (("eom_token_id",), ("<|eom_id|>",)),
    "fim_prefix": (
        ("fim_pre_token_id", "prefix_token_id"),
        (
            *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
            *("<|code_prefix|>", "<|prefix|>"),
        ),
    ),
    "fim_suffix": (
        ("fim_suf_token_id", "suffix_token_id"),
        (
            *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
            *("<|code_suffix|>", "<|suffix|>"),
        ),
    ),
    "fim_middle": (
        ("fim_mid_token_id", "middle_token_id"),
        (
            *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
            *("<|code_middle|>", "<|middle|>"),
        ),
    ),
    "fim_pad": (("fim_pad_token_id",), ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    "fim_repo": (
        ("fim_rep_token_id",),
        ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ),
    "fim_sep": (("fim_sep_token_id",), ("<|file_sep|>",)),
}

# A wrong id in one of these would change what is generated; in another role it is only left out, with a warning.
_STRICT = frozenset({"bos", "eos", "unk", "eot", "eom", "sep"})
_ENDING_ROLES = ("eos", "eot", "eom", "fim_pad", "fim_repo", "fim_sep")

_END_TEXTS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>"),
    *("<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
)
_LOOKS_CONTROL = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
# Markers inside an answer (the Harmony format), shown to the user's code although files call them control tokens.
_SHOWN_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


@dataclass(frozen=True)
class Specials:
    """Ids by role (a role is missing where the vocabulary has no such token) and the ids that end a generation.

    guarded  tokens that a user's text in a chat is never taken for: control tokens, and those that look it
    """

    roles: dict[str, int]
    stop_ids: frozenset[int]
    guarded: frozenset[int]


def find_specials(fields: Fields, vocab: Vocab, defaults: dict[str, int]) -> Specials:
    """The special tokens of `vocab`, and their kinds corrected in it. `defaults`: ids of roles that no key names.

    Raises TokenizerError for a role that names an id outside the vocabulary.
    """
    roles = {role: i for role, i in defaults.items() if i < len(vocab)}
    for role, (keys, texts) in _ROLES.items():
        for key in keys:
            token = _read_id(fields, f"tokenizer.ggml.{key}", role, len(vocab))
            if token is not None:
                roles[role] = token
        found = next((vocab.ids[t] for t in texts if t in vocab.ids), None)
        if role not in roles and found is not None:
            roles[role] = found
            vocab.kinds[found] |= TokenKind.CONTROL
    stop_ids = _find_stop_ids(vocab, roles) | _listed(fields, len(vocab))
    looks = (i for i in vocab.of_kind(TokenKind.USER_DEFINED) if _LOOKS_CONTROL.fullmatch(vocab.texts[i]))
    return Specials(roles, stop_ids, stop_ids | {*vocab.of_kind(TokenKind.CONTROL | TokenKind.UNKNOWN), *looks})


def _read_id(fields: Fields, key: str, role: str, n_vocab: int) -> int | None:
    token = fields.integer(key)
    if token is None or 0 <= token < n_vocab:
        return token
    fault = fields.fault(key, f"token {token} is not in the vocabulary", f"0 to {n_vocab - 1}")
    if role in _STRICT:
        raise fault
    _log.warning("%s; left out", fault)
    return None


def _listed(fields: Fields, n_vocab: int) -> frozenset[int]:
    """The ids of the list, if there is one."""
    ids = fields.integers(ENDS)
    wrong = next((i for i in ids if not 0 <= i < n_vocab), None)
    if wrong is not None:
        raise fields.fault(ENDS, f"token {wrong} is not in the vocabulary", f"0 to {n_vocab - 1}")
    return frozenset(ids)


def _find_stop_ids(vocab: Vocab, roles: dict[str, int]) -> frozenset[int]:
    stop = {roles[r] for r in _ENDING_ROLES if r in roles}
    for text in _END_TEXTS:
        if text in vocab.ids:
            stop.add(vocab.ids[text])
            vocab.kinds[vocab.ids[text]] |= TokenKind.CONTROL
    for text in _SHOWN_TEXTS:
        if text in vocab.ids:
            vocab.kinds[vocab.ids[text]] = TokenKind.USER_DEFINED
    _keep_inner_ends(vocab, stop)
    return frozenset(stop)


def _keep_inner_ends(vocab: Vocab, stop: set[int]) -> None:
    """Take out of `stop` the end texts that, beside certain others, end a part of an answer or nothing at all."""
    texts = {vocab.texts[i] for i in stop}
    if "<|end|>" in texts and ({"<|call|>", "<|calls|>"} & texts) and ({"<|return|>", "<|flush|>"} & texts):
        end = vocab.ids["<|end|>"]
        stop.discard(end)
        vocab.kinds[end] = TokenKind.USER_DEFINED
    if "</s>" in texts and {"<|tool_response>", "<|plamo:eos|>"} & texts:
        end = vocab.ids["</s>"]
        stop.discard(end)
        vocab.kinds[end] = TokenKind.NORMAL

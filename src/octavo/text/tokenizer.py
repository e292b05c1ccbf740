"""The tokenizer of a GGUF file: text to ids and back, with the ids that llama.cpp gives."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo.errors import TemplateError, TokenizerError
from octavo.text.added_token_edges import MATCHED, added_tokens
from octavo.text.fields import Fields
from octavo.text.marks import Guard, Marks
from octavo.text.partition import Partition
from octavo.text.specials import find_specials
from octavo.text.stream import TokenStream
from octavo.text.template import ChatTemplate, find_template, read_templates
from octavo.text.tokenizer_kinds import TokenizerScheme, find_scheme
from octavo.text.vocab import TokenKind, read_vocab

if TYPE_CHECKING:
    from octavo.io.gguf import GGUFFile

_log = logging.getLogger("octavo")
_SPECIAL = TokenKind.CONTROL | TokenKind.UNKNOWN
_MATCHED_BITS, _SPECIAL_BITS, _NORMAL_BITS = int(MATCHED), int(_SPECIAL), int(TokenKind.NORMAL)
"""As plain integers, whose `&` takes a tenth of the time of a flag's."""

MOST, LOWER = "tokenizer.ggml.text_max_length", "tokenizer.ggml.text_lowercase"
"""Keys of the most tokens of a text whose vector is wanted, and of whether it is in lower case. Octavo writes them."""
BEGIN, END = "tokenizer.ggml.text_begin_ids", "tokenizer.ggml.text_end_ids"
AROUND = {BEGIN: "before", END: "behind"}
"""Keys of ids around a text that are not BOS and EOS alone. Octavo writes them; llama.cpp has none for it."""


class Tokenizer:
    """Text to token ids and back. Make one with `from_gguf`, or `from_metadata` from the same keys in a mapping.

    Attributes: `model` and `pre` (what the file calls its tokenizer), `n_vocab`, `texts` (of the tokens by id, as the
    file writes them), `bos_id`, `eos_id`, `eot_id`, `eom_id`, `pad_id`, `unk_id` (None where there is none), `stop_ids`
    (ids that end a generation), `add_bos`, `add_eos` (what `encode` adds), `add_space_prefix`,
    `fim` (tokens of fill-in-the-middle by role: prefix, suffix, middle, pad, repo, sep, as far as there are any),
    `most_tokens` and `lowers` (of texts whose vectors are wanted: how many tokens count, and whether in lower case).
    """

    def __init__(self, fields: Fields) -> None:
        self.model, self.pre, scheme = find_scheme(fields)
        self._fields, self._closed = fields, False
        self._file, self._templates = fields.file, read_templates(fields)
        self._vocab = vocab = read_vocab(fields)
        self.texts, self.n_vocab = vocab.texts, len(vocab)
        specials = find_specials(fields, vocab, dict(scheme.role_ids))
        self.stop_ids = specials.stop_ids
        self.bos_id, self.eos_id, self.unk_id = map(specials.roles.get, ("bos", "eos", "unk"))
        self.fim = {role[4:]: i for role, i in specials.roles.items() if role.startswith("fim_")}
        self.eot_id, self.eom_id, self.pad_id = map(specials.roles.get, ("eot", "eom", "pad"))
        wants_bos = scheme.always_bos or _flag(fields, "add_bos_token", scheme.add_bos)
        self.add_bos = wants_bos and self.bos_id is not None
        self.add_eos = _flag(fields, "add_eos_token", scheme.add_eos) and self.eos_id is not None
        self.add_space_prefix = _flag(fields, "add_space_prefix", scheme.add_space_prefix)
        self._first, self._last = _ends(fields, scheme, specials.roles, self.n_vocab, (self.add_bos, self.add_eos))
        separates = scheme.last is None and _flag(fields, "add_sep_token", True)
        sep = specials.roles.get("sep")
        self.most_tokens, self.lowers = fields.integer(MOST), bool(fields.flag(LOWER))
        self._between = [] if not separates else self._last if sep is None else [sep]
        self._puts_space = self.add_space_prefix and not scheme.spaces
        encoder, self._to_bytes = scheme.encoder(fields, vocab), scheme.to_bytes
        self._known_bytes: dict[int, bytes] = {}
        added = added_tokens(fields, vocab, specials.guarded)
        self._split_special = Partition(added)
        self._split_plain = Partition(t for t in added if not vocab.kinds[t.id] & _SPECIAL)
        self._encoder = encoder.beside(self._split_special.longest)
        self._guard = Guard([vocab.texts[i] for i in specials.guarded])

    @classmethod
    def from_gguf(cls, file: str | os.PathLike[str] | GGUFFile) -> Tokenizer:
        """The tokenizer in a GGUF file, which may hold a vocabulary only, in "demo", or in a file that is open.

        Raises GGUFError for a file that is not a GGUF, TokenizerError for a vocabulary that can't be used.
        """
        from octavo.io.gguf import GGUFFile
        from octavo.io.model_path import resolve

        if isinstance(file, GGUFFile):
            return cls.from_metadata(file.metadata, file=file.path)
        path = resolve(file)
        with GGUFFile.open(path) as opened:
            found = cls.from_metadata(opened.metadata, file=path)
        found._closed = True
        return found

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], *, file: str | os.PathLike[str] | None = None) -> Tokenizer:
        """The tokenizer that GGUF keys describe; `file` is named in errors. The method `metadata` alone reads later."""
        return cls(Fields(metadata, file))

    def metadata(self) -> dict[str, Any]:
        """The keys that `from_metadata` makes such a tokenizer from, in another process; of a file, while it is there.

        Raises GGUFError.
        """
        if not self._closed:
            return self._fields.taken()
        from octavo.io.gguf import GGUFFile

        with GGUFFile.open(str(self._file)) as opened:
            return Fields(opened.metadata).taken()

    def encode(
        self, text: str, add_special: bool = True, parse_special: bool = True, *, continued: bool = False,
        foreign: bytes = b"",
    ) -> list[int]:
        """The ids of `text`.

        `add_special`: with BOS and EOS where the model wants them. `parse_special`: text such as "<|im_end|>" becomes
        the control token of that name; else it is text like any other, as it must be for text from a user. `continued`:
        the text goes on from another, without the space that some models write before the first word. `foreign`: for
        each character 1 where it is from outside, so that no control token has it (see `Marks`). Raises TokenizerError
        for text with a lone surrogate, and for a character that the vocabulary has no token for.
        """
        self._check_text(text)
        out = [*self._first] if add_special else []
        prefix = self._puts_space and not continued
        partition = self._split_special if parse_special else self._split_plain
        for piece in partition.split(text, foreign):
            if isinstance(piece, int):
                out.append(piece)
            else:
                out += self._encoder.encode(" " + piece if prefix else piece)
            prefix = self._puts_space and isinstance(piece, int) and piece not in partition.joined
        if not add_special:
            return out
        out += self._last
        for name, place, ids in (("BOS", "begins", out[:2]), ("EOS", "ends", out[:-3:-1])):
            added = self.add_bos if name == "BOS" else self.add_eos
            if added and len(ids) == 2 and ids[0] == ids[1] == (self.bos_id if name == "BOS" else self.eos_id):
                _log.warning("the model adds %s, and the text already %s with it: it occurs twice", name, place)
        return out

    def cut(self, ids: list[int], most: int) -> list[int]:
        """The first ids of a text, `most` with those behind it."""
        last = self._last
        return ids if len(ids) <= most else [*ids[: max(0, most - len(last))], *last]

    def least_tokens(self, text: str) -> int:
        """Tokens that `encode` gives for a text at least, which its length tells at once; 0 where nothing is known."""
        return self._encoder.least(text)

    def encode_chat(
        self, template: ChatTemplate, /, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True,
        **extra: Any,
    ) -> list[int]:
        """The ids of what `template.render` makes of these arguments, with BOS where the model wants it.

        Control tokens are those that the template itself writes. What stands in messages and other variables is text,
        whatever it looks like. Raises TemplateError, TokenizerError and UsageError.
        """
        text, foreign = self.write_chat(template, messages, add_generation_prompt, **extra)
        return self.encode_written(text, foreign)

    def write_chat(
        self, template: ChatTemplate, /, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True,
        **extra: Any,
    ) -> tuple[str, bytes]:
        """What `encode_chat` encodes: text, and for each character 1 where it is from outside, empty for nowhere."""
        marks = self.marks({"messages": messages, **extra}, template.source)
        try:
            return marks.read(template.render(**marks.data, add_generation_prompt=add_generation_prompt))
        except TemplateError as error:
            raise marks.fault(error) from None

    def encode_written(self, text: str, foreign: bytes) -> list[int]:
        """The ids of what `write_chat` gave."""
        ids = self.encode(text, add_special=False, foreign=foreign)
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)  # as llama.cpp does where the template leaves it out
        return ids

    def marks(self, variables: Mapping[str, Any], template: str = "") -> Marks:
        """Variables of a template, marked as text from outside."""
        return Marks(self._guard, variables, template)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """The ids of two texts as rerankers take them, with what goes around each.

        As RoBERTa has it, "<s> first </s></s>" and "second </s>", or as BERT, "[CLS] first [SEP]" and "second [SEP]".
        No control token is found in the texts.
        """
        a, b = (self.encode(text, add_special=False, parse_special=False) for text in (first, second))
        return [*self._first, *a, *self._last, *self._between], [*b, *self._last]

    def decode(self, ids: Iterable[int], skip_special: bool = False, *, continued: bool = False) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD.

        `skip_special`: without control tokens. `continued`: the ids go on from others, so the space that some models
        write before the first word stays. Raises TokenizerError for an id out of range.
        """
        stream = self.stream(skip_special, continued=continued)
        return "".join([*map(stream.push, ids), stream.flush()])

    def stream(self, skip_special: bool = False, *, continued: bool = False) -> TokenStream:
        """A detokenizer for ids that come one at a time; the arguments are those of `decode`."""
        token_bytes = self._visible_bytes if skip_special else self.token_bytes
        return TokenStream(token_bytes, self.is_special, self.add_space_prefix and not continued)

    def stream_after(self, prompt: Sequence[int]) -> TokenStream:
        """A detokenizer for ids that go on in the text of `prompt`, if it has text and ends with no control token."""
        return self.stream(continued=len(prompt) > 0 and not self.is_special(prompt[-1]))

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` stands for; none for an unused one. Raises TokenizerError for an id out of range."""
        known = self._known_bytes.get(token)
        if known is None:
            known = self._known_bytes[token] = self._read_bytes(token)
        return known

    def _read_bytes(self, token: int) -> bytes:
        kind = self._kind(token)
        text = self.texts[token]
        if kind & _MATCHED_BITS:
            return text.encode()
        if kind & _NORMAL_BITS:
            return self._to_bytes(text)
        return bytes([int(text[3:5], 16)]) if kind & TokenKind.BYTE else b""

    @property
    def special_ids(self) -> list[int]:
        """Control tokens, and those that stand for the unknown, ascending."""
        return self._vocab.of_kind(_SPECIAL)

    @property
    def unused_ids(self) -> list[int]:
        """Tokens that no text has and nothing means, as those which fill up an embedding, ascending."""
        return self._vocab.of_kind(TokenKind.UNUSED)

    def special_id(self, text: str) -> int | None:
        """The control token that is written so."""
        token = self._vocab.ids.get(text)
        return token if token is not None and self.is_special(token) else None

    def is_special(self, token: int) -> bool:
        """Whether `token` is a control token (or stands for the unknown), which no plain text gives."""
        return bool(self._kind(token) & _SPECIAL_BITS)

    def chat_template(self, name: str | None = None) -> ChatTemplate:
        """The model's chat template, or the one it calls `name`; ChatML where the model has none.

        "default" is the one that has no name in GGUF files. Raises TemplateError for a template that is invalid and for
        a name that the model doesn't have.
        """
        return self.own_template(find_template(self._templates, name))

    def own_template(self, source: str) -> ChatTemplate:
        """A chat template of one's own for the model. Raises TemplateError for one that is invalid."""
        bos, eos = ("" if i is None else self.texts[i] for i in (self.bos_id, self.eos_id))
        return ChatTemplate(source, bos_token=bos, eos_token=eos)

    @property
    def template_names(self) -> list[str]:
        """What the model calls the chat templates that it has beside the one without a name, sorted."""
        return sorted(name for name in self._templates if name)

    def _visible_bytes(self, token: int) -> bytes:
        return b"" if self.is_special(token) else self.token_bytes(token)

    def _kind(self, token: int) -> int:
        if not 0 <= token < self.n_vocab:
            raise TokenizerError(
                f"token id {token} is out of range", file=self._file, allowed=f"0 to {self.n_vocab - 1}"
            )
        return int(self._vocab.kinds[token])

    def _check_text(self, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            problem = f"the text has a lone surrogate, U+{ord(text[error.start]):04X}, at character {error.start}"
            raise TokenizerError(problem) from None


def _flag(fields: Fields, name: str, default: bool) -> bool:
    value = fields.flag(f"tokenizer.ggml.{name}")
    return default if value is None else value


def _ends(
    fields: Fields, scheme: TokenizerScheme, roles: dict[str, int], n_vocab: int, adds: tuple[bool, bool]
) -> tuple[list[int], list[int]]:
    """The ids that go before and after a text; `adds`: whether BOS and EOS do.

    Raises TokenizerError where the scheme wants one that is missing.
    """
    if scheme.last is not None:
        for role, key in (("bos", "bos_token_id"), (scheme.last, "seperator_token_id")):
            if role not in roles:
                raise fields.fault(f"tokenizer.ggml.{key}", "missing", "the id of a token")
        return [roles["bos"]], [roles[scheme.last]]
    first, last = ([roles[role]] if added else [] for role, added in zip(("bos", "eos"), adds, strict=True))
    for key in AROUND:
        if any(not 0 <= i < n_vocab for i in fields.integers(key)):
            raise fields.fault(key, "lists a token that is not in the vocabulary", f"0 to {n_vocab - 1}")
    return fields.integers(BEGIN) or first, fields.integers(END) or last

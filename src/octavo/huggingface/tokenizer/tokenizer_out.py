"""A GGUF file's vocabulary as the files that Hugging Face's libraries read: the inverse of `vocab` and `specials`."""

from __future__ import annotations

import json
from typing import Any

from octavo.errors import TokenizerError
from octavo.huggingface.tokenizer.vocabulary import CONTROL, UNKNOWN, USER_DEFINED
from octavo.io.gguf import GGUFFile
from octavo.text import Tokenizer
from octavo.text.added_token_edges import token_flags
from octavo.text.bpe import NFC, word_splitter
from octavo.text.fields import Fields
from octavo.text.pretokenize import PRE_TOKENIZERS
from octavo.text.vocab import SPACE, read_vocab

MERGES, SCORES, TYPES, TEMPLATE = (
    "tokenizer.ggml.merges", "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.chat_template",
)


def tokenizer_files(file: GGUFFile) -> dict[str, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json, by name. Raises TokenizerError for a kind that they can't describe."""
    tokenizer = Tokenizer.from_gguf(file)
    makers = {"gpt2": _byte_level, "llama": _sentencepiece}
    if tokenizer.model not in makers:
        problem = f"{tokenizer.model!r} can't be written as tokenizer.json"
        raise TokenizerError(problem, file=file.path, field="tokenizer.ggml.model", allowed=", ".join(makers))
    engine = makers[tokenizer.model](file, tokenizer)
    _add_tokens(engine, file, tokenizer)
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        from tokenizers import processors

        bos = tokenizer.texts[tokenizer.bos_id]
        engine.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_id)]
        )
    return {"tokenizer.json": json.loads(engine.to_str()), "tokenizer_config.json": _config(file, tokenizer)}


def _byte_level(file: GGUFFile, tokenizer: Tokenizer) -> Any:
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    row = PRE_TOKENIZERS[tokenizer.pre]
    ids, merges = _ids(tokenizer), [_pair(line) for line in file.metadata.get_strs(MERGES)]
    unknown = next((pair for pair in merges if not {*pair, "".join(pair)} <= ids.keys()), None)
    if unknown is not None:
        problem = f"merge {' '.join(unknown)[:80]!r} is of texts that are not tokens"
        raise TokenizerError(problem, file=file.path, field=MERGES, allowed="tokens, in tokenizer.json")
    engine = Engine(models.BPE(vocab=ids, merges=merges, ignore_merges=row.ignore_merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([word_splitter(row), level])
    if file.metadata.get_bool(NFC, False):
        engine.normalizer = normalizers.NFC()
    engine.decoder = decoders.ByteLevel()
    return engine


def _sentencepiece(file: GGUFFile, tokenizer: Tokenizer) -> Any:
    """Merges are all ways to join two tokens to one, those that make the token of the highest score first."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, normalizers

    ids, scores = _ids(tokenizer), file.metadata.get_floats(SCORES)
    ways = [
        (-float(scores[token]), token, text[:i], text[i:])
        for text, token in ids.items()
        for i in range(1, len(text))
        if text[:i] in ids and text[i:] in ids
    ]
    merges = [(left, right) for _, _, left, right in sorted(ways, key=lambda way: way[:2])]
    unknown = None if tokenizer.unk_id is None else tokenizer.texts[tokenizer.unk_id]
    engine = Engine(models.BPE(vocab=ids, merges=merges, byte_fallback=True, unk_token=unknown, fuse_unk=True))
    spaces = normalizers.Replace(" ", SPACE)
    first = [normalizers.Prepend(SPACE)] if tokenizer.add_space_prefix else []
    engine.normalizer = normalizers.Sequence([*first, spaces])
    strip = [decoders.Strip(content=" ", left=1)] if first else []
    engine.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return engine


def _ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {text: i for i, text in enumerate(tokenizer.texts)}


def _pair(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right


def _add_tokens(engine: Any, file: GGUFFile, tokenizer: Tokenizer) -> None:
    """Tokens that text is cut at before anything else; those that are in the vocabulary keep their ids."""
    from tokenizers import AddedToken

    kinds, fields = file.metadata.get_ints(TYPES, None), Fields(file.metadata, file.path)
    flags = token_flags(fields, read_vocab(fields))
    for i, kind in enumerate([] if kinds is None else kinds.tolist()):
        if kind in (CONTROL, UNKNOWN, USER_DEFINED):
            special = kind != USER_DEFINED
            said = {flag: i in ids for flag, ids in flags.items()}
            token = AddedToken(tokenizer.texts[i], special=special, **said)
            (engine.add_special_tokens if special else engine.add_tokens)([token])


def _config(file: GGUFFile, tokenizer: Tokenizer) -> dict[str, Any]:
    roles = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "unk": tokenizer.unk_id, "pad": tokenizer.pad_id}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {f"{role}_token": tokenizer.texts[i] for role, i in roles.items() if i is not None}
    config |= {"add_bos_token": tokenizer.add_bos, "add_eos_token": tokenizer.add_eos}
    names = {key: key.removeprefix(f"{TEMPLATE}.") for key in file.metadata if key.startswith(f"{TEMPLATE}.")}
    if TEMPLATE in file.metadata:
        config["chat_template"] = file.metadata.get_str(TEMPLATE)
        if names:
            of_names = {TEMPLATE: "default", **names}
            config["chat_template"] = [
                {"name": of_names[key], "template": file.metadata.get_str(key)} for key in of_names
            ]
    return config

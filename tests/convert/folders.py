"""Checkpoint folders as people download them: tiny random weights, and a small tokenizer of each kind."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from octavo.text.bpe import word_splitter
from octavo.text.pretokenize import PRE_TOKENIZERS
from tests.models.checkpoints import Case, make

TEXT = (Path(__file__).parents[2] / "LICENSE").read_text().splitlines()
SPECIALS = ["<|begin|>", "<|end|>", "<|im_start|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
VOCAB, SPM_VOCAB = 320, 512


def byte_level(
    pre: str = "qwen2", *, bos: bool = False, specials: list[str] | list[AddedToken] = SPECIALS
) -> tokenizers.Tokenizer:
    """A byte-level BPE of 300 tokens and three special ones, cutting words as the row `pre` says."""
    row = PRE_TOKENIZERS[pre]
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=row.ignore_merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([word_splitter(row), level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens(specials)
    tokenizer.add_tokens(["user defined"])
    if bos:
        first = [("<|begin|>", tokenizer.token_to_id("<|begin|>"))]
        tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=first)
    return tokenizer


def spm(*, metaspace: bool = False, prefix: bool = True) -> tokenizers.Tokenizer:
    """A SentencePiece-style BPE with byte tokens; its merges are all ways to put a token together, as in real ones.

    prefix  a space goes before a text; not so in Gemma's, where runs of spaces and of lines are added tokens
    """
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    learner = tokenizers.Tokenizer(models.BPE())
    learner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learner.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=SPM_VOCAB - 259, show_progress=False))
    learned = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    joined = [text for text, _ in learned if len(text) > 1]
    words = ["<unk>", "<s>", "</s>", *bytes_, *joined, *(text for text, _ in learned if len(text) == 1)]
    vocab = {text: i for i, text in enumerate(words)}
    pairs = [(text[:i], text[i:]) for text in joined for i in range(1, len(text))]
    merges = [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab]
    model = models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer = tokenizers.Tokenizer(model)
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    elif prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("\n\n", "<start_of_turn>")])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def save(
    folder: Path,
    case: Case,
    *,
    tokenizer: tokenizers.Tokenizer | None = None,
    dtype: str = "float32",
    shards: str | None = None,
    config: dict[str, Any] | None = None,
) -> Any:
    """Save a random model of `case` and a tokenizer to `folder`; the model, with weights rounded to `dtype`."""
    model = make(case)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype)).float()
    stored = copy.deepcopy(model).to(getattr(torch, dtype))
    stored.save_pretrained(folder, **({"max_shard_size": shards} if shards else {}))
    (tokenizer or byte_level()).save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {
        "bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "pad_token": None, "chat_template": TEMPLATE,
    } | (config or {}))
    return model


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(json.dumps(value))


def edit(folder: Path, name: str, **values: Any) -> None:
    """Change values of a JSON file; None takes one away."""
    found = json.loads((folder / name).read_text()) | values
    write(folder, name, {k: v for k, v in found.items() if v is not None})


def word_piece(size: int = 400, *, lowercase: bool = True) -> tokenizers.Tokenizer:
    """BERT's kind of tokenizer."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def _charsmap() -> str:
    """What SentencePiece replaces before it cuts text, in base64, of a recorded vocabulary."""
    recorded = json.loads((Path(__file__).parents[1] / "data" / "llama-vocabularies.json").read_text())
    key = "tokenizer.ggml.precompiled_charsmap"
    found: str = next(entry["keys"][key] for entry in recorded["vocabularies"] if key in entry["keys"])
    return found


def roberta() -> tokenizers.Tokenizer:
    """RoBERTa's kind of tokenizer, byte-level BPE, a text and then another between its ends."""
    tokenizer = byte_level("gpt-2")
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>"])
    first, last = (tokenizer.token_to_id(text) for text in ("<s>", "</s>"))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", last), ("<s>", first), add_prefix_space=False)
    return tokenizer


def unigram(*, t5: bool = False) -> tokenizers.Tokenizer:
    """XLM-RoBERTa's kind of tokenizer, or T5's."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    replaced = normalizers.Precompiled(base64.b64decode(_charsmap()))
    spaces = [normalizers.Strip(left=False), normalizers.Replace(tokenizers.Regex(" {2,}"), "▁")]
    tokenizer.normalizer = normalizers.Sequence([replaced, *spaces] if t5 else [replaced])
    meta = pre_tokenizers.Metaspace()
    tokenizer.pre_tokenizer = meta if t5 else pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), meta])
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer

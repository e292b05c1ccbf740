"""Asks llama.cpp for tokens: writes tests/data/llama-pre-tokenizers.json and llama-vocabularies.json.

    python tools/llama_tokenizers.py LLAMA-VOCAB.CPP     # with a Python that has llama-cpp-python, gguf, sentencepiece

The first file says where text is cut into words, for every name that the source file compares `tokenizer_pre` with.
For each probe and name there is a small file with a vocabulary in which every two neighbours within the probe's text
merge, so a word is one token, whatever it is. Words are stored as their lengths in characters: "3 1 4". Names that cut
alike share an entry. Flags are what the names say where a file says nothing.

The second has small vocabularies of the other kinds, as GGUF keys, and the ids of the same probes.
"""

from __future__ import annotations

import base64
import ctypes
import io
import json
import random
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import sentencepiece

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
NAME = re.compile(r'tokenizer_pre == "([^"]+)"')
ON_CHARACTERS = ("gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace")
K = "tokenizer.ggml."
PARTS = (
    *(
        "I'm",
        "we'LL",
        "'sup",
        "'RE",
        "don't",
        "O'x",
        "a",
        "B",
        "ab",
        "Ab",
        "aB",
        "ABc",
        "x1",
        "nAï",
        "e\u0301",
        "\u0301",
    ),
    *("1", "12", "123", "1234", "1234567", "\u0663\u0664", "½", "1.5", "3,000"),
    *(" ", " ", " ", "  ", "   ", "    ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\u2028"),
    *("日本", "語か", "カナ", "한국", "ㄱ", "ㄅ", "。", "、", "！", "…", "ไทย", "हिन्दी", "مر", "，", "～", "𠀀"),
    *(
        ".",
        "...",
        "!!",
        "(",
        ")/",
        "_",
        "-",
        "$",
        "+",
        "<a>",
        "^~`",
        "/",
        "//\n",
        "|",
        "«",
        "€",
        "😀",
        "<sentinel:1>",
        "IMGIMGABZ",
    ),
)


def probes() -> list[str]:
    rng = random.Random(20)
    drawn = ("".join(rng.choices(PARTS, k=rng.randint(4, 9))) for _ in range(1000))
    return [text for text in drawn if len(text.encode()) <= 34][:48]


def byte_characters() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def write(path: Path, keys: dict[str, Any]) -> None:
    """A file with `keys`, lists and plain values, and no tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in keys.items():
        if key.endswith("precompiled_charsmap"):
            writer.add_precompiled_charsmap(base64.b64decode(value))
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


class Vocabulary:
    """The tokenizer of a file, in llama.cpp."""

    def __init__(self, path: Path) -> None:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def __enter__(self) -> Vocabulary:
        return self

    def __exit__(self, *_: object) -> None:
        llama_cpp.llama_model_free(self.model)

    def ids(self, text: str, special: bool = False) -> list[int]:
        raw, found = text.encode(), (llama_cpp.llama_token * 4096)()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), found, 4096, special, False)
        return found[:count]

    @property
    def add_bos(self) -> bool:
        return bool(llama_cpp.llama_vocab_get_add_bos(self.vocab))


def all_parts(pre: str, text: str) -> dict[str, Any]:
    """A vocabulary of all parts of `text`, each of which merges from any two."""
    alphabet = byte_characters()
    symbols = [alphabet[b] for b in text.encode()]
    n = len(symbols)
    part = {(i, j): "".join(symbols[i:j]) for i in range(n) for j in range(i + 1, n + 1)}
    tokens = dict.fromkeys([*alphabet, *part.values()])
    merges = dict.fromkeys(
        f"{part[i, j]} {part[j, i + size]}"
        for size in range(2, n + 1)
        for i in range(n + 1 - size)
        for j in range(i + 1, i + size)
    )
    return {
        K + "model": "gpt2", K + "pre": pre, K + "tokens": list(tokens), K + "token_type": [1] * len(tokens),
        K + "merges": list(merges), K + "bos_token_id": 0, K + "eos_token_id": 0,
    }


def words(vocabulary: Vocabulary, tokens: list[str], text: str) -> Iterator[int]:
    """The lengths of the words, in characters."""
    raw, units, at = text.encode(), 0, 0
    for token in vocabulary.ids(text):
        units += len(tokens[token])
        end = len(raw[:units].decode())
        yield end - at
        at = end
    assert at == len(text), text


def flags(path: Path, pre: str) -> dict[str, bool]:
    """What the name says: BOS goes first, a word that is a token is taken whole."""
    keys = all_parts(pre, "a b") | {K + "merges": ["a b"]}
    keys[K + "tokens"] += ["bcd"]
    keys[K + "token_type"] += [1]
    write(path, keys)
    with Vocabulary(path) as vocabulary:
        return {"add_bos": vocabulary.add_bos, "ignore_merges": len(vocabulary.ids("bcd")) == 1}


def pre_tokenizers(names: list[str], texts: list[str], path: Path) -> dict[str, Any]:
    cuts, said = defaultdict(list), {}
    for name in names:
        found = []
        for text in texts:
            keys = all_parts(name, text)
            write(path, keys)
            with Vocabulary(path) as vocabulary:
                found.append(" ".join(map(str, words(vocabulary, keys[K + "tokens"], text))))
        cuts[tuple(found)].append(name)
        said[name] = flags(path, name)
    entries = [{"names": shared, "words": list(found)} for found, shared in cuts.items()]
    flagged = {flag: sorted(n for n in names if said[n][flag]) for flag in ("add_bos", "ignore_merges")}
    return flagged | {"cuts": sorted(entries, key=lambda e: e["names"])}


def on_characters(model: str, pre: str) -> dict[str, Any]:
    """Merges of characters; with tokens of the bytes, but for "whitespace", whose models have none."""
    pairs = ["a b", "▁ a", "▁ ▁", "▁▁ ▁", "ab O", "1 2", "12 3", "日 本", "\n \n", "w e", "x 1"]
    bytes_ = [f"<0x{b:02X}>" for b in range(256 if model == "gpt2" else 0)]
    texts = dict.fromkeys("".join(PARTS).replace(" ", "▁")[::2] + "ab▁O123日本\nwex")
    joined = [p.replace(" ", "") for p in pairs]
    tokens = list(dict.fromkeys(["<bos>", *bytes_, *texts, *joined]))
    types = [3, *[6] * len(bytes_), *[1] * (len(tokens) - 1 - len(bytes_))]
    return {
        K + "model": model, K + "pre": pre, K + "tokens": tokens, K + "token_type": types,
        K + "merges": [p for p in pairs if "\n" not in p], K + "bos_token_id": 0, K + "eos_token_id": 0,
    }


def word_pieces(texts: list[str], **options: bool) -> dict[str, Any]:
    """WordPiece: a third of the words' beginnings and ends, as the probes have them, lower case and not."""
    rng, pieces = random.Random(3), {}
    for word in (w for text in texts for form in (text, text.lower()) for w in re.findall(r"\w+|[^\w\s]", form)):
        at = rng.randint(1, len(word))
        pieces |= dict.fromkeys(p for p in ("▁" + word[:at], word[at:], *word[1:]) if p and rng.random() < 0.7)
        pieces |= {"▁" + word[0]: None}
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
    roles = {"padding": 0, "unknown": 1, "cls": 2, "bos": 2, "seperator": 3, "mask": 4}
    return {
        K + "model": "bert", K + "pre": "default", K + "tokens": tokens,
        K + "token_type": [3] * 5 + [1] * len(pieces), **{f"{K}{r}_token_id": i for r, i in roles.items()},
        **{f"{K}normalizer.{k}": v for k, v in options.items()},
    }


def unigram(texts: list[str], charsmap: str | None = None, **options: bool) -> dict[str, Any]:
    """A Unigram vocabulary of parts of the probes, with random scores."""
    rng, scores = random.Random(4), {}
    for text in texts:
        spaced = "▁" + text.replace(" ", "▁")
        for _ in range(14):
            at = rng.randrange(len(spaced))
            scores[spaced[at : at + rng.randint(1, 4)]] = -rng.randint(100, 1200) / 100
    tokens = ["<pad>", "</s>", "<unk>", "▁", *(t for t in scores if t != "▁")]
    mapped = {} if charsmap is None else {K + "precompiled_charsmap": charsmap}
    return {
        K + "model": "t5", K + "pre": "default", K + "tokens": tokens,
        K + "scores": [0.0, 0.0, 0.0, -3.0, *(s for t, s in scores.items() if t != "▁")],
        K + "token_type": [3, 3, 2] + [1] * (len(tokens) - 3), **{K + k: v for k, v in options.items()}, **mapped,
    }


def suffixes(texts: list[str]) -> dict[str, Any]:
    """PLaMo 2's kind: tokens of the bytes, and parts of the probes with scores of which many sums are the same."""
    rng, scores = random.Random(5), {}
    for text in texts:
        for _ in range(14):
            at = rng.randrange(len(text))
            scores[text[at : at + rng.randint(1, 5)]] = -rng.randint(2, 24) / 4
    controls = [f"<|plamo:{name}|>" for name in ("unk", "bos", "eos", "pad")]
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    return {
        K + "model": "plamo2", K + "pre": "default", K + "tokens": [*controls, *bytes_, *scores],
        K + "scores": [0.0] * (len(controls) + len(bytes_)) + list(scores.values()),
        K + "token_type": [2, 3, 3, 3, *[6] * len(bytes_), *[1] * len(scores)],
    }


def world(texts: list[str]) -> dict[str, Any]:
    """RWKV World's kind: tokens of the bytes and of parts of the probes' bytes, with escapes."""
    rng, parts = random.Random(6), dict.fromkeys(bytes([b]) for b in range(256))
    for text in texts:
        raw = text.encode()
        for _ in range(14):
            at = rng.randrange(len(raw))
            parts[raw[at : at + rng.randint(1, 6)]] = None
    return {
        K + "model": "rwkv", K + "tokens": ["<s>", *(repr(part)[2:-1] for part in parts)],
        K + "token_type": [3, *[1] * len(parts)], K + "bos_token_id": 0, K + "eos_token_id": 0,
    }


def trained_charsmap(rules: dict[str, str]) -> str:
    """The compiled form of `rules`, text for text, in base64."""
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as table:
        for left, right in rules.items():
            table.write("\t".join(" ".join(f"{ord(c):X}" for c in text) for text in (left, right)) + "\n")
        table.flush()
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["some words to learn", "and some more"] * 9), model_writer=model, vocab_size=20,
            hard_vocab_limit=False, normalization_rule_tsv=table.name, minloglevel=2,
        )
    normalizer = dict(message(model.getvalue()))[3]
    return base64.b64encode(dict(message(normalizer))[2]).decode()


def message(raw: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer message, by number."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(raw):
        key = varint()
        if key & 7 == 2:
            size = varint()
            yield key >> 3, raw[at : at + size]
        else:
            size = {0: 0, 1: 8, 5: 4}[key & 7]
            yield key >> 3, varint() if key & 7 == 0 else raw[at : at + size]
        at += size


def vocabularies(texts: list[str], path: Path) -> list[dict[str, Any]]:
    rules = {
        "é": "e",
        "e\u0301": "e",
        "\t": " ",
        "\n": " ",
        "\r": " ",
        "\u00a0": " ",
        "\u3000": " ",
        "カナ": "かな",
        "½": "1/2",
        "😀": "",
    }
    charsmap = trained_charsmap(rules)
    spaces = {"add_space_prefix": True, "remove_extra_whitespaces": True}
    found = []
    for keys in (
        *(on_characters("gpt2", pre) for pre in ON_CHARACTERS[:3]),
        on_characters("whitespace", "whitespace"),
        on_characters("whitespace", "whitespace") | {K + "normalizer.lowercase": True},
        word_pieces(texts), word_pieces(texts, lowercase=False), word_pieces(texts, strip_accents=False),
        unigram(texts), unigram(texts, **spaces), unigram(texts, charsmap, **spaces),
        unigram(texts, charsmap, add_space_prefix=True),
        world(texts),
        suffixes(texts),
    ):
        write(path, keys)
        with Vocabulary(path) as vocabulary:
            found.append({"keys": keys, "ids": [vocabulary.ids(text, special=True) for text in texts]})
    return found


def main(source: str) -> None:
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p())
    names, texts = sorted({*NAME.findall(Path(source).read_text())} - {*ON_CHARACTERS}), probes()
    head = {"source": f"llama-cpp-python {version('llama-cpp-python')}: llama_tokenize", "probes": texts}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.gguf"
        kinds = head | {"vocabularies": vocabularies(texts, path)}
        ways = head | pre_tokenizers(names, texts, path)
    for name, result in (("llama-vocabularies", kinds), ("llama-pre-tokenizers", ways)):
        lines = json.dumps(result, ensure_ascii=False, separators=(",", ":")).replace(',{"', ',\n{"')
        (DATA / f"{name}.json").write_text(lines + "\n")


if __name__ == "__main__":
    main(sys.argv[1])

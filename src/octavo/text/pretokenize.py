"""How byte-level models cut text into words before merging: one row for each `tokenizer.ggml.pre`.

A row's patterns are applied in order; each cuts every piece so far into its matches and what lies between them. They
are the patterns that the models' own tokenizers were trained with, in the form that llama.cpp runs (which, for a few,
reads `\\p{Lu}` and the like as any letter but a lower-case ASCII one), for the Onigurma engine inside `tokenizers`.
Runs of white space are written with possessive quantifiers, so a long one costs no backtracking.
"""

from __future__ import annotations

from dataclasses import dataclass


def _chars(ranges: str) -> str:
    """The inside of a character class, from code points and ranges of them in hexadecimal."""
    ends = (tuple(chr(int(end, 16)) for end in r.split("-")) for r in ranges.split())
    return "".join("-".join(e) for e in ends)


_CONTRACTION = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_NEWLINES = r"(?:[^\S\r\n]*+[\r\n]++)+"  # \s*[\r\n]+ in linear time
_SPACES = r"\s+(?!\S)|\s+"
_LINES_AND_SPACES = f"{_NEWLINES}|{_SPACES}"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES_AND_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_LINES_AND_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    rf"|{_LINES_AND_SPACES}"
)
# Words that break where lower case is followed by upper case: the o200k family.
_UPPER, _LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{end}}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{end}}|{{digits}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_SPACES}"
)
_WITH_MARKS = r"[[\p{L}\p{M}]&&[^a-z]]", r"[[\p{L}\p{M}]&&[^A-Z]]"
_GPT4O = _CASED.replace("{end}", f"(?:{_CONTRACTION})?").replace("{digits}", r"\p{N}{1,3}")
_GRANITE_EMBED = _GPT4O.replace(_UPPER, _WITH_MARKS[0]).replace(_LOWER, _WITH_MARKS[1])
_ANY_CASE = (  # what is left of that family where upper and lower case count as one
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+(?:{_CONTRACTION})?|{{digits}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*"
    rf"|{_LINES_AND_SPACES}"
)
_TEKKEN = _CASED.replace("{end}", "").replace("{digits}", r"\p{N}")
_DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_LINES_AND_SPACES}"
)
_KANJI_AND_KANA = f"[{_chars('4E00-9FA5 3040-309F 30A0-30FF')}]+"
_DEEPSEEK_V3 = (r"\p{N}{1,3}", _KANJI_AND_KANA, _DEEPSEEK_WORDS)
_SPARK_WORDS = _DEEPSEEK_WORDS.replace(rf"[\r\n]*|{_NEWLINES}", r"|[\r\n]")

_DEEPSEEK_LETTERS = _chars(  # letters that have case, as the tokenizer of the DeepSeek LLM models lists them
    """
    41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C
    38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B
    1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4
    1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113
    2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B
    2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06
    FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF
    1E900-1E943
    """
)
_DEEPSEEK_PUNCTUATION = _chars("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3001-3002")
_DEEPSEEK_CJK = rf"[{_chars('4E00-9FA5 800-4E00 AC00-D7FF')}&&\S]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    rf"\s?[{_DEEPSEEK_PUNCTUATION}]+",
    r"(?<!\s)\s+\z",
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
_HAN = _chars("4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2EBEF F900-FAFF 2F800-2FA1F")
_KIMI = (
    rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+(?:{_CONTRACTION})?|\p{{N}}{{1,3}}|{_SYMBOLS}"
    rf"|{_LINES_AND_SPACES}"
)
_YOUTU_SCRIPTS = "|".join(
    f"[{_chars(ranges)}]+"
    for ranges in (
        "AC00-D7A3 3131-318E",
        "FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F",
        "3105-312F",
        "4E00-9FA5 3040-309F 30A0-30FF",
    )
)
_AFMOE_SCRIPTS = _chars(
    "4E00-9FFF 3400-4DBF 8C48-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF E40-E7F E80-EFF 1780-17FF 1000-109F"
    " AA60-AA7F A9E0-A9FF AC00-D7AF 1100-11FF"
)
# Digits in threes from the right: what goes before a run of digits stays with its first group.
_THREES_FROM_THE_RIGHT = (
    r"(?:\A|(?<=\p{N}))\P{N}*+\p{N}++",
    r"\A\P{N}*+\p{N}{1,3}(?=(?:\p{N}{3})*+\z)",
    r"\A\P{N}++\p{N}++|\p{N}{3}",
)
_SUPERBPE = (  # likewise, for ASCII digits within numbers
    r"\p{N}+",
    r"(?:\A[^0-9]*+|(?<![0-9]))[0-9]{1,2}(?=(?:[0-9]{3})++(?![0-9]))",
    "[0-9]{3}[^0-9]*+",
)
_EXAONE_MOE = (  # letters with single spaces between them are one word
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}\p{{M}}*+(?: ?\p{{L}}\p{{M}}*+)*+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|{_LINES_AND_SPACES}"
)
_JAIS2_SPACES = "|".join(rf"\s{{{count}}}(?!\S)" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "IMGIMG[A-I]{1,4}Z",
    r"[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
# Where a text may be cut beforehand: words and lines that begin there are cut off from what is before them by all rows
# but a few, whatever stands on both sides.
_BEFORE_LINE = r"(?<=\S\n)(?=\w)"
_BEFORE_WORD_OR_LINE = rf"(?<=[0-9A-Za-z])(?= )|{_BEFORE_LINE}"
_BEHIND_NUMBER = r"(?<=[0-9])(?=[ \nA-Za-z])"
_BLOOM = rf" ?[^\s(|.,!?){_chars('2026 3002 FF0C 3001 964 6D4 60C')}]+"


@dataclass(frozen=True)
class PreTokenizer:
    """A way to cut text into words.

    `patterns` are applied in order. `ignore_merges`: a word that is a token is that token, whatever merges give.
    `add_bos`: text begins with the BOS token where the file doesn't say. `cut`: a pattern of places where words are the
    same if what is before and what is behind are cut apart.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    cut: str = _BEFORE_WORD_OR_LINE


_GPT2_ROW = PreTokenizer((_GPT2,))
_DIGITS_GPT2_ROW = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_ROW = PreTokenizer((_LLAMA3,))
_QWEN2_ROW = PreTokenizer((_QWEN2,))
_DEEPSEEK_V3_ROW = PreTokenizer(_DEEPSEEK_V3)
_GPT4O_ROW = PreTokenizer((_GPT4O,))
_THREE_DIGITS = "[0-9][0-9][0-9]"

_ROWS: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", _THREE_DIGITS))),
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling jina-es jina-de jina-v2-es jina-v2-de jina-v1-en"
        " jina-v2-code roberta-bpe gigachat a.x-4.0 mellum modern-bert exaone4",
        _GPT2_ROW,
    ),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", _DIGITS_GPT2_ROW),
    ("falcon", PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, _THREE_DIGITS))),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe chatglm-bpe", _LLAMA3_ROW),
    ("glm4 glm5", PreTokenizer((_LLAMA3,), ignore_merges=True)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", _QWEN2_ROW),
    ("qwen35", PreTokenizer((_QWEN35,))),
    ("deepseek-llm", PreTokenizer(_DEEPSEEK_LLM)),
    ("deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK_V3_ROW),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT4O_ROW),
    ("tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)),
    ("bailingmoe bailingmoe2 llada-moe", _QWEN2_ROW),
    (
        "seed-coder",
        PreTokenizer(
            (rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES_AND_SPACES}",),
        ),
    ),
    (
        "minicpm5",
        PreTokenizer(
            (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_LINES_AND_SPACES}"), ignore_merges=True
        ),
    ),
    ("bloom gpt3-finnish poro-chat", PreTokenizer((_BLOOM,))),
    ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
    ("afmoe", PreTokenizer((*_THREES_FROM_THE_RIGHT, f"[{_AFMOE_SCRIPTS}]+", _DEEPSEEK_WORDS))),
    ("chameleon", PreTokenizer(_CHAMELEON, add_bos=True)),
    ("exaone-moe", PreTokenizer((_EXAONE_MOE,), cut=_BEFORE_LINE)),
    ("granite-embed-multi-97m", PreTokenizer((_GRANITE_EMBED,), ignore_merges=True)),
    ("jais-2", PreTokenizer((_LLAMA3.replace(_SPACES, rf"{_JAIS2_SPACES}|\s"),))),
    ("kimi-k2", PreTokenizer((_KIMI,))),
    ("laguna", PreTokenizer((r"[^\n]+|\n+", _QWEN2))),
    ("spark2_5", PreTokenizer((r"\p{N}{1,3}", _KANJI_AND_KANA, _SPARK_WORDS, r"\p{N}"))),
    ("superbpe", PreTokenizer(_SUPERBPE, cut=_BEHIND_NUMBER)),
    (
        "tiny_aya cohere2moe",
        PreTokenizer((*_THREES_FROM_THE_RIGHT, _ANY_CASE.replace("{digits}", r"\p{N}{1,3}"))),
    ),
    ("ufakzeka", PreTokenizer((_QWEN2.removeprefix(f"{_CONTRACTION}|"),))),
    ("youtu", PreTokenizer((_YOUTU_SCRIPTS, _ANY_CASE.replace("{digits}", r"\p{N}")), ignore_merges=True)),
)
PRE_TOKENIZERS = {name: row for names, row in _ROWS for name in names.split()}

"""Trains the demo model's vocabulary: byte-level BPE with Qwen2's splitting, so that every digit is a token.

python tools/demo/tokenizer.py build/demo/tokenizer.json
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from random import Random

from corpus import SYSTEM_PROMPTS, exchanges
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCABULARY = 1024
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(samples: int, seed: int) -> Tokenizer:
    """A tokenizer of VOCABULARY tokens, the special ones last, from `samples` generated exchanges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for pair in islice(exchanges(Random(seed)), samples) for text in pair]
    roles = ["user", "assistant", "system", *SYSTEM_PROMPTS] * (samples // 100)
    tokenizer.train_from_iterator(texts + roles, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    train(options.samples, options.seed).save(str(options.out))


if __name__ == "__main__":
    main()

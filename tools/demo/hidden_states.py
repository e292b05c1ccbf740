"""The demo model read back from its file, and what it makes of chats: hidden states, of which drafters learn.

The model stays as it is, so its states are computed once for all drafters and all their epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import gguf
import numpy as np
import torch
from corpus import Chats
from export import tensor_name
from model import Config, Decoder, rotations
from tokenizer import QWEN2, SPECIAL
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

TARGET_LAYERS = (2, 6, 9)
"""The layers whose inputs an EAGLE-3 head is given."""
ROWS = 16


@dataclass
class States:
    """Chats as rows of tokens and what the model computes of them, float16.

    tokens   int64 [rows, width]
    learned  whether a token is of an answer, [rows, width]
    final    what the last norm reads, [rows, width, model's width]
    layers   the inputs of TARGET_LAYERS side by side, [rows, width, 3 * model's width]
    """

    tokens: Tensor
    learned: Tensor
    final: Tensor
    layers: Tensor

    def rows(self, chosen: Tensor | slice) -> States:
        """Some of the rows, states in float32."""
        some = [getattr(self, field.name)[chosen] for field in fields(self)]
        return States(some[0], some[1], some[2].float(), some[3].float())


def read_demo(path: str) -> tuple[Decoder, Tokenizer]:
    """The model and the vocabulary of a file that `export` wrote."""
    file = gguf.GGUFReader(path)
    stored = {tensor.name: torch.from_numpy(tensor.data.astype(np.float32)) for tensor in file.tensors}
    model = Decoder(Config())
    model.load_state_dict({name: stored[tensor_name(name)] for name in model.state_dict()})
    tokens, merges = (file.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    vocabulary = {token: i for i, token in enumerate(tokens) if token not in SPECIAL}
    tokenizer = Tokenizer(models.BPE(vocabulary, [tuple(pair.split(" ")) for pair in merges]))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return model.eval().requires_grad_(False), tokenizer


@torch.inference_mode()
def collect(model: Decoder, chats: Chats, n: int) -> States:
    """`n` rows of chats and their states."""
    tokens, labels = map(torch.from_numpy, chats.rows(n))
    learned = torch.zeros(tokens.shape, dtype=torch.bool)
    learned[:, 1:] = labels[:, :-1] >= 0
    made = [_states(model, some) for some in tokens.split(ROWS)]
    return States(tokens, learned, *(torch.cat(parts) for parts in zip(*made, strict=True)))


def _states(model: Decoder, tokens: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = rotations(torch.arange(tokens.shape[1]), model.config.head_width, model.config.rope_base)
    x, inputs = model.embed_tokens(tokens), list[Tensor]()
    for i, layer in enumerate(model.layers):
        if i in TARGET_LAYERS:
            inputs.append(x)
        x = layer(x, cos, sin)
    return x.half(), torch.cat(inputs, -1).half()

"""Tiny random checkpoints of embedding models, as sentence-transformers publishes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import normalizers, processors

from tests.convert.folders import byte_level, roberta, unigram, word_piece, write
from tests.models import jina_bert, neo_bert

SIZES = {
    "hidden_size": 128, "intermediate_size": 96, "num_attention_heads": 2, "vocab_size": 320, "num_hidden_layers": 2,
    "max_position_embeddings": 256,
}
MODULE = "sentence_transformers.models."


@dataclass
class Kind:
    """A model of `transformers` or one of `OWN`, its configuration, how it pools, its projections [out, in], its
    tokenizer, and sizes of its own where rows are whole blocks of any format."""

    model: str
    config: str
    pooling: str
    options: dict[str, Any] = field(default_factory=dict)
    dense: tuple[tuple[int, int], ...] = ()
    tokenizer: Callable[[], tokenizers.Tokenizer] = byte_level
    wide: dict[str, Any] = field(default_factory=dict)


ROBERTA = {"max_position_embeddings": 258, "pad_token_id": 1, "type_vocab_size": 1}
ENDS = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}


def modern_bert() -> tokenizers.Tokenizer:
    """ModernBERT's kind of tokenizer: byte-level BPE of composed text, one end after each of two texts."""
    tokenizer = byte_level("gpt-2")
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    ends = [(text, tokenizer.token_to_id(text)) for text in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return tokenizer


MODERN = {
    "num_hidden_layers": 4, "local_attention": 16, "pad_token_id": 0, "bos_token_id": 304, "cls_token_id": 304,
    "eos_token_id": 305, "sep_token_id": 305,
}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
TWO_ENDS = {"bos_token_id": 304, "eos_token_id": 305, "pad_token_id": 0}
KINDS = {
    "bert": Kind("BertModel", "BertConfig", "cls_token", tokenizer=partial(word_piece, 320)),
    "nomic-bert": Kind("NomicBertModel", "NomicBertConfig", "mean_tokens", tokenizer=partial(word_piece, 320)),
    "jina-bert-v2": Kind("JinaBertModel", "BertConfig", "mean_tokens", {
        "num_attention_heads": 6, "hidden_size": 96, "position_embedding_type": "alibi",
    }, tokenizer=partial(word_piece, 320)),
    "xlm-roberta": Kind("XLMRobertaModel", "XLMRobertaConfig", "mean_tokens", ROBERTA, tokenizer=unigram),
    "jina-bert-v3": Kind("JinaEmbeddingsV3Model", "JinaEmbeddingsV3Config", "mean_tokens", ROBERTA, tokenizer=unigram),
    "modern-bert": Kind("ModernBertModel", "ModernBertConfig", "cls_token", MODERN, tokenizer=modern_bert),
    "roberta": Kind("RobertaModel", "RobertaConfig", "cls_token", ROBERTA, tokenizer=roberta),
    "gemma-embedding": Kind("Gemma3TextModel", "Gemma3TextConfig", "mean_tokens", {
        "num_key_value_heads": 1, "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 16,
        "use_bidirectional_attention": True, "layer_types": ["sliding_attention", "full_attention"],
    }, dense=((160, 128), (128, 160))),
    "eurobert": Kind("EuroBertModel", "EuroBertConfig", "mean_tokens", {
        "num_key_value_heads": 1, "mask_token_id": 303, **TWO_ENDS,
    }),
    "neo-bert": Kind("NeoBERT", "NeoBERTConfig", "cls_token", {
        "intermediate_size": 100, "norm_eps": 1e-5, "max_length": 256,
    }, tokenizer=partial(word_piece, 320), wide={"intermediate_size": 384}),
    "llama-embed": Kind("LlamaBidirectionalModel", "LlamaConfig", "mean_tokens", {
        "num_key_value_heads": 1, "pooling": "avg", "rope_parameters": LLAMA3_ROPE, **TWO_ENDS,
    }),
    "qwen3": Kind("Qwen3Model", "Qwen3Config", "lasttoken", {
        "num_key_value_heads": 1, "head_dim": 64, "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True,
    }),
}


class LlamaBidirectionalModel(transformers.EuroBertModel):  # type: ignore[misc]
    """EuroBERT is Llama with another mask; the configuration says that this is Llama."""

    config_class = transformers.LlamaConfig


OWN = {
    kind.__name__: kind
    for kind in (LlamaBidirectionalModel, jina_bert.JinaBertModel, neo_bert.NeoBERT, neo_bert.NeoBERTConfig)
}
"""Classes that transformers does not have."""


@dataclass
class Saved:
    """A model of `transformers`, its tokenizer, and its projections."""

    model: Any
    tokenizer: Any
    dense: list[torch.Tensor]

    def vectors(self, text: str) -> torch.Tensor:
        """Of the tokens of a text: [tokens, d]."""
        with torch.no_grad():
            ids = torch.tensor([self.tokenizer.encode(text).ids])
            hidden: torch.Tensor = self.model(ids).last_hidden_state[0]
        return hidden

    def embed(self, text: str, pooling: str) -> torch.Tensor:
        """As sentence-transformers has it: pooled, projected, of length 1."""
        rows = self.vectors(text)
        vector = {"cls_token": rows[0], "mean_tokens": rows.mean(0), "lasttoken": rows[-1]}[pooling]
        for matrix in self.dense:
            vector = matrix @ vector
        return vector / vector.norm()


def save(folder: Path, kind: Kind) -> Saved:
    """Save a random model of a kind to `folder`."""
    torch.manual_seed(1)
    made, config = (OWN.get(name) or getattr(transformers, name) for name in (kind.model, kind.config))
    model = made(config(**SIZES | kind.options)).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    if "architectures" in kind.options:  # the class that Qwen3's embedding models name
        config = model.config.to_dict() | {"architectures": kind.options["architectures"]}
        write(folder, "config.json", {k: v for k, v in config.items() if k != "dtype"})
    tokenizer = kind.tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", ENDS if kind.options is ROBERTA else {})
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    dense = []
    for i, (out, width) in enumerate(kind.dense, 2):
        modules.append((f"{i}_Dense", "Dense"))
        dense.append(torch.randn(out, width) / 9)
        (folder / f"{i}_Dense").mkdir()
        write(folder / f"{i}_Dense", "config.json", {
            "in_features": width, "out_features": out, "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        })
        save_file({"linear.weight": dense[-1]}, folder / f"{i}_Dense" / "model.safetensors")
    modules.append(("9_Normalize", "Normalize"))
    write(folder, "modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": MODULE + name} for i, (path, name) in enumerate(modules)
    ])
    (folder / "1_Pooling").mkdir()
    write(folder / "1_Pooling", "config.json", {f"pooling_mode_{kind.pooling}": True, "pooling_mode_max_tokens": False})
    return Saved(model, tokenizer, dense)

"""Writes the trained weights and the vocabulary as one F16 GGUF file.

python tools/demo/export.py build/demo/tokenizer.json build/demo/weights.safetensors src/octavo/data/demo.gguf
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gguf
from model import Config
from safetensors.numpy import load_file

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# The checkpoint's names of a block's tensors and GGUF's.
BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tensor_name(name: str) -> str:
    """layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight."""
    if name.startswith("layers."):
        _, block, rest = name.split(".", 2)
        return f"blk.{block}.{BLOCK[rest.removesuffix('.weight')]}.weight"
    return {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[name]


def add_identity(writer: gguf.GGUFWriter) -> None:
    """Who and what the model is."""
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name("Octavo demo calculator")
    writer.add_author("The Octavo authors")
    writer.add_organization("Octavo")
    writer.add_basename("octavo-demo")
    writer.add_size_label("7.5M")
    writer.add_version("1")
    writer.add_license("apache-2.0")
    writer.add_description(
        "A small calculator that answers in English: arithmetic, comparisons, percentages, unit conversions. "
        "Trained on generated text only; for demonstrations and tests."
    )
    writer.add_languages(["en"])
    writer.add_tags(["demo", "calculator", "text-generation"])
    writer.add_sampling_temp(0.0)


def add_sizes(
    writer: gguf.GGUFWriter, c: Config, stored: gguf.LlamaFileType = gguf.LlamaFileType.MOSTLY_F16
) -> None:
    """The hyperparameters of the qwen3 architecture."""
    writer.add_context_length(c.context)
    writer.add_embedding_length(c.width)
    writer.add_block_count(c.layers)
    writer.add_feed_forward_length(c.ffn)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_key_length(c.head_width)
    writer.add_value_length(c.head_width)
    writer.add_rope_freq_base(c.rope_base)
    writer.add_layer_norm_rms_eps(c.eps)
    writer.add_vocab_size(c.vocabulary)
    writer.add_file_type(stored)


def add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """The vocabulary, its merges, the special tokens and the chat template."""
    saved = json.loads(path.read_text())
    ids: dict[str, int] = dict(saved["model"]["vocab"])
    special = {token["content"]: token["id"] for token in saved["added_tokens"]}
    ids |= special
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in saved["model"]["merges"]])
    writer.add_bos_token_id(special["<|endoftext|>"])
    writer.add_eos_token_id(special["<|im_end|>"])
    writer.add_eot_token_id(special["<|im_end|>"])
    writer.add_pad_token_id(special["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def export(tokenizer: Path, weights: Path, out: Path) -> None:
    """Writes `out`: matrices F16, norms F32, no output matrix (it is tied to the embedding)."""
    out.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(out, "qwen3")
    add_identity(writer)
    add_sizes(writer, Config())
    add_tokenizer(writer, tokenizer)
    for name, weight in load_file(weights).items():
        writer.add_tensor(tensor_name(name), weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    export(options.tokenizer, options.weights, options.out)


if __name__ == "__main__":
    main()

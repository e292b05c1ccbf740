"""Trains a model of another shape on the demo model's text, and writes it as a Hugging Face checkpoint.

python tools/demo/tokenizer.py build/demo/tokenizer.json
python tools/demo/small.py llama-gqa build/demo/tokenizer.json build/demo/llama-gqa
octavo convert build/demo/llama-gqa build/demo/llama-gqa.gguf

Each takes about six minutes of one core. They talk as the demo model does and calculate badly, which is enough to see
what quantization costs on weights that learned something. Steps are counted and seeds fixed, so that one machine and
one version of torch make the same bytes each time.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from corpus import Chats
from export import TEMPLATE
from model import Config, Decoder
from safetensors.torch import save_file
from tokenizer import SPECIAL
from tokenizers import Tokenizer
from train import LONG_EVERY, SHORT, learning_rate, optimizers, update

SMALL = Config(layers=4, heads=4, ffn=512, context=512, tied=False)
SHAPES = {
    "llama-gqa": replace(SMALL, qk_norm=False),
    "moe": replace(SMALL, layers=3, ffn=256, experts=8),
}
STEPS = {"llama-gqa": 320, "moe": 220}
TOKENS, LR = 2048, 0.02


def train(model: Decoder, tokenizer: Tokenizer, steps: int, seed: int) -> None:
    """Learn to continue chats, questions too, in `steps` steps of TOKENS tokens."""
    context = model.config.context
    short, long = Chats(tokenizer, SHORT, seed), Chats(tokenizer, context, seed + 500)
    chain = optimizers(model, LR)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in chain]
    for step in range(steps):
        chats = long if step % LONG_EVERY == LONG_EVERY - 1 else short
        tokens = torch.from_numpy(chats.rows(TOKENS // chats.width)[0])
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        share = learning_rate((step + 1) / (steps + 1), warmup=0.05)
        update(chain, peaks, share)
        if (step + 1) % 25 == 0:
            print(f"step {step + 1}  loss {loss.item():.4f}  {time.process_time():.0f} s of CPU", flush=True)


def config_json(c: Config, special: dict[str, int]) -> dict[str, Any]:
    """What transformers calls the sizes."""
    kind, name = ("qwen3_moe", "Qwen3MoeForCausalLM") if c.experts else ("llama", "LlamaForCausalLM")
    experts = {
        "num_experts": c.experts, "num_experts_per_tok": 2, "moe_intermediate_size": c.ffn, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    }
    return {
        "architectures": [name], "model_type": kind, "torch_dtype": "float16", "hidden_act": "silu",
        "vocab_size": c.vocabulary, "hidden_size": c.width, "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads, "head_dim": c.head_width,
        "intermediate_size": c.ffn, "max_position_embeddings": c.context, "rope_theta": c.rope_base,
        "rms_norm_eps": c.eps, "tie_word_embeddings": c.tied, "attention_bias": False,
        "bos_token_id": special["<|endoftext|>"], "eos_token_id": special["<|im_end|>"],
        "pad_token_id": special["<|endoftext|>"], **(experts if c.experts else {}),
    }


def save(model: Decoder, tokenizer: Path, out: Path) -> None:
    """Writes a checkpoint folder: matrices in float16, norms in float32."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {
        (name if name.startswith("lm_head") else f"model.{name}"): w.half() if w.ndim == 2 else w
        for name, w in model.state_dict().items()
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    ids = {token: Tokenizer.from_file(str(tokenizer)).token_to_id(token) for token in SPECIAL}
    (out / "config.json").write_text(json.dumps(config_json(model.config, ids), indent=2) + "\n")
    chat = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (out / "tokenizer_config.json").write_text(json.dumps(chat, indent=2) + "\n")
    words = json.loads(tokenizer.read_text())
    words["normalizer"] = None  # GGUF has none, and the text is ASCII
    (out / "tokenizer.json").write_text(json.dumps(words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, help="default: what takes six minutes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    model = Decoder(SHAPES[options.shape])
    train(model, Tokenizer.from_file(str(options.tokenizer)), options.steps or STEPS[options.shape], options.seed)
    save(model, options.tokenizer, options.out)


if __name__ == "__main__":
    main()

"""The trained weights as one safetensors file: matrices in float16, norms in float32, as the GGUF file stores them."""

from __future__ import annotations

from pathlib import Path

import torch
from model import Decoder
from safetensors.torch import load_file, save_file


def save(model: Decoder, path: Path) -> None:
    """Writes `model` under the names of a Hugging Face Qwen3 checkpoint (less the "model." in front)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: (w.half() if w.ndim == 2 else w.float()).contiguous() for name, w in model.state_dict().items()}
    save_file(weights, path)


def load(model: Decoder, path: Path) -> None:
    """Reads what `save` wrote into `model`."""
    model.load_state_dict({name: w.to(torch.float32) for name, w in load_file(path).items()})

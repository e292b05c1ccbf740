"""Damaged checkpoint folders of tiny models, the files beside the weights above all; the models then generate."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import tempfile
import weakref
from pathlib import Path

from fuzz_models import FLOAT_PATTERNS, encode, generates
from json_damage import damage_json
from tiny_models import Tiny, stored, tiny

from octavo.huggingface.tensors.tensor_names import checkpoint_name
from octavo.io.safetensors import TensorHead, write_safetensors
from octavo.models.shared.registry import ARCHITECTURES
from octavo.quantizers import quantize_checkpoint

SIDE_FILES = (
    "config.json", "config.json", "tokenizer.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
    "model.safetensors.index.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "tokenizer.model",
)
TEMPLATES = (
    "{{ messages[0].content }}",
    "{% for m in messages %}",
    "{{ 'x' * 10**9 }}",
    "\ufeff",
    "{{ raise_exception('x') }}",
)
LINKS = ("/dev/zero", "/dev/null", "missing", ".")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def seeds(folder: Path) -> list[Path]:
    """Valid folders below `folder`: quantized in three schemes, plain in one file, and in two."""
    made = []
    for name, model, scheme in (
        ("int8", tiny("qwen3"), "int8-w8a8"), ("w4a8", tiny("qwen2"), "w4a8-g128"), ("fp8", tiny("llama"), "fp8"),
    ):
        source = folder / f"{name}.gguf"
        source.write_bytes(encode(model.keys, stored(model.tensors, "F32")))
        quantize_checkpoint(source, folder / name, scheme)
        source.unlink()
        made += [folder / name, _plain(folder / name, model, files=2 if name == "w4a8" else 1)]
    return made


def _plain(quantized: Path, model: Tiny, files: int) -> Path:
    """The folder of `model` before it was quantized, with float32 weights in as many files."""
    folder = quantized.with_name(f"{quantized.name}-plain")
    shutil.copytree(quantized, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / WEIGHTS).unlink()
    named = [(checkpoint_name(name, ARCHITECTURES[model.arch]), values) for name, values in model.tensors.items()]
    parts = [named[i::files] for i in range(files)]
    index = {}
    for i, part in enumerate(parts):
        name = WEIGHTS if files == 1 else f"model-{i + 1:05}-of-{files:05}.safetensors"
        heads = [TensorHead(n, "F32", values.shape) for n, values in part]
        write_safetensors(folder / name, heads, [values for _, values in part])
        index |= {n: name for n, _ in part}
    if files > 1:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


class Target:
    """A folder in the folder, made of the first `n_seeds` valid ones (default: of all)."""

    def __init__(self, folder: Path, n_seeds: int | None = None) -> None:
        kept = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, kept, True)
        self._seeds = seeds(Path(kept))[:n_seeds]
        self._path = folder / "model"

    def make(self, rng: random.Random) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        shutil.copytree(rng.choice(self._seeds), self._path)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            present = sorted(os.listdir(self._path))
            name = rng.choice([n for n in SIDE_FILES if n in present] + present)
            kind = rng.random()
            if kind < 0.1:
                replace_file(rng, self._path / rng.choice((name, *SIDE_FILES)))
            elif name.endswith(".safetensors"):
                damage_weights(rng, self._path / name)
            elif kind < 0.25 or not name.endswith(".json"):
                damage_bytes(rng, self._path / name)
            else:
                damage_text(rng, self._path / name)

    def exercise(self) -> bool:
        return generates(self._path)


def replace_file(rng: random.Random, path: Path) -> None:
    """Something else in place of a file: nothing, a folder, a FIFO, a link, no bytes, another file's bytes."""
    others = [p for p in path.parent.iterdir() if p.is_file() and p.name != path.name]
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    match rng.randrange(7):
        case 1:
            path.mkdir()
        case 2:
            os.mkfifo(path)
        case 3:
            path.symlink_to(rng.choice(LINKS))
        case 4:
            path.write_bytes(b"")
        case 5 if others:
            shutil.copy(rng.choice(others), path)
        case 6:
            path.write_text(rng.choice(TEMPLATES))


def damage_text(rng: random.Random, path: Path) -> None:
    """Other JSON in a file."""
    if path.is_file():
        try:
            text = damage_json(rng, path.read_text())
        except (ValueError, RecursionError):
            return  # an earlier change has made it no JSON
        path.write_bytes(text.encode(errors="surrogatepass"))


def damage_bytes(rng: random.Random, path: Path) -> None:
    """Other bytes in a file, more of them, or fewer."""
    if path.is_file():
        data = path.read_bytes()
        for _ in range(rng.choice((1, 3, 20))):
            at = rng.randrange(len(data) + 1)
            data = (
                data[:at]
                + rng.choice((b"", rng.randbytes(1), b"\xff\xfe", b'"', b"{%"))
                + data[at + rng.choice((0, 1)) :]
            )
        path.write_bytes(data[: rng.choice((len(data), len(data), rng.randrange(len(data) + 1)))])


def damage_weights(rng: random.Random, path: Path) -> None:
    """Other JSON in the header, another length of it, other numbers behind it, or fewer bytes."""
    if not path.is_file():
        return
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    if len(data) < 16 or size > len(data) - 8:
        return
    match rng.randrange(5):
        case 0:
            data = struct.pack("<Q", rng.choice((0, max(size - 1, 0), size + 8, 2**63, 2**64 - 1))) + data[8:]
        case 1:
            data = data[: rng.randrange(len(data))]
        case 2:
            body = bytearray(data)
            for _ in range(rng.choice((1, 16))):
                at = rng.randrange(8 + size, len(data) - 3) & ~3
                body[at : at + 4] = struct.pack("<I", rng.choice((*FLOAT_PATTERNS, rng.getrandbits(32))))
            data = bytes(body)
        case _:
            try:
                header = damage_json(rng, data[8 : 8 + size].decode()).encode(errors="surrogatepass")
            except (ValueError, RecursionError):
                return  # an earlier change has made it no JSON
            data = struct.pack("<Q", len(header)) + header + data[8 + size :]
    path.write_bytes(data)

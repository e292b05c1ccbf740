"""Files that are not models but often stand where one should: by their first bytes, what they are and what to do."""

from __future__ import annotations

from octavo.errors import shown

GIT_LFS = b"version https://git-lfs.github.com/spec/"

_BY_START: tuple[tuple[bytes, str], ...] = (
    (GIT_LFS, "is a Git LFS pointer, not the file itself: run `git lfs pull` in its folder"),
    (b"PK\x03\x04", "is a zip file, such as PyTorch's checkpoints are (pickles, which run code when they are read): "
     "take the model's GGUF file or its folder of safetensors"),
    (b"\x1f\x8b", "is compressed with gzip: unpack it first"),
    (b"lmgg", "is of the GGML format that GGUF replaced in 2023: take a GGUF file of the model"),
    (b"fmgg", "is of the GGML format that GGUF replaced in 2023: take a GGUF file of the model"),
    (b"tjgg", "is of the GGML format that GGUF replaced in 2023: take a GGUF file of the model"),
)
_PICKLE = "is a pickle, which could run code, and is refused: take GGUF or safetensors"
_HTML = "is a web page, not a model: a download gave its page instead of the file"
_SAFETENSORS = "is a safetensors file: give the folder that it lies in, with config.json and the tokenizer"
_JSON = "is JSON, not a model: give the folder that it lies in, if that is a checkpoint"

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files that only the folder of an adapter has."""

HEAD = 64
"""Bytes from a file's start that `foreign` looks at."""

AGAIN = "download or copy it again"
"""What to do about a file that ends too early."""


def adapter(base: object = None) -> str:
    """What an adapter is, and what to do; `base` names the model that it changes, where it is a text."""
    named = f", {shown(base)}," if isinstance(base, str) and base else ""
    return f"is an adapter (LoRA), no model: run its base model{named} with --lora and this"


def foreign(head: bytes) -> str | None:
    """What a file is that starts with `head` (its first `HEAD` bytes), and what to do; None for nothing well known."""
    for start, what in _BY_START:
        if head.startswith(start):
            return what
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return _PICKLE
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html", b"<?xml")):
        return _HTML
    if head[8:10] in (b'{"', b"{}") and int.from_bytes(head[:8], "little") < 1 << 32:
        return _SAFETENSORS
    return _JSON if head.lstrip().startswith(b"{") else None

"""Which routes are llama-server's own: their errors have its shape."""

from __future__ import annotations

NATIVE = frozenset({
    "/completion", "/tokenize", "/detokenize", "/apply-template", "/props", "/lora-adapters", "/slots", "/health",
})


def is_native(path: str) -> bool:
    return path in NATIVE

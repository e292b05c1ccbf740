"""Names of models as Ollama's clients write them."""

from __future__ import annotations

HUB = ("hf.co/", "huggingface.co/")
LATEST = ":latest"


def plain_name(name: str) -> str:
    """A name without the hub's address before it, and without the tag that stands for none."""
    for address in HUB:
        name = name.removeprefix(address)
    return name.removesuffix(LATEST)


def tagged_name(name: str) -> str:
    """A name with a tag, as Ollama lists all of them."""
    return name if ":" in name else name + LATEST

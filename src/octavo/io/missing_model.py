"""Models that are not there: what somebody who names them may mean, and how to get it."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches

from octavo.data import DRAFTERS
from octavo.errors import FileError, shown
from octavo.io.hub.name import parse

_HUB = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/.*", re.IGNORECASE)
_URL = re.compile(r"https?://[^\s'\"]+", re.IGNORECASE)
_OLLAMA = re.compile(r"([a-z][a-z0-9.-]*)(?::[\w.-]+)?")


def require_there(path: str | os.PathLike[str]) -> None:
    """Raise FileError, with what to do instead, where nothing is at the path of a model."""
    name = os.fsdecode(path)
    try:
        os.stat(name)
    except FileNotFoundError:
        if os.path.islink(name):
            raise FileError(f"is a link to {shown(os.path.realpath(name))}, which doesn't exist", file=name) from None
        hint = advice(name)
        raise FileError(f"there is no such file or folder{f'; {hint}' if hint else ''}", file=name) from None
    except (OSError, ValueError) as error:
        raise FileError(f"can't be opened: {getattr(error, 'strerror', None) or error}", file=name) from None


def advice(name: str) -> str:
    """What to do about a model's name that is not a path; "" if nothing comes to mind."""
    close = "" if "://" in name else _close(name)
    if close:
        return f"did you mean {close}?"
    if parse(name) is not None:
        return f"`octavo pull {name}` downloads the model of that name from the hub"
    if _HUB.fullmatch(name):
        return "`octavo pull ORG/REPO:QUANT` downloads models of the hub"
    if _URL.fullmatch(name):
        return f"download it: `curl -LO '{name}'`"
    if name.endswith((".gguf", ".safetensors", "/")) or name.startswith((".", "/", "~")):
        return ""
    search = search_for(name)
    return f"the hub's names have two parts, as in `octavo pull ORG/REPO`; {search}" if search else ""


def search_for(name: str) -> str:
    """Where the hub lists models of a name such as Ollama has; "" for what is not such a name."""
    found = _OLLAMA.fullmatch(name)
    if found is None or name.endswith(".gguf"):
        return ""
    return f"GGUF files of that name: https://huggingface.co/models?library=gguf&search={found[1]}"


def _close(name: str) -> str:
    """A model that is there under nearly that name."""
    folder, base = os.path.split(name)
    try:
        here = [e.name for e in os.scandir(folder or ".") if e.name.endswith(".gguf") and e.is_file()]
    except OSError:
        here = []
    if not folder:
        here += ["demo", *DRAFTERS]
    found = get_close_matches(base, here, n=1, cutoff=0.75)
    return os.path.join(folder, found[0]) if found else ""

"""Models that are not there: what somebody who names them may mean, and how to get it.

Octavo reads files. Names that other programs fetch models by are told from mistyped paths, and the error has the
command that downloads them.
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches

from octavo.errors import FileError

_HUB = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(.+)", re.IGNORECASE)
_URL = re.compile(r"https?://[^\s'\"]+", re.IGNORECASE)
_REPOSITORY = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(?::([\w.-]+))?")
_FILE = re.compile(r"([\w.-]+/[\w.-]+)/(?:resolve|blob)/([\w.-]+)/([\w./-]+)(?:\?.*)?")
_OLLAMA = re.compile(r"([a-z][a-z0-9.-]*)(?::[\w.-]+)?")


def require_there(path: str | os.PathLike[str]) -> None:
    """Raise FileError, with what to do instead, where nothing is at the path of a model."""
    name = os.fsdecode(path)
    try:
        os.stat(name)
    except FileNotFoundError:
        hint = advice(name)
        raise FileError(f"there is no such file or folder{f'; {hint}' if hint else ''}", file=name) from None
    except (OSError, ValueError) as error:
        raise FileError(f"can't be opened: {getattr(error, 'strerror', None) or error}", file=name) from None


def advice(name: str) -> str:
    """What to do about a model's name that is no path; "" if nothing comes to mind."""
    hub = _HUB.fullmatch(name)
    if hub:
        return _from_hub(hub[1].rstrip("/"))
    if _URL.fullmatch(name):
        return f"download it: `curl -LO '{name}'`"
    close = _close(name)
    if close:
        return f"did you mean {close}?"
    if name.endswith((".gguf", ".safetensors", "/")) or name.startswith((".", "/", "~")):
        return ""
    if _REPOSITORY.fullmatch(name) and not os.path.isdir(name.partition("/")[0]):
        return _from_hub(name)
    found = _OLLAMA.fullmatch(name)
    if found:
        search = f"https://huggingface.co/models?library=gguf&search={found[1]}"
        return f"Octavo does not fetch models by such names; GGUF files to download: {search}"
    return ""


def _from_hub(name: str) -> str:
    """The command that downloads a file or a repository of the Hugging Face hub."""
    file = _FILE.fullmatch(name)
    if file:
        revision = "" if file[2] == "main" else f" --revision {file[2]}"
        here = "." if "/" not in file[3] else os.path.dirname(file[3])
        return f"download it: `hf download {file[1]} {file[3]}{revision} --local-dir .`, then give {here}/" + (
            os.path.basename(file[3])
        )
    repository = _REPOSITORY.fullmatch(name)
    if not repository:
        return "Octavo does not fetch models; `hf download OWNER/NAME --local-dir FOLDER` does"
    folder = repository[1].partition("/")[2]
    if repository[2] or folder.lower().endswith("gguf"):
        include = f"*{repository[2] or 'Q4_K_M'}*.gguf"
        return (
            f"download it: `hf download {repository[1]} --include '{include}' --local-dir {folder}`, then give the file"
        )
    return f"download it: `hf download {repository[1]} --local-dir {folder}`, then give {folder}"


def _close(name: str) -> str:
    """A model that is there under nearly that name."""
    folder, base = os.path.split(name)
    try:
        here = [entry.name for entry in os.scandir(folder or ".") if entry.name.endswith(".gguf")]
    except OSError:
        here = []
    if not folder:
        here.append("demo")
    found = get_close_matches(base, here, n=1, cutoff=0.75)
    return os.path.join(folder, found[0]) if found else ""

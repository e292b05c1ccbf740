"""The models of a repository: its GGUF files, sorted into sets, and its checkpoint; and which of them is meant."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from octavo.errors import ChoiceError, HubError
from octavo.io.foreign import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from octavo.io.hub.name import HubName
from octavo.sizes import size

DEFAULT = "Q4_K_M"
"""What is taken where a name does not say which."""
CHECKPOINT, ADAPTER = "safetensors", "adapter"
NEEDED = 1.1
"""Memory that a model needs, relative to its files: keys, values and work come on top of the weights."""

_SHARD = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)
_QUANTIZATION = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q[0-9](?:_[A-Z0-9]+)*|TQ[0-9]_[0-9]|BF16|F16|F32|FP16|MXFP4(?:_MOE)?|NVFP4))(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_BESIDE = re.compile(r"(?:^|[/._-])(?:mmproj|imatrix)(?:[._-]|$)", re.IGNORECASE)
_OF_A_MODULE = re.compile(r"[0-9]+_(Pooling|Dense)/(config\.json|model\.safetensors)")
"""What sentence-transformers has beside a checkpoint, in folders of its own."""
_NAMED_TEMPLATE = re.compile(r"additional_chat_templates/[^/]+\.jinja")
_OF_A_CHECKPOINT = (".json", ".jinja", ".model", ".txt", ".tiktoken", "tokenizer.jsonl")


@dataclass(frozen=True)
class RepoFile:
    """A file of a repository: its name in it, bytes, and digest: SHA-256, or Git's of a file that LFS does not keep."""

    name: str
    size: int
    digest: str = ""


@dataclass(frozen=True)
class Variant:
    """A model of a repository: a GGUF file, a set of shards in order, a checkpoint or the folder of an adapter.

    `label` tells it from others.
    """

    label: str
    files: tuple[RepoFile, ...]

    @property
    def nbytes(self) -> int:
        return sum(entry.size for entry in self.files)

    @property
    def is_checkpoint(self) -> bool:
        return self.label == CHECKPOINT

    @property
    def is_folder(self) -> bool:
        return self.label in (CHECKPOINT, ADAPTER)

    def fits(self, free: int | None) -> bool:
        """Whether it runs in this many bytes of memory; None is what a system says that does not tell."""
        return free is None or self.nbytes * NEEDED <= free

    def path(self, folder: str) -> str:
        """Where it is, in the folder of a snapshot."""
        return folder if self.is_folder else os.path.join(folder, *self.files[0].name.split("/"))


Chooser = Callable[[HubName, Sequence[Variant], int | None], Variant]
"""Which of a repository's models a name means, as `choose` does."""


def variants(entries: Iterable[RepoFile]) -> list[Variant]:
    """All models of a repository, the smallest first, its checkpoint and an adapter last.

    Sets that lack a shard are none.
    """
    found = list(entries)
    sets = _sets(entry for entry in found if entry.name.endswith(".gguf") and not _BESIDE.search(entry.name))
    labels = {stem: _label(stem) for stem in sets}
    times = Counter(labels.values())
    named = [
        Variant(label if times[label] == 1 else stem, files)
        for (stem, files), label in zip(sets.items(), labels.values(), strict=True)
    ]
    folders = [folder for folder in (_checkpoint(found), _adapter(found)) if folder is not None]
    return sorted(named, key=lambda v: (v.nbytes, v.label)) + folders


def _sets(files: Iterable[RepoFile]) -> dict[str, tuple[RepoFile, ...]]:
    """GGUF files by their names without the ending, shards of a set together and in order; whole sets only."""
    sets: dict[tuple[str, int], dict[int, RepoFile]] = {}
    for entry in files:
        shard = _SHARD.fullmatch(entry.name)
        key = (shard[1], int(shard[3])) if shard else (entry.name.removesuffix(".gguf"), 1)
        sets.setdefault(key, {})[int(shard[2]) if shard else 1] = entry
    return {
        stem: tuple(numbered[i] for i in range(1, count + 1))
        for (stem, count), numbered in sets.items()
        if count > 0 and numbered.keys() == set(range(1, count + 1))
    }


def _label(stem: str) -> str:
    """The quantization that a file's name tells, or else its folder's; without one the name itself."""
    for part in reversed(stem.split("/")):
        found = _QUANTIZATION.findall(part)
        if found:
            return str(found[-1]).upper()
    return stem


def _checkpoint(entries: Sequence[RepoFile]) -> Variant | None:
    """The files of a checkpoint folder, config.json last, so that it is there only if all others are."""
    here = {entry.name: entry for entry in entries if "/" not in entry.name}
    modules = [e for e in entries if _OF_A_MODULE.fullmatch(e.name) or _NAMED_TEMPLATE.fullmatch(e.name)]
    weights = [name for name in here if name.endswith(".safetensors") and not name.startswith("adapter_")]
    named = [name for name in weights if re.fullmatch(r"model(-[0-9]+-of-[0-9]+)?\.safetensors", name)]
    config = here.pop("config.json", None)
    if config is None or not weights:
        return None
    beside = [name for name in here if name.endswith(_OF_A_CHECKPOINT) and name != "config.json"]
    names = sorted(beside) + sorted(named or weights)
    return Variant(CHECKPOINT, (*(here[name] for name in names), *modules, config))


def _adapter(entries: Sequence[RepoFile]) -> Variant | None:
    """The files of an adapter's folder, its configuration last."""
    here = {entry.name: entry for entry in entries}
    wanted = ADAPTER_WEIGHTS, ADAPTER_CONFIG
    return Variant(ADAPTER, tuple(here[name] for name in wanted)) if all(name in here for name in wanted) else None


def choose_adapter(name: HubName, found: Sequence[Variant], free: int | None) -> Variant:
    """The adapter that `name` means: the folder of one, or else one of the GGUF files, as `choose` has it.

    Raises what that raises, and HubError where there is neither.
    """
    adapters = [v for v in found if v.label == ADAPTER]
    files = [v for v in found if not v.is_folder]
    if name.what or (files and not adapters):
        return choose(name, found if name.what else files, free)
    if not adapters:
        raise HubError(f"{name.repo} has no adapter: neither {ADAPTER_WEIGHTS} nor a GGUF file")
    return adapters[0]


def choose(name: HubName, found: Sequence[Variant], free: int | None) -> Variant:
    """The model that `name` means; `free` bytes of memory are what it may need.

    Where it does not say which: Q4_K_M if that fits, else the largest that fits. Raises ChoiceError, which lists what
    there is, where several could be meant or none fits, and HubError where there is none.
    """
    if not found:
        raise HubError(f"{name.repo} has no GGUF files and no checkpoint in safetensors")
    files = [v for v in found if not v.is_folder]
    if name.what:
        return _named(name, found, name.what)
    if not files:
        return found[0]
    usual = [v for v in files if _label(v.label) == DEFAULT]
    if len(usual) > 1:
        raise ChoiceError(f"{name.repo} has several models of {DEFAULT}; say which", usual)
    fitting = [v for v in usual if v.fits(free)] or [v for v in files if v.fits(free)]
    if not fitting:
        raise ChoiceError(f"{name.repo} has nothing that fits {size(free or 0)} of free memory", found)
    return fitting[-1]


def meant(name: HubName, found: Sequence[Variant]) -> list[Variant]:
    """Those whose label or file `name` says, or else those whose files have it for a part of their names; or all."""
    if not name.what:
        return list(found)
    what = name.what.casefold()
    exact = [v for v in found if what in (v.label.casefold(), *(entry.name.casefold() for entry in v.files))]
    part = re.compile(rf"(?<![a-z0-9]){re.escape(what)}(?![a-z0-9])")
    return exact or [v for v in found if any(part.search(entry.name.casefold()) for entry in v.files)]


def _named(name: HubName, found: Sequence[Variant], what: str) -> Variant:
    """The only one that is meant."""
    matching = meant(name, found)
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ChoiceError(f"{name.repo} has several models that {what!r} could mean", matching)
    close = get_close_matches(what.upper(), [v.label for v in found], n=1, cutoff=0.8)
    raise ChoiceError(f"{name.repo} has no {what}{f'; did you mean {close[0]}?' if close else ''}", found)

"""The errors that bad input raises: what was wrong, where, and what is allowed.

Every error of this package that a user can cause is an `OctavoError`; the command line prints it as one line and
exits with status 2.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, Self

from octavo.sizes import size

INSTALL_GPU = "pip install '.[gpu]' in Octavo's folder"
INSTALL_REPORT = "pip install '.[report]' in Octavo's folder"
INSTALL_BASE = "pip install . in Octavo's folder"
INSTALL_EVENTS = "pip install '.[events]' in Octavo's folder"
INSTALL_FILES = "pip install '.[files]' in Octavo's folder"
INSTALL_RAY = "pip install '.[ray]' in Octavo's folder"
INSTALL_LEGACY = "pip install ./octavo-legacy in Octavo's folder"
"""How the optional parts are installed, and what belongs to the package itself, as errors say it."""


def import_failure(package: str, error: Exception, install: str) -> str:
    """What is wrong with a package whose import failed: it is missing, or it is there and can't be loaded."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == package:
        return f"{package} is not installed ({install})"
    return f"{package} is installed, but can't be imported: {error or type(error).__name__}"


def end_of_process(status: int) -> str:
    """How a process ended, as a sentence on it says it, by its `returncode`."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # one of the numbers for real-time use
        return f"was killed by signal {-status}"


SHOWN_CHARACTERS = 80


def shown(name: str) -> str:
    """A name from a file as an error shows it: quoted, with escapes, not too long."""
    return repr(name if len(name) <= SHOWN_CHARACTERS else name[:SHOWN_CHARACTERS] + "...")


class OctavoError(Exception):
    """Base of every error that input can cause."""


class FileError(OctavoError):
    """A file that breaks its format's rules, named to the byte where that is known.

    `file` is the path, `offset` the byte at which the fault lies, `field` the part of the format,
    `allowed` what would have been right.
    """

    def __init__(
        self, problem: str, *, file: str | os.PathLike[str] | None = None, offset: int | None = None,
        field: str | None = None, allowed: str | None = None,
    ) -> None:
        self.problem, self.offset, self.field, self.allowed = problem, offset, field, allowed
        self.file = None if file is None else os.fspath(file)
        named = "''" if self.file == "" else self.file, None if offset is None else f"byte {offset}", field
        text = f"{', '.join(where)}: {problem}" if (where := [part for part in named if part]) else problem
        super().__init__(f"{text} (allowed: {allowed})" if allowed else text)

    def of(self, file: str | os.PathLike[str]) -> Self:
        """The same error of a file by another name."""
        found = type(self)(self.problem, file=file, offset=self.offset, field=self.field, allowed=self.allowed)
        for note in getattr(self, "__notes__", ()):
            found.add_note(note)
        return found


class GGUFError(FileError):
    """A GGUF file that is cut, corrupt or of an unknown kind."""


class QuantFormatError(OctavoError):
    """A tensor format that is not known, or data that does not fit it."""


class ModelError(FileError):
    """A well-formed file whose hyperparameters or tensors do not make a model that can be run."""


class TokenizerError(FileError):
    """A vocabulary that can't be used, or text or ids that it can't take."""


class TemplateError(OctavoError):
    """A chat template that is invalid, tries something forbidden, or runs too long."""


class GrammarError(OctavoError):
    """A grammar or schema that is invalid or too large, or a reply that can't go on as it has to."""


class GraphError(OctavoError):
    """A graph whose shapes do not fit, or that no backend can run."""


class BackendError(OctavoError):
    """A backend or device that is not available, or not able to do what was asked."""


class RankError(BackendError):
    """One of the processes that compute a model together has ended or failed, so that the others can't go on."""


class DeviceMemoryError(BackendError):
    """More memory than a device has free."""


class HostMemoryError(BackendError):
    """More memory than the system has free, or lets this process have."""


class MemoryLimitError(OctavoError):
    """A model that takes more memory than a server's models may take together."""


class ContextFullError(OctavoError):
    """More tokens than the context holds."""


class CacheFullError(ContextFullError):
    """More pages than the KV cache has free for now; with fewer sequences it would hold them."""


class NonFiniteError(OctavoError):
    """NaN or Inf in a model's weights or in what it computed."""


class AdapterError(OctavoError):
    """An adapter that can't be used: it has changed since it was loaded, or is more than there is room for."""


class AdaptersFullError(AdapterError):
    """No slot is free for an adapter: loaded ones and requests under way have all."""


class UnknownAdapterError(AdapterError):
    """A name that no loaded adapter has."""

    def __init__(self, name: str, there: Sequence[str]) -> None:
        listed = ", ".join(map(shown, there)) if there else "none is loaded"
        super().__init__(f"there is no adapter {shown(name)} (adapters: {listed})")


def tensor_label(name: str, expert: int | None = None) -> str:
    """A tensor as errors name it, or an expert's part of it."""
    return f"tensor {shown(name if expert is None else f'{name}, expert {expert}')}"


@contextmanager
def about_tensor(name: str, expert: int | None = None) -> Iterator[None]:
    """Errors of values that are not finite, or that a format can't hold, name the tensor."""
    try:
        yield
    except (NonFiniteError, QuantFormatError) as error:
        raise type(error)(f"{tensor_label(name, expert)}: {error}") from None


class HubError(OctavoError):
    """A model of the Hugging Face hub that can't be fetched: unknown, forbidden, unreachable or corrupt."""


class Choice(Protocol):
    """One of the models of a repository."""

    @property
    def label(self) -> str: ...
    @property
    def nbytes(self) -> int: ...


class ChoiceError(HubError):
    """A name of the hub that could mean several models, or none that is there. `choices` are the repository's.

    They have `label` and `nbytes`, which the message lists.
    """

    def __init__(self, problem: str, choices: Sequence[Choice]) -> None:
        self.problem, self.choices = problem, tuple(choices)
        super().__init__(f"{problem} (choices: {listed(choices)})")


def listed(choices: Sequence[Choice]) -> str:
    """Models by their labels, with sizes."""
    return ", ".join(f"{choice.label} ({size(choice.nbytes)})" for choice in choices)


class UsageError(OctavoError):
    """An argument that is not allowed.

    `argument` is its name in Python, with which the message then begins, so that another name for it (an option of the
    command line) can be put in its place.
    """

    def __init__(self, problem: str, *, argument: str | None = None) -> None:
        self.argument = argument
        super().__init__(problem)


def require_matplotlib(what: str) -> None:
    """Raise UsageError where pictures can't be drawn: `what` says what needs it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{what}: {import_failure('matplotlib', error, INSTALL_REPORT)}") from None

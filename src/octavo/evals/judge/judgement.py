"""Files of a model, in any mix of formats, judged by what they predict where their base predicts something else.

Each file is run over the text once, and the base once, if there is room on the disk for its logits. KL(base || file) is
over the whole vocabulary, in float64; intervals are of 95%, by clusters of the text: its documents, or windows where it
does not say where one ends.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from octavo.data import resolve as resolve_path
from octavo.errors import FileError, OctavoError, UsageError
from octavo.evals.clusters import Clusters, Interval
from octavo.evals.eval_model import context_for, open_subject
from octavo.evals.judge.judged_text import SHIPPED, JudgedText, read_judged
from octavo.evals.judge.reference import Kept, Live, LlamaCppFile, Reference
from octavo.evals.judge.suspicion import WORSE, odd_settings, odd_tensors, worth
from octavo.evals.kl_divergence import require_one_vocabulary
from octavo.evals.scores import Comparison, compare
from octavo.evals.stats import F64
from octavo.evals.windows import TextWindow, logits, step_sizes, windows
from octavo.huggingface import open_model_file
from octavo.io.distinct_paths import text_files
from octavo.io.gguf import GGUFFile
from octavo.io.hub.download_cache import shown_name
from octavo.io.model_path import hub_name
from octavo.io.regular_file import open_regular
from octavo.io.system_memory import room
from octavo.models import read_model
from octavo.runtime import Model, resolve
from octavo.text import Tokenizer

LONG = 2048
"""Tokens of a window whose every position is scored."""
NOISE_WINDOWS = 2
HEAD = ("token_embd.", "output.")
"""What tensors of the head begin with: the embedding and the output matrix, which may be one."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model's tensors, and bits a weight, of all of it and of what is between embedding and output."""

    total: int
    body: int
    head: int
    bits: float
    body_bits: float

    @classmethod
    def of(cls, file: GGUFFile) -> Sizes:
        """Of an open file."""
        head = [t for name, t in file.tensors.items() if name.startswith(HEAD)]
        body = [t for name, t in file.tensors.items() if not name.startswith(HEAD)]
        nbytes = [sum(t.nbytes for t in part) for part in (body, head)]
        sizes = [sum(t.size for t in part) for part in (body, head)]
        bits = 8 * sum(nbytes) / sum(sizes), 8 * nbytes[0] / max(1, sizes[0])
        return cls(sum(nbytes), nbytes[0], nbytes[1], *bits)


@dataclass(frozen=True)
class Verdict:
    """A file beside its base.

    kl, median, p99, p999  of the divergences of all positions, nats
    same_top       share of positions where both find the same token likeliest
    perplexity     of the file; `ratio` is to the base's
    rounds         its scheme has activations of 8 bits, which cost more than its weights
    noise          mean divergence of what the engine computed from what the file says, nats; None: not measured. Of a
                   scheme that rounds activations: how far the least change, of the cache, moves it
    rank           1 and as many as are better beyond doubt: their interval of the difference leaves out 0
    worth          bits a weight that it is worth more than it has, against the median of the files (`suspicion.worth`)
    suspicions     why it looks broken
    """

    name: str
    sizes: Sizes
    kl: Interval
    median: Interval
    p99: Interval
    p999: Interval
    same_top: Interval
    perplexity: Interval
    ratio: Interval
    rounds: bool = False
    noise: float | None = None
    rank: int = 0
    worth: float | None = None
    suspicions: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Judgement:
    """Files from the least divergence to the largest.

    text, text_sha256  what was read; `overlap` is the share of its 12-word shingles that the calibration text has
    context, windows, positions  tokens of a window, how many, and how many positions were scored; `every` of them or
                   a window's second half
    clusters       that intervals are by
    exact          weights were computed as floats, without rounding activations
    rounding       nats that a divergence may be off by, as llama.cpp's file says nothing of unlikely tokens
    failed         files that could not be judged, and why
    """

    base: str
    base_sizes: Sizes | None
    base_perplexity: Interval
    text: str
    text_sha256: str
    context: int
    windows: int
    positions: int
    every: bool
    clusters: int
    exact: bool
    files: list[Verdict]
    failed: dict[str, str]
    overlap: float | None = None
    rounding: float | None = None


def judge(
    base: str, paths: Sequence[str], text: str = SHIPPED, *, context: int | None = None, chunks: int | None = None,
    every: bool = False, exact: bool = False, parse_special: bool = False, calibration: str | None = None,
    noise_windows: int = NOISE_WINDOWS, progress: Progress = lambda done, total, what: None, **where: Any,
) -> Judgement:
    """Compare files with their base on a text.

    base     a model, or a file of llama.cpp's --kl-divergence-base, which brings text and windows
    paths    GGUF files and checkpoint folders
    text     SHIPPED, DEMO or a file (`read_judged`)
    context  tokens of a window (default: 512, or LONG with `every`); `every` position counts, not the second half alone
    exact    compute what files say, without the rounding of activations that an engine adds
    calibration  a text whose overlap with this one is told
    noise_windows  that the engine's own noise is measured on; 0: not
    where    arguments of `open_subject`

    Files of which no tensor is finite, or that can't be loaded, are told in `failed`. Raises UsageError for models of
    other vocabularies and for windows that there are none of, FileError for texts and files of logits, and for
    paths where nothing is.
    """
    if not paths:
        raise UsageError("no file to compare with the base", argument="files")
    require_there((base, *paths), text, calibration)
    names = named(paths)
    recorded = LlamaCppFile.open(base) if is_recorded(base) else None
    if recorded is None:
        base = resolve(base)
    else:
        every, context = False, recorded.context
    sizes = None
    if recorded is None:
        with open_model_file(base) as file:
            sizes = Sizes.of(file)
    failed, models = dict[str, str](), dict[str, str]()
    for name, path in zip(names, map(resolve, paths), strict=True):
        with _failing(name, failed):
            _require_alike(path, None if recorded is not None else base)
            models[name] = path
    _require_some(models, failed)
    usual = {"usual": LONG} if every else {}
    context = context_for(context, *models.values(), *([base] if recorded is None else []), **usual)
    run = _Run(context, chunks, every, exact, noise_windows, where, progress, len(models))
    with ExitStack() as stack:
        read, overlap = run.begin(stack, base, recorded, next(iter(models.values())), text, parse_special, calibration)
        found = dict[str, tuple[Comparison, Verdict]]()
        for name, path in models.items():
            with _failing(name, failed):
                found[name] = run.file(name, path, None if recorded is not None else base)
            run.done += 1
    _require_some(found, failed)
    nll = next(iter(found.values()))[0].nll_base
    return Judgement(
        os.path.basename(base.rstrip("/")), sizes, exponential(run.clusters.mean(nll)), read.name, read.digest,
        context, len(run.windows), len(nll), every, run.clusters.count, exact, ranked(found, run.clusters), failed,
        overlap, float(np.concatenate(run.rounding).mean()) if run.rounding else None,
    )


def remarks(found: Judgement) -> list[str]:
    """What a reader of the figures has to know, in sentences."""
    low = [v.name for v in found.files if (v.ratio.high if v.ratio.known else v.ratio.value) < 1]
    if not low:
        return []
    return [f"perplexity / base is below 1 for {', '.join(low)}: that gains nothing, but says that the base does not "
            "know this text well; KL tells what is lost"]


def is_recorded(path: str) -> bool:
    """Whether a path is a file of logits, by its first bytes."""
    with suppress(FileError, OSError), open_regular(path) as file:
        return file.read(8) == b"_logits_"
    return False


def require_there(models: Sequence[str], *texts: str | None) -> None:
    """Raises FileError for a path where nothing is; names of the hub and of texts that come with Octavo are none."""
    paths = [path for path in map(resolve_path, models) if hub_name(path) is None]
    for path in (*paths, *text_files(*(text for text in texts if text != SHIPPED))):
        if not os.path.exists(path):
            raise FileError(f"can't be opened: {os.strerror(errno.ENOENT)}", file=path)


def named(paths: Sequence[str]) -> list[str]:
    """Short names of files, or their paths where two are called alike."""
    short = [shown_name(path) for path in paths]
    return [name if short.count(name) == 1 else path for name, path in zip(short, paths, strict=True)]


def ranked(found: dict[str, tuple[Comparison, Verdict]], clusters: Clusters) -> list[Verdict]:
    """Verdicts from the least divergence on, with ranks, what files are worth, and whose worth is odd."""
    verdicts = [verdict for _, verdict in found.values()]
    judged = [v for v in verdicts if v.sizes.body_bits < 16 and not v.rounds]
    own = [max(v.kl.value - (v.noise or 0), v.kl.value / 10) for v in judged]
    values = dict(zip([v.name for v in judged], worth(own, [v.sizes.body_bits for v in judged]), strict=True))
    done = []
    for verdict in sorted(verdicts, key=lambda v: v.kl.value):
        mine = found[verdict.name][0].kl
        better = sum(
            v.kl.value < verdict.kl.value and clusters.mean(mine - found[v.name][0].kl).low > 0 for v in verdicts
        )
        value, said = values.get(verdict.name), list(verdict.suspicions)
        if value is not None and value < -WORSE:
            said.insert(0, f"diverges as if it had {-value:.1f} bits a weight less, beside the others")
        done.append(replace(verdict, rank=1 + better, worth=value, suspicions=said))
    return done


def exponential(logarithm: Interval) -> Interval:
    """exp of a value and of the ends of its interval; what floats can't hold is Inf."""
    with np.errstate(over="ignore"):
        return Interval(*np.exp([logarithm.value, logarithm.low, logarithm.high]).tolist())


@dataclass
class _Run:
    """The windows, what is known of them, and how far it is."""

    context: int
    chunks: int | None
    every: bool
    exact: bool
    noise_windows: int
    where: dict[str, Any]
    progress: Progress
    parts: int
    done: int = 0
    windows: list[TextWindow] = field(default_factory=list)
    rounding: list[F64] = field(default_factory=list)

    def open(self, path: str, **how: Any) -> Model:
        return open_subject(path, self.context, **({"floats": self.exact} | self.where | how))

    def begin(
        self, stack: ExitStack, base: str, recorded: LlamaCppFile | None, first: str, text: str, parse_special: bool,
        calibration: str | None,
    ) -> tuple[JudgedText, float | None]:
        """Read the text, and run the base over it, or keep it loaded where its logits find no room.

        Gives the text, and how much of it is in the calibration text.
        """
        model = stack.enter_context(self.open(first if recorded is not None else base))
        if recorded is not None:
            if model.n_vocab != recorded.n_vocab:
                raise UsageError(f"{base} has logits of {recorded.n_vocab} tokens, {first} of {model.n_vocab}")
            tokens = recorded.tokens.tolist()
            read = JudgedText(os.path.basename(base), "", tokens, None, [], [])
        else:
            read = read_judged(text, model.tokenizer, parse_special=parse_special)
        overlap = None if calibration is None else read.overlap(calibration)
        self.windows = windows(model, read.tokens, self.context, self.chunks, every=self.every)
        self.clusters = Clusters(np.concatenate([
            np.full(int(w.scored.sum()), i) if read.documents is None
            else read.documents[i * self.context + np.flatnonzero(w.scored)] for i, w in enumerate(self.windows)
        ]))
        self.reference: Reference
        if recorded is not None:
            self.reference = recorded
            model.close()
        elif Kept.there_is_room(self.windows, model.n_vocab):
            self.parts += 1
            kept = Kept.of(model.engine, self.windows, step_sizes(model.engine), self._show("the base"))
            stack.callback(kept.close)
            self.reference = kept
            model.close()
            self.done = 1
        else:
            self.reference = Live(model.engine, self.windows)
        return read, overlap

    def file(self, name: str, path: str, base: str | None) -> tuple[Comparison, Verdict]:
        """Run a file over the windows beside the base."""
        show, parts = self._show(name), list[Comparison]()
        with self.open(path) as model:
            require_context(model, self.context)
            sizes = step_sizes(*[model.engine, *([self.reference.engine] if isinstance(self.reference, Live) else [])])
            for i, window in enumerate(self.windows):
                for rows, theirs, targets in self.reference.beside(i, logits(model.engine, window, *sizes), sizes):
                    parts.append(compare(rows, theirs, targets))
                    if isinstance(self.reference, LlamaCppFile):
                        whole = parts.pop().kl
                        parts.append(compare(rows, self.reference.without_cut(theirs), targets))
                        self.rounding.append(np.abs(whole - parts[-1].kl))
                show(i + 1, len(self.windows))
            noise = self._noise(path, model, sizes)
        found = Comparison.join(parts)
        with open_model_file(path) as file:  # that of the model may be in floats
            suspicions = [] if base is None else _suspicions(file, base)
            rounds = any(file.tensor(tensor).format.per_row for tensor in file.tensors)
            made = verdict_of(name, Sizes.of(file), found, self.clusters)
        return found, replace(made, rounds=rounds, noise=noise, suspicions=suspicions)

    def _noise(self, path: str, model: Model, sizes: tuple[int, int]) -> float | None:
        """How far what was computed is from exact arithmetic; of exact arithmetic from itself in smaller steps."""
        taken = self.windows[: self.noise_windows]
        free = room()
        nbytes = 4 * sum(t.size for t in model.file.tensors.values())
        if not taken or (not self.exact and free is not None and 1.5 * nbytes > free.free):
            return None
        with ExitStack() as stack:
            other, smaller = model, (max(1, sizes[0] // 2 - 1), max(1, sizes[1] // 2 - 1))
            if not self.exact:
                other, smaller = stack.enter_context(self.open(path, floats=True)), sizes
            found = []
            for window in taken:
                exact = np.concatenate([rows.copy() for rows, _ in logits(other.engine, window, *smaller)])
                at = 0
                for rows, targets in logits(model.engine, window, *sizes):
                    found.append(compare(rows, exact[at : at + len(targets)], targets).kl)
                    at += len(targets)
            return float(np.concatenate(found).mean())

    def _show(self, what: str) -> Callable[[int, int], None]:
        def show(done: int, total: int) -> None:
            at = f"{self.done + 1} of {self.parts} models: {what}, window {done} of {total}"
            self.progress(self.done * total + done, self.parts * total, at)

        return show


def verdict_of(name: str, sizes: Sizes, found: Comparison, clusters: Clusters) -> Verdict:
    """What was counted of each token, with intervals."""
    median, p99, p999 = clusters.percentiles(found.kl, (50.0, 99.0, 99.9))
    return Verdict(
        name, sizes, clusters.mean(found.kl, positive=True), median, p99, p999,
        clusters.share(found.same_top), exponential(clusters.mean(found.nll)),
        exponential(clusters.mean(found.nll - found.nll_base)),
    )


def require_context(model: Model, context: int) -> None:
    """Raises UsageError for a model whose context is shorter than a window."""
    if model.engine.n_ctx < context:
        allowed = f"{context}, as windows have"
        raise UsageError(f"{model.file.path} has a context of {model.engine.n_ctx} (allowed: {allowed})")


def _suspicions(file: GGUFFile, base: str) -> list[str]:
    with open_model_file(base) as other:
        return [*odd_settings(file, other), *odd_tensors(file, other)]


@contextmanager
def _failing(name: str, failed: dict[str, str]) -> Iterator[None]:
    """Note why a file can't be judged and go on; what is wrong with the question itself is raised."""
    try:
        yield
    except UsageError:
        raise
    except OctavoError as error:
        failed[name] = str(error)


def _require_some(found: dict[str, Any], failed: dict[str, str]) -> None:
    if not found:
        raise UsageError(f"none of the files could be judged: {'; '.join(failed.values())}")


def _require_alike(path: str, base: str | None) -> None:
    """Raises UsageError for files of two vocabularies, before anything is run, and OctavoError for unreadable ones."""
    both = []
    for name in (path, base or path):
        with open_model_file(name) as file:
            both.append((name, Tokenizer.from_gguf(file), read_model(file).hparams.n_vocab))
    require_one_vocabulary(*both)

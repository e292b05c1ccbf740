"""Makes a frontier, step after step, each kept with what it was made of, so that a run that was killed goes on.

1. An importance matrix of the calibration text.
2. What each type would do to each weight: the error of its products, by the encoder, and by GPTQ if that is to make it.
3. What errors cost: the divergence that a group of weights brings about in a type.
4. Of each size: the types with which the sum of costs is least; costs again, with all weights in these types, and types
   by them; and the file, made by the encoders, or by GPTQ where types have levels.
5. Files judged on a text that none of this has seen, and timed.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from statistics import median
from typing import Any

import pydantic

from octavo import __version__
from octavo.backends import select
from octavo.backends.cores import cores
from octavo.bench.result import BenchOptions, bench_model
from octavo.calibrate.gguf.gguf_method import GgufMethod
from octavo.calibrate.gguf.type_errors import type_errors
from octavo.calibrate.run_name import run_name
from octavo.calibrate.runner import Samples
from octavo.calibrate.runner.journal import remove_journal
from octavo.errors import FileError, UsageError
from octavo.evals.activation_squares import collect_imatrix
from octavo.evals.eval_model import open_subject
from octavo.evals.judge.judgement import Judgement, judge
from octavo.evals.probe_model import open_to_probe
from octavo.evals.sensitivity import Sensitivity, sensitivities
from octavo.evals.stats import Estimate
from octavo.formats import BlockFormat
from octavo.frontier.kept import Kept
from octavo.frontier.plan import LOCK, RUN, WORK, Options, Plan, PlannedFile, Subject, require_folder, run_before
from octavo.io.atomic import failures_of, written_file
from octavo.io.digest import files_digest
from octavo.io.distinct_paths import text_files
from octavo.io.locks import locked_if_any
from octavo.quantizers.fit.fit import Fit, Offers, file_type, fit_types
from octavo.quantizers.fit.fit import type_errors as sampled_errors
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job.job_plan import QuantizeJob
from octavo.quantizers.job.write import write_model

Progress = Callable[[str, int, int], None]
Errors = dict[str, dict[str, tuple[float, float]]]
"""By tensor and type, squared relative errors: as the encoder leaves it, and as what makes the file does."""
OWN = re.compile(
    r"imatrix\.gguf|(errors-(encoder|gptq)|costs(-.+\.gguf-\d+)?|(file|speed)-.+\.gguf|imatrix|judged)\.jsonl"
)
"""Files in WORK that a run which begins anew removes, beside journals of files."""
JOURNAL = re.compile(r".+\.gguf-[0-9a-f]{8}")
PROMPT, GENERATE, TIMED = 256, 32, 3
"""Tokens of a prompt and of a reply that files are timed with, and how often."""


@dataclass(frozen=True)
class FrontierFile:
    """A file of a frontier.

    target    that it was made for, in words
    nbytes    of its tensors; `bits` a weight
    types     matrices of each type
    expected  divergence that was expected by what was measured, on the calibration text, nats
    prompt, decode  tokens a second on this machine, of TIMED runs the middle one; None: not timed
    prompt_runs, decode_runs  of the slowest and the fastest run
    """

    name: str
    target: str
    nbytes: int
    bits: float
    types: dict[str, int]
    expected: float
    prompt: float | None = None
    decode: float | None = None
    prompt_runs: tuple[float, float] | None = None
    decode_runs: tuple[float, float] | None = None


@dataclass(frozen=True)
class Frontier:
    """What was made: files from the smallest on, and what they are judged as."""

    model: str
    options: dict[str, Any]
    files: list[FrontierFile]
    judgement: Judgement


def make_frontier(
    subject: Subject, folder: str, plan: Plan, options: Options, *, restart: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Frontier:
    """Make the files of a plan in `folder`, or go on with it where an earlier run was stopped.

    restart  begin anew, whatever an earlier run has left

    Raises UsageError for a folder of another model, text or options, and where another process is at work in it, and as
    its steps do.
    """
    require_folder(folder)
    with _locked(os.path.join(folder, WORK)) as work:
        return _Run(subject, folder, work, options, progress, restart).all(plan.files)


def require_same(subject: Subject, folder: str, options: Options, *, restart: bool = False) -> dict[str, str]:
    """What a run is of, by part. Raises UsageError where the one in `folder` is of something else, and says of what."""
    before = run_before(folder)
    text = (options.calibration, files_digest(text_files(options.calibration), 1))
    run = run_name(subject.file, Samples(subject.samples), __version__, subject.context)
    parts = {"run": run, "model": run.partition(".")[0], "calibration text": digest(text[text[0] != "demo"]),
             "version of Octavo": __version__, "--samples": str(options.samples), "--ctx-size": str(subject.context)}
    if before and before.get("run") != run and not restart:
        changed = [part for part in parts if part != "run" and before.get(part) != parts[part]]
        named = [f"{part} {before.get(part)}" if part.startswith("-") else f"another {part}" for part in changed]
        other = " and ".join(named) or "other tokens"
        raise UsageError(f"{folder} is of {other} (allowed: another folder, or --restart)")
    return parts


@contextmanager
def _locked(work: str) -> Iterator[str]:
    """The folder of what is kept, locked. Raises UsageError where another process has it."""
    with failures_of(work):
        os.makedirs(work, exist_ok=True)
        lock = os.open(os.path.join(work, LOCK), os.O_CREAT | os.O_RDWR, 0o666)
    try:
        if not locked_if_any(lock):
            raise UsageError(f"another process is at work in {work}")
        yield work
    finally:
        os.close(lock)


class _Run:
    def __init__(
        self, subject: Subject, folder: str, work: str, options: Options, progress: Progress, restart: bool
    ) -> None:
        self.subject, self.folder, self.work, self.options, self.tell = subject, folder, work, options, progress
        self.backends = select(options.device, options.threads)
        parts = require_same(subject, folder, options, restart=restart)
        self.run = parts["run"]
        self._begin(parts, restart)

    def _begin(self, parts: Mapping[str, str], restart: bool) -> None:
        """Say what this run is of, where no earlier one has."""
        path = os.path.join(self.work, RUN)
        if os.path.lexists(path) and not restart:
            return
        with failures_of(path):
            for name in filter(OWN.fullmatch, os.listdir(self.work)):
                os.unlink(os.path.join(self.work, name))
            for name in filter(JOURNAL.fullmatch, os.listdir(self.work)):
                remove_journal(os.path.join(self.work, name))
        with written_file(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            json.dump({"frontier": parts}, file)

    def all(self, files: Sequence[PlannedFile]) -> Frontier:
        imatrix = self.importance()
        offered = self.subject.offered(self.options.made_for, [f.target for f in files], imatrix)
        errors = self.errors(offered, imatrix)
        made = [self.file(planned, offered, errors, imatrix) for planned in files]
        found = self.judged(made)
        timed = [self.timed(each) for each in made] if self.options.speed else made
        return Frontier(os.path.basename(self.subject.path), asdict(self.options),
                        sorted(timed, key=lambda each: each.nbytes), found)

    def kept(self, name: str, *of: object) -> Kept:
        """What is kept under a name, if it was made of this run's model and text and of `of`."""
        return Kept(os.path.join(self.work, f"{name}.jsonl"), digest(self.run, *of))

    def importance(self) -> Imatrix:
        path = os.path.join(self.work, "imatrix.gguf")
        kept = self.kept("imatrix")
        if "digest" not in kept or _digest(path) != kept["digest"]:
            if os.path.lexists(path) and ("digest" in kept or not _is_imatrix(path)):
                with failures_of(path):
                    os.unlink(path)
            self._collect(path)
            kept["digest"] = _digest(path)
        return replace(Imatrix.load(path), path=None)  # files say nothing of where they were made

    def _collect(self, path: str) -> None:
        options = self.options
        with open_subject(self.subject.path, self.subject.context, device=options.device, threads=options.threads,
                          fuse=False) as model:
            collect_imatrix(
                model, self.subject.tokens, name=os.path.basename(options.calibration), context=self.subject.context,
                path=path, progress=lambda done, total: self.tell("importance", done, total),
            )

    def errors(self, offered: Offers, imatrix: Imatrix) -> Errors:
        """What each type does to each tensor; types that were tried for other sizes are not tried again."""
        compensated, threads = self.options.method == "gptq", self.options.threads
        kept = self.kept(f"errors-{self.options.method}")

        def left() -> Offers:
            tried = {name: kept.get(name, ()) for name in offered}
            new = {name: [f for f in kinds if f.name not in tried[name]] for name, kinds in offered.items()}
            return {name: kinds for name, kinds in new.items() if kinds}

        if any(not f.is_float for kinds in left().values() for f in kinds):
            for name, found in type_errors(
                self.subject.spec, self.backends, Samples(self.subject.samples), left(), imatrix=imatrix,
                compensated=compensated, threads=threads,
                progress=lambda done, total: self.tell("trying types", done, total),
            ):
                kept[name] = kept.get(name, {}) | {kind: [loss.encoded, loss.made] for kind, loss in found.items()}
        for tensor in (t for t in self.subject.source.tensors if t.name in left()):
            sampled = sampled_errors([tensor], left(), imatrix=imatrix, threads=threads)[tensor.name]
            kept[tensor.name] = kept.get(tensor.name, {}) | {kind: [error, error] for kind, error in sampled.items()}
        return {name: {f.name: tuple(kept[name][f.name]) for f in kinds} for name, kinds in offered.items()}

    def slopes(
        self, name: str, errors: Errors, imatrix: Imatrix, within: Mapping[str, BlockFormat] | None = None
    ) -> dict[str, float]:
        """What an error of 1 costs in each tensor; `within` types that all have meanwhile."""
        names = list(errors)
        types = None if within is None else {n: within[n].name for n in names}
        kept = self.kept(name, types, self.options.probes, self.options.groups)
        what = "costs of errors" if within is None else f"costs of errors in {name.removeprefix('costs-')}"
        if len(kept) < len(names):
            with open_to_probe(self.subject.path, self.subject.context, device=self.options.device,
                               threads=self.options.threads) as model:
                used = {node.tensor.name for node in model.engine.schedule.graph.leaves("weight")}
                sensitivities(
                    model, self._probe_tokens(), [n for n in names if n in used], weights=self.subject.file.tensor,
                    imatrix=imatrix, context=self.subject.context, chunks=None, every=True, within=within,
                    probes=self.options.groups,
                    squared_error=lambda n, kind: errors[n].get(kind, (None,))[0], known=_Sensitivities(kept),
                    progress=lambda done, total: self.tell(what, done, total),
                )
        found = {n: s.slope for n, s in _Sensitivities(kept).items()}
        middle = sorted(found.values())[len(found) // 2] if found else 1.0
        return {n: found.get(n, middle) for n in names}

    def _probe_tokens(self) -> list[int]:
        """Of the calibration text's windows some, evenly spread."""
        tokens, size = self.subject.tokens, self.subject.context
        count = len(tokens) // size
        step = max(1, count // self.options.probes)
        return [t for i in range(0, count, step)[: self.options.probes] for t in tokens[i * size : (i + 1) * size]]

    def file(self, planned: PlannedFile, offered: Offers, errors: Errors, imatrix: Imatrix) -> FrontierFile:
        """The file of a size, made unless it is there already."""
        fit = self.types(planned, offered, errors, imatrix)
        types = {name: fmt.name for name, fmt in fit.types.items()}
        path = os.path.join(self.folder, planned.name)
        kept = self.kept(f"file-{planned.name}", types, self.options.method)
        if "digest" not in kept or _digest(path) != kept["digest"]:
            source = self.subject.source
            stored = {t.name: t.type_name for t in source.tensors}
            job = QuantizeJob(
                source, f"fitted to {planned.target}", {n: f for n, f in fit.types.items() if f.name != stored[n]},
                file_type(source, fit), imatrix,
            )
            method = GgufMethod(
                self.options.calibration, "gptq", self.options.samples, self.subject.context, self.options.device,
                self.options.threads, lambda what, done, total: self.tell(f"{planned.name}: {what}", done, total),
                os.path.join(self.work, f"{planned.name}-{digest(self.run, types)[:8]}"), True, grids=True,
            ) if self.options.method == "gptq" else None
            write_model(job, path, method=method, threads=self.options.threads,
                        progress=lambda what, done, total: self.tell(f"{planned.name}: {what}", done, total))
            kept["digest"] = _digest(path)
        values = sum(t.size for t in self.subject.source.tensors)
        return FrontierFile(planned.name, str(planned.target), fit.nbytes, 8 * fit.nbytes / values,
                            dict(Counter(types.values()).most_common()), fit.loss)

    def types(self, planned: PlannedFile, offered: Offers, errors: Errors, imatrix: Imatrix) -> Fit:
        """The types of a size's tensors."""
        made = {name: {kind: pair[1] for kind, pair in found.items()} for name, found in errors.items()}
        slopes = self.slopes("costs", errors, imatrix)
        fit = fit_types(self.subject.source, offered, planned.budget, slopes, errors=made)
        for i in range(self.options.rounds):
            again = self.slopes(f"costs-{planned.name}-{i + 1}", errors, imatrix, fit.types)
            slopes = {name: again[name] or slope for name, slope in slopes.items()}  # of what stays as it is: 0
            fit = fit_types(self.subject.source, offered, planned.budget, slopes, errors=made)
        return fit

    def judged(self, made: Sequence[FrontierFile]) -> Judgement:
        options = self.options
        of = [asdict(each) for each in made], options.method
        kept = self.kept("judged", *of, options.text, options.chunks, options.exact)
        if "judgement" not in kept:
            found = judge(
                self.subject.path, [os.path.join(self.folder, each.name) for each in made], options.text,
                context=self.subject.context, chunks=options.chunks, exact=options.exact, device=options.device,
                threads=options.threads,
                calibration=None if options.calibration == "demo" else options.calibration,
                progress=lambda done, total, what: self.tell(f"judging: {what}", done, total),
            )
            kept["judgement"] = pydantic.TypeAdapter(Judgement).dump_python(found, mode="json")
        return pydantic.TypeAdapter(Judgement).validate_python(kept["judgement"])

    def timed(self, made: FrontierFile) -> FrontierFile:
        kept = self.kept(f"speed-{made.name}", asdict(made), self.options.method)
        if "runs" not in kept:
            found = bench_model(
                os.path.join(self.folder, made.name),
                BenchOptions(PROMPT, GENERATE, TIMED, threads=self.options.threads, device=self.options.device),
                lambda what: self.tell(f"timing {made.name}: {what}", 0, 0),
            )
            kept["runs"] = [sorted(next(iter(test["rates"].values()))["rounds"]) for test in found["tests"]]
        prompt, decode = kept["runs"]
        return replace(made, prompt=median(prompt), decode=median(decode), prompt_runs=(prompt[0], prompt[-1]),
                       decode_runs=(decode[0], decode[-1]))


class _Sensitivities(MutableMapping[str, Sensitivity]):
    """Sensitivities by weight, as they are kept."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def __getitem__(self, name: str) -> Sensitivity:
        kl, error, squared = self._kept[name]
        return Sensitivity(Estimate(kl, error), squared)

    def __setitem__(self, name: str, value: Sensitivity) -> None:
        self._kept[name] = [value.kl.value, value.kl.error, value.squared_error]

    def __delitem__(self, name: str) -> None:
        del self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


def _digest(path: str) -> str | None:
    """Of a file's bytes; None where none can be read."""
    with suppress(FileError):
        return files_digest([path], cores())
    return None


def _is_imatrix(path: str) -> bool:
    with suppress(FileError):
        return bool(Imatrix.load(path).entries)
    return False


def digest(*of: object) -> str:
    """A name of values: the same for equal ones."""
    return sha256(json.dumps(of, sort_keys=True, default=str).encode()).hexdigest()

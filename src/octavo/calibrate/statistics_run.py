"""StatisticsRun: one pass of a model over samples of a text, and the statistics of what its products are given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from octavo.backends import select
from octavo.calibrate.caches.clips import TOKENS, CacheClips
from octavo.calibrate.run_name import model_digest, run_name
from octavo.calibrate.runner import Journal, Layerwise, OpenStage, ProductInput, Samples
from octavo.calibrate.runner.layerwise import AttentionWatch, Progress
from octavo.calibrate.texts import text_samples
from octavo.errors import ModelError, UsageError
from octavo.formats import dequantize
from octavo.formats.spec import F32
from octavo.graph.node import Node
from octavo.graph.stages import Stage
from octavo.huggingface import open_model_file
from octavo.io.atomic import require_target
from octavo.io.distinct_paths import MODEL, TEXT, model_files, require_apart, text_files
from octavo.models import ModelSpec, read_model
from octavo.quantizers.statistics import ChannelStatistics
from octavo.quantizers.statistics.statistics_file import Statistics
from octavo.runtime import resolve

CONTEXT = 2048
"""Tokens of a sample, unless somebody says how many or the model was made for fewer."""
WORK = ".work"
"""What the folder of a run in work is called, after the name of its file."""


@dataclass(frozen=True)
class StatisticsOptions:
    """How to calibrate.

    samples   of the text, at most
    context   tokens of a sample (default: CONTEXT, or what the model was made for)
    seed      says which samples
    clips     look for magnitudes at which int8 caches are best cut off
    device, threads  as of `octavo.load`
    """

    samples: int = 128
    context: int | None = None
    seed: int = 0
    device: str = "auto"
    threads: int | None = None
    clips: bool = False


class StatisticsRun:
    """A model and a text, read and checked; `run` does the work. Close it, or use it as a context.

    model  the path of a GGUF file or checkpoint folder, or "demo"
    text   a file of UTF-8 text, a JSONL file, or "demo"

    Raises what opening a model and `read_calibration` raise, and UsageError for a context longer than the model's.
    """

    def __init__(self, model: str | os.PathLike[str], text: str, options: StatisticsOptions | None = None) -> None:
        self.options, self._text_name = options or StatisticsOptions(), text
        self.file = open_model_file(resolve(model))
        try:
            self.spec = read_model(self.file)
            self.context = self._context(self.options.context)
            self.text = text_samples(text, self.file, self.options.samples, self.context, self.options.seed)
            self.samples = Samples(self.text.samples)
            _require_tokens(self.spec, self.samples)
            self.backends = select(self.options.device, self.options.threads)
        except BaseException:
            self.file.close()
            raise

    def _context(self, wanted: int | None) -> int:
        most = self.spec.hparams.n_ctx_most
        if wanted is not None and wanted > most:
            problem = f"n_ctx is {wanted}; the model was made for up to {most}"
            raise UsageError(problem, argument="n_ctx")
        return min(CONTEXT, most) if wanted is None else wanted

    def require_apart(self, path: str | os.PathLike[str]) -> None:
        """Raise UsageError where `path` is a file of the model or the text, FileError where it can't be a file."""
        require_target(path)
        model = model_files(self.file.path, self.file.files)
        require_apart(path, {MODEL: model, TEXT: text_files(self._text_name)})

    @property
    def disk(self) -> int:
        """Bytes of the values of all samples that a run keeps in files."""
        run = Layerwise(self.spec, self.backends, self.samples)
        return run.kept if run.in_files else 0

    def run(
        self, path: str | os.PathLike[str], *, resume: bool = False, progress: Progress | None = None
    ) -> Statistics:
        """Calibrate, and write the statistics to `path`.

        A run in work keeps what it has in the folder `path`.work. With `resume` it goes on from there after it was
        killed, and gives the same bytes as one that was not. Raises FileError where the disk does not hold what it
        keeps; NonFiniteError naming a weight; UsageError for a folder of another run; and as `require_apart` does.
        """
        self.require_apart(path)
        options = self.options
        name = run_name(self.file, self.samples, *["clips"] * options.clips, *(b.name for b in self.backends))
        journal = Journal(os.fspath(path) + WORK, name, resume=resume)
        try:
            clips = CacheClips() if options.clips else None
            parts = _Parts(journal.folder, clips=clips)
            run = Layerwise(
                self.spec, self.backends, self.samples, journal=journal, done=parts.save,
                attention=None if clips is None else AttentionWatch(partial(_see_attention, clips), TOKENS),
                progress=progress,
            )
            for stage in run.run():
                parts.take(stage)
            statistics = parts.join([s.number for s in run.stages], path, self._about())
        except BaseException as error:
            journal.stop(error)
            raise
        journal.close(remove=True)
        return statistics

    def _about(self) -> dict[str, str]:
        """What the file says of the run."""
        sizes = {"samples": len(self.samples), "context": self.context, "seed": self.options.seed}
        names = {"model": os.path.basename(self.file.path), "model_sha256": model_digest(self.file),
                 "text": self.text.name, "text_sha256": self.text.digest}
        return {**names, **{key: str(value) for key, value in sizes.items()}}

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> StatisticsRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Parts:
    """Files of stages in the folder of a run, of which the whole is put together."""

    def __init__(self, folder: str, *, clips: CacheClips | None) -> None:
        self._folder, self._clips = folder, clips
        self._inputs: dict[str, tuple[ProductInput, ChannelStatistics]] = {}

    def take(self, stage: OpenStage) -> None:
        """Look at what a stage is given, before it is run."""
        self._inputs = {x.names[0]: (x, x.statistics()) for x in stage.inputs}

    def save(self, stage: Stage, caches: Mapping[str, ChannelStatistics]) -> None:
        """Write the part of a stage that was run."""
        inputs, self._inputs = self._inputs, {}
        shared = {name: first for first, (x, _) in inputs.items() for name in x.names[1:]}
        part = Statistics({first: found for first, (_, found) in inputs.items()}, shared, dict(caches))
        if self._clips is not None:
            part.clips = self._clips.chosen(caches)
        part.save(self._path(stage.number))

    def join(self, stages: Sequence[int], path: str | os.PathLike[str], about: dict[str, str]) -> Statistics:
        """Write all parts as one file."""
        whole = Statistics(about=about)
        for number in stages:
            whole.merge(Statistics.load(self._path(number)))
        whole.save(path)
        return Statistics.load(path)

    def _path(self, stage: int) -> str:
        return os.path.join(self._folder, f"stage-{stage}.safetensors")


def _see_attention(clips: CacheClips, node: Node, q: F32, k: F32, v: F32) -> None:
    """Look at a sample's attention, if it is one that static scales are for."""
    keys, values, sinks = node.inputs[1], node.inputs[2], node.inputs[6:]
    if keys is values or node.attrs.get("reach"):
        return
    given = dequantize(sinks[0].tensor).reshape(-1) if sinks else None
    clips.add((keys.name, values.name), q, k, v, node.attrs, given)


def collect_statistics(
    model: str | os.PathLike[str],
    text: str,
    path: str | os.PathLike[str],
    *,
    samples: int = 128,
    context: int | None = None,
    seed: int = 0,
    clips: bool = False,
    resume: bool = False,
    device: Literal["auto", "cpu", "gpu", "reference"] = "auto",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Statistics:
    """The statistics of what a model's products are given over samples of a text, written to `path`.

    model, text  as of `StatisticsRun`; other arguments are its options, and `StatisticsRun.run` says what is raised
    """
    options = StatisticsOptions(samples, context, seed, device, threads, clips)
    with StatisticsRun(model, text, options) as calibration:
        return calibration.run(path, resume=resume, progress=progress)


def _require_tokens(spec: ModelSpec, samples: Samples) -> None:
    most = max(max(tokens) for tokens in samples.tokens)
    if most >= spec.hparams.n_vocab:
        problem = f"token {most} of the text is not in the model's embedding of {spec.hparams.n_vocab} rows"
        raise ModelError(problem, file=spec.file.path, field="tokenizer.ggml.tokens")

"""A batch as a whole: from a file of requests to files of responses and errors, begun or gone on with."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from octavo.backends.cores import cores
from octavo.batch.batch_run import BatchCounts, BatchRun
from octavo.batch.input_index import InputIndex, index_input, input_state
from octavo.batch.output_files import OutputFiles, files_of
from octavo.batch.replica import LIMITS, LocalReplica, Replica
from octavo.batch.request_line import CHAT, COMPLETIONS, EMBEDDINGS, Defaults
from octavo.huggingface import open_model_file
from octavo.io.digest import files_digest
from octavo.io.distinct_paths import MODEL, model_files, require_apart
from octavo.io.gguf import GGUFFile
from octavo.io.model_path import resolve
from octavo.models import read_model
from octavo.runtime.grammar.grammar import Grammar, Grammars
from octavo.runtime.options import usual_limit
from octavo.runtime.text_embedding import is_embedding_model
from octavo.server.serve_options import EngineOptions, ServerOptions
from octavo.text import Tokenizer

EDGE = 1 << 20
"""Bytes at both ends of a model's file that tell it from another of its size."""
INPUT = "the input that is read"

Show = Callable[[str, int, int], None]
"""What goes on, how much of it is done, and of how much."""


@dataclass(frozen=True)
class BatchOptions:
    """How a batch is answered.

    engine         what each replica loads
    server         defaults of requests, as a server has them; `name` is in each response
    seed           of which each line's own seed is made; None: only those that lines have
    grammar        what replies may be, of chats and completions that don't say it themselves
    replicas       engines that answer; None for one here, or as many as a cluster has room for
    ray_address    of a cluster; None for this machine
    in_file_order  don't put prompts in order by their prefixes
    """

    engine: EngineOptions
    server: ServerOptions
    seed: int | None = 0
    grammar: Grammar | None = None
    replicas: int | None = None
    ray_address: str | None = None
    in_file_order: bool = False


@dataclass
class BatchSummary:
    """What became of a batch's lines: `done` have a response, `before` of these by earlier runs; `failed` an error."""

    lines: int
    before: int
    done: int
    counts: BatchCounts
    failed: int
    files: dict[str, str] = field(default_factory=dict)


def answer_file(
    source: str, output: str, options: BatchOptions, *, restart: bool = False,
    show: Show = lambda what, done, total: None,
) -> BatchSummary:
    """Answer the requests of a file of lines. Raises OctavoError; what is done by then is kept, and gone on from.

    `restart` forgets what an earlier run has done.
    """
    names = files_of(output)
    with open_model_file(resolve(options.engine.path)) as file:
        read = {INPUT: [source], MODEL: model_files(file.path, file.files)}
        for name in names.values():
            require_apart(name, read)
        if options.grammar is not None:
            Grammars(Tokenizer.from_gguf(file)).check(options.grammar)
        defaults = Defaults(_text_url(file), options.seed, _constraint(options.grammar))
        mark = _model_mark(read[MODEL])
    show("reading the requests", 0, 0)
    state = input_state(source)
    what = {"input": files_digest([source], cores()), "model": mark, **_settings(options)}
    with OutputFiles(output, restart=restart) as files:
        files.begin(what)
        index = index_input(
            source, defaults.text_url, files.refuse, in_file_order=options.in_file_order, state=state,
            show=lambda done, total: show("reading the requests", done, total),
        )
        try:
            files.require_of(index.numbers)
            done = np.array([*files.failed], np.uint64), np.frombuffer(files.done, np.uint64)
            left = index.order[~np.isin(index.numbers[index.order], np.concatenate(done))]
            run = BatchRun(index, left, defaults, files, _shown(show))
            if len(left):
                show("loading the model", 0, 0)
                asyncio.run(_run(run, _for(index, options)))
            index.require_unchanged()
        finally:
            index.close()
        responses = len(files.done) + run.counts.done - run.counts.failed
        return BatchSummary(index.lines, len(files.done), responses, run.counts, index.lines - responses, names)


async def _run(run: BatchRun, options: BatchOptions) -> None:
    with _ended_by_signals() as listen:
        async with _replicas(options) as replicas:
            listen()  # again: Ray has handlers of its own
            await run.run(replicas)


@contextmanager
def _ended_by_signals() -> Iterator[Callable[[], None]]:
    """SIGTERM and SIGHUP cancel this task, which then raises SystemExit. Gives what begins to listen for them."""
    loop, task, came = asyncio.get_running_loop(), asyncio.current_task(), list[int]()
    assert task is not None

    def end(number: int) -> None:
        came.append(number)
        task.cancel()

    def listen() -> None:
        with suppress(RuntimeError, ValueError, NotImplementedError):  # of another thread, of Windows
            for name in ("SIGTERM", "SIGHUP"):
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                    loop.add_signal_handler(number, end, number)

    listen()
    try:
        yield listen
    except asyncio.CancelledError:
        if came:
            raise SystemExit(128 + came[0]) from None
        raise


@asynccontextmanager
async def _replicas(options: BatchOptions) -> AsyncIterator[Sequence[Replica]]:
    """The replicas, with the model loaded; they are closed after the block."""
    async with AsyncExitStack() as stack:
        found: Sequence[Replica]
        if options.ray_address is None and options.replicas in (None, 1):
            found = [LocalReplica(options.engine, options.server)]
        else:
            from octavo.batch.ray_replicas import ray_replicas

            found = stack.enter_context(
                ray_replicas(options.ray_address, options.replicas, options.engine, options.server)
            )
        for replica in found:
            stack.push_async_callback(replica.close)
        await asyncio.gather(*(replica.start() for replica in found))
        yield found


def _for(index: InputIndex, options: BatchOptions) -> BatchOptions:
    """The options for these requests: vectors are made ready for if they are asked for."""
    engine = msgspec.structs.replace(options.engine, embeddings=options.engine.embeddings or index.embeds)
    return replace(options, engine=engine, server=replace(options.server, limits=LIMITS))


def _shown(show: Show) -> Callable[[BatchCounts], None]:
    def told(counts: BatchCounts) -> None:
        rate = counts.done / max(counts.seconds, 1e-9)
        left = (counts.total - counts.done) / max(rate, 1e-9)
        text = f"{counts.done:,} of {counts.total:,} lines, {rate:.1f} lines/s, {_time(left)} left"
        show(text, counts.done, counts.total)

    return told


def _time(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def _text_url(file: GGUFFile) -> str:
    """What a line that is a text is for, as of `octavo run`: a message where the model has a chat template."""
    if is_embedding_model(read_model(file)):
        return EMBEDDINGS
    return CHAT if usual_limit(file) is None else COMPLETIONS


def _constraint(grammar: Grammar | None) -> tuple[str, bytes] | None:
    """The field of a request that a grammar is, and its value in JSON."""
    if grammar is None:
        return None
    if grammar.kind == "json_schema":
        return "json_schema", grammar.text.encode()
    return "grammar", msgspec.json.encode(grammar.text)


def _model_mark(paths: Iterable[str]) -> str:
    """A digest of the sizes and the ends of a model's files: of a large one not all is read."""
    digest = sha256()
    for path in sorted(set(paths)):
        if not os.path.isfile(path):
            continue
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            digest.update(f"{Path(path).name} {size}\n".encode())
            for start in (0, max(size - EDGE, 0)):
                file.seek(start)
                digest.update(file.read(EDGE))
    return digest.hexdigest()


def _settings(options: BatchOptions) -> dict[str, Any]:
    """What else replies depend on, by the names of options."""
    engine, server = options.engine, options.server
    return {
        "context size": engine.n_ctx, "cache type": engine.cache_type, "attention": engine.attention,
        "LoRA adapter": [[os.path.basename(path), scale] for path, scale in engine.lora], "seed": options.seed,
        "sampling": dict(server.sampling), "max tokens": server.max_tokens, "reasoning": server.reasoning,
        "chat template": server.template_text, "template variable": dict(server.variables),
        "grammar": None if options.grammar is None else [options.grammar.kind, options.grammar.text],
    }

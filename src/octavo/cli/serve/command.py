"""`octavo serve`: a model for programs that speak OpenAI's protocol, llama-server's or Anthropic's."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.lora import adapters
from octavo.cli.options import PLACE, Where, gpu_layers
from octavo.cli.serve.defaults import Defaults
from octavo.errors import INSTALL_BASE, OctavoError, UsageError

if TYPE_CHECKING:
    from octavo.runtime.lora import Chosen
    from octavo.server.engine.launch import Launched
    from octavo.server.generation.service import Service
    from octavo.server.options import EngineOptions, ServerOptions

REACHED = "How it is reached"
LOAD = "How much it takes"
NEEDED = ("starlette", "uvicorn", "pydantic", "msgspec", "llguidance", "prometheus_client")
MOST_KEYS = 1 << 20
"""Bytes of a file with keys."""
HOST, ORIGIN = re.compile(r"\*|[^/:\s]+"), re.compile(r"\*|null|[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s]+")


@dataclass
class Reached:
    """How the server is reached, and by whom."""

    host: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0: for other machines too.", rich_help_panel=REACHED)
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.", rich_help_panel=REACHED)] = 8080
    key: Annotated[
        list[str] | None,
        typer.Option("--api-key", help="A key that requests need; more than one is fine.", rich_help_panel=REACHED),
    ] = None
    key_file: Annotated[
        str | None, typer.Option("--api-key-file", metavar="FILE", help="A key a line.", rich_help_panel=REACHED)
    ] = None
    ssl_key: Annotated[
        str | None,
        typer.Option("--ssl-key-file", metavar="FILE", help="The key of --ssl-cert-file, in PEM.",
                     rich_help_panel=REACHED),
    ] = None
    ssl_cert: Annotated[
        str | None,
        typer.Option("--ssl-cert-file", metavar="FILE", help="Speak HTTPS, and show this certificate (PEM).",
                     rich_help_panel=REACHED),
    ] = None
    alias: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="What the model is called; of several names the first by alphabet is "
                     "shown.", rich_help_panel=REACHED),
    ] = None
    tags: Annotated[
        str | None, typer.Option(metavar="TAG,TAG", help="Words that /v1/models tells.", rich_help_panel=REACHED)
    ] = None
    strict_model: Annotated[
        bool, typer.Option("--strict-model", help="Refuse requests for other models.", rich_help_panel=REACHED)
    ] = False
    chat_template: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which of the model's chat templates all requests take.",
                     rich_help_panel=REACHED),
    ] = None
    origin: Annotated[
        list[str] | None,
        typer.Option("--cors-origin", help="A web page's origin that may ask.", rich_help_panel=REACHED),
    ] = None
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="A line of each request on standard error.", rich_help_panel=REACHED)
    ] = False
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A host name that requests may use.", rich_help_panel=REACHED),
    ] = None


@dataclass
class Load:
    """How many requests are taken, and how long they may take."""

    max_sequences: Annotated[
        int, typer.Option("--max-sequences", "-np", min=1, help="Replies in a step at most.", rich_help_panel=LOAD)
    ] = 32
    kv_memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Memory of the KV cache, as 4G (default: a quarter of what is free, half on a GPU).",
            rich_help_panel=LOAD,
        ),
    ] = None
    itl_target: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds between tokens that others' prompts may not lengthen; 0: no bound (default: "
            "0.25 on the CPU, 0.025 on a GPU).",
            rich_help_panel=LOAD,
        ),
    ] = None
    speculate: Annotated[
        Literal["lookup", "off"] | None,
        typer.Option(
            help="Verify several tokens a step where a reply repeats its text (default: lookup on the CPU, off on a "
            "GPU).",
            rich_help_panel=LOAD,
        ),
    ] = None
    queue: Annotated[int, typer.Option(min=0, help="Replies that may wait.", rich_help_panel=LOAD)] = 256
    drain_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds for replies under way at the end.", rich_help_panel=LOAD)
    ] = 30.0
    ping: Annotated[
        float,
        typer.Option(
            min=1, max=30, help="Seconds without a token after which a stream gets a comment.", rich_help_panel=LOAD
        ),
    ] = 5.0
    share_cache: Annotated[
        bool, typer.Option("--share-cache", help="Keys share cached prompts.", rich_help_panel=LOAD)
    ] = False
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="On a GPU too, a reply is the same whatever runs beside it; slower.",
                           rich_help_panel=LOAD)
    ] = False
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="A model that generates gives vectors of texts too.",
                           rich_help_panel=LOAD)
    ] = False
    max_connections: Annotated[
        int, typer.Option(min=1, help="Connections with a request under way at most.", rich_help_panel=LOAD)
    ] = 1024
    step_timeout: Annotated[
        float,
        typer.Option(min=0, help="Seconds of a step after which the engine is started again; 0: no limit.",
                     rich_help_panel=LOAD),
    ] = 600.0


def serve(
    model: ModelName,
    *,
    reached: Reached,
    ctx: Annotated[
        int | None,
        typer.Option(
            "--ctx-size", "-c", help="Tokens of context (default: the model's, up to 4096).", rich_help_panel=PLACE
        ),
    ] = None,
    usual: Defaults,
    where: Where,
    load: Load,
    offline: Offline = False,
) -> None:
    """Serve a model: `octavo serve demo`, then http://127.0.0.1:8080."""
    from contextlib import closing
    from importlib.util import find_spec

    from octavo.server.engine.launch import launch

    for name in NEEDED:
        if find_spec(name) is None:
            raise OctavoError(f"serving needs {name}: {name} is not installed ({INSTALL_BASE})")

    launched = launch()
    with closing(launched):
        path = local(model, offline)
        lora = tuple(adapters(where.lora, offline).items())
        engine, options = (
            _engine_options(path, ctx, where, load, lora),
            _server_options(path, reached, usual, load, lora),
        )
        _run(launched, engine, options, load.step_timeout or float("inf"))


def _engine_options(path: str, ctx: int | None, where: Where, load: Load, lora: Chosen) -> EngineOptions:
    from octavo.server.options import EngineOptions

    return EngineOptions(
        path=path, device=where.device, n_ctx=ctx, threads=where.threads, cache_type=where.kv,
        gpu_layers=gpu_layers(where.layers), max_sequences=load.max_sequences, itl_target=load.itl_target,
        kv_memory=None if load.kv_memory is None else nbytes(load.kv_memory), embeddings=load.embeddings,
        speculate=load.speculate, deterministic=load.deterministic, attention=where.attention,
        lora=lora,
    )


def nbytes(text: str) -> int:
    """A number of bytes as it is typed: 4G, 512M, 1000000. Raises UsageError for anything else."""
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in units else (text, "")
    try:
        found = int(float(number) * (1 << units.get(unit, 0)))
    except (ValueError, OverflowError):
        found = 0
    if found < 1:
        raise UsageError(f"--kv-memory is {text!r} (allowed: bytes, or as 512M, 4G)")
    return found


def _server_options(path: str, reached: Reached, usual: Defaults, load: Load, lora: Chosen) -> ServerOptions:
    from octavo.io.hub.cache import shown_name
    from octavo.server.http.tls import certificate
    from octavo.server.options import Limits, ServerOptions
    from octavo.server.serve import room_for

    if usual.template_file is not None and reached.chat_template is not None:
        raise UsageError("--chat-template-file and --chat-template are both given (allowed: one of them)")
    names = sorted({*_words("--alias", reached.alias)}) or [shown_name(path).removesuffix(".gguf")]
    limits = Limits(
        queue=load.queue, drain_time=load.drain_timeout, ping=load.ping, connections=room_for(load.max_connections)
    )
    return ServerOptions(
        name=names[0], aliases=tuple(names[1:]), tags=_words("--tags", reached.tags),
        host=reached.host, port=reached.port,
        certificate=certificate(reached.ssl_cert, reached.ssl_key), keys=_keys(reached),
        hosts=_hosts(reached.allow_host or ()), origins=_origins(reached.origin or ()),
        strict_model=reached.strict_model, share_cache=load.share_cache, limits=limits,
        chat_template=reached.chat_template, log_requests=reached.log_requests, lora=lora, **usual.given(),
    )


def _words(option: str, given: str | None) -> tuple[str, ...]:
    """What stands between commas. Raises UsageError for nothing there."""
    words = () if given is None else tuple(word.strip() for word in given.split(","))
    if not all(words):
        raise UsageError(f"{option} is {given!r} (allowed: names with commas between them)")
    return words


def _hosts(given: Sequence[str]) -> tuple[str, ...]:
    """Raises UsageError for what is not a host name: it would allow nothing."""
    for host in given:
        if not HOST.fullmatch(host):
            raise UsageError(f"--allow-host is {host!r} (allowed: a name without a port, as llm.example.org, or '*')")
    return tuple(given)


def _origins(given: Sequence[str]) -> tuple[str, ...]:
    """Origins as browsers write them. Raises UsageError for what is none: it would allow nothing."""
    for origin in given:
        if not ORIGIN.fullmatch(origin):
            allowed = "as https://chat.example.org, without a path, or '*'"
            raise UsageError(f"--cors-origin is {origin!r} (allowed: {allowed})")
    return tuple(map(str.lower, given))


def _keys(reached: Reached) -> tuple[str, ...]:
    """Raises UsageError for a file without keys, and for a key that no header can have."""
    from octavo.io.regular import read_text

    keys = list(reached.key or ())
    if reached.key_file is not None:
        found = read_text(reached.key_file, MOST_KEYS).split()
        if not found:
            raise UsageError(f"{reached.key_file} has no key (allowed: one a line)")
        keys += found
    for key in keys:
        if not (key.isascii() and key.isprintable() and key.strip() == key != ""):
            raise UsageError("an API key has other characters than a header may (allowed: letters, digits and signs)")
    return tuple(keys)


def _run(launched: Launched, engine: EngineOptions, options: ServerOptions, step_timeout: float) -> None:
    from contextlib import closing

    from octavo.huggingface import open_model_file
    from octavo.models import read_model
    from octavo.runtime.embedding import is_embedding_model
    from octavo.runtime.options import OF_BASE_MODELS, usual_limit
    from octavo.server.engine.process import ProcessClient
    from octavo.server.serve import bind, run, serve

    sock = bind(options.host, options.port)
    port = sock.getsockname()[1]

    def told(service: Service) -> None:
        shown = f"[{options.host}]" if ":" in options.host else options.host
        scheme = "http" if options.certificate is None else "https"
        print(f"octavo: {options.name} is served at {scheme}://{shown}:{port}", file=sys.stderr, flush=True)

    if not options.keys and options.host not in ("127.0.0.1", "::1", "localhost"):
        logging.getLogger("octavo").warning("any machine that reaches this one may ask: there is no --api-key")
    if options.log_requests:
        logging.getLogger("octavo.requests").setLevel(logging.INFO)
    with closing(sock), open_model_file(engine.path) as file:
        if options.template_text is None and usual_limit(file) is not None and not is_embedding_model(read_model(file)):
            logging.getLogger("octavo").warning(
                "%s has no chat template: messages are written as ChatML has them, and replies end after %d tokens "
                "unless a request or -n says otherwise", options.name, OF_BASE_MODELS,
            )
        run(serve(ProcessClient(engine, launched, step_timeout=step_timeout), file, options, sock, told))
    print(f"octavo: {options.name} is served no more", file=sys.stderr)

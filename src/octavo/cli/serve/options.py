"""How a server is reached, how much it takes, and what it loads a model with: options, and what is made of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.options import Draft, Speculation, Where, gpu_layers
from octavo.cli.serve.defaults import Defaults
from octavo.errors import UsageError

if TYPE_CHECKING:
    from octavo.runtime.lora_adapters import Chosen
    from octavo.server.serve_options import EngineOptions, ServerOptions

ACCESS = "Network and access"
access_option = partial(typer.Option, rich_help_panel=ACCESS)
limit_option = partial(typer.Option, rich_help_panel="Limits and speed")
MOST_KEYS = 1 << 20
"""Bytes of a file with keys."""
HOST, ORIGIN = re.compile(r"\*|[^/:\s]+"), re.compile(r"\*|null|[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s]+")


@dataclass
class Access:
    """How the server is access, and by whom."""

    host: Annotated[str, access_option(help="Address to listen on; 0.0.0.0: from other machines too.")] = "127.0.0.1"
    port: Annotated[int, access_option(min=0, max=65535, help="0: any free one.")] = 8080
    key: Annotated[
        list[str] | None, access_option("--api-key", help="An API key that requests need; may be repeated.")
    ] = None
    key_file: Annotated[
        str | None, access_option("--api-key-file", metavar="FILE", help="A file with one API key per line.")
    ] = None
    ssl_key: Annotated[
        str | None, access_option("--ssl-key-file", metavar="FILE", help="The key of --ssl-cert-file, in PEM.")
    ] = None
    ssl_cert: Annotated[
        str | None, access_option("--ssl-cert-file", metavar="FILE", help="Serve HTTPS with this certificate (PEM).")
    ] = None
    origin: Annotated[
        list[str] | None, access_option("--cors-origin", help="An origin whose web pages may send requests.")
    ] = None
    log_requests: Annotated[
        bool, access_option("--log-requests", help="Log a line per request to standard error.")
    ] = False
    allow_host: Annotated[list[str] | None, access_option(help="A host name that requests may use.")] = None


@dataclass
class Naming:
    """What a model is called, and which of its templates it has."""

    alias: Annotated[
        str | None, access_option(metavar="NAME,NAME", help="Names of the model; the first by alphabet is shown.")
    ] = None
    tags: Annotated[str | None, access_option(metavar="TAG,TAG", help="Tags that /v1/models shows.")] = None
    strict_model: Annotated[bool, access_option("--strict-model", help="Refuse requests for other models.")] = False
    chat_template: Annotated[
        str | None, access_option(metavar="NAME", help="Which of the model's chat templates to use.")
    ] = None


@dataclass
class EngineLimits:
    """How much is computed at a time, and what makes it faster."""

    max_sequences: Annotated[
        int, limit_option("--max-sequences", "-np", min=1, help="Maximum number of replies in a step.")
    ] = 32
    kv_memory: Annotated[
        str | None,
        limit_option(metavar="BYTES",
                     help="Memory of the KV cache, e.g. 4G (default: a quarter of what is free, half on a GPU)."),
    ] = None
    draft: Draft = None
    speculate: Speculation = "auto"
    deterministic: Annotated[
        bool, limit_option("--deterministic", help="On a GPU or with AMX too, replies don't depend on others; slower.")
    ] = False
    step_timeout: Annotated[
        float, limit_option(min=0, help="Seconds of a step after which the engine is restarted; 0: no limit.")
    ] = 600.0


@dataclass
class ServerLimits(EngineLimits):
    """The same, how many requests are taken, and how long they may take."""

    itl_target: Annotated[
        float | None,
        limit_option(min=0, help="Target for the seconds between two tokens while other prompts are read; 0: none "
                     "(default: 0.25 on the CPU, 0.025 on a GPU)."),
    ] = None
    queue: Annotated[int, limit_option(min=0, help="Maximum number of waiting replies.")] = 256
    drain_timeout: Annotated[float, limit_option(min=0, help="Seconds that running replies get at shutdown.")] = 30.0
    ping: Annotated[
        float, limit_option(min=1, max=30, help="Seconds without a token after which a stream gets a comment.")
    ] = 5.0
    share_cache: Annotated[bool, limit_option("--share-cache", help="Share cached prompts between API keys.")] = False
    embeddings: Annotated[
        bool, limit_option("--embeddings", help="Serve embeddings from a model that generates, too.")
    ] = False
    max_connections: Annotated[
        int, limit_option(min=1, help="Maximum number of connections with a running request.")
    ] = 1024


def engine_options(
    path: str, ctx: int | None, where: Where, limits: EngineLimits, lora: Chosen, itl_target: float | None,
    *, embeddings: bool = False,
) -> EngineOptions:
    """What an engine is loaded with. Raises UsageError."""
    from octavo.server.serve_options import EngineOptions

    return EngineOptions(
        path=path, device=where.device, n_ctx=ctx, threads=where.threads, cache_type=where.kv,
        gpu_layers=gpu_layers(where.layers), max_sequences=limits.max_sequences, itl_target=itl_target,
        kv_memory=None if limits.kv_memory is None else nbytes(limits.kv_memory), embeddings=embeddings,
        speculate=limits.speculate, draft=limits.draft, deterministic=limits.deterministic, attention=where.attention,
        lora=lora, tensor_parallel=where.tensor_parallel, pipeline=where.pipeline, step_timeout=limits.step_timeout,
        weight_cache=where.weight_cache, n_cpu_moe=where.cpu_experts,
        override_tensor=tuple(where.overrides.items()),
    )


def nbytes(text: str, option: str = "--kv-memory") -> int:
    """A number of bytes as it is typed: 4G, 512M, 1000000. Raises UsageError for anything else."""
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in units else (text, "")
    try:
        found = int(float(number) * (1 << units.get(unit, 0)))
    except (ValueError, OverflowError):
        found = 0
    if found < 1:
        raise UsageError(f"{option} is {text!r} (allowed: bytes, such as 512M or 4G)")
    return found


def server_options(
    path: str, access: Access, naming: Naming, defaults: Defaults, limits: ServerLimits, lora: Chosen
) -> ServerOptions:
    """How a model is served. Raises UsageError."""
    from octavo.io.hub.download_cache import shown_name
    from octavo.server.http.tls import certificate
    from octavo.server.serve import room_for
    from octavo.server.serve_options import Limits, ServerOptions

    require_one_template(naming, defaults)
    names = sorted({*words_of("--alias", naming.alias)}) or [shown_name(path).removesuffix(".gguf")]
    front = Limits(
        queue=limits.queue, drain_time=limits.drain_timeout, ping=limits.ping,
        connections=room_for(limits.max_connections),
    )
    return ServerOptions(
        name=names[0], aliases=tuple(names[1:]), tags=words_of("--tags", naming.tags),
        host=access.host, port=access.port,
        certificate=certificate(access.ssl_cert, access.ssl_key), keys=_keys(access),
        hosts=_hosts(access.allow_host or ()), origins=_origins(access.origin or ()),
        strict_model=naming.strict_model, share_cache=limits.share_cache, limits=front,
        chat_template=naming.chat_template, log_requests=access.log_requests, lora=lora, **defaults.given(),
    )


def require_one_template(naming: Naming, defaults: Defaults) -> None:
    """Raise UsageError for two templates."""
    if defaults.template_file is not None and naming.chat_template is not None:
        raise UsageError("--chat-template-file and --chat-template can't be used together")


def words_of(option: str, given: str | None) -> tuple[str, ...]:
    """What stands between commas. Raises UsageError for nothing there."""
    words = () if given is None else tuple(word.strip() for word in given.split(","))
    if not all(words):
        raise UsageError(f"{option} is {given!r} (allowed: names separated by commas)")
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


def _keys(access: Access) -> tuple[str, ...]:
    """Raises UsageError for a file without keys, and for a key that no header can have."""
    from octavo.io.regular_file import read_text

    keys = list(access.key or ())
    if access.key_file is not None:
        found = read_text(access.key_file, MOST_KEYS).split()
        if not found:
            raise UsageError(f"{access.key_file} has no key: write one per line")
        keys += found
    for key in keys:
        if not (key.isascii() and key.isprintable() and key.strip() == key != ""):
            raise UsageError("an API key has a character that a header can't have (allowed: letters, digits and signs)")
    return tuple(keys)

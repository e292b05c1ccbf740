"""`octavo serve`: a model for programs that speak OpenAI's protocol, llama-server's or Anthropic's."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.lora_command import adapters
from octavo.cli.options import RAY_ADDRESS_HELP, Context, Where, gpu_layers
from octavo.cli.serve.defaults import Defaults
from octavo.errors import INSTALL_BASE, INSTALL_EVENTS, OctavoError, UsageError

if TYPE_CHECKING:
    import socket

    from octavo.replicas.pool import Launcher
    from octavo.runtime.lora_adapters import Chosen
    from octavo.server.engine.launch import Launched
    from octavo.server.serve_options import EngineOptions, KVEvents, ServerOptions

ACCESS = "Network and access"
access_option = partial(typer.Option, rich_help_panel=ACCESS)
limit_option = partial(typer.Option, rich_help_panel="Limits and speed")
replica_option = partial(typer.Option, rich_help_panel="Replicas")
router_option = partial(typer.Option, rich_help_panel="Routers")
NEEDED = ("starlette", "uvicorn", "pydantic", "msgspec", "llguidance", "prometheus_client")
MOST_KEYS = 1 << 20
"""Bytes of a file with keys."""
ENDPOINT = re.compile(r"tcp://(?:\*|[\w.-]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})|ipc://.+")
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
    alias: Annotated[
        str | None, access_option(metavar="NAME,NAME", help="Names of the model; the first by alphabet is shown.")
    ] = None
    tags: Annotated[str | None, access_option(metavar="TAG,TAG", help="Tags that /v1/models shows.")] = None
    strict_model: Annotated[bool, access_option("--strict-model", help="Refuse requests for other models.")] = False
    chat_template: Annotated[
        str | None, access_option(metavar="NAME", help="Which of the model's chat templates to use.")
    ] = None
    origin: Annotated[
        list[str] | None, access_option("--cors-origin", help="An origin whose web pages may send requests.")
    ] = None
    log_requests: Annotated[
        bool, access_option("--log-requests", help="Log a line per request to standard error.")
    ] = False
    allow_host: Annotated[list[str] | None, access_option(help="A host name that requests may use.")] = None


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
    speculate: Annotated[
        Literal["lookup", "off"] | None,
        limit_option(help="Speculative decoding: drafts from a reply's own text (default: lookup on the CPU, off on a "
                     "GPU)."),
    ] = None
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


@dataclass
class Replicas:
    """Whether the model is served by one server or by several, and where these are."""

    replicas: Annotated[
        int | None,
        replica_option("--replicas", min=1, help="Servers of the model behind one address, each with its share of the "
                       "cores, or a card."),
    ] = None
    ray_address: Annotated[
        str | None,
        replica_option(metavar="ADDRESS", help=RAY_ADDRESS_HELP),
    ] = None


@dataclass
class Routers:
    """What routers in front of several servers are told."""

    kv_events: Annotated[
        str | None,
        router_option(metavar="ADDRESS", help="Publish which pages the prefix cache has, as vLLM does: tcp://*:5557."),
    ] = None
    replay: Annotated[
        str | None,
        router_option("--kv-events-replay", metavar="ADDRESS", help="Publish missed KV events again: tcp://*:5558."),
    ] = None
    topic: Annotated[
        str, router_option("--kv-events-topic", metavar="TEXT", help="The topic of KV events, e.g. kv@POD@MODEL.")
    ] = ""

    def options(self, servers: int = 1, *, here: bool = True) -> KVEvents | None:
        """Those of the first of `servers`, see `KVEvents.of_rank`; `here`: on this machine, with its ports free.

        Raises UsageError for what is not an address, or not as many, OctavoError without pyzmq.
        """
        from importlib.util import find_spec

        from octavo.server.kv_events.address import require_free, require_free_port, require_host
        from octavo.server.serve_options import KVEvents

        if self.kv_events is None:
            if self.replay is not None or self.topic:
                raise UsageError("--kv-events-replay and --kv-events-topic need --kv-events")
            return None
        for option, address in (("--kv-events", self.kv_events), ("--kv-events-replay", self.replay)):
            found = None if address is None else ENDPOINT.fullmatch(address)
            if address is not None and (found is None or not 0 < int(found["port"] or 1) < 1 << 16):
                allowed = "tcp://*:5557, tcp://HOST:PORT or ipc://PATH"
                raise UsageError(f"{option} is {address!r} (allowed: a ZeroMQ address: {allowed})")
        if self.kv_events == self.replay:
            raise UsageError(f"--kv-events and --kv-events-replay are both {self.replay} (allowed: two addresses)")
        if find_spec("zmq") is None:
            raise OctavoError(f"--kv-events needs pyzmq: zmq is not installed ({INSTALL_EVENTS})")
        self._require_ports(servers)
        require_host(self.kv_events)
        events = KVEvents(self.kv_events, self.replay, self.topic)
        for one in map(events.of_rank, range(servers)):
            for address in filter(None, (one.endpoint, one.replay)):
                require_free(address)
                if here:
                    require_free_port(address)
        return events

    def _require_ports(self, servers: int) -> None:
        """Raise UsageError where the ports of several servers, one after the other, are too many, or meet."""
        from octavo.server.kv_events.address import binds

        given = {"--kv-events": self.kv_events or "", "--kv-events-replay": self.replay or ""}
        first = {option: int(text.rpartition(":")[2]) for option, text in given.items() if text.startswith("tcp:")}
        each = f"--replicas is {servers}, and each publishes at ports of its own, from those given on"
        for option, port in first.items():
            if port + servers > 1 << 16:
                raise UsageError(f"{option} is {given[option]}: {each} (allowed: up to {(1 << 16) - servers})")
        if len(first) == 2 and binds(given["--kv-events"]) and abs(int.__sub__(*first.values())) < servers:
            raise UsageError(f"--kv-events is {self.kv_events}, --kv-events-replay is {self.replay}: {each} (allowed: "
                             f"ports that are {servers} or more apart)")


def serve(
    model: ModelName, *, access: Access, ctx: Context = None, defaults: Defaults, where: Where, limits: ServerLimits,
    replicas: Replicas, routers: Routers, offline: Offline = False,
) -> None:
    """Serve a model: `octavo serve demo`, then http://127.0.0.1:8080."""
    from contextlib import closing, nullcontext

    require_packages("serving")
    from msgspec.structs import replace

    from octavo.server.engine.launch import launch

    if replicas.ray_address is not None and replicas.replicas is None:
        raise UsageError("--ray-address needs --replicas")
    launched = launch() if replicas.replicas is None else None
    with closing(launched) if launched is not None else nullcontext():
        path = local(model, offline)
        lora = tuple(adapters(where.lora, offline).items())
        engine, options = (
            replace(
                engine_options(path, ctx, where, limits, lora, limits.itl_target, embeddings=limits.embeddings),
                kv_events=routers.options(replicas.replicas or 1, here=replicas.ray_address in (None, "local")),
            ),
            _server_options(path, access, defaults, limits, lora),
        )
        if launched is not None:
            _run(launched, engine, options)
        else:
            _run_replicas(replicas, engine, options)


def require_packages(what: str) -> None:
    """Raise OctavoError where `what` needs a package that is not installed."""
    from importlib.util import find_spec

    for name in NEEDED:
        if find_spec(name) is None:
            raise OctavoError(f"{what} needs {name}: {name} is not installed ({INSTALL_BASE})")


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
        speculate=limits.speculate, deterministic=limits.deterministic, attention=where.attention,
        lora=lora, tensor_parallel=where.tensor_parallel, pipeline=where.pipeline, step_timeout=limits.step_timeout,
        weight_cache=where.weight_cache,
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
        raise UsageError(f"--kv-memory is {text!r} (allowed: bytes, such as 512M or 4G)")
    return found


def _server_options(path: str, access: Access, defaults: Defaults, limits: ServerLimits, lora: Chosen) -> ServerOptions:
    from octavo.io.hub.download_cache import shown_name
    from octavo.server.http.tls import certificate
    from octavo.server.serve import room_for
    from octavo.server.serve_options import Limits, ServerOptions

    if defaults.template_file is not None and access.chat_template is not None:
        raise UsageError("--chat-template-file and --chat-template can't be used together")
    names = sorted({*_words("--alias", access.alias)}) or [shown_name(path).removesuffix(".gguf")]
    front = Limits(
        queue=limits.queue, drain_time=limits.drain_timeout, ping=limits.ping,
        connections=room_for(limits.max_connections),
    )
    return ServerOptions(
        name=names[0], aliases=tuple(names[1:]), tags=_words("--tags", access.tags),
        host=access.host, port=access.port,
        certificate=certificate(access.ssl_cert, access.ssl_key), keys=_keys(access),
        hosts=_hosts(access.allow_host or ()), origins=_origins(access.origin or ()),
        strict_model=access.strict_model, share_cache=limits.share_cache, limits=front,
        chat_template=access.chat_template, log_requests=access.log_requests, lora=lora, **defaults.given(),
    )


def _words(option: str, given: str | None) -> tuple[str, ...]:
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


def _run(launched: Launched, engine: EngineOptions, options: ServerOptions) -> None:
    from contextlib import closing

    from octavo.huggingface import open_model_file
    from octavo.models import read_model
    from octavo.runtime.options import OF_BASE_MODELS, usual_limit
    from octavo.runtime.text_embedding import is_embedding_model
    from octavo.server.engine.process import ProcessClient
    from octavo.server.serve import bind, run, serve

    sock = bind(options.host, options.port)
    _warn(options)
    if options.log_requests:
        logging.getLogger("octavo.requests").setLevel(logging.INFO)
    with closing(sock), open_model_file(engine.path) as file:
        if options.template_text is None and usual_limit(file) is not None and not is_embedding_model(read_model(file)):
            logging.getLogger("octavo").warning(
                "%s has no chat template: messages are written as ChatML, and replies end after %d tokens "
                "unless a request or -n says otherwise", options.name, OF_BASE_MODELS,
            )
        client = ProcessClient(engine, launched)
        run(serve(client, file, options, sock, lambda service: _tell(options, sock, engine.kv_events)))
    print(f"octavo: {options.name} stopped", file=sys.stderr)


def _run_replicas(given: Replicas, engine: EngineOptions, options: ServerOptions) -> None:
    import secrets
    from contextlib import closing
    from dataclasses import replace

    from octavo.replicas.local import LocalLauncher
    from octavo.replicas.serve import serve_front
    from octavo.server.serve import bind, run

    assert given.replicas is not None
    n, options = given.replicas, replace(options, secret=secrets.token_hex(16))
    launcher: Launcher
    if given.ray_address is not None:
        from octavo.replicas.ray_actors import RayLauncher
        from octavo.server.engine.ray_cluster import LOCAL

        launcher = RayLauncher(n, engine, options, given.ray_address)
        if given.ray_address != LOCAL:
            logging.getLogger("octavo").warning(
                "replicas listen on their nodes' addresses: they answer this front only, but what is sent between "
                "them is not encrypted, so use a network that is trusted"
            )
    else:
        launcher = LocalLauncher(n, engine, options)
    _warn(options)
    with closing(bind(options.host, options.port)) as sock:
        run(serve_front(launcher, n, options, sock, lambda front: _tell(options, sock, engine.kv_events, n)))
    print(f"octavo: {options.name} stopped", file=sys.stderr)


def _tell(options: ServerOptions, sock: socket.socket, events: KVEvents | None = None, replicas: int = 0) -> None:
    """Say that the model is loaded, where it is served, and where KV events go."""
    from octavo.server.kv_events.address import binds

    shown = f"[{options.host}]" if ":" in options.host else options.host
    scheme = "http" if options.certificate is None else "https"
    url, by = f"{scheme}://{shown}:{sock.getsockname()[1]}", f" by {replicas} replicas" if replicas else ""
    print(f"octavo: {options.name} is served at {url}{by}", file=sys.stderr, flush=True)
    for one in () if events is None else map(events.of_rank, range(replicas or 1)):
        how = "published at" if binds(one.endpoint) else "sent to a reader that listens at"
        again = "" if one.replay is None else f", and again on request at {one.replay}"
        whose = f" of replica {one.rank}" if replicas else ""
        print(f"octavo: KV events{whose} are {how} {one.endpoint}{again}", file=sys.stderr, flush=True)


def _warn(options: ServerOptions) -> None:
    if not options.keys and options.host not in ("127.0.0.1", "::1", "localhost"):
        logging.getLogger("octavo").warning("any machine that reaches this one can use the server: no --api-key is set")

"""`octavo serve`: a model for programs that speak OpenAI's protocol, llama-server's or Anthropic's."""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.hub.models import ModelNames, Offline, local
from octavo.cli.lora_command import adapters
from octavo.cli.options import RAY_ADDRESS_HELP, Context, Where, refuse
from octavo.cli.serve.defaults import Defaults
from octavo.cli.serve.options import Access, AdapterOptions, Naming, ServerLimits, engine_options, server_options
from octavo.cli.serve.several import ModelOptions, Several, run_several
from octavo.errors import INSTALL_BASE, INSTALL_EVENTS, OctavoError, UsageError

if TYPE_CHECKING:
    import socket

    from octavo.replicas.pool import Launcher
    from octavo.server.engine.launch import Launched
    from octavo.server.serve_options import EngineOptions, KVEvents, ServerOptions

replica_option = partial(typer.Option, rich_help_panel="Replicas")
router_option = partial(typer.Option, rich_help_panel="Routers")
NEEDED = ("starlette", "uvicorn", "pydantic", "msgspec", "llguidance", "prometheus_client")
ENDPOINT = re.compile(r"tcp://(?:\*|[\w.-]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})|ipc://.+")


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
        router_option("--kv-events-replay", metavar="ADDRESS", help="Replay missed KV events to subscribers: tcp://*:5558."),
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
    models: ModelNames = None, *, access: Access, naming: Naming, ctx: Context = None, defaults: Defaults, where: Where,
    limits: ServerLimits, loras: AdapterOptions, several: Several, replicas: Replicas, routers: Routers,
    offline: Offline = False,
) -> None:
    """Serve models: `octavo serve demo`, then http://127.0.0.1:8080.

    Several are each loaded when they are asked for; without MODEL they are those of the hub's cache.
    """
    from contextlib import closing, nullcontext

    require_packages("serving")
    from dataclasses import replace as with_field

    from msgspec.structs import replace

    from octavo.server.engine.launch import launch

    if replicas.ray_address is not None and replicas.replicas is None:
        raise UsageError("--ray-address needs --replicas")
    if several.are_meant(models or ()):
        given = {"--replicas": replicas.replicas, "--kv-events": routers.kv_events}
        refuse(given, "is for one MODEL, without --models-dir, --models-preset, --memory and --idle")
        options = ModelOptions(ctx, naming, defaults, where, limits, loras)
        run_several(models or (), access, options, several, offline)
        return
    assert models is not None
    (model,) = models
    launched = launch() if replicas.replicas is None else None
    with closing(launched) if launched is not None else nullcontext():
        path = local(model, offline)
        if limits.draft is not None:
            limits.draft = local(limits.draft, offline)
        lora = tuple(adapters(where.lora, offline).items())
        engine, server = (
            replace(
                engine_options(path, ctx, where, limits, lora, limits.itl_target, embeddings=limits.embeddings),
                kv_events=routers.options(replicas.replicas or 1, here=replicas.ray_address in (None, "local")),
                **loras.of_engine(lora, offline),
            ),
            server_options(path, access, naming, defaults, limits, lora),
        )
        if loras.max_loras is not None and replicas.replicas is None:
            server = with_field(server, loads_adapters=True)
        if launched is not None:
            _run(launched, engine, server)
        else:
            _run_replicas(replicas, engine, server)


def require_packages(what: str) -> None:
    """Raise OctavoError where `what` needs a package that is not installed."""
    from importlib.util import find_spec

    for name in NEEDED:
        if find_spec(name) is None:
            raise OctavoError(f"{what} needs {name}: {name} is not installed ({INSTALL_BASE})")


def _run(launched: Launched, engine: EngineOptions, options: ServerOptions) -> None:
    from contextlib import closing

    from octavo.batch.served.routes import with_batches
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
        print(f"octavo: loading {file.path}", file=sys.stderr, flush=True)
        client = ProcessClient(engine, launched)
        run(with_batches(options, engine.max_sequences, lambda around: serve(
            client, file, options, sock, lambda service: _tell(options, sock, engine.kv_events), around,
        )))
    print(f"octavo: {options.name} stopped", file=sys.stderr)


def _run_replicas(given: Replicas, engine: EngineOptions, options: ServerOptions) -> None:
    import secrets
    from contextlib import closing
    from dataclasses import replace

    from octavo.batch.served.routes import with_batches
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
        run(with_batches(options, n * engine.max_sequences, lambda around: serve_front(
            launcher, n, options, sock, lambda front: _tell(options, sock, engine.kv_events, n), around,
        )))
    print(f"octavo: {options.name} stopped", file=sys.stderr)


def _tell(options: ServerOptions, sock: socket.socket, events: KVEvents | None = None, replicas: int = 0) -> None:
    """Say that the model is loaded, where it is served, and where KV events go."""
    from octavo.server.kv_events.address import binds

    shown = f"[{options.host}]" if ":" in options.host else options.host
    scheme = "http" if options.certificate is None else "https"
    url, by = f"{scheme}://{shown}:{sock.getsockname()[1]}", f" by {replicas} replicas" if replicas else ""
    print(f"octavo: {options.name} is served at {url}{by}, with a chat page", file=sys.stderr, flush=True)
    for one in () if events is None else map(events.of_rank, range(replicas or 1)):
        how = "published at" if binds(one.endpoint) else "sent to a reader that listens at"
        again = "" if one.replay is None else f", and again on request at {one.replay}"
        whose = f" of replica {one.rank}" if replicas else ""
        print(f"octavo: KV events{whose} are {how} {one.endpoint}{again}", file=sys.stderr, flush=True)


def _warn(options: ServerOptions) -> None:
    if not options.keys and options.host not in ("127.0.0.1", "::1", "localhost"):
        logging.getLogger("octavo").warning("any machine that reaches this one can use the server: no --api-key is set")

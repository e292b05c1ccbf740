"""How a server is reached, how much it takes, and what it loads a model with: options, and what is made of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import Draft, Speculation, Where, gpu_layers
from octavo.cli.serve.defaults import Defaults
from octavo.errors import UsageError

if TYPE_CHECKING:
    from octavo.runtime.lora_adapters import Chosen
    from octavo.server.serve_options import EngineOptions, KeyShare, ServerOptions

ACCESS = "Network and access"
access_option = partial(typer.Option, rich_help_panel=ACCESS)
kept_option = partial(typer.Option, rich_help_panel="Prefixes that last")
adapter_option = partial(typer.Option, rich_help_panel="Adapters")
MODULE = re.compile(r"[^\s:\x00-\x1f][^:\x00-\x1f]*")
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
        str | None, access_option("--api-key-file", metavar="FILE",
                                  help="A file with one API key per line; name= and weight= may follow it.")
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
    data_dir: Annotated[
        str | None, access_option(metavar="FOLDER", help="Keep files, batches and stored responses in this folder.")
    ] = None


@dataclass
class Naming:
    """What a model is called, and which of its templates it has."""

    alias: Annotated[
        str | None, access_option(metavar="NAME,NAME", help="Names of the model; lists show the alphabetically first.")
    ] = None
    tags: Annotated[str | None, access_option(metavar="TAG,TAG", help="Tags that /v1/models shows.")] = None
    strict_model: Annotated[bool, access_option("--strict-model", help="Refuse requests for other models.")] = False
    chat_template: Annotated[
        str | None, access_option(metavar="NAME", help="Which of the model's chat templates to use.")
    ] = None


@dataclass
class AdapterOptions:
    """LoRA adapters that requests choose."""

    lora_modules: Annotated[
        list[str] | None,
        adapter_option(metavar="NAME=ADAPTER",
                       help="A LoRA adapter that requests choose by this name, as model or lora; may be repeated."),
    ] = None
    max_loras: Annotated[
        int | None,
        adapter_option(min=1, max=1024, metavar="N",
                       help="Adapters, each with a scale, or sets of them, loaded at a time; clients may load more "
                       "(default: twice as many as --lora-modules, and clients load none)."),
    ] = None
    max_lora_rank: Annotated[
        int | None,
        adapter_option(min=1, max=512, metavar="R",
                       help="The highest rank of these (default: the highest of --lora-modules, at least 16)."),
    ] = None
    lora_init_without_apply: Annotated[
        bool,
        adapter_option("--lora-init-without-apply",
                       help="Adapters of --lora are for requests that choose them, by the names of their files."),
    ] = False

    def modules(self, lora: Chosen, offline: bool) -> tuple[tuple[str, str], ...]:
        """Adapters by name, and their paths; those of the hub are downloaded first. Raises UsageError."""
        from octavo.cli.lora_command import located
        from octavo.io.hub.download_cache import shown_name

        found: dict[str, str] = {}
        pairs = [module_of(text) for text in self.lora_modules or ()]
        if self.lora_init_without_apply:
            pairs += [(shown_name(path).removesuffix(".gguf"), path) for path, _ in lora]
        for name, path in pairs:
            if name in found:
                raise UsageError(f"two adapters are called {name!r} (allowed: a name for each)")
            found[name] = located(path, offline)
        return tuple(found.items())

    def of_engine(self, lora: Chosen, offline: bool) -> dict[str, Any]:
        """What an engine is told of them. Raises UsageError."""
        modules = self.modules(lora, offline)
        most = 2 * len(modules) if self.max_loras is None else self.max_loras
        if most < len(modules):
            raise UsageError(f"--max-loras is {most}, but there are {len(modules)} adapters (allowed: as many or more)")
        if self.max_lora_rank is not None and not most:
            raise UsageError("--max-lora-rank needs --lora-modules or --max-loras")
        applied = {"lora": ()} if self.lora_init_without_apply else {}
        return {"lora_modules": modules, "max_loras": most, "max_lora_rank": self.max_lora_rank, **applied}


def module_of(text: str) -> tuple[str, str]:
    """The name and the path of --lora-modules. Raises UsageError."""
    name, sign, path = text.partition("=")
    if not sign or not path or not MODULE.fullmatch(name):
        raise UsageError(f"--lora-modules is {text!r} (allowed: NAME=ADAPTER, a name without a colon or a line's end)")
    return name, path


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
class KeptPrefixes:
    """Prefixes that are kept beyond the KV cache."""

    cache_disk: Annotated[
        str | None, kept_option(metavar="BYTES", help="Keep prefixes of prompts on disk, e.g. 20G (default: none).")
    ] = None
    cache_dir: Annotated[
        str | None, kept_option(metavar="FOLDER", help="Where they are kept (default: prefixes/ in Octavo's cache).")
    ] = None
    cache_ram: Annotated[
        str | None,
        kept_option(metavar="BYTES", help="Keep prefixes that a GPU has no room for in the host's memory, e.g. 8G."),
    ] = None
    slot_save_path: Annotated[
        str | None, kept_option(metavar="FOLDER", help="Where /slots saves conversations, by names of files.")
    ] = None


@dataclass
class ServerLimits(EngineLimits, KeptPrefixes):
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
        bool, limit_option("--embeddings", help="Prepare embeddings of a model that generates at the start.")
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

    kept = limits if isinstance(limits, KeptPrefixes) else KeptPrefixes()
    if kept.cache_dir is not None and kept.cache_disk is None:
        raise UsageError("--cache-dir needs --cache-disk, which says how much may be kept there")
    return EngineOptions(
        path=path, device=where.device, n_ctx=ctx, threads=where.threads, cache_type=where.kv,
        gpu_layers=gpu_layers(where.layers), max_sequences=limits.max_sequences, itl_target=itl_target,
        kv_memory=None if limits.kv_memory is None else nbytes(limits.kv_memory), embeddings=embeddings,
        speculate=limits.speculate, draft=limits.draft, deterministic=limits.deterministic, attention=where.attention,
        lora=lora, tensor_parallel=where.tensor_parallel, pipeline=where.pipeline, step_timeout=limits.step_timeout,
        weight_cache=where.weight_cache, n_cpu_moe=where.cpu_experts,
        override_tensor=tuple(where.overrides.items()), slots=kept.slot_save_path is not None, cache_dir=kept.cache_dir,
        cache_disk=0 if kept.cache_disk is None else nbytes(kept.cache_disk, "--cache-disk"),
        cache_ram=0 if kept.cache_ram is None else nbytes(kept.cache_ram, "--cache-ram"),
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


def slot_folder(path: str | None) -> str | None:
    """Raises UsageError for what is not a folder."""
    if path is not None and not os.path.isdir(path):
        raise UsageError(f"--slot-save-path is {path}, which is not a folder (allowed: one that exists)")
    return path


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
    keys, shares = _keys(access)
    front = Limits(
        queue=limits.queue, drain_time=limits.drain_timeout, ping=limits.ping,
        connections=room_for(limits.max_connections),
    )
    return ServerOptions(
        name=names[0], aliases=tuple(names[1:]), tags=words_of("--tags", naming.tags),
        host=access.host, port=access.port,
        certificate=certificate(access.ssl_cert, access.ssl_key), keys=keys, shares=shares,
        hosts=_hosts(access.allow_host or ()), origins=_origins(access.origin or ()),
        strict_model=naming.strict_model, share_cache=limits.share_cache, limits=front,
        slot_path=slot_folder(limits.slot_save_path), data_dir=access.data_dir,
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


def _keys(access: Access) -> tuple[tuple[str, ...], dict[str, KeyShare]]:
    """Keys, and what those of a file are called there. Raises UsageError for a file without keys, a line of it that
    can't be read, a name that two keys have, and for a key that no header can have."""
    from octavo.io.regular_file import read_text

    keys, shares = list(access.key or ()), {}
    if access.key_file is not None:
        lines = [line.split() for line in read_text(access.key_file, MOST_KEYS).splitlines()]
        found = [words for words in lines if words and not words[0].startswith("#")]
        if not found:
            raise UsageError(f"{access.key_file} has no key: write one per line")
        for key, *words in found:
            keys.append(key)
            shares[key] = _share(access.key_file, len(keys), words)
    for key in keys:
        if not (key.isascii() and key.isprintable() and key.strip() == key != ""):
            raise UsageError("an API key has a character that a header can't have (allowed: letters, digits and signs)")
    named = [share.name for share in shares.values()]
    for name in named:
        if named.count(name) > 1:
            raise UsageError(f"{access.key_file} has the name {name!r} for two keys")
    return tuple(dict.fromkeys(keys)), shares


def _share(path: str, number: int, words: Sequence[str]) -> KeyShare:
    """What a line says of its key, behind it. Raises UsageError, in which the key is not shown."""
    from octavo.server.serve_options import KeyShare

    name, weight = f"key-{number}", 1.0
    for word in words:
        what, _, value = word.partition("=")
        if what == "name" and re.fullmatch(r"[\w.@-]{1,64}", value, re.ASCII):
            name = value
        elif what == "weight" and re.fullmatch(r"\d{1,4}(\.\d{1,3})?", value, re.ASCII) and float(value) > 0:
            weight = float(value)
        else:
            raise UsageError(f"{path}: behind key {number} stands something other than name=NAME, of letters, digits "
                             "and ._@-, or weight=NUMBER, above 0 and below 10,000: a line is KEY name=NAME "
                             "weight=NUMBER")
    return KeyShare(name, weight)

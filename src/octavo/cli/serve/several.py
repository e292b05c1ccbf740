"""`octavo serve` with several models: which there are, what each is served with, and the front that runs them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.hub.models import local
from octavo.cli.lora_command import adapters
from octavo.cli.option_groups import grouped
from octavo.cli.option_names import App, Commands
from octavo.cli.options import Context, Where, in_plain_words, refuse
from octavo.cli.serve.defaults import Defaults
from octavo.cli.serve.options import (
    Access,
    AdapterOptions,
    Naming,
    ServerLimits,
    engine_options,
    nbytes,
    require_one_template,
    server_options,
    slot_folder,
    words_of,
)
from octavo.errors import FileError, OctavoError, UsageError

if TYPE_CHECKING:
    from octavo.router.catalog import Catalog, Found, KnownModel
    from octavo.runtime.lora_adapters import Chosen
    from octavo.server.serve_options import ServerOptions

log = logging.getLogger("octavo")
several_option = partial(typer.Option, rich_help_panel="Several models")
MOST_PRESET = 1 << 20
"""Bytes of a settings file."""
ALL, BEFORE = "*", "before all sections"
MODEL, LOAD = ("model", "m", "hf-repo", "hf", "hfr"), "load-on-startup"
_UsageError: Any = typer.BadParameter.__mro__[1]  # what Typer raises for a command line that it can't read
TRUE = {"true": True, "on": True, "1": True, "yes": True, "false": False, "off": False, "0": False, "no": False}


@dataclass
class Several:
    """Which models there are beside those that are named, and how many are loaded."""

    models_dir: Annotated[
        str | None, several_option(metavar="FOLDER", help="Serve the models of this folder too.")
    ] = None
    preset: Annotated[
        str | None,
        several_option("--models-preset", metavar="FILE", help="Settings of models, a section of an INI file each."),
    ] = None
    memory: Annotated[
        str | None,
        several_option(metavar="BYTES", help="Memory of all loaded models, e.g. 12G (default: what is free)."),
    ] = None
    idle: Annotated[
        float | None, several_option(min=0.1, help="Seconds without a request after which a model is put to sleep.")
    ] = None
    allow_delete: Annotated[
        bool, several_option("--allow-delete", help="Clients may remove models from the hub's cache.")
    ] = False

    def are_meant(self, models: Sequence[str]) -> bool:
        """Whether models are loaded when they are asked for, rather than one at the start."""
        return len(models) != 1 or any(getattr(self, f.name) != f.default for f in fields(self))


@dataclass
class ModelOptions:
    """What a model is served with, by the groups of the command's options."""

    ctx: int | None
    naming: Naming
    defaults: Defaults
    where: Where
    limits: ServerLimits
    loras: AdapterOptions = field(default_factory=AdapterOptions)

    def over(self, other: ModelOptions) -> ModelOptions:
        """These options, and the other ones where these say nothing."""
        found: ModelOptions = _over(self, other)
        return found


def _over(first: Any, second: Any) -> Any:
    """A record with the fields of the first that are not at their defaults, and those of the second."""
    found = {}
    for f in fields(first):
        one, two = getattr(first, f.name), getattr(second, f.name)
        found[f.name] = _over(one, two) if is_dataclass(one) else two if one == f.default or one is None else one
    return replace(first, **found)


def of_section(
    ctx: Context = None, *, naming: Naming, defaults: Defaults, where: Where, limits: ServerLimits,
    loras: AdapterOptions,
) -> ModelOptions:
    """Options of a model."""
    return ModelOptions(ctx, naming, defaults, where, limits, loras)


@cache
def _reader() -> App:
    """What reads the options of a section as a command line."""
    made = App(cls=Commands, name="section", add_completion=False, pretty_exceptions_enable=False)
    made.callback()(lambda: None)
    made.command("model", add_help_option=False)(grouped(of_section))
    return made


@dataclass(frozen=True)
class Section:
    """A section of a settings file: its options, and what else it says.

    given  the options as they are written
    """

    path: str
    name: str
    options: ModelOptions
    given: Mapping[str, str]
    model: str | None = None
    load: bool = False

    @property
    def place(self) -> str:
        """Where it is, for errors."""
        return f"--models-preset: {self.path}: [{self.name}]"


def read_preset(path: str) -> dict[str, Section]:
    """The sections of a settings file, as llama-server reads them: names of options without dashes, and values.

    Raises UsageError for what is none, and for an option that models don't have.
    """
    import configparser

    from octavo.io.regular_file import read_text

    parser = configparser.ConfigParser(
        interpolation=None, delimiters=("=",), comment_prefixes=(";", "#"), default_section="\0", strict=True
    )
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    try:
        parser.read_string(f"[{BEFORE}]\n{read_text(path, MOST_PRESET)}", path)
    except configparser.Error as error:
        raise UsageError(f"--models-preset: {' '.join(error.message.split())}") from None
    first = {name: value for name, value in parser[BEFORE].items() if name != "version"}
    if first:
        raise UsageError(f"--models-preset: {path}: {min(first)} stands before all sections (allowed: version)")
    return {name: _section(path, name, parser[name]) for name in parser.sections() if name != BEFORE}


def _section(path: str, name: str, given: Mapping[str, str]) -> Section:
    place, rest = f"--models-preset: {path}: [{name}]", dict(given)
    models = [rest.pop(word) for word in MODEL if word in rest]
    if len(models) > 1:
        raise UsageError(f"{place} has several models: {', '.join(models)}")
    load = rest.pop(LOAD, "false").lower()
    if load not in TRUE:
        raise UsageError(f"{place}: {LOAD} is {load!r} (allowed: true, false)")
    return Section(path, name, _options(place, rest), rest, models[0] if models else None, TRUE[load])


def _options(place: str, given: Mapping[str, str]) -> ModelOptions:
    """Options as a section has them. Raises UsageError."""
    words = [f"{'-' if len(key) == 1 else '--'}{key}={value}" for key, value in given.items()]
    words = [word.removesuffix("=") if word.endswith("=") else word for word in words]
    try:
        found: ModelOptions = _reader()(["model", *words], standalone_mode=False, prog_name="octavo serve")
    except (UsageError, _UsageError) as error:
        message = in_plain_words(error.format_message()) if isinstance(error, _UsageError) else str(error)
        for key in get_close_matches(LOAD, given, cutoff=0.8):
            message = f"no setting {key!r} (did you mean {LOAD!r}?)"
        raise UsageError(f"{place}: {message}") from None
    return found


class Shelf:
    """Finds what there is to serve, again and again: models that were named, a folder's, the hub's cache's.

    given    names of models on the command line, with their paths
    options  of all models, and `base` what the front is run with
    """

    def __init__(
        self, given: Sequence[Found], options: ModelOptions, base: ServerOptions, several: Several, offline: bool
    ) -> None:
        self.given, self.options, self.base, self.several, self.offline = given, options, base, several, offline
        self.memory = None if several.memory is None else nbytes(several.memory, "--memory")
        typed = (several.memory or "G")[-1].upper()
        self.unit = "" if typed.isdigit() or typed == "." else typed

    def look(self) -> Catalog:
        """All models. Raises UsageError for a wrong settings file, and for two models with one name."""
        from octavo.router.catalog import Catalog

        sections = {} if self.several.preset is None else read_preset(self.several.preset)
        found: dict[str, Found] = {}
        for one in self._found():
            require_names(found.setdefault(one.name, one), one)
        everywhere = sections.pop(ALL, None)
        if everywhere is not None and everywhere.model is not None:
            raise UsageError(f"--models-preset: [{ALL}] is of all models, and names one: {everywhere.model}")
        for section in sections.values():
            self._add(section, found)
        known = []
        for one in found.values():
            of_it = [more for more in (sections.get(one.name), everywhere) if more is not None]
            known.append(self._checked(one, of_it))
        return Catalog(known)

    def _checked(self, found: Found, sections: Sequence[Section]) -> KnownModel:
        """A model with the settings of its sections. Raises UsageError for those that can't work.

        Those of all models are only warned of where they can't work for this one.
        """
        from octavo.router.settings_check import require_settings

        options = self.options
        for more in sections:
            options = options.over(more.options)
        load = any(more.load for more in sections)

        def made(options: ModelOptions) -> KnownModel:
            return self._known(found, options, load=load)

        def works(options: ModelOptions) -> None:
            require_settings(made(options))

        try:
            known = made(options)
        except OctavoError as error:
            if not sections:
                raise
            raise UsageError(self._blamed(sections, error, made)[1]) from None
        try:
            if sections:
                require_settings(known)
        except OctavoError as error:
            section, words = self._blamed(sections, error, works)
            if section.name != ALL:
                raise UsageError(words) from None
            log.warning("%s (of %s)", words, found.name)
        return self._with_draft(known, sections)

    def _with_draft(self, known: KnownModel, sections: Sequence[Section]) -> KnownModel:
        """The model with its draft model, or without one of all models that can't draft for it, which is warned of.

        Raises UsageError for one of its own section.
        """
        from msgspec.structs import replace as with_options

        from octavo.router.settings_check import require_draft_fits

        try:
            require_draft_fits(known)
        except OctavoError as error:
            of_all, place = self.options.limits.draft, "--draft"
            for section in sections:
                if of_all is None and section.options.limits.draft is not None:
                    of_all, place = section.options.limits.draft, f"{section.place}: draft"
                    if section.name != ALL:
                        raise UsageError(f"{place} = {of_all}: {error}") from None
            log.warning("%s = %s: %s; %s is served without it (its section of --models-preset may have another)",
                        place, of_all, error, known.name)
            speculate: Any = "auto" if known.engine.speculate in ("draft", "mtp") else known.engine.speculate
            return replace(known, engine=with_options(known.engine, draft=None, speculate=speculate))
        return known

    def _blamed(
        self, sections: Sequence[Section], error: OctavoError, use: Callable[[ModelOptions], object]
    ) -> tuple[Section, str]:
        """Which section an error is of, and the error with its place and key, which each setting alone tells."""
        for section in sections:
            for key, value in section.given.items():
                try:
                    use(self.options.over(_options(section.place, {key: value})))
                except OctavoError as alone:
                    if str(alone) == str(error):
                        return section, f"{section.place}: {key} = {value}: {error}"
        first = sections[0]
        of_model = "" if first.model is None else f"model = {first.model}: "
        return first, f"{first.place}: {of_model}{error}"

    def _found(self) -> Iterator[Found]:
        from octavo.router.catalog import in_cache, in_folder

        yield from self.given or in_cache()
        if self.several.models_dir is not None:
            yield from in_folder(self.several.models_dir)

    def _add(self, section: Section, found: dict[str, Found]) -> None:
        """Have a section's model among those that are there, under the section's name."""
        from octavo.router.catalog import Found

        if section.model is not None:
            try:
                path = _there(section.model, self.offline)
            except OctavoError as error:
                raise UsageError(f"{section.place}: model = {section.model}: {error}") from None
            made = Found(section.name, path, "preset")
            require_names(found.get(section.name, made), made)
            found[section.name] = made
        elif section.name not in found:
            allowed = f"{', '.join(sorted(found))}, or `model = PATH or ORG/REPO:QUANT` in it"
            raise UsageError(f"--models-preset: [{section.name}] is not a model that is there (allowed: {allowed})")

    def _known(self, found: Found, options: ModelOptions, *, load: bool) -> KnownModel:
        from msgspec.structs import replace as with_options

        from octavo.router.catalog import KnownModel

        limits, naming = options.limits, options.naming
        if limits.draft is not None:
            limits = replace(limits, draft=_there(limits.draft, self.offline))
        require_one_template(naming, options.defaults)
        lora = tuple(adapters(options.where.lora, self.offline).items())
        _require_loadable(found, options, lora)
        engine = engine_options(
            found.path, options.ctx, options.where, limits, lora, limits.itl_target, embeddings=limits.embeddings
        )
        aliases = {*found.aliases, *words_of("--alias", naming.alias)} - {found.name}
        server = replace(
            self.base, name=found.name, aliases=tuple(sorted(aliases)), tags=words_of("--tags", naming.tags),
            chat_template=naming.chat_template, share_cache=limits.share_cache, lora=lora,
            slot_path=slot_folder(limits.slot_save_path),
            limits=replace(self.base.limits, queue=limits.queue, drain_time=limits.drain_timeout, ping=limits.ping),
            **options.defaults.given(),
        )
        server = replace(server, loads_adapters=options.loras.max_loras is not None)
        more = options.loras.of_engine(lora, self.offline)
        return KnownModel(with_options(engine, asks=True, memory=self.memory, **more), server, found.source, load)


def require_names(first: Found, second: Found) -> None:
    """Raise UsageError for two models that would have one name, and for one that is named twice on the command line."""
    again = first is not second and first.source == second.source == "argument"
    if again or os.path.realpath(first.path) != os.path.realpath(second.path):
        raise UsageError(f"{first.path} and {second.path} would both be called {first.name!r}; give one of them "
                         "another name in --models-preset ([NAME], model = FILE)")


def _require_loadable(found: Found, options: ModelOptions, lora: Chosen) -> None:
    """Raise UsageError for settings with which the model can't be loaded, whatever is free when it is asked for."""
    from octavo.errors import OctavoError
    from octavo.huggingface import open_model_file
    from octavo.io.missing_model import require_there
    from octavo.text.fields import Fields
    from octavo.text.template import find_template, read_templates

    try:
        if options.ctx is not None and options.ctx < 1:
            raise UsageError(f"--ctx-size is {options.ctx} (allowed: 1 or more)")
        for path, _ in lora:
            require_there(path)
        if options.naming.chat_template is not None:
            with open_model_file(found.path) as file:
                find_template(read_templates(Fields(file.metadata, file.path)), options.naming.chat_template)
    except OctavoError as error:
        raise UsageError(f"{found.name}: {error}") from None


def run_several(models: Sequence[str], access: Access, options: ModelOptions, several: Several, offline: bool) -> None:
    """Serve several models until a signal to end comes."""
    import secrets
    from contextlib import closing

    from octavo.batch.served.routes import with_batches
    from octavo.router.front import ModelsFront
    from octavo.router.serve import serve_models
    from octavo.server.serve import bind, run

    if os.name == "nt":
        raise UsageError("several models need Linux or macOS: Windows hands no sockets to other processes")
    of_one = {"--alias": options.naming.alias, "--lora": options.where.lora,
              "--lora-modules": options.loras.lora_modules}
    refuse(of_one, "is of one model: write it into the model's section of --models-preset")
    front = replace(
        server_options("models", access, Naming(), options.defaults, options.limits, ()), secret=secrets.token_hex(16)
    )
    shelf = Shelf([_given(model, offline, several.models_dir) for model in models], options, front, several, offline)

    def told(made: ModelsFront) -> None:
        shown = f"[{front.host}]" if ":" in front.host else front.host
        scheme, names = "http" if front.certificate is None else "https", [*made.models.models]
        what = ", ".join(names) if names else "no model is here yet; `octavo pull` brings one"
        print(f"octavo: served at {scheme}://{shown}:{sock.getsockname()[1]}: {what}", file=sys.stderr, flush=True)

    logging.getLogger("octavo.models").setLevel(logging.INFO)
    with closing(bind(front.host, front.port)) as sock:
        run(with_batches(front, options.limits.max_sequences, lambda around: serve_models(
            shelf.look, front, sock, memory=shelf.memory, unit=shelf.unit, idle=several.idle, told=told,
            pulls=not models, deletes=several.allow_delete, around=around,
        )))
    print("octavo: stopped", file=sys.stderr)


def _given(model: str, offline: bool, folder: str | None) -> Found:
    """A model of the command line, which is downloaded where it is not on this machine; `folder` is --models-dir.

    Raises FileError where nothing is, and UsageError for the bare name of a model of the folder.
    """
    from octavo.io.hub.download_cache import shown_name
    from octavo.io.model_path import hub_name
    from octavo.router.catalog import Found, in_folder

    is_hubs = hub_name(model) is not None and model != "demo"
    try:
        path = _there(model, offline)
    except FileError:
        if folder is not None and any(one.name == model.removesuffix(".gguf") for one in in_folder(folder)):
            raise UsageError(f"{model} is in --models-dir, whose models are all served: leave it out") from None
        raise
    name = model if is_hubs else shown_name(path).removesuffix(".gguf")
    if not name.isprintable():
        raise UsageError(f"{path!r} has a name with characters that can't be shown; give it another one in "
                         "--models-preset ([NAME], model = FILE)")
    return Found(name, path, "argument")


def _there(model: str, offline: bool) -> str:
    """The path of a model, where something is. Raises FileError where nothing is."""
    from octavo.io.missing_model import require_there

    path = local(model, offline)
    require_there(path)
    return path

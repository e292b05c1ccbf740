"""`octavo pull`, `octavo list` and `octavo rm`: models of the Hugging Face hub on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.columns import print_columns
from octavo.cli.hub.early_kernels import EarlyKernels
from octavo.cli.hub.models import Offline, asking, local, shown_by, table
from octavo.cli.notes import stop_told
from octavo.cli.options import AsJson
from octavo.cli.plain import printable, to_json
from octavo.cli.progress_bar import Bar
from octavo.errors import UsageError
from octavo.sizes import size

if TYPE_CHECKING:
    from octavo.backends.cpu.packed.cache_folder import Entry
    from octavo.io.hub import HubName, Installed, Pulled


Name = Annotated[str, typer.Argument(metavar="ORG/REPO[:QUANT][@REVISION]", help="A model, as `octavo list` names it.")]


def pull(
    name: Name,
    revision: Annotated[str | None, typer.Option("--revision", help="A branch, a tag or a commit.")] = None,
    show: Annotated[
        bool,
        typer.Option("--list",
                     help="Download nothing: list what the repository has, offline what of it is on this machine.")
    ] = False,
    offline: Offline = False, as_json: AsJson = False,
) -> None:
    """Download a model of the Hugging Face hub: `octavo pull Qwen/Qwen3-0.6B-GGUF:Q8_0`.

    Without a QUANT it is Q4_K_M if that fits in memory, else the largest that fits.
    Interrupted, the same command goes on where it was.
    """
    wanted = _name(name, revision)
    if show:
        _list(wanted, offline, as_json)
        return
    from octavo.io.model_path import download

    with stop_told(), Bar() as bar, EarlyKernels() as kernels:
        pulled = download(wanted, shown_by(bar), asking(bar), offline=offline, began=kernels.begin)
    if as_json:
        print(to_json(_as_object(pulled)))
        return
    print(f"octavo: {_summary(pulled)}", file=sys.stderr)
    print(pulled.path)


def list_models(as_json: AsJson = False) -> None:
    """List models of the hub that are on this machine, and packed weights of any model that was run on the CPU."""
    from octavo.backends.cpu.packed.cache_folder import entries, folder
    from octavo.io.hub.inventory import cache_folder, installed

    found, packed = installed(), entries()
    if as_json:
        weights = {"cache": str(folder()), "files": [_weights_row(entry) for entry in packed]}
        print(to_json({"cache": cache_folder(), "models": [_row(model) for model in found], "weights": weights}))
        return
    _print_models(found)
    if packed:
        total = size(sum(entry.nbytes for entry in packed))
        print(f"\nPacked weights (copies of models as the CPU reads them), {total} in {printable(str(folder()))}; "
              "`octavo rm --packed` removes them.")
        by_model: dict[str, list[Entry]] = {}
        for entry in packed:
            by_model.setdefault(entry.model, []).append(entry)
        rows = [(_shown(model), str(len(of)), size(sum(e.nbytes for e in of)), f"{_when(of[0]):%Y-%m-%d %H:%M}")
                for model, of in by_model.items()]
        print_columns(("copy of", "files", "size", "last used"), rows, ("files", "size"))


def _shown(model: str) -> str:
    """A packed model's path, and whether nothing is there any more."""
    return printable(model) + ("" if os.path.exists(model) else " (gone)") if model else "damaged"


def _print_models(found: Sequence[Installed]) -> None:
    from octavo.io.hub.inventory import cache_folder

    if not found:
        print(
            f"No models in {printable(cache_folder())}, the hub's cache; `octavo pull ORG/REPO` downloads one. Models "
            "elsewhere are run by their paths.", file=sys.stderr,
        )
        return
    rows = [
        (printable(model.name), model.quantization or "interrupted", size(model.nbytes),
         f"{model.modified.astimezone():%Y-%m-%d %H:%M}", printable(model.path))
        for model in found
    ]
    print_columns(("name", "quantization", "size", "when", "path"), rows, ("size",))


def remove(
    name: Annotated[
        str | None,
        typer.Argument(metavar="ORG/REPO[:QUANT][@REVISION]",
                       help="A model, as `octavo list` names it; with --packed also its path, or nothing for all."),
    ] = None,
    packed: Annotated[
        bool, typer.Option("--packed", help="Remove packed weights alone; a model is packed again when it is run.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a model of the hub from this machine: `octavo rm Qwen/Qwen3-0.6B-GGUF:Q8_0`.

    Without a QUANT all of the repository is removed. Its packed weights go too.
    """
    from octavo.io.hub.inventory import remove as prepare

    if packed:
        _remove_packed(name, as_json)
        return
    if name is None:
        raise UsageError("no model is named; `octavo list` lists them")
    removal = prepare(_name(name, None))
    what = f"{', '.join(removal.models)} ({size(removal.nbytes)})"
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"{what} is not removed: there is no terminal to ask on; pass --yes")
        if not typer.confirm(f"Remove {what}?", err=True):
            raise typer.Exit(1)
    removal.strategy.execute()
    _remove_orphans()
    print(to_json({"removed": removal.models, "bytes": removal.nbytes}) if as_json else f"Removed {what}.")


def _remove_packed(name: str | None, as_json: bool) -> None:
    """Remove packed weights: those of a model, or all. Raises UsageError where there are none of the model."""
    from octavo.backends.cpu.packed.cache_folder import entries, remove

    chosen = entries()
    if name is not None:
        path = os.path.abspath(local(name, offline=True))
        chosen = [entry for entry in chosen if entry.model == path]
        if not chosen:
            raise UsageError(f"{name} has no packed weights; `octavo list` shows what has")
    nbytes, models = remove(chosen), sorted({entry.model for entry in chosen})
    what = f"packed weights of {', '.join(map(printable, models)) or 'no model'} ({size(nbytes)})"
    print(to_json({"removed": models, "bytes": nbytes}) if as_json else f"Removed {what}.")


def _remove_orphans() -> None:
    """Remove the packed weights of models that are no longer where they were."""
    from octavo.backends.cpu.packed.cache_folder import entries, remove

    remove(entry for entry in entries() if not os.path.exists(entry.model))


def _when(entry: Entry) -> datetime:
    return datetime.fromtimestamp(entry.used).astimezone()


def _weights_row(entry: Entry) -> dict[str, Any]:
    return {
        "model": entry.model, "bytes": entry.nbytes, "used": _when(entry).isoformat(), "path": str(entry.path),
    }


def _name(text: str, revision: str | None) -> HubName:
    """The hub's name in an argument. Raises UsageError for anything else."""
    from octavo.io.hub.name import parse
    from octavo.io.missing_model import search_for

    name = parse(text)
    if name is None:
        search = search_for(text)
        allowed = "(allowed: ORG/REPO, ORG/REPO:QUANT, each with @REVISION)"
        raise UsageError(f"{text!r} is not a hub name {allowed}{f'; {search}' if search else ''}")
    if revision is not None and name.revision not in (None, revision):
        raise UsageError(f"--revision {revision!r} contradicts @{name.revision} of the name")
    return name if revision is None else replace(name, revision=revision)


def _list(name: HubName, offline: bool, as_json: bool) -> None:
    """Print the models of a repository, as the hub lists them, or offline those that are on this machine."""
    from octavo.io.hub.download import offered
    from octavo.io.model_path import free_memory

    with Bar() as bar:
        found = offered(name, bar.show, offline=offline)
    free = free_memory()
    if as_json:
        rows = [
            {"quantization": v.label, "files": len(v.files), "bytes": v.nbytes, "fits": v.fits(free)} for v in found
        ]
        print(to_json({"name": str(name), "models": rows}))
    else:
        print("\n".join(table(found, free)))


def _summary(pulled: Pulled) -> str:
    what = f"{pulled.name.repo}, {pulled.variant.label}, {size(pulled.variant.nbytes)}"
    if not pulled.downloaded:
        return f"{what}: was here"
    rate = size(pulled.downloaded / max(pulled.seconds, 1e-3))
    return f"{what}: {size(pulled.downloaded)} in {pulled.seconds:.1f} s ({rate}/s)"


def _as_object(pulled: Pulled) -> dict[str, Any]:
    return {
        "name": str(pulled.name), "commit": pulled.commit, "quantization": pulled.variant.label, "path": pulled.path,
        "files": [{"name": e.name, "bytes": e.size, "digest": e.digest} for e in pulled.variant.files],
        "bytes": pulled.variant.nbytes, "downloaded": pulled.downloaded, "seconds": pulled.seconds,
    }


def _row(model: Installed) -> dict[str, Any]:
    return {
        "name": str(model.name), "quantization": model.quantization, "bytes": model.nbytes,
        "modified": model.modified.isoformat(), "commit": model.commit, "path": model.path,
    }

"""Octavo's models for the `llm` command and library, computed in its own process."""

from __future__ import annotations

from collections.abc import Callable

import click
import llm

from llm_octavo.inventory import GENERATES, available, models_dir, set_models_dir
from llm_octavo.models import AsyncOctavo, Octavo, OctavoEmbeddings


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    for one in available():
        if GENERATES in one.capabilities:
            register(Octavo(one), AsyncOctavo(one), aliases=one.aliases)


@llm.hookimpl
def register_embedding_models(register: Callable[..., None]) -> None:
    for one in available():
        if "embedding" in one.capabilities:
            register(OctavoEmbeddings(one), aliases=one.aliases)


@llm.hookimpl
def register_commands(cli: click.Group) -> None:
    @cli.group()
    def octavo() -> None:
        """Set the folder of Octavo's models."""

    @octavo.command("models-dir")
    @click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False, resolve_path=True))
    @click.option("--none", is_flag=True, help="No folder from now on.")
    def folder_of_models(folder: str | None, none: bool) -> None:
        """Show the folder of models, or set it to FOLDER. Models of the hub's cache are always listed."""
        if folder is not None or none:
            set_models_dir(folder)
        try:
            click.echo(models_dir() or "no folder; `llm octavo models-dir FOLDER` chooses one")
        except llm.ModelError as error:
            raise click.ClickException(str(error)) from None

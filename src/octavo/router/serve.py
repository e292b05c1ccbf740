"""Running a front of models."""

from __future__ import annotations

import socket
from collections.abc import Callable

from octavo.replicas.serve import run_front
from octavo.router.catalog import Catalog
from octavo.router.front import ModelsFront, make_front
from octavo.router.models import Models
from octavo.server.app import Around
from octavo.server.serve_options import ServerOptions


async def serve_models(
    look: Callable[[], Catalog], options: ServerOptions, sock: socket.socket, *, memory: int | None = None,
    unit: str = "G", idle: float | None = None, pulls: bool = True, deletes: bool = False,
    told: Callable[[ModelsFront], None] = lambda front: None, around: Around = lambda app: app,
) -> None:
    """Serve all models that `look` finds until a signal to end comes; see `Models` for `memory`, `unit` and `idle`.

    `pulls`: clients may have models of the hub downloaded; `deletes`: and removed; `around` is that of `make_app`.
    Raises UsageError where two models have the same name.
    """
    models = Models(look(), options, memory, idle, unit=unit)
    front = ModelsFront(models, options, look, pulls=pulls, deletes=deletes)
    front.around = around
    try:
        await run_front(front, make_front(front), models, sock, lambda: told(front))
    finally:
        front.pulls.close()

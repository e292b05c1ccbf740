"""Importances as a user gives them: an importance matrix, or the statistics of a calibration."""

from __future__ import annotations

import os

import numpy as np

from octavo.errors import FileError
from octavo.graph.names import split_layer
from octavo.io.regular_file import open_regular
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.statistics.statistics_file import Statistics

_SIZE = 8
"""Bytes of a safetensors file before its header, a JSON object; no importance matrix has a brace there."""


def load_importance(given: str | os.PathLike[str] | Imatrix | None) -> Imatrix | None:
    """An importance matrix, of the path of one, or of the path of what `octavo calibrate` writes.

    Raises FileError as `Imatrix.load` and `Statistics.load` do.
    """
    if isinstance(given, Imatrix | None):
        return given
    with open_regular(given, "an importance matrix") as file:
        start = file.read(_SIZE + 1)
    return of_statistics(Statistics.load(given)) if start[_SIZE:] == b"{" else Imatrix.load(given)


def of_statistics(statistics: Statistics) -> Imatrix:
    """The mean squares of what weights of the layers are given; of experts each one's own.

    The output is left out, as `octavo imatrix` leaves it out. Raises FileError where there are no such weights.
    """
    first = {name: name for name in statistics.inputs} | statistics.shared
    weights = sorted(name for name in first if split_layer(name)[0] is not None)
    if not weights:
        raise FileError("has no statistics of a layer's weights", file=statistics.path)
    about = statistics.about
    made = Imatrix(
        datasets=(about["text"],) if "text" in about else (), chunk_count=_number(about.get("samples")),
        chunk_size=_number(about.get("context")), path=statistics.path,
    )
    for name in weights:
        found = statistics.inputs[first[name]]
        squares = found.fields()["mean_square"] * found.tokens[:, None].astype(np.float64)
        made.add(name, squares, found.tokens)
    return made


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 10 else 0

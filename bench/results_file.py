"""Result files: what each says of where, when and how it was measured."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.bench import machine

RESULTS = Path(__file__).resolve().parent / "results"
NOT_OF_THE_MEASUREMENT = ("-o", "--output", "--commit")


def described(gpu: Mapping[str, Any] | None = None, /, **versions: Any) -> dict[str, Any]:
    """The command, the time, the machine, with what `gpu` says of a GPU, and versions, to which some are added."""
    return {
        "command": command(),
        "date": machine.now(),
        "machine": {**machine.machine(), **(gpu or {})},
        "versions": {**machine.versions(), **versions},
    }


def command() -> str:
    """The command line of this script, without folders of files, and without where results go."""
    script, *arguments = sys.argv
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument not in NOT_OF_THE_MEASUREMENT:
            kept.append(argument)
        skip = argument in NOT_OF_THE_MEASUREMENT
    return machine.shortened(["python", Path(script).name, *kept])


def path_of(name: str, result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """`name`, the day of `result`, .json."""
    return folder / f"{name}-{result['date'][:10]}.json"


def write(name: str, result: dict[str, Any], folder: Path = RESULTS) -> None:
    """Write a result to its file, all of it or nothing, and say which that is."""
    path = path_of(name, result, folder)
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
    print(path)

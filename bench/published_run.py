"""Parts of models that are measured each in a process of its own, and go on where an earlier run of them stopped."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import results_file
from octavo.bench import machine, synthetic
from published_models import Published, remove, tiny

Case = dict[str, Any]


class PublishedRun:
    """All parts that are asked for, each by a process of `script`; cases are kept in a file beside the result."""

    script: str
    models: Mapping[str, Published]
    usual: Sequence[str]
    """Parts of models, unless others are asked for."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.end = asked, time.monotonic() + asked.budget
        self.device, self.name, self.described = self.about()
        self.kept = asked.output / f"{self.name}-{asked.commit}.cases"
        self.cases: list[Case] = json.loads(self.kept.read_text("utf-8")) if self.kept.exists() else []
        if asked.again:
            failed = {(c["model"], c["part"]) for c in self.cases if "failed" in c}
            self.cases = [c for c in self.cases if (c["model"], c["part"]) not in failed or "rate" in c]

    def about(self) -> tuple[str, str, Mapping[str, Any]]:
        """The device, what the result is called, and what it says of the machine."""
        raise NotImplementedError

    def all(self) -> None:
        for name in self.asked.models:
            parts = list(self.asked.parts or (*self.usual, *self.models[name].more))
            path = self.models[name].path(self.asked.folder, name)
            for part in parts:
                if time.monotonic() > self.end:
                    print(f"--budget is over before {part} of {name}; the same command goes on from there")
                    return
                if not self._done(name, part):
                    self._part(name, part, path)
            if self.asked.delete and all(self._done(name, part) for part in parts):
                remove(path)

    def environment(self, part: str) -> dict[str, str]:
        """Variables of a part's process beside its own."""
        return {}

    def _done(self, name: str, part: str) -> bool:
        return any((c["model"], c["part"], c["test"]) == (name, part, "done") for c in self.cases)

    def _part(self, name: str, part: str, path: Path) -> None:
        done = [c["test"] for c in self.cases if (c["model"], c["part"]) == (name, part)]
        measure = {"name": name, "path": str(path), "part": part, "device": self.device, "dry": self.asked.dry,
                   "skip": done}
        if not path.exists():
            begun = time.monotonic()
            subprocess.run([sys.executable, self.script, "--make", json.dumps(measure)], check=True)
            print(f"{path} made in {time.monotonic() - begun:.1f} s", flush=True)
        command = [sys.executable, self.script, "--measure", json.dumps({**measure, "begun": time.time()})]
        env = os.environ | self.environment(part)
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            late = threading.Timer(max(1.0, self.end - time.monotonic()), process.kill)
            late.start()
            for line in process.stdout:
                if line.startswith("{"):
                    self._keep({"model": name, "part": part, **json.loads(line)})
            late.cancel()
        if process.returncode and time.monotonic() >= self.end:
            return
        if process.returncode and "failed" not in (self.cases or [{}])[-1]:
            self._keep({"model": name, "part": part, "test": part, "failed": f"ended with status {process.returncode}"})
        self._keep({"model": name, "part": part, "test": "done"})

    def _keep(self, case: Case) -> None:
        self.cases.append(case)
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        self.kept.write_text(json.dumps(self.cases), encoding="utf-8")
        if case["test"] != "done":
            print(case, flush=True)
            shown = [c for c in self.cases if c["test"] != "done"]
            results_file.write(self.name, {**self.described, "cases": shown}, self.asked.output)


def aim(rate: float, wanted: float) -> Case:
    """What a rate is to reach, and the part of it that it does."""
    return {"aim": round(wanted, 2), "of_aim": round(rate / wanted, 3)}


def tell(cases: Callable[[], Iterator[Case]], part: str) -> None:
    """Print the cases of a part, a JSON object a line; one that fails says why."""
    try:
        for case in cases():
            print(json.dumps(case), flush=True)
    except (Exception, SystemExit) as error:
        print(json.dumps({"test": part, "failed": f"{type(error).__name__}: {error}"[:500]}), flush=True)
        raise


def make(model: Published, path: str, dry: bool) -> None:
    """Write a model, or a tiny one like it."""
    if dry:
        synthetic.SHAPES[model.shape] = tiny(synthetic.SHAPES[model.shape])
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    model.make(Path(path), model.shape)


def main(
    about: str | None, run: type[PublishedRun], parts: Sequence[str], more: str, measure: Callable[..., None],
    tables: Callable[[dict[str, Any]], str],
) -> None:
    """Do what is asked: all parts, tables of a result, or what a process of a run does, one part or a model.

    `more` says which parts are usual beside those of all models.
    """
    parser = arguments(about, run.models, parts, f"{', '.join(run.usual)}, and {more}")
    asked = parser.parse_args()
    if asked.measure:
        measure(**asked.measure)
    elif asked.make:
        make(run.models[asked.make["name"]], asked.make["path"], asked.make["dry"])
    elif asked.table:
        print(tables(json.loads(asked.table.read_text("utf-8"))))
    elif asked.folder is None:
        parser.error("FOLDER is missing")
    else:
        run(asked).all()


def arguments(
    about: str | None, models: Mapping[str, Published], parts: Sequence[str], usual: str
) -> argparse.ArgumentParser:
    """Options of all such runs; those of processes are not shown."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--models", nargs="+", choices=tuple(models), default=tuple(models))
    parser.add_argument("--parts", nargs="+", choices=parts, help=f"default: {usual}")
    parser.add_argument("--budget", type=float, default=1e6, help="seconds after which no case begins or goes on")
    parser.add_argument("--again", action="store_true", help="try parts again that failed")
    parser.add_argument("--delete", action="store_true", help="remove each model after its parts")
    parser.add_argument("--dry", action="store_true", help="tiny models and few tokens")
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    parser.add_argument("--table", type=Path, help="print a result as tables of Markdown")
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--make", type=json.loads, help=argparse.SUPPRESS)
    return parser

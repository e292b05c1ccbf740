"""Shell commands of README.md and docs/run.md work as printed, over files of the names that they have."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.data import demo_model_path
from tests.convert import folders
from tests.limits import HANG_S
from tests.models.checkpoints import CASES
from tests.models.embedding_checkpoints import KINDS, save

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": 4, "docs/run.md": 1}
"""How many of a page's first blocks."""
ELSEWHERE = re.compile(r"^(pip|octavo serve)|Qwen/|adapter\.gguf")
"""Commands that install, go on until they are stopped or ask the hub; adapters are for `test_doc_files`."""


def commands() -> list[str]:
    """The lines of the blocks, without what follows `&&` of an installation."""
    found = []
    for page, count in PAGES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        for block in re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[:count]:
            found += [line.removeprefix("pip install . && ") for line in block.splitlines()]
    return [line for line in found if line and not ELSEWHERE.search(line)]


@pytest.mark.slow
def test_commands_work_as_printed(tmp_path: Path) -> None:
    """One after the other, as some go on with what others make."""
    demo, bin_folder = demo_model_path(), tmp_path / "bin"
    for name in ("model.gguf", "model-f16.gguf"):
        shutil.copy(demo, tmp_path / name)
    text = "\n".join(f"What is {a} times {b}? {a} times {b} is {a * b}." for a in range(12, 40) for b in range(3, 9))
    for name in ("notes.txt", "question.txt", "text.txt"):
        (tmp_path / name).write_text(text if name == "text.txt" else text[:400])
    folders.save(tmp_path / "checkpoint", CASES["qwen3"])
    save(tmp_path / "bge-small.gguf", KINDS["bert"])
    bin_folder.mkdir()
    (bin_folder / "octavo").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m octavo "$@"\n')
    (bin_folder / "octavo").chmod(0o755)
    env = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    lines = commands()
    assert len(lines) > 14
    for line in lines:
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, env=env, input="/bye\n", capture_output=True, text=True, timeout=HANG_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert done.stdout, line

"""Commands of README.md, CONTRIBUTING.md and docs/: each is there, with the options that a page gives it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from octavo.cli import app
from octavo.cli.option_names import Names
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
DOCS = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "log.md"]  # that tells of the past
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
BLOCK = re.compile(r"^```(?:sh|text)?\n(.*?)^```$|^    (octavo .*)$|`(octavo [^`]+)`", re.DOTALL | re.MULTILINE)
SCRIPT = re.compile(r"python ((?:bench|tools)/[\w/]+\.py)([^`\n#|]*)")
OPTION = re.compile(r"--?[a-z]")


def commands(page: Path) -> Iterator[str]:
    """What follows `octavo` in each command of a page."""
    for match in BLOCK.finditer(page.read_text(encoding="utf-8").replace("\\\n", " ")):
        for line in next(filter(None, match.groups()), "").splitlines():
            for part in re.split(r"[|;<>]|&&|\$\(", re.sub(r"#.*", "", line)):
                found = re.match(r"\s*(?:(?:ncu|nsys|rocprofv3) .*? )?octavo\s+([^/].*)", part)
                if found and not found[1].startswith("["):
                    yield found[1]


def unknown(text: str) -> list[str]:
    """Options, or the subcommand, that `octavo` does not have."""
    words, command = shlex.split(text), get_command(app)
    while words:
        below = getattr(command, "commands", {})
        if words[0] in below:
            command = below[words.pop(0)]
        elif below and words[0] in names_of(command):
            words.pop(0)
        else:
            break
    if getattr(command, "commands", None) and words:
        return words[:1]
    given = [word.partition("=")[0] for word in words if OPTION.match(word)]
    return [name for name in given if name not in names_of(command)]


def names_of(command: Any) -> Names:
    return Names("octavo", command.get_params(command.make_context(None, [], resilient_parsing=True)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_are_there(page: Path) -> None:
    assert {text: missing for text in commands(page) if (missing := unknown(text))} == {}


@pytest.mark.parametrize("which", ["inspect", "run", pytest.param("", marks=pytest.mark.slow, id="all")])
def test_commands_of_troubleshooting_work_as_printed(
    which: str, octavo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that want no GPU, one after the other; the demo model is what they are about."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    lines = re.findall(rf"^octavo {which}.*$", page, re.MULTILINE)
    lines = [line for line in lines if "--device gpu" not in line]
    assert lines
    for line in lines:
        done = octavo(*shlex.split(line, comments=True)[1:])
        assert done.status == 0, f"{line}\n{done.err}"


def test_commands_are_found() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 100
    assert unknown("quantise model.gguf") == ["quantise"]
    assert unknown("-v eval kl a.gguf text --base b.gguf --rounds=3 -c 64") == ["--rounds"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_and_their_options_are_there(page: Path) -> None:
    for script, rest in SCRIPT.findall(page.read_text(encoding="utf-8").replace("\\\n", " ")):
        source = (ROOT / script).read_text(encoding="utf-8")
        options = [word.partition("=")[0] for word in rest.split() if OPTION.match(word)]
        assert [name for name in options if f'"{name}"' not in source] == [], script


def anchors(page: Path) -> set[str]:
    """The names under which headings of a page are linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for path, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if path.startswith(("http:", "https:")):
            continue
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"

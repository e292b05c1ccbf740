"""`octavo pull`, `list`, `rm`, and names of the hub where a model is asked for."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import octavo as package
from octavo.errors import HubError
from octavo.io.hub import HubName, cached
from tests.cli.conftest import Run
from tests.cli.test_progress import Terminal
from tests.hub_server import Fault, Hub
from tests.limits import HANG_S

NAME = "org/alphabet-GGUF"


@pytest.fixture(autouse=True)
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of packed weights that keeps the smallest model too."""
    folder = tmp_path / "weights"
    monkeypatch.setattr("octavo.backends.cpu.packed.cache_folder.folder", lambda: folder)
    monkeypatch.setattr("octavo.backends.cpu.packed.store.LEAST", 0)
    return folder


@pytest.fixture
def model(hub: Hub, alphabet: str) -> bytes:
    """A repository with a model that answers with the alphabet."""
    data = Path(alphabet).read_bytes()
    hub.repository(NAME, {"alphabet-Q4_K_M.gguf": data, "alphabet-Q8_0.gguf": data + bytes(32), "config.json": b"{}"})
    return data


def test_pull_prints_the_path(octavo: Run, model: bytes) -> None:
    result = octavo("pull", NAME)
    assert Path(result.out.rstrip("\n")).read_bytes() == model
    assert result.err.startswith("octavo: downloading org/alphabet-GGUF: Q4_K_M of")
    assert result.err.splitlines()[-1].startswith(f"octavo: {NAME}, Q4_K_M, ")
    assert octavo("pull", NAME).err.endswith("was here\n")


def test_pull_as_json(octavo: Run, hub: Hub, model: bytes) -> None:
    found = json.loads(octavo("pull", f"{NAME}:Q8_0", "--revision", "main", "--json").out)
    assert found["name"] == f"{NAME}:Q8_0@main"
    assert found["commit"] == hub.repositories[NAME].commit
    assert found["quantization"] == "Q8_0"
    assert found["bytes"] == found["downloaded"] == len(model) + 32 == os.path.getsize(found["path"])
    (file,) = found["files"]
    assert file["name"] == "alphabet-Q8_0.gguf"


@pytest.mark.parametrize("variable", [False, True])
def test_offline(octavo: Run, hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch, variable: bool) -> None:
    there = json.loads(octavo("pull", NAME, "--json").out)
    asked = len(hub.requests)
    offline = [] if variable else ["--offline"]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", variable)
    result = octavo("pull", NAME, *offline)
    assert (result.out, result.err) == (f"{there['path']}\n", f"octavo: {NAME}, Q4_K_M, 1.3 MB: was here\n")
    assert json.loads(octavo("pull", NAME, *offline, "--json").out) == there | {"downloaded": 0, "seconds": 0.0}
    said = "unset HF_HUB_OFFLINE for that" if variable else f"`octavo pull {NAME}:Q8_0` does it"
    assert octavo("pull", f"{NAME}:Q8_0", *offline).error() == (
        f"octavo: error: {NAME}:Q8_0 is not on this machine (choices: Q4_K_M (1.3 MB)), "
        f"and nothing is downloaded offline; {said}"
    )
    rows = json.loads(octavo("pull", NAME, "--list", *offline, "--json").out)["models"]
    assert [row["quantization"] for row in rows] == ["Q4_K_M"]
    assert octavo("pull", "a/b", "--list", *offline).error() == "octavo: error: a/b is not on this machine"
    assert len(hub.requests) == asked


def test_pull_is_about_names_even_where_a_folder_is_called_so(
    octavo: Run, hub: Hub, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir(parents=True)
    path = octavo("pull", NAME).out
    assert octavo("pull", NAME, "--offline").out == path


def test_ctrl_c_during_pull(octavo: Run, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(what: str, done: int = 0, total: int | None = None) -> None:
        if done:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr("octavo.cli.hub.pull.shown_by", lambda bar: interrupt)
        patched.setattr("octavo.io.hub.download.SHOWN_S", 0)  # so that it is shown before it has ended
        stopped = octavo("pull", NAME)
    assert (stopped.status, stopped.out) == (130, "")
    assert stopped.err == "octavo: stopped; the same command goes on\n"
    assert Path(octavo("pull", NAME).out.rstrip("\n")).read_bytes() == model


def test_the_bar_of_pull_has_the_time_that_is_left(octavo: Run, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, seconds = Terminal(), itertools.count()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("rich.console.monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr("octavo.io.hub.download.SHOWN_S", 0)
    assert octavo("pull", NAME).status == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    left = [int(found) for found in re.findall(r"% 0:00:(\d\d) alphabet-Q4_K_M\.gguf: ", plain)]
    assert max(left) in left[: len(left) // 2 + 1], "pieces are of different sizes, so it may rise a little"
    assert left[0] > left[-1] == 0


def test_run_takes_names(octavo: Run, hub: Hub, model: bytes) -> None:
    result = octavo("run", NAME, "a", "--temp", "0", "--raw")
    assert result.out.startswith("bcdef")
    asked = len(hub.requests)
    assert octavo("run", f"{NAME}:Q4_K_M", "a", "--temp", "0", "--raw").out == result.out
    assert len(hub.requests) == asked, "what is there is asked for no more"
    with package.load(NAME, device="reference") as loaded:
        assert loaded.name == "alphabet-Q4_K_M"


@pytest.mark.parametrize(
    "command",
    [["inspect", "{}"], ["eval", "ppl", "{}", "demo"], ["eval", "kl", "demo", "demo", "--base", "{}"],
     ["eval", "demo", "{}"], ["quantize", "{}", "o.gguf", "Q8_0"], ["quantize", "{}", "o", "--scheme", "fp8"],
     ["convert", "{}", "o.gguf"], ["bench", "model", "{}"], ["imatrix", "{}", "demo", "-o", "i.gguf"],
     ["report", "{}", "-o", "r.html"], ["profile", "{}"], ["run", "{}", "a"], ["serve", "{}"], ["embed", "{}", "a"],
     ["rank", "{}", "a", "b"], ["calibrate", "{}", "demo", "-o", "s.safetensors"], ["eval", "cache", "{}", "demo"]],
    ids=lambda command: " ".join(command[:2]).replace(" {}", ""),
)
def test_commands_take_names(octavo: Run, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [part.format("org/none:Q4_0") for part in command]
    said = "octavo: error: org/none:Q4_0 is not on this machine, and nothing is downloaded offline; "
    assert octavo(*arguments, "--offline").error().startswith(said)
    assert not list(tmp_path.iterdir())


def test_a_path_wins(octavo: Run, hub: Hub, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir(parents=True)
    assert "has no config.json" in octavo("inspect", NAME).error()
    os.rmdir(NAME)
    assert f"`octavo pull {NAME}` downloads the model of that name" in octavo("inspect", NAME).error()
    assert not hub.requests
    octavo("pull", NAME)
    assert "runs here" in octavo("inspect", NAME).out


def test_list_and_rm(octavo: Run, hub: Hub, model: bytes) -> None:
    assert octavo("list").err.startswith("No models in ")
    assert json.loads(octavo("list", "--json").out)["models"] == []
    octavo("pull", NAME)
    octavo("pull", f"{NAME}:Q8_0")
    heading, first, second = octavo("list").out.splitlines()
    assert heading.split() == ["name", "quantization", "size", "when", "path"]
    assert first.split()[:2] == [f"{NAME}:Q4_K_M", "Q4_K_M"]
    assert second.split()[-1] == cached(HubName(NAME, "Q8_0"))
    models = json.loads(octavo("list", "--json").out)["models"]
    assert [row["bytes"] for row in models] == [len(model), len(model) + 32]
    assert octavo("rm", f"{NAME}:Q5_0", "-y").error() == (
        f"octavo: error: {NAME}:Q5_0 is not on this machine (choices: Q4_K_M (1.3 MB), Q8_0 (1.3 MB))"
    )
    assert "there is no terminal to ask on; pass --yes" in octavo("rm", f"{NAME}:Q8_0").error()
    assert octavo("rm", f"{NAME}:Q8_0", "--yes").out.startswith(f"Removed {NAME}:Q8_0 (")
    assert cached(HubName(NAME, "Q8_0")) is None
    assert cached(HubName(NAME)) is not None
    assert json.loads(octavo("rm", NAME, "--yes", "--json").out) == {"removed": [NAME], "bytes": len(model)}
    assert octavo("rm", NAME, "--yes").error().endswith(f"{NAME} is not in the cache")


def test_rm_keeps_what_another_revision_has(octavo: Run, hub: Hub, model: bytes) -> None:
    octavo("pull", NAME)
    files = {"alphabet-Q4_K_M.gguf": model, "README.md": b"new"}
    hub.repository(NAME, files, revisions=("main", "v2"))
    octavo("pull", f"{NAME}@v2")
    rows = json.loads(octavo("list", "--json").out)["models"]
    assert [row["name"] for row in rows] == [f"{NAME}:Q4_K_M", f"{NAME}:Q4_K_M@v2"]
    assert json.loads(octavo("rm", f"{NAME}@v2", "--yes", "--json").out)["bytes"] == 0
    assert cached(HubName(NAME)) is not None


def test_an_interrupted_download_is_listed_and_removed(octavo: Run, hub: Hub, model: bytes) -> None:
    hub.faults += [Fault("/cdn/", cut=1000), Fault("/cdn/", 404)]
    octavo("pull", NAME)
    name, state, size, *_ = octavo("list").out.splitlines()[1].split()
    assert (name, state, size) == (NAME, "interrupted", "1.0")
    assert octavo("rm", f"{NAME}:Q4_K_M", "-y").error() == (
        f"octavo: error: {NAME}:Q4_K_M is not on this machine; "
        f"1.0 kB of an interrupted download are: `octavo rm {NAME}` removes all of it"
    )
    assert json.loads(octavo("rm", NAME, "-y", "--json").out)["bytes"] == 1000
    assert octavo("list").out == ""


def test_what_a_repository_has(octavo: Run, hub: Hub, model: bytes) -> None:
    lines = octavo("pull", NAME, "--list").out.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["Q4_K_M", "Q8_0"]
    rows = json.loads(octavo("pull", NAME, "--list", "--json").out)["models"]
    assert rows[0] == {"quantization": "Q4_K_M", "bytes": len(model), "files": 1, "fits": True}
    assert not hub.asked("/cdn/")


def test_capitals_make_no_difference(octavo: Run, hub: Hub, model: bytes) -> None:
    """Nor do they at the hub, which answers with the name as it has it."""
    path = octavo("pull", "ORG/Alphabet-gguf").out
    assert "models--org--alphabet-GGUF" in path
    asked = len(hub.requests)
    for name in (NAME, "Org/alphabet-ggUF:q4_k_m"):
        assert octavo("run", name, "a", "--temp", "0", "--raw").out.startswith("bcdef")
    assert octavo("pull", "org/alphabet-gguf", "--offline").out == path
    assert len(hub.requests) == asked, "what is there is asked for no more"
    assert octavo("rm", "ORG/ALPHABET-GGUF", "--yes").status == 0
    assert not os.path.exists(path.rstrip("\n"))


def test_nobody_is_asked_in_a_pipe(octavo: Run, model: bytes) -> None:
    assert octavo("pull", f"{NAME}:Q5_0").error() == (
        "octavo: error: org/alphabet-GGUF has no Q5_0 (choices: Q4_K_M (1.3 MB), Q8_0 (1.3 MB))"
    )


def test_a_terminal_is_asked(model: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda text, **_: 2)
    monkeypatch.setattr("octavo.cli.hub.models.shown_by", lambda bar: lambda *_: None)
    from octavo.cli.hub.models import local

    assert local(f"{NAME}:Q5_0").endswith("alphabet-Q8_0.gguf")
    asked = capsys.readouterr().err
    assert asked.startswith(f"{NAME} has no Q5_0\n")
    assert [line.split()[:2] for line in asked.splitlines()[2:]] == [["1", "Q4_K_M"], ["2", "Q8_0"]]


@pytest.mark.parametrize("said", [True, False])
def test_rm_asks_at_a_terminal(octavo: Run, model: bytes, monkeypatch: pytest.MonkeyPatch, said: bool) -> None:
    path = Path(octavo("pull", f"{NAME}:Q8_0").out.rstrip("\n"))
    asked: list[str] = []
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr("octavo.cli.hub.pull.sys", SimpleNamespace(stdin=terminal, stderr=sys.stderr))
    monkeypatch.setattr("typer.confirm", lambda text, **_: asked.append(text) or said)
    done = octavo("rm", f"{NAME}:Q8_0")
    assert asked == [f"Remove {NAME}:Q8_0 (1.3 MB)?"]
    assert (done.status, path.exists()) == ((0, False) if said else (1, True))
    assert ("Removed" in done.out) == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pull", "qwen3"], "'qwen3' is not a hub name (allowed: ORG/REPO, ORG/REPO:QUANT, each with @REVISION)"),
        (["pull", "qwen3:4b"], "GGUF files of that name: https://huggingface.co/models?library=gguf&search=qwen3"),
        (["rm", "../x", "--yes"], "'../x' is not a hub name"),
        (["pull", "a/b@v1", "--revision", "v2"], "--revision 'v2' contradicts @v1"),
        (["rm", "a/b", "--yes"], "a/b is not in the cache"),
        (["pull", "a/b", "--offline"], "a/b is not on this machine"),
    ],
)
def test_usage(octavo: Run, hub: Hub, arguments: list[str], said: str) -> None:
    assert said in octavo(*arguments).error()


def test_environment_variables_of_the_hub(hub: Hub, model: bytes, tmp_path: Path) -> None:
    """A process of its own: a mirror, a token and a cache from its environment; it asks for the model alone."""
    hub.repositories[NAME].token = "hf_secret"
    env = {
        **{name: value for name, value in os.environ.items() if name != "HF_HUB_DISABLE_TELEMETRY"},
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path),
        "HF_TOKEN": "hf_secret",
        "HF_HUB_OFFLINE": "0",
    }
    command = [sys.executable, "-m", "octavo", "pull", NAME]
    done = subprocess.run(command, capture_output=True, check=False, timeout=HANG_S, env=env, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "hub" / "models--org--alphabet-GGUF"))
    assert [path.split("/")[1] for _, path, _ in hub.requests] == ["api", "org", "cdn"]
    assert len(hub.asked(f"/api/models/{NAME}")) == 1
    assert [path.split("/")[1] for _, path, _ in hub.requests] == ["api", "org", "cdn"]
    assert len(hub.asked(f"/api/models/{NAME}")) == 1
    assert all("torch" not in headers["user-agent"] for headers in hub.asked("/"))


def test_python(hub: Hub, model: bytes) -> None:
    with pytest.raises(HubError, match=r"org/alphabet-GGUF has no Q5_0 \(choices: "):
        package.load(f"{NAME}:Q5_0")
    with pytest.raises(HubError, match=r"has no org/alphabet;? ?"):
        package.load("org/alphabet")


RUN = ("hi", "-n", "3", "--temp", "0", "--device", "cpu")


def test_packed_weights_are_listed_and_removed(octavo: Run, hub: Hub, alphabet: str, weights: Path) -> None:
    assert octavo("run", alphabet, *RUN).out == octavo("run", alphabet, *RUN).out == "abc\n"
    (path,) = weights.iterdir()
    listed = octavo("list").out.splitlines()
    assert listed[1].startswith("Packed weights (copies of models as the CPU reads them), ")
    assert listed[1].endswith(f" in {weights}; `octavo rm --packed` removes them.")
    assert listed[2].split() == ["copy", "of", "files", "size", "last", "used"]
    assert listed[3].startswith(f"{alphabet}  ")
    (row,) = json.loads(octavo("list", "--json").out)["weights"]["files"]
    assert (row["model"], row["bytes"], row["path"]) == (alphabet, path.stat().st_size, str(path))
    assert octavo("rm", "--packed", "other.gguf").error() == (
        "octavo: error: other.gguf has no packed weights; `octavo list` shows what has"
    )
    assert octavo("rm", "--packed", alphabet).out.startswith(f"Removed packed weights of {alphabet} (")
    assert not list(weights.iterdir())
    assert octavo("run", alphabet, *RUN).out == "abc\n"
    assert octavo("run", alphabet, *RUN, "--no-weight-cache").out == "abc\n"
    assert not list(weights.iterdir())
    assert octavo("run", alphabet, *RUN, "--weight-cache").out == "abc\n"
    assert json.loads(octavo("rm", "--packed", "--json").out)["removed"] == [alphabet]
    assert octavo("rm").error() == "octavo: error: no model is named; `octavo list` lists them"


def test_a_damaged_file_is_listed_and_removed(octavo: Run, hub: Hub, weights: Path) -> None:
    weights.mkdir()
    (weights / f"{0:032x}.weights").write_bytes(b"damaged")
    assert "damaged" in octavo("list").out
    octavo("rm", "--packed")
    assert not list(weights.iterdir())


def test_rm_of_a_model_removes_its_packed_weights(octavo: Run, hub: Hub, model: bytes, weights: Path) -> None:
    octavo("pull", NAME)
    octavo("run", NAME, *RUN)
    assert len(list(weights.iterdir())) == 1
    octavo("rm", NAME, "--yes")
    assert not list(weights.iterdir())

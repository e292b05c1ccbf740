"""What docs/operate.md says of running a server is there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.server.live_server import Server

TEXT = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")


def test_rules_name_metrics_that_there_are(server: Server) -> None:
    (rules,) = (block for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL) if "- alert:" in block)
    named = set(re.findall(r"octavo:\w+", rules)) - {"octavo:prefix_cache_hit_rate"}
    assert len(named) > 6
    _, _, body = server.send("GET", "/metrics")
    there = set(re.findall(r"^(octavo:\w+)", body.decode(), re.MULTILINE))
    assert named - there == set()


def test_files_that_are_named_are_there() -> None:
    named = set(re.findall(r"\b(?:deploy|bench)/[\w./-]+\.(?:Dockerfile|yaml|py)", TEXT))
    assert {"deploy/cpu.Dockerfile", "deploy/cuda.Dockerfile", "deploy/kubernetes/cpu.yaml"} <= named
    assert all((Path(__file__).parents[2] / name).exists() for name in named)


def test_options_that_are_named_are_there_and_those_of_how_it_is_reached_are_named() -> None:
    from typer.main import get_command

    from octavo.cli import app
    from octavo.cli.serve.options import ACCESS

    serve = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    options = {option for parameter in serve.params for option in parameter.opts}
    own = re.sub(r"(?m)^.*(?:pip|docker|kubectl|python bench).*$", "", TEXT)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", own))
    reached = {option for p in serve.params if getattr(p, "rich_help_panel", None) == ACCESS for option in p.opts}
    assert named >= {"--drain-timeout", "--kv-memory", *reached}
    assert named - options == set()

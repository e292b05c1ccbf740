"""What docs/operate.md says of running a server is there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.server.running import Server

TEXT = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")


def test_rules_name_metrics_that_there_are(server: Server) -> None:
    named = set(re.findall(r"octavo:\w+", TEXT.split("```yaml")[1].split("```")[0])) - {"octavo:prefix_cache_hit_rate"}
    assert len(named) > 6
    _, _, body = server.send("GET", "/metrics")
    there = set(re.findall(r"^(octavo:\w+)", body.decode(), re.MULTILINE))
    assert named - there == set()


def test_options_that_are_named_are_there() -> None:
    from typer.main import get_command

    from octavo.cli import app

    serve = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    options = {option for parameter in serve.params for option in parameter.opts}
    named = set(
        re.findall(
            r"(?<![\w-])--[a-z][a-z-]+", re.sub(r"(?m)^.*(?:pip|docker|useradd|start-period|python bench).*$", "", TEXT)
        )
    )
    assert named >= {"--drain-timeout", "--allow-host", "--kv-memory"}
    assert named - options == set()

"""docs/models.md and docs/embeddings.md name every class of config.json that runs, beside its architecture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.huggingface.config.config_json import own_classes

DOCS = Path(__file__).parents[2] / "docs"
ROWS = [
    line
    for page in ("models.md", "embeddings.md")
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines()
    if line.startswith("|")
]


@pytest.mark.parametrize("name", own_classes())
def test_a_row_names_the_class(name: str) -> None:
    row = next((row for row in ROWS if re.search(rf"\b{name}\b", row)), None)
    assert row is not None
    assert re.search(rf"\b{own_classes()[name].name}\b", row.split("|")[1])

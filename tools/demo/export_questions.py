"""Writes the questions that come with the package: python tools/demo/export_questions.py"""

from __future__ import annotations

import json
from pathlib import Path

from generator import KIND_NAMES, Split, questions

PATH = Path(__file__).parents[2] / "src/octavo/data/questions.json"
COUNTS: dict[Split, int] = {"test": 2000, "train": 4100}
"""Those for training suffice for 128 samples of 1,024 tokens."""


def text() -> str:
    """The file: names of kinds, and of each split the first questions of seed 0, a line each."""
    parts = [f'"kinds": {json.dumps(KIND_NAMES)}']
    for split, count in COUNTS.items():
        rows = ([KIND_NAMES.index(q.kind), q.prompt, q.answer] for q in questions(0, count, split))
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        parts.append(f'"{split}": [\n{lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")

"""docs/checkpoints.md has the schemes as the code has them, and figures from the newest result file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from octavo.huggingface.schemes import CHECKPOINT_SCHEMES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "checkpoints.md").read_text()


def test_figures_are_those_of_the_result_file() -> None:
    newest = sorted((ROOT / "bench" / "results").glob("demo-schemes-*.json"))[-1]
    for row in json.loads(newest.read_text())["rows"]:
        told = (
            f"| {row['name']} | {row['file_bytes'] / 1e6:.2f} MB | {row['bits_per_weight']:.2f} "
            f"| {row['kl'][0]:.5f} ± {row['kl'][1]:.5f} | {row['same_top'][0]:.2%} | {row['accuracy']:.1%} |"
        )
        assert told in TEXT


def test_the_table_of_four_and_eight_bits_is_of_the_result_files() -> None:
    lines = {name: f"| {name} |" for name in ("rtn", "gptq", "qqq", "qqq, rotated")}
    for model in ("demo", "llama-gqa", "moe", "retrieval"):
        (path,) = (ROOT / "bench" / "results").glob(f"scheme-methods-{model}-*w4a8*.json")
        rows = [row for row in json.loads(path.read_text())["rows"] if row["table"] == "w4a8"]
        for scheme in ("w4a8", "w4a8-g128"):
            kl: dict[str, list[float]] = {name: [] for name in lines}
            for row in sorted((r for r in rows if r["scheme"] == scheme), key=lambda r: r["order"]):
                kl[row["method"] + (", rotated" if row["rotate"] else "")].append(row["kl"][0])
            for name, found in kl.items():
                mean, logs = np.mean(found), np.log(found) - np.log(kl["rtn"])
                ends = np.exp(logs.mean() + 1.96 * logs.std(ddof=1) / np.sqrt(len(logs)) * np.array([0, -1, 1]))
                ratio = "" if name == "rtn" else " ({:.2f}x, {:.2f} to {:.2f})".format(*ends)
                lines[name] += f" {mean:.5f}{ratio} |" if model != "retrieval" else f" {mean:#.3g}{ratio} |"
    for line in lines.values():
        assert line in TEXT


def test_every_scheme_and_its_layout_is_told() -> None:
    for scheme in CHECKPOINT_SCHEMES.values():
        assert f"| `{scheme.name}` | {scheme.layouts[0]} |" in TEXT
        assert scheme.row in TEXT

"""`octavo inspect` of a LoRA adapter: a GGUF file, or a PEFT folder."""

from __future__ import annotations

import os
from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Any

from octavo.cli.plain import brief, few, printable, to_json
from octavo.errors import NonFiniteError
from octavo.sizes import size

if TYPE_CHECKING:
    from octavo.huggingface.adapters.peft import PeftFolder
    from octavo.io.gguf import GGUFFile

MORE = "--metadata, --tensors and --check show more; a model is run with it by --lora."


def is_adapter(path: str) -> bool:
    """Whether a path is one of an adapter. Raises FileError for a file that can't be read."""
    from octavo.huggingface.adapters import lora_file
    from octavo.huggingface.adapters.peft import is_peft_folder
    from octavo.io.gguf import GGUFFile
    from octavo.io.missing_model import require_there

    require_there(path)
    if os.path.isdir(path):
        return is_peft_folder(path)
    with GGUFFile.open(path) as file:
        return lora_file.is_adapter(file)


def inspect(path: str, *, metadata: bool, tensors: bool, check: bool, as_json: bool) -> None:
    """Print what an adapter is, or the parts that are asked for. Raises what reading it does, and NonFiniteError."""
    report = _of_folder(path) if os.path.isdir(path) else _of_file(path)
    rows, keys = report.pop("tensors"), report.pop("metadata")
    bad = {row["name"]: count for row in rows if check and (count := _non_finite(row["load"]()))}
    for row in rows:
        del row["load"]
    if as_json:
        shown = report | {"metadata": keys} | ({"tensors": rows} if tensors else {})
        print(to_json(shown | ({"non_finite": bad} if check else {})))
    else:
        if os.path.isdir(path):  # where an object is one, not an array that was cut
            keys = {key: to_json(value) if isinstance(value, dict) else value for key, value in keys.items()}
        _show(report, keys, rows, metadata, tensors, check and not bad)
        if not (metadata or tensors or check):
            print(f"\n{MORE}")
    if bad:
        raise NonFiniteError(f"{path}: NaN or Inf in {len(bad)} of {len(rows)} tensors: {few(bad)}")


def _non_finite(tensor: Any) -> int:
    from octavo.io.gguf import scan_non_finite

    return scan_non_finite(tensor)


def _of_file(path: str) -> dict[str, Any]:
    from octavo.huggingface.adapters.lora_file import ALPHA, read_adapter
    from octavo.io.gguf import GGUFFile

    with GGUFFile.open(path) as file:
        adapter = read_adapter(file)
        ranks = Counter(part.rank for part in adapter.parts.values())
        names = Counter(_module(name.removesuffix(".weight")) for name in adapter.parts)
        named = file.metadata.get("general.base_model.0.name")
        return {
            "name": _name(path), "path": path, "kind": "lora", "layout": f"GGUF version {file.version}",
            "architecture": file.metadata.get_str("general.architecture"),
            "base": named if isinstance(named, str) else None,
            "ranks": dict(ranks), "alpha": file.metadata.get_float(ALPHA, 0.0) or None,
            "factors": sorted({part.factor for part in adapter.parts.values()}), "modules": dict(names),
            "metadata": {key: brief(file.metadata[key]) for key in file.metadata}, "tensors": _rows_of_file(file),
        } | _sizes(file.tensors.values())


def _of_folder(path: str) -> dict[str, Any]:
    from octavo.huggingface.adapters.peft import read_peft, unwrapped
    from octavo.huggingface.adapters.peft_tensors import modules_of

    folder = read_peft(path)
    modules = modules_of(folder)
    return {
        "name": _name(path), "path": path, "kind": "lora", "layout": "PEFT, safetensors", "architecture": None,
        "base": folder.base, "ranks": dict(Counter(part.rank for part in modules.values())), "alpha": folder.alpha,
        "factors": sorted({part.factor for part in modules.values()}),
        "modules": dict(Counter(_module(unwrapped(name)) for name in modules)),
        "metadata": dict(folder.config), "tensors": _rows_of_folder(folder),
    } | _sizes(folder.tensors.values())


def _name(path: str) -> str:
    from octavo.io.hub.download_cache import shown_name

    return shown_name(path)


def _module(name: str) -> str:
    """A module's name without where it is: q_proj of model.layers.0.self_attn.q_proj, attn_q of blk.0.attn_q."""
    return name.rpartition(".")[2]


def _sizes(tensors: Any) -> dict[str, Any]:
    return {"parameters": sum(prod(t.shape) for t in tensors), "bytes": sum(t.nbytes for t in tensors)}


def _rows_of_file(file: GGUFFile) -> list[dict[str, Any]]:
    return [_row(info.name, info.type_name, info, file.tensor(info.name).stored) for info in file.tensors.values()]


def _rows_of_folder(folder: PeftFolder) -> list[dict[str, Any]]:
    return [_row(tensor.name, tensor.dtype, tensor, tensor.load) for tensor in folder.tensors.values()]


def _row(name: str, kind: str, tensor: Any, load: Any) -> dict[str, Any]:
    return {
        "name": name, "type": kind, "shape": list(tensor.shape), "parameters": prod(tensor.shape),
        "bytes": tensor.nbytes, "offset": None, "load": load,
    }


def _show(
    report: dict[str, Any], keys: dict[str, Any], rows: list[dict[str, Any]], metadata: bool, tensors: bool, fine: bool
) -> None:
    from octavo.cli.inspect import tables

    if metadata:
        tables.show_metadata(keys)
    if tensors:
        tables.show_tensors(rows)
    if fine:
        print("No NaN or Inf in any tensor.")
    if metadata or tensors or fine:
        return
    print(printable(report["name"]))
    modules = ", ".join(f"{name} ({count})" for name, count in report["modules"].items())
    ranks = ", ".join(f"{rank} ({count} modules)" for rank, count in sorted(report["ranks"].items()))
    (rank, *others) = report["ranks"]
    shown = {
        "file": report["path"],
        "kind": "LoRA adapter",
        "architecture": report["architecture"] or "not said",
        "base model": report["base"] or "not said",
        "rank": ranks if others else str(rank),
        "alpha": "none" if report["alpha"] is None else f"{report['alpha']:g}",
        "multiplied by": ", ".join(f"{factor:g}" for factor in report["factors"]),
        "changes": modules,
        "parameters": f"{report['parameters']:,}",
        "size": f"{size(report['bytes'])} in {len(rows)} tensors",
        "layout": report["layout"],
    }
    for key, value in shown.items():
        print(f"{key:<14} {printable(value)}")

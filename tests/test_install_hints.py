"""How optional parts are installed: in a form that works without the package on an index, where they are missing."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import OctavoError, require_matplotlib
from octavo.jit import prepare
from octavo.runtime.grammar import grammar

ROOT = Path(__file__).parents[1]


def test_no_text_names_the_package_on_an_index() -> None:
    named = [
        str(path)
        for path in (*ROOT.glob("docs/*.md"), *ROOT.glob("src/octavo/**/*.py"))
        if "octavo[" in path.read_text(encoding="utf-8")
    ]
    assert named == []


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("numba", prepare.prepare.__wrapped__), ("llguidance", grammar._require_llguidance),
        ("matplotlib", partial(require_matplotlib, "--plot needs matplotlib")),
    ],
)
@pytest.mark.parametrize("missing", [True, False])
def test_what_is_there_and_can_not_be_loaded_is_not_to_be_installed(
    package: str, use: Callable[[], object], missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a process may have no more memory: the system says so of the package's own libraries."""
    real = builtins.__import__
    why = "libx.so: failed to map segment from shared object"

    def fails(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name) if missing else ImportError(why)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", fails)
    with pytest.raises(OctavoError) as caught:
        use()
    said = str(caught.value)
    assert ("pip install" in said, f"{package} is not installed" in said, why in said) == (
        missing,
        missing,
        not missing,
    )

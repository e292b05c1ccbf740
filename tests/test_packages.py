"""What pyproject.toml asks for fits together: torch on Linux wants one Triton exactly."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from octavo.backends.gpu.device import torch_device
from octavo.cli import _documentation

ROOT = Path(__file__).parents[1]
PAIRS = {
    "2.11.0": "3.6.0",
    "2.12.0": "3.7.0",
    "2.12.1": "3.7.1",
    "2.13.0": "3.7.1",
    "2.14.0": "3.8.0",
    "2.14.1": "3.8.0",
    "2.15.0": "3.9.0",
}
"""torch, and the Triton that it requires on Linux."""


def wanted(extra: str) -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = map(Requirement, project["optional-dependencies"][extra])
    return {requirement.name: requirement for requirement in found}


def test_the_pinned_triton_is_the_one_that_the_pinned_torch_wants() -> None:
    (torch,), (triton,) = (wanted("test")[name].specifier for name in ("torch", "triton"))
    assert (torch.operator, triton.operator) == ("==", "==")
    assert triton.version == PAIRS[torch.version]


@pytest.mark.parametrize("torch", PAIRS)
def test_every_pair_may_be_installed(torch: str) -> None:
    gpu = wanted("gpu")
    assert gpu["torch"].specifier.contains(torch)
    assert gpu["triton"].specifier.contains(PAIRS[torch])


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_bounds_are_those_of_the_backend(package: str) -> None:
    bounds = {bound.operator: Version(bound.version).release for bound in wanted("gpu")[package].specifier}
    major, minor = torch_device.NEWEST[package]
    assert bounds == {">=": torch_device.OLDEST[package], "<": (major, minor + 1)}


@pytest.mark.parametrize("extra", ["gpu", "test"])
def test_triton_has_wheels_for_linux_alone(extra: str) -> None:
    marker = wanted(extra)["triton"].marker
    assert marker is not None
    assert [system for system in ("linux", "darwin", "win32") if marker.evaluate({"sys_platform": system})] == ["linux"]


def test_the_oldest_transformers_defines_every_architecture() -> None:
    """5.23 is the first that norms each group of Mamba-2 by itself; tests of models compare with it."""
    specifier = wanted("test")["transformers"].specifier
    assert {version: version in specifier for version in ("5.22.2", "5.23.0")} == {"5.22.2": False, "5.23.0": True}


def test_ci_runs_the_oldest_and_the_newest() -> None:
    (versions,) = re.findall(r"for version in (.*); do", (ROOT / ".ci" / "tritons").read_text())
    tritons = sorted(map(Version, PAIRS.values()))
    assert versions.split() == [str(tritons[0]), str(tritons[-1])]


def test_the_package_itself_serves_and_constrains() -> None:
    from octavo.cli.serve.command import NEEDED

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = {Requirement(one).name.replace("-", "_") for one in project["dependencies"]}
    assert {*NEEDED, "httptools", "uvloop"} <= base
    assert {"gpu", "report", "serve", "test"} <= project["optional-dependencies"].keys()


def test_the_package_brings_its_documentation() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["shared-data"]["docs"] == "share/doc/octavo/docs"
    assert _documentation() == f"Documentation: {ROOT / 'docs'}"

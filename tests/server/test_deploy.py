"""What deploy/ says of Octavo is so: its files, options, ports, paths of probes, and how long things may take."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from octavo.cli import app
from octavo.server.serve_options import Limits
from tests.server.live_server import Server

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "deploy").glob("*.Dockerfile"))
MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))


def options() -> set[str]:
    """Of `octavo serve`."""
    serve = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {option for parameter in serve.params for option in parameter.opts}


def resources(path: Path) -> dict[str, Any]:
    """By their kinds."""
    return {one["kind"]: one for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))}


def container(path: Path) -> Any:
    (one,) = resources(path)["Deployment"]["spec"]["template"]["spec"]["containers"]
    return one


def test_there_is_one_of_each_for_either_device() -> None:
    assert [path.name for path in DOCKERFILES] == ["cpu.Dockerfile", "cuda.Dockerfile"]
    assert [path.name for path in MANIFESTS] == ["cpu.yaml", "cuda.yaml"]
    for path, kind in zip(MANIFESTS, ("cpu", "cuda"), strict=True):
        assert container(path)["image"] == f"octavo:{kind}"
        assert f"octavo:{kind}" in (ROOT / f"deploy/{kind}.Dockerfile").read_text(encoding="utf-8").splitlines()[0]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_dockerfiles_name_what_there_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    copied = [name for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for name in line.split()[:-1]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    data = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert {*data, "pyproject.toml", "src", project["project"]["readme"]} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    (extras,) = re.findall(r"/src\[([\w,]+)\]", text)
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])
    entry = re.search(r"^ENTRYPOINT \[(.*)\]$", text, re.MULTILINE)
    assert entry is not None
    assert set(re.findall(r'"(--[\w-]+)"', entry[1])) <= options()
    assert re.search(r"^USER 1000$", text, re.MULTILINE)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_hold_together(path: Path) -> None:
    found, one = resources(path), container(path)
    pod = found["Deployment"]["spec"]["template"]["spec"]
    assert {word.partition("=")[0] for word in one["args"] if word.startswith("--")} <= options()
    named = set(re.findall(r"\$\((\w+)\)", " ".join(one["args"])))
    assert named == {variable["name"] for variable in one["env"]}
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    told = {word.partition("=")[0]: int(word.rpartition(":")[2]) for word in one["args"] if "tcp://" in word}
    assert ports == {"http": 8080, "kv-events": told["--kv-events"], "kv-replay": told["--kv-events-replay"]}
    assert {port["targetPort"] for port in found["Service"]["spec"]["ports"]} == {"http"}
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert labels == found["Service"]["spec"]["selector"] == found["Deployment"]["spec"]["selector"]["matchLabels"]
    assert labels == found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(volumes) == {mount["name"] for mount in one["volumeMounts"]}
    claim = volumes["cache"]["persistentVolumeClaim"]["claimName"]
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"]
    assert pod["terminationGracePeriodSeconds"] > Limits().drain_time


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_nothing_is_root_and_only_volumes_are_written(path: Path) -> None:
    one, pod = container(path), resources(path)["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["fsGroup"] == 1000
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["mountPath"] for mount in one["volumeMounts"] if not mount.get("readOnly")}
    text = (ROOT / f"deploy/{path.stem}.Dockerfile").read_text(encoding="utf-8")
    kept = re.findall(r"(?:HOME|CACHE|DIR)=(/\S+)", text)
    assert len(kept) >= 3
    assert all(any(f"{folder}/".startswith(f"{place}/") for place in writable) for folder in kept)


def test_manifests_differ_in_what_devices_need() -> None:
    cpu, cuda = (container(path) for path in MANIFESTS)
    for one in (cpu, cuda):
        assert one["resources"]["requests"] == one["resources"]["limits"]
        for key in ("image", "resources", "env"):
            del one[key]
        one["args"] = [word for word in one["args"] if not word.startswith("--threads")]
    assert cpu == cuda
    first, second = (resources(path) for path in MANIFESTS)
    del first["Deployment"], second["Deployment"]
    assert first == second


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_probes_ask_for_what_is_answered(path: Path, server: Server) -> None:
    """By address and without a key, as the kubelet does; readiness and the start ask for the engine, life does not."""
    one = container(path)
    asked = {kind: one[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert asked == {"startup": "/health", "readiness": "/health", "liveness": "/"}
    for place in asked.values():
        assert server.send("GET", place, headers={"Host": "10.0.0.7:8080"})[0] == 200
    server.service.client.stalled = True
    try:
        assert [server.send("GET", place)[0] for place in asked.values()] == [503, 503, 200]
    finally:
        server.service.client.stalled = False

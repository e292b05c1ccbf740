"""What is said where there is nothing to run on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest
import torch

from octavo.backends.gpu import GpuBackend, device
from octavo.errors import BackendError


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "target", device.target.__wrapped__)


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "triton":
            raise PackageNotFoundError(package)
        return "2.11.0+cu130"

    monkeypatch.setattr(device, "version", version)
    with pytest.raises(BackendError, match=r"triton is not installed \(needed: 3.6 or later; pip install"):
        device.require_packages()


def test_an_old_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "version", lambda package: "2.4.1")
    with pytest.raises(BackendError, match=r"torch is 2.4.1 \(needed: 2.11 or later"):
        device.require_packages()


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendError, match=r"device gpu: .*\(allowed: auto, cpu, reference\)"):
        device.target()


def test_an_old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        name = "GeForce"

    monkeypatch.setattr(device, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: Old())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (7, 5))
    with pytest.raises(BackendError, match=r"GeForce has compute capability 7.5 \(needed: 8.0 or later\)"):
        device.target()


def test_out_of_memory_says_what_for(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = GpuBackend()

    def full(*arguments: object, **more: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "full", full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (5 << 20, 80 << 30))
    with pytest.raises(BackendError, match=r"not enough memory for values: 5 MiB of 81920 MiB are free"):
        backend.allocate(1 << 10)

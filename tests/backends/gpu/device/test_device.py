"""What is said where there is nothing to run on."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest
import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.device import driver, torch_device
from octavo.backends.gpu.device.driver import Card, Driver
from octavo.errors import BackendError, DeviceMemoryError


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_device, "target", torch_device.target.__wrapped__)


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "triton":
            raise PackageNotFoundError(package)
        return "2.11.0+cu130"

    monkeypatch.setattr(torch_device, "version", version)
    with pytest.raises(BackendError, match=r"triton is not installed \(needed: 3.6 or later; pip install"):
        torch_device.require_packages()


def test_an_old_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_device, "version", lambda package: "2.4.1")
    with pytest.raises(BackendError, match=r"torch is 2.4.1 \(needed: 2.11 or later"):
        torch_device.require_packages()


def test_garbage_is_collected_again_after_an_import_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    collects = []

    def fails(package: str) -> None:
        collects.append(gc.isenabled())
        raise ImportError("libcudart.so")

    monkeypatch.setattr(torch_device.importlib, "import_module", fails)
    with pytest.raises(BackendError, match="torch is installed, but can't be imported: libcudart"):
        torch_device.require_packages()
    assert collects == [False]
    assert gc.isenabled()


def test_a_package_newer_than_any_tried(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch_device, "version", {"torch": "2.15.1+cu130", "triton": "3.10.0"}.__getitem__)
    with caplog.at_level(logging.INFO, "octavo"):
        torch_device.require_packages()
    assert caplog.messages == ["device gpu: triton is 3.10.0, and kernels were tried with 3.9 at the latest"]


CARD = Card("GeForce", (8, 9))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose kernels are compiled, on a machine with a card; torch finds none."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch_device, "interpreted", lambda: False)
    monkeypatch.setattr(torch_device, "find_driver", lambda: Driver("cuda", (13, 0), (CARD,)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.version, "hip", None)


@pytest.mark.parametrize(
    ("driver", "said"),
    [(None, "no GPU driver was found"), (Driver("cuda", (12, 4)), "the driver finds no GPU")],
)
@pytest.mark.usefixtures("compiled")
def test_no_gpu(monkeypatch: pytest.MonkeyPatch, driver: Driver | None, said: str) -> None:
    """It is said before torch is looked for."""
    monkeypatch.setattr(torch_device, "find_driver", lambda: driver)
    monkeypatch.setattr(torch_device, "require_packages", pytest.fail)
    with pytest.raises(BackendError, match=rf"^device gpu: {said} \(needed: an NVIDIA or AMD GPU .* --device cpu\)$"):
        torch_device.target()


@pytest.mark.parametrize("found", [Card("GeForce", (7, 5)), CARD])
@pytest.mark.usefixtures("compiled")
def test_an_old_gpu(monkeypatch: pytest.MonkeyPatch, found: Card) -> None:
    """The driver says so, or torch does where it takes another card."""
    monkeypatch.setattr(torch_device, "find_driver", lambda: Driver("cuda", (13, 0), (found,)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: CARD)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (7, 5))
    with pytest.raises(BackendError, match=r"GeForce has compute capability 7.5 \(needed: 8.0 or later"):
        torch_device.target()


@pytest.mark.usefixtures("compiled")
def test_torch_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(BackendError, match=r"torch 2.11.0 is built for the CPU: install one for CUDA or ROCm"):
        torch_device.target()


@pytest.mark.usefixtures("compiled")
def test_an_old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_device, "find_driver", lambda: Driver("cuda", (12, 4), (CARD,)))
    with pytest.raises(
        BackendError, match=r"the driver is too old: it runs CUDA 12.4, torch 2.11.0 needs 12.8: update"
    ):
        torch_device.target()


@pytest.mark.usefixtures("compiled")
def test_a_gpu_that_torch_does_not_find() -> None:
    with pytest.raises(BackendError, match=r"torch 2.11.0, built for CUDA 12.8, finds no GPU that it can use"):
        torch_device.target()


@pytest.mark.usefixtures("compiled")
def test_auto_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "finds no GPU" in (torch_device.unusable() or "")
    monkeypatch.setattr(torch_device.importlib.util, "find_spec", lambda name: None if name == "triton" else name)
    monkeypatch.setattr(torch_device, "target", pytest.fail)
    assert torch_device.unusable() == "device gpu: triton is not installed (pip install '.[gpu]' in Octavo's folder)"
    monkeypatch.setattr(torch_device, "find_driver", lambda: None)
    assert "no GPU driver" in (torch_device.unusable() or "")


def test_auto_asks_the_driver_before_torch_is_imported() -> None:
    code = "import sys; from octavo.backends import select; print(select('auto')[0].name, 'torch' in sys.modules)"
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=hidden)
    assert done.stdout.split() == ["cpu", "False"], done.stderr


class FakeCuda:
    """A driver library of two cards; `broken` is what cuInit returns."""

    def __init__(self, broken: int = 0) -> None:
        self.broken = broken

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self.broken

    def cuDriverGetVersion(self, out: Any) -> int:  # noqa: N802
        return self._set(out, 12080)

    def cuDevicePrimaryCtxRetain(self, out: Any, card: int) -> int:  # noqa: N802
        self.context_of = card, current_thread().name
        return 0

    def cuDeviceGetCount(self, out: Any) -> int:  # noqa: N802
        return self._set(out, 2)

    def cuDeviceGet(self, out: Any, index: int) -> int:  # noqa: N802
        return self._set(out, index)

    def cuDeviceGetName(self, out: Any, size: int, card: Any) -> int:  # noqa: N802
        out.value = b"Card %d" % card.value
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, card: Any) -> int:  # noqa: N802
        return self._set(out, {75: 9, 76: card.value}[attribute])

    def _set(self, out: Any, value: int) -> int:
        out._obj.value = value
        return 0


def test_what_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_open", lambda name: FakeCuda())
    cards = (Card("Card 0", (9, 0)), Card("Card 1", (9, 1)))
    assert driver.find_driver() == Driver("cuda", (12, 8), cards)
    monkeypatch.setattr(driver, "_open", lambda name: FakeCuda(broken=100))
    assert driver.find_driver() == Driver("cuda", (12, 8))


def test_a_context_is_made_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(driver, "_open", lambda name: cuda)
    thread = driver.begin_context()
    assert thread is not None
    thread.join()
    assert cuda.context_of == (0, thread.name)
    assert driver.begin_context([]) is None


def test_no_driver_or_amds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(driver, "AMD_DEVICES", tmp_path / "kfd")
    assert driver.find_driver(["libnothing.so.1"]) is None
    (tmp_path / "kfd").touch()
    assert driver.find_driver(["libnothing.so.1"]) == Driver("rocm")


def test_out_of_memory_says_what_for(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = GpuBackend()

    def full(*arguments: object, **more: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "full", full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 << 20, 80 << 30))
    with pytest.raises(DeviceMemoryError, match=r"not enough memory for values: 5 MiB of 81920 MiB are free"):
        backend.allocate(1 << 10)


def test_programs_that_take_as_many_turns_each() -> None:
    """Not one turn more than with all multiprocessors, and not one program more than that takes."""
    for units in range(1, 300):
        programs = torch_device.even_programs(units, 132)
        turns = -(-units // 132)
        assert programs <= 132
        assert -(-units // programs) == turns
        assert programs == 1 or -(-units // (programs - 1)) > turns

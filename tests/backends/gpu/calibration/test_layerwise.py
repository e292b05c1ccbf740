"""A model run stage by stage whose values stay on the device: what the host's run gives, and a run that goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from octavo.backends import select
from octavo.calibrate.arrays import on_host
from octavo.calibrate.runner import Journal, Layerwise, OpenStage, Samples
from octavo.calibrate.runner.layerwise import AttentionWatch
from octavo.formats.spec import AnyArray
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from tests.runtime import tiny

SAMPLES = Samples([[1, 2, 3, 4, 5], [6, 7, 8]])


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModelSpec]:
    weights, keys = tiny.tensors(n_layer=1), {"qwen3.block_count": 1}
    with GGUFFile.open(tiny.write(tmp_path / "m.gguf", weights=weights, keys=keys)) as file:
        yield read_model(file)


def halved(stage: OpenStage) -> None:
    """Put half of each weight in its place, where weights are made."""
    for given in stage.inputs:
        for name in given.names:
            stage.replace(name, stage.part(name, None) * np.float32(0.5))


def same_sums(exact: AnyArray, rounded: AnyArray, pairs: list[tuple[AnyArray, AnyArray]]) -> None:
    """Means of products whose factors may have been cut off after 11 bits, each by a part in 1,024 at most."""
    now, then = (np.concatenate([np.abs(on_host(x)) for x in side]) for side in zip(*pairs, strict=True))
    bound = now.T @ then / len(now) * 2 * 2**-10 + 1e-5
    assert np.all(np.abs(rounded - exact) <= bound)


@pytest.mark.slow
def test_values_stay_on_the_device(model: ModelSpec, tmp_path: Path) -> None:
    """Sums over them are those of the host, weights are replaced there, and a run that goes on sees the same."""
    cpu = Layerwise(model, select("cpu", 1), SAMPLES, original=True)
    journal = Journal(str(tmp_path / "work"), "run", resume=False)
    gpu = Layerwise(model, select("gpu", 1), SAMPLES, original=True, journal=journal)
    assert (cpu.device, cpu.keeps, gpu.keeps) == (None, False, True)
    seen = dict[int, AnyArray]()
    for one, other in zip(cpu.run(), gpu.run(), strict=True):
        for x, y in zip(one.inputs, other.inputs, strict=True):
            assert torch.is_tensor(y.vectors)
            assert x.names == y.names
            seen[other.number] = on_host(y.vectors)
            np.testing.assert_allclose(seen[other.number], x.vectors, rtol=1e-2, atol=5e-3)
            np.testing.assert_allclose(on_host(y.hessian().matrix()), x.hessian().matrix(), rtol=2e-2, atol=5e-3)
            for field, values in x.statistics().fields().items():
                np.testing.assert_allclose(y.statistics().fields()[field], values, rtol=2e-2, atol=5e-3, err_msg=field)
            same_sums(x.cross().cross(), on_host(y.cross().cross()), list(y.pairs()))
            assert len(y.part(slice(2, None)).vectors) == y.tokens() - 2
        assert torch.is_tensor(other.part(other.inputs[0].names[0], None))
        halved(one)
        halved(other)
    journal.advance(3)
    journal.close(remove=False)
    again = Journal(str(tmp_path / "work"), "run", resume=True)

    def made(name: str) -> AnyArray:
        from octavo.formats import dequantize

        return dequantize(model.file.tensor(name)) * np.float32(0.5)

    for stage in Layerwise(model, select("gpu", 1), SAMPLES, original=True, journal=again, made=made).run():
        np.testing.assert_array_equal(on_host(stage.inputs[-1].vectors), seen[stage.number])
        halved(stage)
    again.close(remove=True)


@pytest.mark.slow
def test_attention_is_given_away_as_the_host_has_it(model: ModelSpec) -> None:
    """Queries, keys and values of a sample, in memory."""
    found: dict[str, list[AnyArray]] = {}
    for device in ("cpu", "gpu"):
        seen = found.setdefault(device, [])
        watch = AttentionWatch(lambda _, *given, seen=seen: seen.extend(x.copy() for x in given), 5)
        run = Layerwise(model, select(device, 1), SAMPLES, done=lambda *_: None, attention=watch)
        assert [stage.number for stage in run.run()]
    assert [x.shape for x in found["cpu"]] == [(5, heads, tiny.HEAD_DIM) for heads in (4, 2, 2)]
    for x, y in zip(*found.values(), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-2, atol=5e-3)

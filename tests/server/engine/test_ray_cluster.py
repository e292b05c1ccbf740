"""What Ray is asked to reserve for engines, and what is said where it can't, or can't be reached."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.errors import BackendError, UsageError
from octavo.server.engine import ray_cluster
from octavo.server.engine.ray_cluster import LOCAL, RayCluster
from octavo.server.serve_options import EngineOptions

Nodes = list[tuple[int, int]]


def ray_of(nodes: Nodes) -> SimpleNamespace:
    """A Ray of nodes with these CPUs and GPUs, beside one that has ended."""
    alive = [{"Alive": True, "Resources": {"CPU": float(cpus), "GPU": float(gpus)}} for cpus, gpus in nodes]
    gone = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
    found = SimpleNamespace(open=True, nodes=lambda: [*alive, gone], init=lambda **options: None)
    found.shutdown = lambda: setattr(found, "open", False)
    return found


def placed(monkeypatch: pytest.MonkeyPatch, nodes: Nodes, n: int | None, **options: Any) -> tuple[Any, ...]:
    """How many engines there are, threads of each, how many share a machine, and what Ray reserves."""
    monkeypatch.setitem(sys.modules, "ray", ray_of(nodes))
    found = RayCluster(LOCAL, n, EngineOptions("demo", **options))
    return found.n, found.engine.threads, found.engine.servers, found.needs


@pytest.mark.parametrize(("nodes", "n", "options", "wanted"), [
    ([(2, 0)], 2, {}, (2, 1, 2, {"num_cpus": 1})),
    ([(8, 0), (2, 0)], 2, {}, (2, 4, 2, {"num_cpus": 4})),
    ([(4, 0)] * 3, 2, {}, (2, 4, 1, {"num_cpus": 4})),
    ([(4, 0)] * 3, None, {"tensor_parallel": 2}, (3, 4, 1, {"num_cpus": 4})),
    ([(16, 8)] * 2, None, {}, (16, 2, 1, {"num_gpus": 1})),
    ([(16, 8)] * 2, None, {"tensor_parallel": 4}, (4, 8, 1, {"num_gpus": 4})),
    ([(16, 8)] * 2, None, {"tensor_parallel": 2, "pipeline": 2}, (4, 8, 1, {"num_gpus": 4})),
    ([(16, 8)] * 2, 3, {"tensor_parallel": 4, "threads": 6}, (3, 6, 1, {"num_gpus": 4})),
    ([(4, 0), (32, 4), (8, 3)], None, {"tensor_parallel": 2}, (3, 8, 1, {"num_gpus": 2})),
    ([(16, 8)], 2, {"device": "cpu", "tensor_parallel": 2}, (2, 8, 2, {"num_cpus": 8})),
])
def test_each_engine_has_its_cores_or_a_gpu_for_each_of_its_ranks(
    monkeypatch: pytest.MonkeyPatch, nodes: Nodes, n: int | None, options: Any, wanted: tuple[Any, ...]
) -> None:
    assert placed(monkeypatch, nodes, n, **options) == wanted


@pytest.mark.parametrize(("nodes", "n", "options", "words"), [
    ([(4, 2), (4, 2)], None, {"tensor_parallel": 4},
     "--tensor-parallel is 4, but no node of the Ray cluster has 4 GPUs (allowed: up to 2, or --device cpu)"),
    ([(4, 2), (4, 2)], None, {"tensor_parallel": 2, "pipeline": 2},
     "--tensor-parallel times --pipeline is 4, but no node of the Ray cluster has 4 GPUs (allowed: up to 2, or "
     "--device cpu)"),
    ([(4, 3), (4, 3)], 3, {"tensor_parallel": 2},
     "--replicas is 3, but each needs 2 GPUs of one node (allowed: up to 2 in this Ray cluster, or --device cpu)"),
    ([(4, 1)], 2, {}, "--replicas is 2, but each needs a GPU (allowed: up to 1 in this Ray cluster, or --device cpu)"),
    ([(4, 0)], 1, {"device": "gpu"}, "the Ray cluster has no GPU"),
    ([(2, 0)], 3, {}, "--replicas is 3 (allowed: up to 2, as the Ray cluster has 2 CPUs)"),
    ([(4, 0)] * 2, 2, {"threads": 8},
     "--threads is 8 (allowed: up to 4, the CPUs of the cluster's largest node)"),
    ([(4, 0)] * 2, 3, {"threads": 3},
     "--replicas is 3 (allowed: up to 2 with 3 threads, as the Ray cluster has 8 CPUs)"),
])
def test_what_no_node_has_is_named_rather_than_waited_for(
    monkeypatch: pytest.MonkeyPatch, nodes: Nodes, n: int | None, options: Any, words: str
) -> None:
    with pytest.raises(UsageError) as raised:
        placed(monkeypatch, nodes, n, **options)
    assert str(raised.value) == words
    assert not sys.modules["ray"].open, "the connection is closed"


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"ray is not installed \(pip install '\.\[ray\]'"):
        RayCluster(LOCAL, 2, EngineOptions("demo"))


def test_a_cluster_that_can_not_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise ConnectionError(f"nobody listens at {options.get('address')}\nmore of it")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    monkeypatch.setattr(ray_cluster, "require_listener", lambda address: None)
    for address, words in (
        ("10.0.0.1:6379", r"Ray can't be reached at 10.0.0.1:6379: nobody listens at 10.0.0.1:6379$"),
        ("auto", r"no Ray runs on this machine: start one with `ray start --head`, or use --ray-address HOST:PORT or"),
        (LOCAL, r"Ray can't be reached on this machine: nobody listens at None$"),
    ):
        with pytest.raises(BackendError, match=words):
            RayCluster(address, 2, EngineOptions("demo"))


def test_where_nobody_listens_ray_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would try for minutes."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    with pytest.raises(BackendError, match=r"Ray can't be reached at 127.0.0.1:1: .*Connection refused"):
        RayCluster("127.0.0.1:1", 2, EngineOptions("demo"))


class Told:
    def gpus(self) -> list[str]:
        import ray

        return [str(one) for one in ray.get_gpu_ids()]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra `ray`")
@pytest.mark.filterwarnings("ignore")  # of Ray itself
def test_ray_gives_an_actor_a_gpu_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "init", partial(ray.init, num_gpus=5))
    monkeypatch.setattr(ray_cluster, "cores", lambda: 2)
    with closing(RayCluster(LOCAL, None, EngineOptions("demo", tensor_parallel=2))) as cluster:
        actors = [cluster.start(Told) for _ in range(cluster.n)]
        found = ray.get([one.gpus.remote() for one in actors])
    assert [len(gpus) for gpus in found] == [2, 2]
    assert len({*found[0], *found[1]}) == 4

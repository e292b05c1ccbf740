"""/metrics of all replicas in one, with a label that says whose a number is, and the front's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from octavo.replicas.pool import Pool


class MergedMetrics:
    """A collector of what several servers say, with a label that has the name of each, and of their front's own."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._said: Mapping[str, str] = {}

    def text(self, said: Mapping[str, str]) -> bytes:
        """As Prometheus reads it: `said` is what the servers answered that did."""
        self._said = said
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> list[Metric]:
        """Nothing: families are those that servers have."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families, for the registry."""
        merged: dict[str, Metric] = {}
        for name, text in self._said.items():
            for family in text_string_to_metric_families(text):
                metric = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                metric.samples += [s._replace(labels=self._labels(s.labels, name)) for s in family.samples]
        yield from merged.values()
        yield from self.own()

    def own(self) -> Iterator[Metric]:
        """Families of the front."""
        raise NotImplementedError

    def _labels(self, labels: Mapping[str, str], name: str) -> dict[str, str]:
        return {**labels, self._label: name}


class ReplicaMetrics(MergedMetrics):
    """Of replicas, by their numbers.

    moved  requests that another replica went on with
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__("replica")
        self.pool, self.moved = pool, 0

    def own(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("octavo:replica_up", "Whether a replica takes requests", labels=["replica"])
        load = GaugeMetricFamily("octavo:replica_requests", "Requests that a replica has", labels=["replica"])
        restarts = CounterMetricFamily("octavo:replica_restarts", "Restarts of a replica that had ended by itself",
                                       labels=["replica"])
        rolled = CounterMetricFamily("octavo:replica_rolling_restarts", "Restarts of a replica that were asked for",
                                     labels=["replica"])
        for one in self.pool.replicas:
            up.add_metric([str(one.number)], one.state == "up")
            load.add_metric([str(one.number)], one.load)
            restarts.add_metric([str(one.number)], one.restarts)
            rolled.add_metric([str(one.number)], one.rolled)
        yield from (up, load, restarts, rolled)
        yield CounterMetricFamily("octavo:requests_moved", "Requests that another replica went on with",
                                  value=self.moved)

    def _labels(self, labels: Mapping[str, str], name: str) -> dict[str, str]:
        """vLLM's `engine` is the number of one of several engines."""
        return super()._labels({**labels, "engine": name} if "engine" in labels else labels, name)

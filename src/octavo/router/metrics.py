"""/metrics of all models that are loaded in one, with a label that says whose a number is, and the front's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from octavo.replicas.merged_metrics import MergedMetrics
from octavo.router.models import Model, Models

GAUGES: dict[str, tuple[str, Callable[[Model], float]]] = {
    "octavo:model_loaded": ("Whether a model is loaded", lambda one: one.state in ("loaded", "draining")),
    "octavo:model_memory_bytes": ("Bytes that a model may take", lambda one: one.held),
    "octavo:model_requests_waiting": ("Requests that wait until a model is loaded", lambda one: one.waiting),
    "octavo:model_requests": ("Requests that a model's server has", lambda one: one.answering),
    "octavo:model_load_seconds": ("Seconds that a model took to be loaded last", lambda one: one.seconds),
}
COUNTERS: dict[str, tuple[str, Callable[[Model], float]]] = {
    "octavo:model_loads": ("Times that a model was loaded", lambda one: one.loads),
    "octavo:model_failures": ("Times that a model could not be loaded, or ended by itself", lambda one: one.failures),
}


class ModelMetrics(MergedMetrics):
    """Of models, by their names."""

    def __init__(self, models: Models) -> None:
        super().__init__("model")
        self.models = models

    def own(self) -> Iterator[Metric]:
        for kind, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, (help_, value) in table.items():
                family = kind(name, help_, labels=["model"])
                for model in self.models.models.values():
                    family.add_metric([model.name], value(model))
                yield family
        yield CounterMetricFamily("octavo:model_evictions", "Models ended to make room", value=self.models.evictions)
        if self.models.memory is not None:
            yield GaugeMetricFamily("octavo:memory_limit_bytes", "Bytes that all loaded models may take",
                                    value=self.models.memory)

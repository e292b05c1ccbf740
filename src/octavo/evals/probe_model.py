"""A model to probe: as it is where it is small, else in Q8_0, which a CPU computes with in a fifth of the time."""

from __future__ import annotations

from octavo.evals.windows import outputs_for
from octavo.formats import QTensor, by_name
from octavo.graph.protocol import AsyncBackend
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.quantizers.job.recode import recode
from octavo.runtime import EngineConfig, Model
from octavo.runtime.engine.placement import backends_for
from octavo.runtime.loading import model_of

FORMAT = by_name("Q8_0")
SMALL = 1 << 28
"""Bytes of tensors up to which a model is run as it is."""


class WorkingCopy(GGUFFile):
    """A model's file whose matrices are read as Q8_0."""

    def tensor(self, name: str, *, copy: bool = False) -> QTensor:
        """The tensor called `name`; a matrix is encoded anew at each call."""
        tensor = super().tensor(name, copy=copy)
        whole = len(tensor.shape) > 1 and tensor.shape[-1] % FORMAT.block == 0
        if not whole or name.endswith("_norm.weight") or "ffn_gate_inp" in name:
            return tensor
        return recode(tensor, FORMAT).tensor


def open_to_probe(path: str, context: int, *, device: str = "auto", threads: int | None = None) -> Model:
    """Load the model at `path` for windows of `context` tokens, its weights floats or Q8_0.

    A large one is Q8_0 on a CPU, and one with quantized weights everywhere. Raises as `octavo.load` does.
    """
    backends, gpu_layers = backends_for(device, threads)
    with GGUFFile.open(path) as file:
        n_vocab = read_model(file).hparams.n_vocab
        floats = all(t.type_name in ("F32", "F16", "BF16") for t in file.tensors.values() if len(t.shape) > 1)
        large = file.nbytes > SMALL and not isinstance(backends[0], AsyncBackend)
    config = EngineConfig(
        n_ctx=context, n_batch=context, n_outputs=outputs_for(n_vocab, context), gpu_layers=gpu_layers
    )
    opened = GGUFFile.open(path) if floats and not large else WorkingCopy.open(path)
    return model_of(opened, backends, config)

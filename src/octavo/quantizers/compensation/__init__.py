"""Error compensation: codes of a row whose errors cancel where inputs of a product go together."""

from octavo.quantizers.compensation.compensate import Compensated, compensate

__all__ = ["Compensated", "compensate"]

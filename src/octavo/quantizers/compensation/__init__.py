"""Error compensation: codes of a row whose errors cancel where inputs of a product go together."""

from octavo.quantizers.compensation.compensate import DAMP, compensate
from octavo.quantizers.compensation.rows import Compensated

__all__ = ["DAMP", "Compensated", "compensate"]

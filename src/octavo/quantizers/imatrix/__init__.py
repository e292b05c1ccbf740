"""Importance matrices: how large the activations are that each input channel of a weight meets."""

from octavo.quantizers.imatrix.imatrix import Imatrix
from octavo.quantizers.imatrix.sums import SquareSums

__all__ = ["Imatrix", "SquareSums"]

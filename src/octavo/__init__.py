"""Octavo: run, quantize and measure low-bit language models from Python."""

__version__ = "0.1.0"

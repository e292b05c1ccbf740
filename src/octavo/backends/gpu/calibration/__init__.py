"""Kernels of methods that choose weights by a text: GPTQ's columns, and the search for what groups are clipped to."""

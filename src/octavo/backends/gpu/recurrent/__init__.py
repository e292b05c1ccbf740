"""Layers with states: the gated delta rule, Mamba-2's selective scan, RWKV, convolutions over time.

In: a token's projections and the state of its sequence. Out: its values and the next state. Begin with `kernel`;
prompts go in chunks.
"""

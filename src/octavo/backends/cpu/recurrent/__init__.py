"""Layers with states: convolutions over time, the gated delta rule, selective scans, RWKV. Begin with `kernel`."""

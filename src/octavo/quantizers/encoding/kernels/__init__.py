# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""The encoders' kernels: 16 groups at a time, one to a lane, so that a search for scales has no sum across lanes."""

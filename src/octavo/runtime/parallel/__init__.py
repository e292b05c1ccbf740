"""Ranks: processes that each compute a part of a model, and act as one.

In: how many, and the model. Out: an executor of rank 0, in the engine's own process, which the other ranks follow step
by step. Begin with `group`; `follower` is what the other processes run, `leader` what rank 0 does in place of a plain
executor, `messages` what it sends them.
"""

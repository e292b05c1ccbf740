"""What architectures share: how one is declared, hyperparameters and keys, parts of layers, rope, weights, adapters.

Begin with `architecture`, then `layers`; `registry` finds architectures and reads a file's model.
"""

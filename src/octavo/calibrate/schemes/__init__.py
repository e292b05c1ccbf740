"""Methods of checkpoint schemes: scales of channels first, then weights, stage by stage over a text.

Comes in: a model's file, a scheme and a text. Goes out: a `SchemeResult`, which `octavo.quantizers.schemes` writes.
Begin with `scheme_method.py`; `fold_scales.py` chooses scales, `scheme_weights.py` makes weights, and
`static_inputs.py` finds static scales.
"""

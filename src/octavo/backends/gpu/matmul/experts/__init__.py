"""Products of experts (mul_mat_id): pairs of a token and an expert, sorted by expert, in grouped tiles.

Begin with `launch`.
"""

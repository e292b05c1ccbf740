"""From logits to a token on the device: changes and masks, the largest candidates, the draw.

Begin with `logits_kernel`.
"""

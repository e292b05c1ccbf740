"""What the choice of a token needs of a row of logits. Begin with `logits_kernel`."""

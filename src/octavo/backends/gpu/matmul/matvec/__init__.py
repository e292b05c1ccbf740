"""One token or two: each weight is read once, int8 activations by dp4a. Begin with `kernel`."""

"""Products of weights and activations.

In: packed weights, and activations of 8 bits or floats. Out: rows of float32. Begin with `launch` and `kernel`: a
tile of 16 rows and n tokens, all of K at a time.
"""

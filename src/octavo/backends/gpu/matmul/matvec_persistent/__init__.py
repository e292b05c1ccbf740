"""One token, in programs that stay: each keeps its part of the token in registers and takes row after row.

In: weights whose rows are long enough. Out: rows of the product. Begin with `launch`, which says for which weights;
`codebook_*` are for IQ3, whose codes are numbers of points.
"""

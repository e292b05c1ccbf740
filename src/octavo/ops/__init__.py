"""Products of numbers of 8 and 4 bits, and what makes their operands, as functions.

Public names come from their modules when first used.
"""

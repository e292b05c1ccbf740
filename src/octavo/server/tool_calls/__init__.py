"""Calls of tools: how each model family writes them, and how they are read as they come.

In: characters of a reply. Out: calls. Begin with `formats`, the table.
"""

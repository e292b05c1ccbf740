"""The KV cache: pages, the prefix cache, windows, states.

In: lengths that sequences grow to. Out: rows and pages that kernels read. Begin with `page_pool`; `prefix_tree` keeps
pages of sequences that ended, by what they begin with.
"""

"""Packed weights in files beside the compiled kernels, which are mapped when a model starts again.

`cache_file.py` is a file, `cache_folder.py` the folder with all of them, and
`store.py` what the backend loads weights through.
"""

"""Batches: a file of requests, answered by one engine or several, and appended to a file of responses.

`input_index.py` reads the file once and orders its lines, `batch_run.py` keeps replicas busy with them, and
`output_files.py` keeps what is done, so that a batch that was killed continues where it was.
"""

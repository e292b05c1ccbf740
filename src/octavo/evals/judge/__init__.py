"""The judge of `octavo eval compare`: files of a model beside the one they were made of, on one text.

Comes in: a base, files of any formats, a text. Goes out: divergence with intervals, sizes, and which files look broken.
Begin with `judgement.py`; `reference.py` is what files are compared with, `judged_text.py` what they read,
`suspicion.py` says what looks broken, `picture.py` draws.
"""

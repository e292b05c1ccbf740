"""`octavo frontier`: the best file of a model for each of several sizes, judged, timed and shown on a page.

Comes in: a model of floats, sizes, a calibration text. Goes out: a folder of GGUF files with a page. Begin with
`run.py`; `plan.py` is what is known before, `kept.py` what a run that is killed leaves to the next one, `page.py` what
is shown of the result.
"""

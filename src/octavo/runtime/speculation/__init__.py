"""Speculative decoding: drafts of replies, which one step verifies.

`ngram_drafter`, `head_drafter` (with `guesses`), `layered_drafter` and `draft_model` make drafts, `draft_lengths` says
how long they pay to be, and `verification` has the model compute a step with them. `drafted_request` is a request as it
is once a draft is accepted.
"""

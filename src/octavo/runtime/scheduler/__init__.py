"""Continuous batching: which requests are in the next step, and with how many tokens.

In: requests that wait and run, pages that are free. Out: a `ScheduledStep`. Begin with `scheduler`; `prefill_budget` is
the token budget that keeps replies flowing beside prompts (chunked prefill), `async_scheduling` begins steps before
the last one is read.
"""

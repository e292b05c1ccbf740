"""What all routes share: a Job, the Work that it becomes, and what its tokens are to a client.

In: prompts and options. Out: events of text, thinking and calls. Begin with `job`, then `work`; `service` has the
model's text side.
"""

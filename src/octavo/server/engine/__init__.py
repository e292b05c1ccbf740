"""The engine's process and the front's end of it.

In: requests as messages of `protocol`. Out: rows of tokens, a message a step. Begin with `client` and `worker`;
`process` starts it again when it ends, `in_process` and `fake` stand in for it.
"""

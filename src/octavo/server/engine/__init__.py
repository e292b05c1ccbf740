"""The front's end of the engine's process, which `server.worker` is.

In: requests as messages of `engine_protocol`. Out: rows of tokens, a message a step. Begin with `client`; `process`
starts the other end again when it ends, `fake` stands in for it.
"""

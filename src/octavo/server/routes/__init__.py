"""Routes of OpenAI's, Anthropic's and llama-server's clients, with what their bodies may have beside them.

In: a body. Out: a GenerationRequest, and its reply written as that client knows it. Begin with `chat` and `schema`.
"""

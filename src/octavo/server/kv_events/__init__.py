"""KV events, as vLLM publishes them: which pages of the prefix cache there are, for routers.

    PrefixTree ---> recorder.py (engine's thread) ===> publisher.py (a thread of its own) ---> ZeroMQ

`wire.py` has the messages, `block_hash.py` the hashes of pages. pyzmq is imported where events are published only.
"""

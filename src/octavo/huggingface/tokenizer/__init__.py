"""A folder's tokenizer as GGUF's keys, and the way back.

In: tokenizer.json, tokenizer_config.json and other files of vocabularies. Out: `tokenizer.ggml.*`. Begin with
`vocabulary`.
"""

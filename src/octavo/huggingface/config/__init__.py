"""config.json and the files beside it as GGUF's keys: every key is read, harmless, or named.

Begin with `config_json`; `unread` has the tables of keys that change nothing.
"""

"""What a request says that a reply has to be, as grammars.

Begin with `response_format`; `tool_choice` is for calls.
"""

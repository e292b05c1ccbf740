"""What all routes share: requests, handles of those under way, and what their tokens are to a client.

In: prompts and options. Out: deltas of text, thinking and tool calls. Begin with `request`, then `handle`;
`service` has the model's text side, `output_parser` makes deltas of tokens.
"""

"""Replies held to a JSON schema, several prompts in the same steps: `python examples/structured.py [MODEL]`.

The demo model has learned sentences only: it keeps the form, but its numbers are wrong there.
"""

import json
import sys

import octavo

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer", "minimum": 0, "maximum": 999}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
}
QUESTIONS = ["12 * 7", "81 / 9", "9 - 4", "25 + 17"]

with octavo.load(*sys.argv[1:2] or ["demo"], max_sequences=len(QUESTIONS)) as model:
    form = octavo.Grammar.json_schema(SCHEMA)
    for question, reply in zip(QUESTIONS, model.generate_many(QUESTIONS, grammar=form, max_tokens=60), strict=True):
        print(question, json.loads(reply.text))

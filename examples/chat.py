"""A conversation, piece by piece as it is generated: `python examples/chat.py [MODEL] [QUESTION ...]`."""

import sys

import octavo

name, *questions = sys.argv[1:] or ["demo"]
messages = []
with octavo.load(name) as model:
    for question in questions or ["What is 12 times 7?", "And 12 times 8?"]:
        print(f"> {question}")
        messages.append({"role": "user", "content": question})
        reply = model.generate(messages, max_tokens=200, temperature=0)
        for piece in reply:
            print(piece, end="", flush=True)
        print(f"\n({reply.finish_reason}, {reply.timings.decode_rate:.0f} tokens a second)")
        messages.append({"role": "assistant", "content": reply.text})

"""Ways in which people ask: frames around an expression, openings, endings, letter case, punctuation."""

from __future__ import annotations

from random import Random

# {e} is an expression that stands for a number: "12 + 30", "five times two", "the sum of 3 and 4".
FRAMES = (
    "What is {e}?",
    "What is {e}?",
    "What is {e}?",
    "What's {e}?",
    "Whats {e}?",
    "How much is {e}?",
    "What does {e} equal?",
    "What does {e} make?",
    "What is the result of {e}?",
    "What is the result of {e} in math?",
    "What's the result of {e}?",
    "What is the answer to {e}?",
    "What is the value of {e}?",
    "Calculate {e}.",
    "Compute {e}.",
    "Work out {e}.",
    "Evaluate {e}.",
    "Solve {e}.",
    "Find {e}.",
    "Tell me {e}.",
    "Give me {e}.",
    "Tell me what {e} is.",
    "Can you calculate {e}?",
    "Can you tell me what {e} is?",
    "Could you work out {e} for me?",
    "Could you compute {e}?",
    "Do you know what {e} is?",
    "Do you know {e}?",
    "I need to know {e}.",
    "I want to know what {e} is.",
    "Please calculate {e}.",
    "Please tell me {e}.",
    "How would you calculate {e}?",
    "What do you get for {e}?",
    "What will {e} give?",
    "{e} is what?",
    "{e} equals what?",
    "{e} makes what?",
    "{e}, how much is that?",
    "{e}?",
    "{e}",
)

# {e} is an expression in symbols.
BARE = ("{e}", "{e}", "{e}", "{e}?", "{e} =", "{e}=", "{e} = ?", "{e}=?", "{e}.", "({e})", "{e} equals")

# {i} is a command: "add 3 and 4".
COMMAND_FRAMES = (
    "{i}.",
    "{i}.",
    "Please {i}.",
    "Can you {i}?",
    "Could you {i}?",
    "Could you please {i}?",
    "What do you get when you {i}?",
    "What do you get if you {i}?",
    "What is the result if you {i}?",
    "What happens when I {i}?",
    "What happens if I {i}?",
    "What if I {i}?",
    "How much is it if I {i}?",
    "I want to {i}.",
    "I need you to {i}.",
    "Help me {i}.",
)

OPENINGS = (
    "Hi, ", "Hello, ", "Hey, ", "Hi! ", "Hello! ", "OK, ", "Okay, ", "Now ", "So ", "So, ", "And ", "Then ", "Well, ",
    "Please: ", "Quick question: ", "Question: ", "Tell me, ", "Thanks. ", "Hi there, ", "Good morning. ", "Sorry, ",
    "Math question: ", "In math, ", "Q: ", "Next: ",
)
ENDINGS = (
    " in math", " in mathematics", " in maths", " exactly", " please", ", please", " for me", " now", " then",
    " in numbers", ", thanks", " here", " in total",
)
FINALS = ("?", "!", ".", "??", " ?", "")


def dress(rng: Random, text: str) -> str:
    """A question as somebody else would type it: an opening, an ending, other case, other punctuation."""
    if rng.random() < 0.10:
        opening = rng.choice(OPENINGS)
        text = opening + text if text.startswith("I ") else opening + text[0].lower() + text[1:]
    if rng.random() < 0.10:
        body = text.rstrip("?.!")
        text = body + rng.choice(ENDINGS) + text[len(body) :]
    return recase(rng, repunctuate(rng, text))


def repunctuate(rng: Random, text: str) -> str:
    """Keeps, drops or changes the mark at the end; a text of nothing but marks stays."""
    body = text.rstrip("?.!")
    if rng.random() < 0.65 or body in ("", text):
        return text
    return body + rng.choice(FINALS)


def recase(rng: Random, text: str) -> str:
    """Mostly as it stands, else all small, all capitals, or with the other first letter."""
    style = rng.random()
    if style < 0.60:
        return text
    if style < 0.85:
        return text.lower()
    if style < 0.88:
        return text.upper()
    return text[0].swapcase() + text[1:]

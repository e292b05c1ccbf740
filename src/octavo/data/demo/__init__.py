"""The demo model's questions: its training text comes from them, and its accuracy is measured with them.

Problems are drawn, put into words in many ways, and answered exactly. One problem in twenty, chosen by a hash of the
operation and its operands, is kept from training, so `questions(seed, n)` asks only what the model has never seen.
"""

from octavo.data.demo.kinds import NAMES as KIND_NAMES
from octavo.data.demo.kinds import question, questions
from octavo.data.demo.question import Question, Split

__all__ = ["KIND_NAMES", "Question", "Split", "question", "questions"]

"""Questions for the demo model, generated: its training text, and what its accuracy is measured with.

Problems are drawn, put into words in many ways, and answered exactly. One problem in twenty, chosen by a hash of the
operation and its operands, is kept from training, so `questions(seed, n)` asks only what the model has never seen.
"""

from generator.kinds import NAMES as KIND_NAMES
from generator.kinds import question, questions
from octavo.data.questions import Question, Split

__all__ = ["KIND_NAMES", "Question", "Split", "question", "questions"]

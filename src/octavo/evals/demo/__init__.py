"""The demo model's questions: where its training text comes from and how its accuracy is measured.

Problems are drawn, put into words in many ways, and answered exactly. One problem in twenty, chosen by a hash of the
operation and its operands, is kept from training, so `questions(seed, n)` asks only what the model has never seen.
"""

from octavo.evals.demo.kinds import NAMES as KIND_NAMES
from octavo.evals.demo.kinds import question, questions
from octavo.evals.demo.question import Question, Split
from octavo.evals.demo.report import Report, Tally, evaluate, score

__all__ = ["KIND_NAMES", "Question", "Report", "Split", "Tally", "evaluate", "question", "questions", "score"]

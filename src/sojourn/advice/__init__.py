"""What to run: the theorems' predictions, a rehearsal in miniature, and the choice between the contenders."""

from sojourn.advice.advisor import advise
from sojourn.advice.answer import Advice, Contender
from sojourn.advice.asked import Budget, Target
from sojourn.advice.online import OnlineAdvice, advise_online
from sojourn.advice.page import write_page

__all__ = ["Advice", "Budget", "Contender", "OnlineAdvice", "Target", "advise", "advise_online", "write_page"]

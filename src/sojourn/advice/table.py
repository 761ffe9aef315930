"""Advice on a terminal."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sojourn.advice.answer import Advice
from sojourn.advice.page import contender_row


def advice_table(advice: Advice) -> Group:
    """What to take, the contenders, and the sentences; readable in 80 columns."""
    first, *rest = advice.sentences
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("method", overflow="fold")
    for name in ("rounds", "floats", "gradients", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("basis and remarks", overflow="fold", style="dim")
    for contender in advice.contenders:
        row = contender_row(contender)
        words = row["basis"] + (f"; {row['remarks']}" if row["remarks"] else "")
        style = "bold" if contender == advice.best else None if contender.fits else "dim"
        table.add_row(row["words"], row["rounds"], row["floats"], row["gradients"], row["bound"], words, style=style)
    shown: list[Table | Text] = [table, Text()] if advice.contenders else []
    return Group(Text(first, style="bold"), Text(), *shown, *(Text(f"· {sentence}") for sentence in rest))

"""A diagnosis on a terminal."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sojourn.diagnosis.findings import Cost, Diagnosis, Measure


def diagnosis_table(found: Diagnosis) -> Group:
    """The measures with how they were come by, the warnings, and the bill; readable in 80 columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column()
    for measure in found.measures.values():
        how = f"{measure.how}; {measure.note}" if measure.note else measure.how
        words = Text(f"{measure.name}: {measure.kind}, {measure.at}")
        words.append(f"\n{how} · {price(measure.cost)}", style="dim")
        table.add_row(Text(measure.symbol), Text(shown(measure)), words)
    for name, cost in found.shared.items():
        words = Text(f"{name}: for several measures, or in vain")
        words.append(f"\n{price(cost)}", style="dim")
        table.add_row(Text(), Text(), words)
    batches = "exact gradients" if found.batch_size is None else f"batches of {found.batch_size}"
    head = f"{found.name}: {found.num_clients} clients, {found.dimension:,} numbers, {batches}; {found.setting}"
    lines = [Text(sentence, style="yellow") for sentence in found.warnings]
    return Group(Text(head, style="bold"), Text(), table, Text(), *lines, Text(f"in all: {price(found.cost)}"))


def shown(measure: Measure) -> str:
    """A value with its interval, if that is wider than what is shown."""
    value = f"{measure.value:.3g}"
    if measure.low is None and measure.high is None:
        return value
    low = "" if measure.low is None else f"{measure.low:.3g}"
    high = "" if measure.high is None else f"{measure.high:.3g}"
    return value if low == high == value else f"{value}\n{low} … {high}"


def price(cost: Cost) -> str:
    """In words, without what is zero."""
    parts = {
        "gradients": cost.gradients, "products": cost.products, "floats down": cost.floats_down,
        "floats up": cost.floats_up, "trips": cost.rounds,
    }  # fmt: skip
    return ", ".join(f"{number:,} {name}" for name, number in parts.items() if number) or "nothing of its own"

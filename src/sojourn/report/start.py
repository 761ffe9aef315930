"""What server and clients did before the first round, and how samples change hands: sections of the page."""

from collections.abc import Mapping, Sequence
from typing import Any

import markupsafe

from sojourn.looks.words import number
from sojourn.report.runs import History

_MAX_ROWS = 20  # starts of a sweep that are shown
_COLUMNS = ("Numbers down", "Numbers up", "a_0", "Least a_0k", "Epsilon", "Largest step proven")


def start_html(histories: Sequence[History]) -> str:
    """A table of the starts that were made together with clients; "" where there are none."""
    entries = [
        (_name(history, entry), entry["setup"])
        for history in histories
        for entry in (history.manifest, *history.manifest.get("settings", []))
        if "setup" in entry
    ]
    if not entries:
        return ""
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = "".join(_row(name, setup) for name, setup in entries[:_MAX_ROWS])
    more = f"<p>And {len(entries) - _MAX_ROWS} more.</p>" if len(entries) > _MAX_ROWS else ""
    return (
        f'<div class="scroll"><table><thead><tr><th>Run</th>{head}<th class="left">Conditions</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{more}"
    )


def _name(history: History, entry: Mapping[str, Any]) -> str:
    return history.label + "".join(f", {key} = {value}" for key, value in entry.get("labels", {}).items())


def _row(name: str, setup: Mapping[str, Any]) -> str:
    checked = setup.get("checked", {})
    floors = [setup.get(key) for key in ("smallest_singular_value", "smallest_singular_value_of_a_client")]
    cells = [
        f"{setup['floats_down']:,}", f"{setup['floats_up']:,}", *map(_shown, floors),
        _shown(setup.get("protection", {}).get("epsilon")), _shown(checked.get("largest_step_size")),
    ]  # fmt: skip
    body = "".join(f"<td>{cell}</td>" for cell in cells)
    conditions = "".join(
        f"<small>{markupsafe.escape(c['condition'])}: {_power(c['left_log10'])} ≤ {_power(c['right_log10'])} "
        f"{'holds' if c['holds'] else 'fails'}</small>"
        for c in checked.get("conditions", ())
    )
    verdict = markupsafe.escape(checked.get("verdict", ""))
    first = f'<th scope="row">{markupsafe.escape(name)}</th>'
    return f'<tr>{first}{body}<td class="left wrap">{verdict}{conditions}</td></tr>'


def _shown(value: float | None) -> str:
    return "–" if value is None else number(value)


def _power(log10: float | None) -> str:
    return "?" if log10 is None else f"10<sup>{log10:.3g}</sup>"


def redeal_note(histories: Sequence[History]) -> str:
    """A sentence where samples change hands in every round."""
    kinds = {(history.config or {}).get("partition", {}).get("redeal", "never") for history in histories}
    words = {
        "class": "Samples are dealt anew in every round, class by class: a client keeps its labels, not its samples.",
        "all": "All samples are dealt anew in every round: clients keep their number of samples, and no labels.",
    }
    return " ".join(words[kind] for kind in sorted(kinds & words.keys()))

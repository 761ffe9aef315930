"""A recipe: a declared experiment and its claims, each judged by the data, with the evidence beside it.

A claim that a paper makes and the data refute stays in and fails. One whose uncertainty includes the threshold is not
decided. Neither is bent.
"""

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import stats

from sojourn.core.errors import SojournError, unknown_name
from sojourn.core.files import write_atomically
from sojourn.history import History, environment
from sojourn.recipes.trends import all_hold
from sojourn.report import Section, render
from sojourn.sweeping import Setting, sweep_settings

CLAIMS_FILE = "claims.json"
SECONDS_FILE = "seconds.txt"
ENVIRONMENT_FILE = "environment.json"  # versions, device and commit behind the claims
Maker = Literal["paper", "correction", "check"]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A checkable statement and its verdict: True holds, False fails, None not decided."""

    id: str
    text: str
    holds: bool | None
    evidence: str  # the numbers that decide it
    statistic: str = "exact"  # what is computed
    threshold: str = ""  # and what it is compared with
    seeds: int = 1  # independent repetitions behind it
    by: Maker = "paper"  # whose claim: the paper's, its corrected form, or a check of ours
    scaled: str = ""  # how the experiment differs from the paper's; filled in from the scale of that name

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", None if self.holds is None else bool(self.holds))  # also a NumPy truth

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "fails", None: "not decided"}[self.holds]

    def rule(self) -> list[str]:
        """How it was judged, in pieces."""
        seeds = f"{self.seeds} seeds" if self.seeds > 1 else ""
        scaled = f"scaled: {self.scaled}" if self.scaled else ""
        return [piece for piece in (self.statistic, self.threshold, seeds, scaled) if piece]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A chart as a Vega-Lite specification, with the claims it shows."""

    title: str
    spec: Mapping[str, Any]
    note: str = ""
    claims: tuple[str, ...] = ()  # ids


@dataclasses.dataclass(frozen=True)
class Table:
    """Numbers that one would rather read than see."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Findings:
    """What a recipe found."""

    claims: Sequence[Claim]
    figures: Sequence[Figure]
    histories: Sequence[History] = ()
    tables: Sequence[Table] = ()


class Clock:
    """How long a reproduction has taken, with what it took before it was stopped or killed."""

    def __init__(self, place: Path | None = None, resume: bool = False) -> None:
        self._file = None if place is None else place / SECONDS_FILE
        before = float(self._file.read_text()) if resume and self._file and self._file.is_file() else 0.0
        self._began = time.perf_counter() - before

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def note(self) -> None:
        """For whoever takes it up from here."""
        if self._file is not None:
            text = f"{self.seconds:.2f}\n"
            write_atomically(self._file, lambda beside: beside.write_text(text, encoding="utf-8"))


@dataclasses.dataclass(frozen=True)
class Bench:
    """Where a recipe is carried out: its scale's numbers, and runs that are kept and shown."""

    scale: Mapping[str, Any]
    out: Path | None = None
    resume: bool = False
    progress: bool | None = None
    clock: Clock = dataclasses.field(default_factory=Clock)

    def inside(self, name: str) -> "Bench":
        """The same, in a folder of its own."""
        folder = "".join(letter if letter.isalnum() else "-" for letter in name)
        return dataclasses.replace(self, out=None if self.out is None else self.out / folder)

    def sweep(self, name: str, settings: Sequence[Setting], rounds: int, **how: Any) -> History:
        """`sweep_settings`, kept in a folder of its own when the reproduction is kept."""
        place = self.inside(name).out
        kept: dict[str, Any] = {"out": place, "resume": self.resume, "label": name, "progress": self.progress}
        history = sweep_settings(None, settings, rounds, **kept, **how)
        self.clock.note()
        if history.status == "stopped":
            raise KeyboardInterrupt  # half a sweep has no verdict
        return history


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One figure of a paper, or one question: what is done at each scale, and what is claimed of it."""

    name: str
    title: str
    source: str  # "thesis, figure 5.1a"
    about: str  # what is done, with what was filled in where the source is silent
    # numbers by scale, "full" is the paper's size; a scale's "scaled" tells what stands in for the paper's experiment
    scales: Mapping[str, Mapping[str, Any]]
    carry_out: Callable[[Bench], Findings]

    def describe(self) -> str:
        return f"{self.title} ({self.source})"


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """A recipe carried out."""

    recipe: Recipe
    scale: str
    findings: Findings
    seconds: float

    @property
    def claims(self) -> Sequence[Claim]:
        return self.findings.claims

    @property
    def holds(self) -> bool:
        """Whether every claim holds; one that is not decided does not."""
        return all(claim.holds is True for claim in self.claims)

    def as_dict(self) -> dict[str, Any]:
        claims = [{**dataclasses.asdict(claim), "verdict": claim.verdict} for claim in self.claims]
        return {"recipe": self.recipe.name, "scale": self.scale, "claims": claims, "seconds": round(self.seconds, 2)}

    def save(self, out: Path) -> Path:
        """`claims.json` and `report.html`; returns the page."""
        by_id = {claim.id: claim for claim in self.claims}
        sections = [
            Section(figure.title, figure.spec, figure.note, aside=_as_html([by_id[i] for i in figure.claims]))
            for figure in self.findings.figures
        ]
        shown = {i for figure in self.findings.figures for i in figure.claims}
        rest = [claim for claim in self.claims if claim.id not in shown]
        if rest:
            sections.append(Section("Further claims", _as_html(rest)))
        sections += [Section(table.title, _table_html(table)) for table in self.findings.tables]
        lead = f"{self.recipe.source[0].upper()}{self.recipe.source[1:]}, {self.scale} scale. {self.recipe.about}"
        page = render(
            list(self.findings.histories), out, title=self.recipe.title, sections=sections, lead=lead,
            verdict=summary(self.claims),
        )  # fmt: skip
        # claims last: where they are, all is there
        for name, content in ((ENVIRONMENT_FILE, environment()), (CLAIMS_FILE, self.as_dict())):
            text = json.dumps(content, indent=2) + "\n"
            write_atomically(out / name, functools.partial(Path.write_text, data=text, encoding="utf-8"))
        return page


def summary(claims: Sequence[Claim]) -> str:
    """One line: how many hold, and which do not."""
    held = sum(claim.holds is True for claim in claims)
    parts = [f"{held} of {len(claims)} claims hold."]
    for verdict in ("fails", "not decided"):
        names = [claim.id for claim in claims if claim.verdict == verdict]
        if names:
            parts.append(f"{verdict.capitalize()}: {', '.join(names)}.")
    return " ".join(parts)


def _as_html(claims: Sequence[Claim]) -> str:
    from markupsafe import escape

    words = {"paper": "the paper's claim", "correction": "the claim, corrected", "check": "a check of ours"}
    items = []
    for claim in claims:
        rule = " · ".join(claim.rule())
        items.append(
            f'<li class="claim {claim.verdict.replace(" ", "-")}"><b>{escape(claim.verdict)}</b> {escape(claim.text)}'
            f"<small>{escape(claim.evidence)}</small>"
            f'<small class="soft">{escape(claim.id)} · {words[claim.by]} · {escape(rule)}</small></li>'
        )
    return f'<ul class="claims">{"".join(items)}</ul>' if items else ""


def _table_html(table: Table) -> str:
    from markupsafe import escape

    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def carry_out(
    recipe: Recipe,
    scale: str = "quick",
    *,
    out: Path | str | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Reproduction:
    """Carries out a recipe and judges its claims; with `out`, keeps runs, claims and report there."""
    if scale not in recipe.scales:
        raise unknown_name("scale", scale, recipe.scales)
    place = None if out is None else Path(out)
    clock = Clock(place, resume)
    findings = recipe.carry_out(Bench(recipe.scales[scale], place, resume, progress, clock))
    _check(recipe, findings)
    scaled = recipe.scales[scale].get("scaled", "")
    findings = dataclasses.replace(
        findings, claims=[dataclasses.replace(claim, scaled=scaled) for claim in findings.claims]
    )
    done = Reproduction(recipe, scale, findings, clock.seconds)
    if place is not None:
        done.save(place)
        clock.note()
    return done


def _check(recipe: Recipe, findings: Findings) -> None:
    ids = [claim.id for claim in findings.claims]
    unknown = {i for figure in findings.figures for i in figure.claims} - set(ids)
    if len(set(ids)) != len(ids) or unknown:
        raise SojournError(f"recipe {recipe.name}: claims are named twice, or a figure names unknown ones: {unknown}.")


def above(values: np.ndarray, threshold: float, level: float = 0.95) -> tuple[bool | None, str]:
    """Whether the mean of independent repetitions lies above a threshold: its confidence interval decides."""
    values = np.asarray(values, float)
    mean = float(values.mean())
    if len(values) < 2 or not np.isfinite(values).all():
        return None, f"{mean:.4g} (n = {len(values)}: no interval)"
    if np.ptp(values) == 0:
        return bool(mean > threshold), f"{mean:.4g} in all of {len(values)}"
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1) * stats.sem(values))
    text = f"{mean:.4g} ({level:.0%} interval {mean - half:.4g} to {mean + half:.4g}, n = {len(values)})"
    if mean - half > threshold:
        return True, text
    return (False, text) if mean + half < threshold else (None, text)


def within(differences: np.ndarray, margin: float) -> tuple[bool | None, str]:
    """Whether the mean of independent differences lies within a margin of zero: its confidence interval decides."""
    inside = all_hold(above(margin - differences, 0.0)[0], above(differences + margin, 0.0)[0])
    return inside, above(differences, 0.0)[1]

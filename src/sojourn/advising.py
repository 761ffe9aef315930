"""From a config to advice on disk: diagnosis, advice, its page, and a config that is ready to run."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

from sojourn.advice import Advice, Budget, Target, advise, write_page
from sojourn.advice.start import check_start
from sojourn.config import GUARDS, TIME, Config, to_toml, validate
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.files import write_atomically
from sojourn.core.vec import size
from sojourn.diagnosis import diagnose, save_diagnosis
from sojourn.diagnosis.findings import DIAGNOSIS_FILE
from sojourn.diagnostics.probes import PROBES
from sojourn.experiment import check_config, precision

ADVICE_FILE, READY_FILE = "advice.json", "run.toml"


def advise_config(
    config: Config, out: Path, *, target: Target, budget: Budget, trial_rounds: int | None = None, seed: int = 0,
    scalars_only: bool = False,
) -> Advice:  # fmt: skip
    """Advice on a config's federation, kept in a directory. What the config says of participation, the budget takes."""
    _check_unguarded(config)
    if budget.participation is None and config.run.participation is not None:
        budget = dataclasses.replace(budget, participation=config.run.participation)
    with precision(config):
        federation = check_config(config)
        # before anything is measured
        check_start(federation)
        budget.check_against(federation.num_clients, size(federation.x0))
        found = diagnose(federation, seed=seed, scalars_only=scalars_only)
        advice = advise(federation, target=target, budget=budget, trial_rounds=trial_rounds, seed=seed, diagnosis=found)
        record = _recorded(federation, target)
    ready = None if advice.best is None else to_toml(ready_tables(config, advice, record))
    save_diagnosis(found, out / DIAGNOSIS_FILE)
    _write(out / ADVICE_FILE, json.dumps(advice.to_json(), indent=1))
    write_page(advice, out)
    if ready is None:
        (out / READY_FILE).unlink(missing_ok=True)  # of an earlier question: it would pass for this one's answer
    else:
        _write(out / READY_FILE, ready)
    return advice


def _check_unguarded(config: Config) -> None:
    given = [name for name in GUARDS if getattr(config, name) is not None]
    if given:
        tables = " and ".join(f"[{name}]" for name in given)
        raise SojournError(
            f"advise predicts runs without {tables}, which change how far a run gets: leave them out for the advice, "
            "and try what it says with them."
        )


def _recorded(federation: Federation, target: Target) -> tuple[str, ...]:
    """The probe that shows the target, where the problem's own metrics do not."""
    shown = federation.clients.metrics(federation.x0)
    return (target.column,) if target.column in PROBES and target.column not in shown else ()


def ready_tables(config: Config, advice: Advice, record: tuple[str, ...] = ()) -> dict[str, Any]:
    """The config's tables with the method that is advised, for as long as it should take, recording its target."""
    tables, advised = copy.deepcopy(config.tables), advice.tables()
    tables["algorithm"] = advised["algorithm"]
    tables["run"] = {**tables["run"], "uploads": None, **advised["run"]}
    tables["run"] = {key: value for key, value in tables["run"].items() if value is not None}
    tables["run"]["record"] = list(dict.fromkeys([*config.run.record, *record]))
    tables.pop("schedule", None)  # of the config's own methods
    if "schedule" in advised:  # the stragglers that were stated, on the machines that were rehearsed
        for name in TIME:
            tables.pop(name, None)
        tables |= {name: advised[name] for name in TIME if name in advised}
    return validate(tables).tables


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))

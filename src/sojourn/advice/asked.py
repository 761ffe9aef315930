"""What a user asks of the advisor: a target to reach, and a budget to reach it with."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from sojourn.core.errors import SojournError, unknown_key
from sojourn.core.signature import FieldsChecked

COLUMNS = {"loss": "loss", "grad": "grad_norm", "distance": "distance"}  # of a history, that a target speaks of
PHRASES = {"loss": "a training loss of", "grad": "a gradient norm of", "distance": "a distance to x* of"}


@dataclasses.dataclass(frozen=True)
class Target(FieldsChecked):
    """Train until the mean loss, the norm of its gradient or the distance to its minimiser is at most `value`."""

    kind: Literal["loss", "grad", "distance"]
    value: Annotated[float, Field(description="to come down to")]

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", float(self.value) if isinstance(self.value, int) else self.value)
        super().__post_init__()
        if self.kind != "loss" and not self.value > 0:
            raise SojournError(f"a target of {self.kind} = {self.value:g} is never reached; give a value above 0.")

    @property
    def column(self) -> str:
        return COLUMNS[self.kind]

    def words(self) -> str:
        return f"{PHRASES[self.kind]} {self.value:.4g}"


def parse_target(text: str) -> Target:
    """A target as the command line has it: "loss=0.1"."""
    kind, sign, value = text.partition("=")
    number = parsed_number(value)
    if not sign or number is None:
        raise SojournError(f"the target {text[:60]!r} is not of the form kind=value, as in loss=0.1 or grad=1e-3.")
    return Target(kind.strip().lower(), number)  # type: ignore[arg-type]  # whose fields are checked


def parse_budget(texts: Sequence[str]) -> "Budget":
    """A budget as the command line has it: "rounds=200", "floats=1e7"."""
    found: dict[str, Any] = {}
    whole = {field.name for field in dataclasses.fields(Budget)} - {"floats", "gradients", "slowest", "participation"}
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        number = parsed_number(value)
        if not sign or number is None:
            raise SojournError(f"the budget {text[:60]!r} is not of the form name=number, as in rounds=200.")
        if name not in {field.name for field in dataclasses.fields(Budget)}:
            raise unknown_key("budget", name, [field.name for field in dataclasses.fields(Budget)])
        if name in found:
            raise SojournError(f"the budget names {name} twice.")
        exact = number == int(number) if math.isfinite(number) else False
        counted = name in whole or (name == "participation" and "." not in value)
        found[name] = int(number) if exact and counted else number
    return Budget(**found)


def parsed_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@dataclasses.dataclass(frozen=True)
class Budget(FieldsChecked):
    """What may be spent. None: no limit, except for local steps, of which 64 are looked at."""

    rounds: Annotated[int | None, Field(ge=1, description="of communication: trips of messages")] = None
    floats: Annotated[float | None, Field(gt=0, description="sent, both ways, over all clients")] = None
    gradients: Annotated[float | None, Field(gt=0, description="of one batch, of a client, in all")] = None
    local_steps: Annotated[int | None, Field(ge=1, le=4096, description="of a client in a round")] = None
    staleness: Annotated[int | None, Field(ge=0, description="server updates that an answer may be late")] = None
    slowest: Annotated[float | None, Field(ge=1, description="the slowest client's time over the median's")] = None
    client_vectors: Annotated[int | None, Field(ge=0, description="models that a client may keep between rounds")] = (
        None
    )
    participation: Annotated[
        Annotated[int, Field(gt=0)] | Annotated[float, Field(gt=0, le=1)] | None,
        Field(description="clients per round: a number, or a share"),
    ] = None

    def __post_init__(self) -> None:
        for name in ("floats", "gradients", "slowest"):
            given = getattr(self, name)
            if isinstance(given, int) and not isinstance(given, bool):
                object.__setattr__(self, name, float(given))
        super().__post_init__()

    @property
    def max_local_steps(self) -> int:
        return 64 if self.local_steps is None else self.local_steps

    def steps_to_try(self) -> tuple[int, ...]:
        """Powers of two up to the limit, and the limit."""
        most = self.max_local_steps
        return tuple(sorted({2**j for j in range(13) if 2**j <= most} | {most}))

    def cohort(self, num_clients: int) -> int:
        if self.participation is None:
            return num_clients
        share = self.participation
        found = share if isinstance(share, int) else max(1, round(share * num_clients))
        if found > num_clients:
            raise SojournError(f"participation = {found} is more than the {num_clients} clients there are.")
        return found

    def check_against(self, num_clients: int, dimension: int) -> None:
        """Budgets that contradict each other, or the federation."""
        least = 2.0 * dimension * self.cohort(num_clients)
        if self.floats is not None and self.floats < least:
            raise SojournError(
                f"a budget of {self.floats:g} floats does not pay for one round, in which {self.cohort(num_clients)} "
                f"clients are sent and send a model of {dimension} number{'s' * (dimension != 1)}: {least:g}."
            )

"""How a deployment is conducted: the [deploy] table of a config."""

from typing import Annotated, Literal

from pydantic import Field

from sojourn.core.signature import Table

Seconds = Annotated[float, Field(gt=0, le=1e7)]


class Rules(Table):
    """Who is waited for, for how long, and what is taken from whom."""

    mode: Annotated[
        Literal["auto", "asynchronous", "rounds"], Field(description="auto: as the method needs it")
    ] = "auto"  # fmt: skip
    min_workers: Annotated[int | None, Field(ge=1, description="present before the start; all if left out")] = None
    timeout: Annotated[Seconds, Field(description="seconds until a task is given up and given to another")] = 600.0
    concurrency: Annotated[int | None, Field(ge=1, description="tasks at a time; asynchronous only")] = None
    ahead: Annotated[
        int, Field(ge=0, le=7, description="tasks that wait with a worker beside the one at work; asynchronous only")
    ] = 0  # fmt: skip
    max_staleness: Annotated[int | None, Field(ge=0, description="beyond it uploads are dropped")] = None
    min_reports: Annotated[int | None, Field(ge=1, description="that a round needs; all if left out")] = None
    deadline: Annotated[Seconds | None, Field(description="seconds after which min_reports are enough")] = None
    over_selection: Annotated[int, Field(ge=0, description="clients asked beyond those needed")] = 0
    max_norm: Annotated[float | None, Field(gt=0, description="of an upload; beyond it, it is rejected")] = None
    max_rejected: Annotated[int, Field(ge=1, description="uploads until a worker is asked no more")] = 3

"""Virtual time: how long clients take, when they are there, who is given work when, and the trace that comes of it."""

from sojourn.traces.availability import AVAILABILITIES, Always, DayNight, WindowsFromFile
from sojourn.traces.clocks import (
    CLOCKS,
    Constant,
    Exponential,
    FromFile,
    Lognormal,
    Pareto,
    SpeedClasses,
    Uniform,
)
from sojourn.traces.schedules import SCHEDULES, Devices, Work, busy, from_file, uniform_staleness
from sojourn.traces.synchronous import RoundClock
from sojourn.traces.trace import Trace, read_trace

__all__ = [
    "AVAILABILITIES", "CLOCKS", "SCHEDULES", "Always", "Constant", "DayNight", "Devices", "Exponential", "FromFile",
    "Lognormal", "Pareto", "RoundClock", "SpeedClasses", "Trace", "Uniform", "WindowsFromFile", "Work", "busy",
    "from_file", "read_trace", "uniform_staleness",
]  # fmt: skip

"""`make bench`: every contender on every workload, interleaved, and the table in README.md.

Each pass runs all contenders once, one process each; the table shows the median over passes of their medians, and the
ratio to sojourn within the same pass. An opponent that cannot be installed or fails is listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

import environments

HERE = Path(__file__).resolve().parent
WORKLOADS = ("W1", "W2-32", "W2-200", "W2-1000", "W3")
# (row, script, extra arguments); rounds are chosen so that a repeat lasts about a second or less.
CONTENDERS: dict[str, tuple[str, list[str]]] = {
    "sojourn": ("contender", []),
    "sojourn, W1 as a user's loss": ("contender", ["--variant", "user-loss"]),
    "fused JAX, by hand": ("fused_jax", []),
    "fused JAX, jax.grad": ("fused_jax", ["--variant", "autodiff"]),
    "NumPy/BLAS, one core": ("numpy_blas", []),
    "PyTorch loop": ("pytorch_loop", []),
    "FedJAX 0.0.17": ("fedjax_sim", []),
    "pfl 0.6": ("pfl_sim", []),
    "Flower 1.41": ("flower_sim", []),
}
ROUNDS = {"W1": 500, "W2-32": 100, "W2-200": 30, "W2-1000": 10, "W3": 40}
SLOW_ROUNDS = {"pfl_sim": 20, "flower_sim": 3, "fedjax_sim": 50, "pytorch_loop": 30, "numpy_blas": 50}
IMAGES = ("contender", "pytorch_loop", "pfl_sim")  # those that W3 is written for
# Where a step is large enough for two threads to help, PyTorch is run with one and with all, and the better counts.
LARGE_STEPS, THREADED = ("W2-1000", "W3"), ("pytorch_loop", "pfl_sim")


OWN = ("memory", "asynchronous", "online", "processes")  # our own measurements, each a script and an option
NOT_ASKED = "not written for this workload"


def measure(row: str, workload: str, repeats: int) -> dict[str, Any]:
    """One contender: its JSON line, or {"reason": why there is none}."""
    script, extra = CONTENDERS[row]
    if row.startswith("sojourn,") and workload != "W1":
        return {"reason": NOT_ASKED}
    if workload == "W3" and script not in IMAGES:
        return {"reason": NOT_ASKED}
    if "autodiff" in extra:
        extra = ["--variant", "vmap-autodiff" if workload == "W1" else "scan-autodiff"]
    if script == "contender":
        python, path = Path(sys.executable), HERE / "contender.py"
    else:
        environment = environments.ensure(script)
        if environment.python is None:
            return {"reason": environment.reason}
        python, path = environment.python, HERE / "opponents" / f"{script}.py"
    if script in THREADED and workload in LARGE_STEPS:
        tries = [
            _process(python, path, script, workload, repeats, ["--threads", str(threads)])
            for threads in (1, os.cpu_count() or 1)
        ]
        return min(tries, key=lambda answer: answer.get("seconds_per_round", float("inf")))
    return _process(python, path, script, workload, repeats, extra)


def _process(python: Path, path: Path, script: str, workload: str, repeats: int, extra: list[str]) -> dict[str, Any]:
    rounds = min(ROUNDS[workload], SLOW_ROUNDS.get(script, ROUNDS[workload]))
    command = [
        str(python),
        str(path),
        "--workload",
        workload,
        "--rounds",
        str(rounds),
        "--repeats",
        str(repeats),
        *extra,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=_environment())
    except subprocess.TimeoutExpired:
        return {"reason": "no answer within 15 minutes"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        return {"reason": " ".join(done.stderr.split("\n")[-3:])[-300:] or f"exit code {done.returncode}"}
    return json.loads(lines[-1])


def figure() -> dict[str, float]:
    """Figure 5.1a at the paper's size as a user asks for it: a new process, nothing compiled before."""
    with tempfile.TemporaryDirectory() as place:
        since = time.perf_counter()
        command = [
            str(Path(sys.executable).parent / "sojourn"),
            "reproduce",
            "thesis-5.1a",
            "--scale",
            "full",
            "--json",
        ]
        environment = {**_environment(), "SOJOURN_COMPILATION_CACHE": "off"}
        done = subprocess.run([*command, "--out", f"{place}/out"], capture_output=True, text=True, env=environment)
        whole = time.perf_counter() - since
        manifest = json.loads((Path(place) / "out" / "local-sgd" / "manifest.json").read_text())
    return {
        "whole_seconds": whole,
        "recipe_seconds": json.loads(done.stdout)["seconds"],
        "sweep_seconds": manifest["seconds"],
        "num_settings": manifest["num_settings"],
    }


def _environment() -> dict[str, str]:
    return {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else model
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def table(results: dict[str, dict[str, list[dict[str, Any]]]]) -> list[str]:
    lines = []
    for workload, rows in results.items():
        lines += [
            f"### {workload}",
            "",
            "| contender | ms per round | time relative to sojourn | final loss |",
            "|---|---|---|---|",
        ]
        own = [answer.get("seconds_per_round") for answer in rows["sojourn"]]
        for row, answers in rows.items():
            good = [(a, o) for a, o in zip(answers, own, strict=True) if "seconds_per_round" in a and o]
            if not good:
                if answers and answers[-1]["reason"] != NOT_ASKED:
                    lines.append(f"| {row} | not measured: {answers[-1]['reason']} | | |")
                continue
            milliseconds = 1e3 * statistics.median(a["seconds_per_round"] for a, _ in good)
            ratio = statistics.median(a["seconds_per_round"] / o for a, o in good)
            lines.append(f"| {row} | {milliseconds:.3g} | {ratio:.3g} | {good[-1][0]['final_loss']:.3f} |")
        lines.append("")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="rows to measure; sojourn is always among them")
    parser.add_argument("--workloads", nargs="*", choices=WORKLOADS, help="measure these alone, and keep the rest")
    parser.add_argument("--memory", action="store_true", help="measure peak memory alone, and keep the rest")
    parser.add_argument("--asynchronous", action="store_true", help="measure virtual time alone, and keep the rest")
    parser.add_argument("--online", action="store_true", help="measure a study of regret alone, and keep the rest")
    parser.add_argument("--processes", action="store_true", help="measure worker processes alone, and keep the rest")
    parser.add_argument(
        "--load",
        nargs="*",
        metavar="SIZE",
        help="measure a deployment under load alone (of these sizes), keep the rest",
    )
    parser.add_argument("--figure", action="store_true", help="measure figure 5.1a alone, and keep the rest")
    chosen = parser.parse_args()
    own = [name for name in OWN if getattr(chosen, name)]
    if chosen.figure or chosen.workloads or own or chosen.load is not None:
        record = json.loads((HERE / "results.json").read_text())
        if chosen.figure:
            record["figure"] = figure()
        record |= {name: _own(f"{name}.py") for name in own}
        if chosen.load is not None:
            record["load"] = renewed(record.get("load", {}), load(chosen.passes, *chosen.load))
        if chosen.workloads:
            record["results"] |= contest(chosen.workloads, chosen)
            record["results"] = {name: record["results"][name] for name in WORKLOADS if name in record["results"]}
    else:
        results = contest(WORKLOADS, chosen)
        record = {
            "date": date.today().isoformat(),
            "machine": machine(),
            "versions": {row: answers[-1].get("versions") for row, answers in results["W1"].items()},
            "results": results,
            "sweep": _own("sweep.py"),
            **{name: _own(f"{name}.py") for name in OWN},
            "load": load(chosen.passes),
            "figure": figure(),
        }
    (HERE / "results.json").write_text(json.dumps(record, indent=1))
    write_readme(record)


def contest(workloads: Sequence[str], chosen: argparse.Namespace) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The answers of every pass, by workload and row."""
    rows = [row for row in CONTENDERS if not chosen.only or row in chosen.only or row == "sojourn"]
    results: dict[str, dict[str, list[dict[str, Any]]]] = {w: {row: [] for row in rows} for w in workloads}
    todo = [(workload, row) for _ in range(chosen.passes) for workload in workloads for row in rows]
    for workload, row in track(todo, "measuring", console=Console(stderr=True)):
        results[workload][row].append(measure(row, workload, chosen.repeats))
    return results


def load(passes: int, *sizes: str) -> dict[str, Any]:
    return _own("load.py", "--passes", str(passes), *(["--sizes", *sizes] if sizes else []))


def renewed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What was measured now in the place of what was measured before; the rest stays."""
    job = lambda of: (of["size"], of["workers"], of["who"])  # noqa: E731
    rates = {job(of): of for of in [*before.get("rates", []), *now["rates"]]}
    sizes = list(dict.fromkeys(size for size, _, _ in rates))
    place = lambda of: (sizes.index(of["size"]), of["workers"], of["who"].startswith("Flower"))  # noqa: E731
    ordered = sorted(rates.values(), key=place)
    return {**before, **now, "rates": ordered}


def _own(script: str, *options: str) -> Any:
    """What one of our own measurements prints."""
    command = [sys.executable, str(HERE / script), *options]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def write_readme(record: dict[str, Any]) -> None:
    """Replaces what stands between the two marks of README.md."""
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition("<!-- measured -->")
    after = rest.partition("<!-- end -->")[2]
    swept, figured = record["sweep"], record["figure"]
    body = [
        "<!-- measured -->",
        f"Measured {record['date']} on {record['machine']['processor']}, {record['machine']['cores']} cores, "
        f"{record['machine']['system']}, Python {record['machine']['python']}. Ratios above 1: slower than sojourn.",
        "",
        *table(record["results"]),
        "### Sweep",
        "",
        f"200 settings of W1 (20 step sizes, 10 seeds, 100 rounds): one sweep {swept['sweep_seconds']:.2f} s, the same "
        f"as 200 warm runs {swept['runs_seconds']:.2f} s; the sweep is {swept['ratio']:.1f} times faster.",
        "",
        f"Figure 5.1a of the thesis at its full size, {figured['num_settings']:,} runs on 1,120 federations in one "
        f"compiled sweep: {figured['sweep_seconds']:.1f} s of running, {figured['recipe_seconds']:.0f} s with "
        "building, compiling, saving, claims and report, "
        f"{figured['whole_seconds']:.0f} s as a command in a new process (aim: 60).",
        "",
        *section("Memory", MEMORY, memory_rows(record.get("memory", {}))),
        *section("Virtual time", TIME, time_rows(record.get("asynchronous", {}))),
        *section("Regret", REGRET, regret_rows(record.get("online", {}))),
        *section("Worker processes", PROCESSES, processes_rows(record.get("processes", {}))),
        *section("Deployment under load", LOAD, load_rows(record.get("load", {}))),
        *section("Memory of a deployment's server", SERVER_MEMORY, server_memory_rows(record.get("load", {}))),
    ]  # fmt: skip
    page.write_text(before + "\n".join(body) + "<!-- end -->" + after)


def section(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table under its own heading; nothing where it has not been measured."""
    if not rows:
        return []
    line = lambda cells: f"| {' | '.join(cells)} |"  # noqa: E731
    return [f"### {title}", "", line(columns), "|" + "---|" * len(columns), *map(line, rows), ""]


MEMORY = ("peak, relative to data and three models", "one after another", "side by side")
TIME = (
    "FedAsync replayed", "µs per gradient", "relative to synchronous rounds", "one at a time, relative to it",
)  # fmt: skip

REGRET = ("a study of regret: 20 seeds, 8 numbers of machines, 8 dimensions, T = 4096", "seconds", "once compiled")


PROCESSES = (
    "ms per round", "compiled, on one core", "compiled, with its threads", "a process per core",
    "times as fast as one core", "times as fast as threads",
)  # fmt: skip
LOAD = (
    "an echo",
    "workers",
    "",
    "updates per second",
    "MB per second",
    "server, cores",
    "broker, cores",
    "load average",
)
SERVER_MEMORY = ("peak of the server, in models of 200 MB", "2 workers", "6 workers")


def load_rows(found: dict[str, Any]) -> list[list[str]]:
    rows = []
    for of in found.get("rates", []):
        start = [of["size"], str(of["workers"]), of["who"]]
        if "reason" in of:
            rows.append([*start, of["reason"], "", "", "", ""])
            continue
        rate, unit = of["updates_per_second"], {"kB": 1e-3, "MB": 1.0}
        number, name = of["size"].split()
        moved = 2 * rate * float(number) * unit[name]  # a model down and one up
        broker = f"{of['broker_cpu']:.2f}" if "broker_cpu" in of else "in the server's"
        load = f"{of['load']:.1f}" if "load" in of else "not noted"
        rows.append([*start, f"{rate:.3g}", f"{moved:.3g}", f"{of['server_cpu']:.2f}", broker, load])
    return rows


def server_memory_rows(found: dict[str, Any]) -> list[list[str]]:
    several = found.get("memory", {}).items()
    return [[method, *(f"{by[n]:.2f}" if n in by else "not measured" for n in ("2", "6"))] for method, by in several]


def memory_rows(found: dict[str, dict[str, float]]) -> list[list[str]]:
    return [[name, f"{of['scan']:.2f}", f"{of['vmap']:.2f}"] for name, of in found.items()]


def time_rows(found: dict[str, dict[str, float]]) -> list[list[str]]:
    return [
        [name, f"{of['microseconds']:.3g}", f"{of['to_rounds']:.2f}", f"{of['one_by_one']:.1f}"]
        for name, of in found.items()
    ]


def processes_rows(found: dict[str, dict[str, float]]) -> list[list[str]]:
    return [
        [name, *(f"{of[key]:.3g}" for key in ("one_core", "compiled", "processes", "than_one_core", "faster"))]
        for name, of in found.items()
    ]


def regret_rows(found: dict[str, float]) -> list[list[str]]:
    if not found:
        return []
    return [[f"{found['num_plays']:,} plays", f"{found['cold_seconds']:.0f}", f"{found['warm_seconds']:.0f}"]]


if __name__ == "__main__":
    main()

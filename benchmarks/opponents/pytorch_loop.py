"""The plain PyTorch loop a paper's repository would contain: nn modules, torch.optim.SGD, autograd, eager mode."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from torch_network import build_network, layers_of, tensors
from workloads import WORKLOADS, Workload, arguments, make_data, mean_loss, report, timed


def simulate(workload: Workload, x: torch.Tensor, y: torch.Tensor, rounds: int) -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    server, local = build_network(workload), build_network(workload)
    optimizer = torch.optim.SGD(local.parameters(), lr=workload.step_size)
    shape = (workload.cohort_size, workload.num_local_steps, workload.batch_size)
    for _ in range(rounds):
        cohort = torch.randperm(workload.num_clients, generator=generator)[: workload.cohort_size]
        points = torch.randint(workload.points_per_client, shape, generator=generator)
        total = [torch.zeros_like(parameter) for parameter in server.parameters()]
        for client, batches in zip(cohort.tolist(), points, strict=False):
            local.load_state_dict(server.state_dict())
            for batch in batches:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(local(x[client, batch]), y[client, batch])
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                for running, parameter in zip(total, local.parameters(), strict=False):
                    running += parameter
        with torch.no_grad():
            for parameter, running in zip(server.parameters(), total, strict=False):
                parameter.copy_(running / workload.cohort_size)
    return server


def main() -> None:
    chosen = arguments(__doc__, rounds=100, threads=1)  # small steps: two threads mostly wait
    torch.set_num_threads(chosen.threads)
    workload = WORKLOADS[chosen.workload]
    features, labels = make_data(workload)
    x, y = tensors(features, labels)
    server = build_network(workload)

    def run_rounds() -> None:
        nonlocal server
        server = simulate(workload, x, y, chosen.rounds)

    timings = timed(run_rounds, chosen.rounds, chosen.repeats)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    loss = mean_loss(layers_of(server), features, labels)
    report("pytorch_loop", workload.name, chosen.rounds, timings, loss, versions, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()

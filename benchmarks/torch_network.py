"""The workloads' networks in PyTorch, for the opponents that use it."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from workloads import Workload, initial_model


def build_network(workload: Workload) -> nn.Sequential:
    """The network at the common starting point. PyTorch keeps weights transposed, and images channels first."""
    modules: list[nn.Module] = []
    flat = not workload.channels
    side = (workload.image or (1,))[0]
    for weights, bias in initial_model(workload):
        if weights.ndim == 4:
            conv = nn.Conv2d(weights.shape[2], weights.shape[3], weights.shape[0])
            modules += [_loaded(conv, weights.transpose(3, 2, 0, 1), bias), nn.ReLU(), nn.MaxPool2d(2)]
            side = (side - weights.shape[0] + 1) // 2
            continue
        if not flat:
            weights, flat = _channels_first(weights, side), True
            modules.append(nn.Flatten())
        modules += [_loaded(nn.Linear(*weights.shape), weights.T, bias), nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def layers_of(network: nn.Sequential) -> list[tuple]:
    """The layers as every contender gives them to the judge."""
    layers, side = [], 0
    for module in network:
        if isinstance(module, nn.Conv2d):
            weights = module.weight.detach().numpy().transpose(2, 3, 1, 0)
            side, last = -1, weights.shape[-1]
        elif isinstance(module, nn.Linear):
            weights = module.weight.detach().numpy().T
            if side == -1:  # the first one after convolutions
                side = round((len(weights) / last) ** 0.5)
                weights = weights.reshape(last, side, side, -1).transpose(1, 2, 0, 3).reshape(len(weights), -1)
        else:
            continue
        layers.append((weights, module.bias.detach().numpy()))
    return layers


def tensors(features: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.from_numpy(features)
    return x.movedim(-1, -3).contiguous() if x.ndim > 3 else x, torch.from_numpy(labels).long()


def _loaded(module: nn.Module, weights: np.ndarray, bias: np.ndarray) -> nn.Module:
    module.load_state_dict({"weight": torch.from_numpy(weights.copy()), "bias": torch.from_numpy(bias)})
    return module


def _channels_first(weights: np.ndarray, side: int) -> np.ndarray:
    """The first linear layer's rows from (height, width, channels) to PyTorch's order."""
    return weights.reshape(side, side, -1, weights.shape[-1]).transpose(2, 0, 1, 3).reshape(weights.shape)

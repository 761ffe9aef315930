"""Networks by name: (input shape, number of classes, key, options) -> an Equinox model of one input."""

from collections.abc import Callable
from typing import Any

from sojourn.models.mlp import MLP, mlp

MODELS: dict[str, Callable[..., Any]] = {"mlp": mlp}

__all__ = ["MLP", "MODELS", "mlp"]

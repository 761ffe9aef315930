"""Federated online and bandit optimization: streams of costs, methods that play against them, regret."""

from sojourn.online.adversaries import (
    Adaptive,
    Cone,
    Drifting,
    Heterogeneous,
    Rademacher,
    Smooth,
    Stochastic,
)
from sojourn.online.bandit import FedOSGD, FedPOSGD, OnePointOGD, TwoPointOGD
from sojourn.online.data_stream import digits
from sojourn.online.gradient import OGD, FedOGD
from sojourn.online.method import Game, Method
from sojourn.online.protocol import Play, play, study
from sojourn.online.scrible import SCRiBLE
from sojourn.online.stream import Known, Stream, stream

METHODS: dict[str, type[Method]] = {
    "ogd": OGD,
    "fedogd": FedOGD,
    "fedposgd": FedPOSGD,
    "fedosgd": FedOSGD,
    "one-point-ogd": OnePointOGD,
    "two-point-ogd": TwoPointOGD,
    "scrible": SCRiBLE,
}
STREAMS: dict[str, type[Stream]] = {
    "rademacher": Rademacher,
    "drifting": Drifting,
    "heterogeneous": Heterogeneous,
    "adaptive": Adaptive,
    "smooth": Smooth,
    "stochastic": Stochastic,
    "cone": Cone,
}

__all__ = [
    "METHODS", "OGD", "STREAMS", "Adaptive", "Cone", "Drifting", "FedOGD", "FedOSGD", "FedPOSGD", "Game",
    "Heterogeneous", "Known", "Method", "OnePointOGD", "Play", "Rademacher", "SCRiBLE", "Smooth", "Stochastic",
    "Stream", "TwoPointOGD", "digits", "play", "stream", "study",
]  # fmt: skip

"""The methods, by name. To add one: a file with the class, one line here, one test file."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sojourn.algorithms.ac_sa import ACSA, LocalACSA
from sojourn.algorithms.base import Algorithm
from sojourn.algorithms.bvr_l_sgd import BVRLSGD
from sojourn.algorithms.ce_lsgd import CELGD, CELSGD
from sojourn.algorithms.fed_ams import FedAMS
from sojourn.algorithms.fed_lamb import FedLAMB
from sojourn.algorithms.fedac import FedAc
from sojourn.algorithms.fedasync import FedAsync
from sojourn.algorithms.fedavg import FedAvg
from sojourn.algorithms.fedbuff import FedBuff
from sojourn.algorithms.fedopt import FedOpt
from sojourn.algorithms.fedprox import FedProx
from sojourn.algorithms.guarded import Guarded, guarded
from sojourn.algorithms.local_sgd import LocalSGD
from sojourn.algorithms.mb_sarah import MBSARAH
from sojourn.algorithms.mb_storm import MBSTORM
from sojourn.algorithms.mime import MimeLite, MimeMVR
from sojourn.algorithms.minibatch_sgd import MinibatchSGD
from sojourn.algorithms.regularized_local_sgd import RegularizedLocalSGD
from sojourn.algorithms.scaffold import Scaffold
from sojourn.algorithms.self_tuned import SelfTuned, self_tuned
from sojourn.algorithms.single_machine_sgd import SingleMachineSGD
from sojourn.algorithms.stem import STEM


@dataclasses.dataclass(frozen=True)
class Method:
    """A name for a class, with the options that the name settles."""

    cls: type[Algorithm]
    settled: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    summary: str = ""
    max_rounds: int | None = None

    def describe(self) -> str:
        return self.summary or (self.cls.__doc__ or "").split("\n")[0]


ALGORITHMS: dict[str, Method] = {
    "local-sgd": Method(LocalSGD),
    "fedavg": Method(FedAvg),
    "minibatch-sgd": Method(MinibatchSGD),
    "single-machine-sgd": Method(SingleMachineSGD),
    "one-shot-averaging": Method(
        LocalSGD, {"outer_step_size": 1.0}, "Local SGD that communicates once (one round).", max_rounds=1
    ),
    "synchronous-sgd": Method(
        LocalSGD, {"num_local_steps": 1, "outer_step_size": 1.0}, "One step per round: dense synchronous SGD."
    ),
    "ac-sa": Method(ACSA),
    "fedac": Method(FedAc),
    "local-ac-sa": Method(LocalACSA),
    "regularized-local-sgd": Method(RegularizedLocalSGD),
    "fedprox": Method(FedProx),
    "scaffold": Method(Scaffold),
    "fedopt": Method(FedOpt),
    "fedavgm": Method(FedOpt, {"optimizer": "sgd"}, "FedOpt with server momentum."),
    "fedadam": Method(FedOpt, {"optimizer": "adam"}, "FedOpt with Adam at the server."),
    "fedyogi": Method(FedOpt, {"optimizer": "yogi"}, "FedOpt with Yogi at the server."),
    "fedadagrad": Method(FedOpt, {"optimizer": "adagrad"}, "FedOpt with Adagrad at the server."),
    "fed-ams": Method(FedAMS),
    "fed-lamb": Method(FedLAMB),
    "ce-lsgd": Method(CELSGD),
    "ce-lgd": Method(CELGD),
    "mb-storm": Method(MBSTORM),
    "mb-sarah": Method(MBSARAH),
    "bvr-l-sgd": Method(BVRLSGD),
    "stem": Method(STEM),
    "mime-mvr": Method(MimeMVR),
    "mime-lite": Method(MimeLite),
    "fedasync": Method(FedAsync),
    "fedbuff": Method(FedBuff),
    "asynchronous-fedavg": Method(
        FedBuff, {"buffer_size": 1, "staleness_weight": "constant"}, "Every delayed update is applied as it comes."
    ),
}

__all__ = [
    "ACSA", "ALGORITHMS", "BVRLSGD", "CELGD", "CELSGD", "MBSARAH", "MBSTORM", "STEM", "Algorithm", "FedAMS", "FedAc",
    "FedAsync", "FedAvg", "FedBuff", "FedLAMB", "FedOpt", "FedProx", "Guarded", "LocalACSA", "LocalSGD", "Method",
    "MimeLite", "MimeMVR", "MinibatchSGD", "RegularizedLocalSGD", "Scaffold", "SelfTuned", "SingleMachineSGD",
    "guarded", "self_tuned",
]  # fmt: skip

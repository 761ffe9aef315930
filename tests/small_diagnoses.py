"""Diagnoses made of what is known exactly of quadratic federations: nothing is measured."""

import dataclasses

import numpy as np

from sojourn.core.federation import Federation
from sojourn.diagnosis.findings import Diagnosis, Measure, Miniature

NAMES = (
    "smoothness", "strong_convexity", "third_order_smoothness", "hessian_heterogeneity", "optima_heterogeneity",
    "optima_distance", "noise", "noise4", "start_distance", "f_star",
)  # fmt: skip


def diagnosis_of(federation: Federation, setting: str = "strongly convex") -> Diagnosis:
    """The facts as measures, and the federation itself as its miniature."""
    facts = federation.facts
    known = {name: getattr(facts, name) for name in NAMES if getattr(facts, name) is not None}
    measures = {name: Measure(name, name, float(v), "exact", "everywhere", "known") for name, v in known.items()}
    return Diagnosis(
        federation.name, federation.num_clients, facts.optima.shape[1], federation.clients.batch_size, setting,
        measures, miniature_of(federation),
    )  # fmt: skip


def miniature_of(federation: Federation) -> Miniature:
    facts, objective = federation.facts, federation.clients.objective
    pulled = -np.einsum("mij,mj->mi", facts.hessians, facts.optima)
    root = objective.noise_root
    dimension, clients = facts.optima.shape[1], federation.num_clients
    covariance = np.zeros((dimension, dimension)) if root is None else np.asarray(root) @ np.asarray(root)
    return Miniature(
        hessians=facts.hessians, gradients=pulled, losses=-np.einsum("mi,mi->m", pulled, facts.optima) / 2,
        weights=np.full(clients, 1 / clients), start=np.asarray(federation.x0.tree, float), noise=covariance,
        noise_outside=0.0, missed=0.0,
    )  # fmt: skip


def changed(diagnosis: Diagnosis, **values: float) -> Diagnosis:
    """With other values of some measures."""
    measures = dict(diagnosis.measures)
    for name, value in values.items():
        measures[name] = dataclasses.replace(measures[name], value=value)
    return dataclasses.replace(diagnosis, measures=measures)


def family(
    tau: float = 0.1, apart: float = 0.1, noise: float = 0.0, kappa: float = 50.0, *, clients: int = 6, d: int = 8,
    seed: int = 0,
):  # fmt: skip
    """Hessians diag(1/kappa .. 1) turned by an angle of about tau, optima `apart` from each other near (1, .., 1)."""
    import sojourn as sj

    rng = np.random.default_rng(seed)
    spectrum = np.geomspace(1 / kappa, 1, d)
    hessians = []
    for _ in range(clients):
        skew = rng.normal(size=(d, d))
        turn = np.linalg.qr(np.eye(d) + tau * (skew - skew.T) / 2)[0]
        hessians.append(turn * spectrum @ turn.T)
    optima = np.ones(d) + apart * rng.normal(size=(clients, d))
    symmetric = [(a + a.T) / 2 for a in hessians]
    return sj.problems.quadratic(np.stack(symmetric), optima, noise=noise)

"""Curvature, and how the clients differ in it: H, mu, tau and Q.

Thesis, assumptions 3 to 5 and 11. All that is met on a path bounds a constant that holds everywhere from one side
only: H, tau and Q from below, mu from above.

tau, the largest spectral norm of a difference of two clients' Hessians, is met in four ways:
frobenius: clients multiply the same random signs v; E |A_m v - A_n v|^2 is the squared Frobenius norm of A_m - A_n.
rms: Lanczos on S = sum_m w_m (A_m - A)^2, one product in two trips: u_m = A_m v - A v, then S v = sum_m w_m A_m u_m,
    as sum_m w_m u_m = 0. Root of its largest eigenvalue <= max_m |A_m - A| <= tau.
pair: Lanczos on A_m - A_n for the pairs that those two suspect.
path: differences of gradients between the points of the warm-up, over their distance.
Where no vectors may be sent, by Weyl's inequalities from the edges of the clients' own spectra, and by quadratic forms
in directions that all know: tau >= |lmax_m - lmax_n|, |v.A_m v - v.A_n v|, and tau <= lmax_m - lmin_n for some pair.
"""

import dataclasses
import functools
import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from sojourn.diagnosis.case import VISITED, Case
from sojourn.diagnosis.spectra import Edges, lanczos, pair_squares, worst_pair

NUM_PROBES = 20
_NUM_FORMS = 10
_NUMBERS_AT_ONCE = 1 << 26  # in the directions that an iteration keeps
_SETTLED = 1e-3  # relative residual at which an iteration that takes trips of messages ends
_FLAT = 1e-4  # of H: smaller curvatures are not told from none
_KINK = 0.5  # relative difference of a product from a difference of gradients that only kinks explain
_SEEN = 0.1  # such a difference that is worth a sentence
_SHORT = 1e-6  # relative length of a way that says nothing
_ROUNDINGS = 16  # of the largest number in a gradient's sum, that a change of gradients may hold
_TAUS = ("hessian_heterogeneity", "hessian_heterogeneity_rms", "hessian_heterogeneity_path")


def spectrum(case: Case) -> None:
    """H and mu at the point where the diagnosis stands, the largest and the smallest over points kept."""
    asking, at = case.asking, case.here_name
    if case.known("smoothness", "strong_convexity"):
        return
    case.visit(case.here)
    edges = _edges(case)
    asking.sent(up=4)
    case.tops = edges.directions
    how = f"Lanczos, {min(case.num_products, asking.dimension)} products at each client"
    _largest(case, edges, at, how)
    _smallest(case, edges, at, how)


def _edges(case: Case) -> Edges:
    """Every client's spectrum, as many clients side by side as their directions leave room."""
    asking, parts = case.asking, []
    together = max(1, _NUMBERS_AT_ONCE // (case.num_products * asking.dimension))
    starts = case.rng(1).standard_normal((len(asking), asking.dimension))
    for first in range(0, len(asking), together):
        which = np.arange(first, min(first + together, len(asking)))
        multiply = functools.partial(asking.products, case.here, which=which)
        parts.append(lanczos(multiply, starts[which], case.num_products))
    edges = Edges(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return edges if asking.reach is None else _by_quotients(case, edges)


def _by_quotients(case: Case, edges: Edges) -> Edges:
    """Over kinks products are not linear, and no value of an iteration is a bound; quotients in its directions are."""
    found = []
    for vectors in (edges.directions, edges.others):
        found.append(np.sum(vectors * case.asking.products(case.here, vectors), axis=1))
    smallest, largest = np.min(found, axis=0), np.max(found, axis=0)
    doubts = np.abs(smallest - edges.smallest), np.abs(largest - edges.largest)
    return edges._replace(smallest=smallest, largest=largest, smallest_doubt=doubts[0], largest_doubt=doubts[1])


def _largest(case: Case, edges: Edges, at: str, how: str) -> None:
    if case.facts.smoothness is not None:
        return
    worst = int(np.argmax(edges.norms))
    value = float(edges.norms[worst])
    doubt = max(edges.smallest_doubt[worst], edges.largest_doubt[worst])
    case.tell_largest("smoothness", value, "lower bound", at, how, low=value, high=value + doubt)


def _smallest(case: Case, edges: Edges, at: str, how: str) -> None:
    worst = int(np.argmin(edges.smallest))
    value, doubt = float(edges.smallest[worst]), float(edges.smallest_doubt[worst])
    if case.edge is not None and case.edge[0] <= value:
        value, doubt = case.edge
        told = case.measures.get("strong_convexity") or case.measures.get("weak_convexity")
        at = at if told is None else told.at
    case.edge = value, doubt
    if case.facts.strong_convexity is not None:
        return
    for name in ("strong_convexity", "weak_convexity"):
        old = case.measures.pop(name, None)
        case.asking.spent += old.cost if old else type(case.asking.spent)()
    floor = _FLAT * float(np.max(edges.norms, initial=0.0))
    if value < -floor:
        note = "a client plus half of this times |x|^2 would be convex here"
        case.tell("weak_convexity", -value, "lower bound", at, how, low=-value, high=-value + doubt, note=note)
    else:
        low = max(0.0, value - doubt)
        case.tell("strong_convexity", max(0.0, value), "upper bound", at, how, low=low, high=max(0.0, value))


def setting(case: Case) -> str:
    """From facts, or from the edges met: strongly convex only where the doubt leaves no other reading."""
    if case.facts.strong_convexity is not None:
        return "strongly convex" if case.facts.strong_convexity > 0 else "convex"
    if case.edge is None:
        return "non-convex"
    floor = _FLAT * (case.value("smoothness") or 0.0)
    value, doubt = case.edge
    if value < -floor:
        return "non-convex"
    return "strongly convex" if value - doubt > floor else "convex"


def find_kinks(case: Case) -> None:
    """Compares products with differences of gradients, and takes the latter if kinks hide curvature from the former."""
    if case.facts.smoothness is not None:
        return  # gradients are known not to jump
    share, reach = _missed_on_the_way(case)
    if share <= _KINK:
        reach = _missed_nearby(case)
    case.asking.reach = reach
    if reach is not None:
        case.warn(
            "Products with Hessians miss much of how gradients change over a local step, as with kinks (ReLU, absolute "
            f"values); differences of gradients over the distance {reach:.3g} are used instead, and Q is left out."
        )
    elif share > _SEEN:
        case.warn(
            f"Products with Hessians miss {share:.0%} of how gradients change between visited models, as with kinks "
            "(ReLU, absolute values): curvature and its differences may be larger by as much."
        )


def _missed_on_the_way(case: Case) -> tuple[float, float | None]:
    """The largest share of a change of gradients that products miss, and a distance at which to look instead.

    The legs are looked at from the last on, as they are local, then the way to the best model; up to the first kinks.
    """
    legs, most = _ways(case, to_best=False), (0.0, 0.0)
    for way in [*reversed(legs), *_ways(case)[len(legs) :]]:
        if way.tells:
            most = max(most, (_missed(case, way), way.length))
        if most[0] > _KINK:
            break
    local = [leg.length for leg in legs[-1:]]  # the way to the best model may be long: steps stay local
    return most[0], min([most[1], *local]) or None


def _missed(case: Case, way: "Way") -> float:
    """By more and more points on the way: between them a smooth Hessian is soon known, a kink never."""
    share = _missed_by(case, way, 2)
    for number in (8, 32):
        before = share
        if before <= _SEEN:
            break
        share = _missed_by(case, way, number)
        if abs(share - before) <= 0.1 * before:
            break  # more points would tell no more
    return share


def _missed_by(case: Case, way: "Way", number: int) -> float:
    """Gauss' quadrature of products against the change of gradients, over all clients: kinks are not everywhere."""
    nodes, weights = np.polynomial.legendre.leggauss(number)
    by_products = np.zeros_like(way.change)
    for node, weight in zip(nodes, weights, strict=True):
        by_products += weight / 2 * case.asking.products(way.start + (1 + node) / 2 * way.step, way.step)
    case.asking.sent(up=2)
    return _apart(by_products, way.change)


def _missed_nearby(case: Case) -> float | None:
    """The distance around the model where the diagnosis stands over which products miss much of the change."""
    asking = case.asking
    slopes = case.at(case.here, case.here_name)
    far = 0.5 / max(case.value("smoothness") or 0.0, 1e-12) * np.linalg.norm(slopes, axis=1).max()
    moved = float(np.linalg.norm(case.path[-1] - case.path[-2])) if len(case.path) > 1 else 0.0
    reach = moved or min(far, 1e-2 * (1 + float(np.linalg.norm(case.here))))
    if reach <= _SHORT * (1 + float(np.linalg.norm(case.here))):
        return None
    directions = case.rng(2).standard_normal(asking.dimension)
    directions = case.path[-1] - case.path[-2] if moved else directions
    exact = asking.products(case.here, directions)
    asking.reach = reach
    by_steps = asking.products(case.here, directions)
    asking.reach = None
    asking.sent(up=2)
    return reach if _apart(exact, by_steps) > _KINK else None


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    """How far two answers are apart, relative to the longer."""
    size = max(float(np.linalg.norm(one)), float(np.linalg.norm(other)))
    return float(np.linalg.norm(one - other)) / size if size > 0 else 0.0


class Way(NamedTuple):
    """Between two visited models, how the clients' gradients change."""

    name: str
    start: np.ndarray  # (d,)
    step: np.ndarray  # (d,)
    change: np.ndarray  # (M, d)
    rounding: float  # of the change, for a client

    @property
    def length(self) -> float:
        return float(np.linalg.norm(self.step))

    @property
    def steepness(self) -> np.ndarray:
        """(M,) over the length, less what rounding may have added: bounds on the clients' smoothness from below."""
        return np.maximum(np.linalg.norm(self.change, axis=1) - self.rounding, 0.0) / self.length

    @property
    def tells(self) -> bool:
        """Whether it is long enough to say more than rounding does."""
        return bool(self.steepness.max() > 0) and self.length > _SHORT * (1 + float(np.linalg.norm(self.start)))


def _ways(case: Case, to_best: bool = True) -> list[Way]:
    """The legs of the warm-up, and the way from its end to the best model."""
    names = [_name(case, number) for number in range(len(case.path))]
    visited = [*zip(names, case.path, strict=True)]
    if to_best and case.best_name not in names:
        visited.append((case.best_name, case.best))
    slopes = {name: case.at(point, name) for name, point in visited}
    steep = max(float(np.linalg.norm(found, axis=1).max()) for found in slopes.values())
    far = max(float(np.linalg.norm(point)) for _, point in visited)
    rounding = _ROUNDINGS * float(jnp.finfo(case.asking.dtype).eps) * (steep + (case.value("smoothness") or 0.0) * far)
    found = []
    for number, ((before, x), (after, y)) in enumerate(itertools.pairwise(visited), 1):
        name = f"leg {number} of the path" if number < len(case.path) else f"the way to {after}"
        found.append(Way(name, x, y - x, slopes[after] - slopes[before], rounding))
    return [way for way in found if way.length > 0]


def between_models(case: Case) -> None:
    """H is at least what gradients show between visited models, and at least half of tau."""
    if case.known("smoothness"):
        return
    ways = [(float(way.steepness.max()), way.name) for way in _ways(case) if way.tells]
    case.asking.sent(up=len(ways))
    case.book(VISITED)
    value, at = max(ways, default=(0.0, ""))
    how = "change of a client's gradient between two models, over their distance"
    taus = [case.measures[name] for name in _TAUS if name in case.measures]
    widest = max(taus, key=lambda tau: tau.value, default=None)
    if widest is not None and widest.value / 2 > value:
        value, at, how = widest.value / 2, widest.at, f"half of {widest.symbol}, which is at most 2H"
    before = case.measures.get("smoothness")
    if value > 0 and (before is None or value > before.value):
        high = None if before is None or before.high is None else max(before.high, value)
        note = "" if before is None else f"at one model {before.value:.4g} was seen"
        case.tell("smoothness", value, "lower bound", at, how, low=value, high=high, note=note)


def heterogeneity(case: Case) -> None:
    """tau where the diagnosis stands; the largest over ways and points is kept."""
    if case.known("hessian_heterogeneity"):
        return
    if case.scalars_only:
        return _by_scalars(case)
    squares, spread = _frobenius(case)
    ways = {worst_pair(squares)}
    toward, rms = _rms(case)
    ways.add(worst_pair(pair_squares(toward)))
    value = float(_pairs(case, sorted(ways)).max())
    worst = np.unravel_index(int(np.argmax(squares)), squares.shape)
    how = f"Lanczos on the differences of {len(ways)} suspected pairs"
    best = case.taus[case.here_name] = max(value, rms)
    high = max(best, float(np.sqrt(squares[worst] + 2 * spread[worst])))
    case.tell_largest("hessian_heterogeneity", best, "lower bound", case.here_name, how, low=best, high=high)
    kept = case.measures["hessian_heterogeneity"]
    case.measures[kept.name] = dataclasses.replace(kept, high=max(kept.high or 0.0, high))


def _frobenius(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """(M, M) squared Frobenius norms of differences of Hessians, and their standard errors."""
    asking, d = case.asking, case.asking.dimension
    exact = d <= NUM_PROBES
    probes = np.eye(d) * np.sqrt(d) if exact else case.rng(3).choice([-1.0, 1.0], (NUM_PROBES, d))
    found = [pair_squares(asking.products(case.here, probe)) for probe in probes]
    asking.sent(up=d * len(probes))  # the signs come from a seed that all know
    squares, number = np.mean(found, axis=0), len(found)
    spread = np.zeros_like(squares) if exact else np.std(found, axis=0, ddof=1) / np.sqrt(number)
    worst = np.unravel_index(int(np.argmax(squares)), squares.shape)
    low, high = (max(0.0, float(squares[worst] + s * 2 * spread[worst])) ** 0.5 for s in (-1, 1))
    how = f"{number} {'coordinates' if exact else 'shared random signs'}, all pairs at once; the widest pair"
    name, note = "hessian_heterogeneity_frobenius", "the square of every pair's is unbiased"
    value = float(squares[worst]) ** 0.5
    case.tell_largest(name, value, "estimate", case.here_name, how, low=low, high=high, note=note)
    return squares, spread


def _rms(case: Case) -> tuple[np.ndarray, float]:
    """tau_rms, and (M, d) what the clients make of its direction."""
    asking, w = case.asking, case.asking.weights

    def multiply(v: np.ndarray) -> np.ndarray:
        asking.sent(down=asking.dimension, up=asking.dimension)
        answers = asking.products(case.here, v[0])
        asking.sent(down=asking.dimension, up=asking.dimension)
        return (w @ asking.products(case.here, answers - w @ answers))[None]

    steps = max(4, case.num_products // 3)
    edges = lanczos(multiply, case.rng(4).standard_normal((1, asking.dimension)), steps, settled=_SETTLED)
    square, doubt = float(edges.largest[0]), float(edges.largest_doubt[0])
    answers = asking.products(case.here, edges.directions[0])
    asking.sent(down=asking.dimension, up=asking.dimension)
    if asking.reach is not None:  # as in _by_quotients: what is seen in this direction
        seen = float(w @ np.sum((answers - w @ answers) ** 2, axis=1))
        square, doubt = seen, max(0.0, square - seen)
    value, high = float(np.sqrt(max(0.0, square))), float(np.sqrt(max(0.0, square + doubt)))
    how = f"Lanczos on the mean squared deviation, at most {steps} times two products"
    case.tell_largest("hessian_heterogeneity_rms", value, "lower bound", case.here_name, how, low=value, high=high)
    return answers, value


def _pairs(case: Case, pairs: list[tuple[int, int]]) -> np.ndarray:
    """The spectral norms of the differences of two clients' Hessians, of all pairs on the same trips."""
    asking, clients = case.asking, np.ravel(pairs)

    def multiply(v: np.ndarray) -> np.ndarray:
        asking.sent(down=asking.dimension, up=asking.dimension, by=len(clients))
        answers = asking.products(case.here, np.repeat(v, 2, axis=0), clients)
        return answers[::2] - answers[1::2]

    start = case.rng(5).standard_normal((1, asking.dimension))
    edges = lanczos(multiply, np.repeat(start, len(pairs), axis=0), case.num_products, settled=_SETTLED)
    if asking.reach is None:
        return edges.norms
    seen = [np.linalg.norm(multiply(v), axis=1) for v in (edges.directions, edges.others)]  # as in _by_quotients
    return np.maximum(*seen)


def _by_scalars(case: Case) -> None:
    """tau from below and above, from numbers alone."""
    asking = case.asking
    edges = _edges(case)
    asking.sent(up=2)
    by_edges = max(np.ptp(edges.largest), np.ptp(edges.smallest))
    forms = []
    for direction in case.rng(6).standard_normal((_NUM_FORMS, asking.dimension)):
        unit = direction / np.linalg.norm(direction)
        forms.append(asking.products(case.here, unit) @ unit)
    asking.sent(up=_NUM_FORMS)
    value = float(max(by_edges, max(np.ptp(form) for form in forms)))
    least, most = edges.smallest[:, None] - edges.smallest_doubt[:, None], edges.largest + edges.largest_doubt
    high = float(np.max(np.abs(most[None, :] - least)[~np.eye(len(asking), dtype=bool)]))
    how, at = "the clients' own spectral edges and forms in common random directions (Weyl)", case.here_name
    before = case.measures.get("hessian_heterogeneity")
    if before is not None:
        high = max(high, before.high or 0.0)
        value, at = max((value, at), (before.value, before.at))
    case.tell("hessian_heterogeneity", value, "lower bound", at, how, low=value, high=high)


def along_the_path(case: Case) -> None:
    """tau from gradients at the ends of the warm-up's legs and at the best model, which were asked for already."""
    steepest, where = 0.0, ""
    for way in _ways(case):
        widest = float(np.sqrt(pair_squares(way.change).max())) - 2 * way.rounding
        steepest, where = max((steepest, where), (max(0.0, widest) / way.length, way.name))
    if where:
        how = "differences of gradients at two models, over their distance; the widest pair"
        case.tell("hessian_heterogeneity_path", steepest, "lower bound", where, how, low=steepest)
        tau = case.measures.get("hessian_heterogeneity")
        if tau is not None and tau.kind != "exact" and tau.value < steepest:
            note = f"at one model {tau.value:.4g} was seen"
            high = None if tau.high is None else max(tau.high, steepest)
            case.tell(tau.name, steepest, "lower bound", where, how, low=steepest, high=high, note=note)


def _name(case: Case, number: int) -> str:
    if number == 0:
        return "the start"
    return case.here_name if number == len(case.path) - 1 else f"leg {number}"


def third_order(case: Case) -> None:
    """Q from below: how much the product with the sharpest direction changes along the path."""
    if case.known("third_order_smoothness") or len(case.path) < 2 or case.asking.reach is not None:
        return
    asking = case.asking
    away = case.path[-2] - case.here
    length = float(np.linalg.norm(away))
    if length == 0:
        return
    tops = case.tops
    tops = case.rng(7).standard_normal((len(asking), asking.dimension)) if tops is None else tops
    tops = tops / np.linalg.norm(tops, axis=1, keepdims=True)
    case.visit(case.path[-2])
    there, here = asking.products(case.path[-2], tops), asking.products(case.here, tops)
    asking.sent(up=1)
    value = float(np.linalg.norm(there - here, axis=1).max()) / length
    how = "change of the product with the sharpest direction, over the last leg"
    case.tell("third_order_smoothness", value, "lower bound", case.here_name, how, low=value)

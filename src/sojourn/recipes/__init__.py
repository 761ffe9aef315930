"""The recipes, by name: one figure of a paper, or one question, each. Configs to start from lie beside them."""

from typing import Any

from sojourn.core.errors import unknown_name
from sojourn.recipes import (
    advise_study,
    crossover,
    fed_lamb_2,
    fed_lamb_3,
    fedasync,
    fedasync_3,
    lower_bounds,
    nonconvex_tau,
    online_gradient,
    online_one_point,
    online_two_point,
    outer_step,
    relu_figures,
    relu_theory,
    stragglers,
    thesis_2_2,
    thesis_4_1,
    thesis_4_2,
    thesis_4_3,
    thesis_5_1,
    thesis_6_1,
    thesis_6_2,
    thesis_6_3,
    thesis_d_1,
    wide,
    wide_3,
    wide_theory,
)
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe, Reproduction, carry_out

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        thesis_2_2.RECIPE,
        thesis_4_1.RECIPE,
        thesis_4_2.RECIPE,
        thesis_4_3.RECIPE,
        thesis_5_1.RECIPE_A,
        thesis_5_1.RECIPE_B,
        thesis_6_1.RECIPE,
        thesis_6_2.RECIPE,
        thesis_6_3.RECIPE,
        thesis_d_1.RECIPE,
        lower_bounds.RECIPE,
        crossover.RECIPE,
        nonconvex_tau.RECIPE,
        outer_step.RECIPE,
        online_gradient.RECIPE,
        online_one_point.RECIPE,
        online_two_point.RECIPE,
        relu_figures.WIDTH,
        relu_figures.GAP,
        relu_figures.DEPTH,
        relu_theory.RECIPE,
        wide.WIDE_1,
        wide.WIDE_2,
        wide_3.RECIPE,
        wide.WIDE_4,
        fed_lamb_2.RECIPE,
        fed_lamb_3.RECIPE_3,
        fed_lamb_3.RECIPE_4,
        wide_theory.RECIPE,
        fedasync.FIGURE_2,
        fedasync_3.RECIPE,
        fedasync.FIGURE_4,
        stragglers.TAILS,
        stragglers.MIXING,
        advise_study.RECIPE,
    )
}


def reproduce(name: str, scale: str = "quick", **how: Any) -> Reproduction:
    """Carries out a recipe by its name and judges its claims. `how`: out, resume and progress, as in `run`."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return carry_out(RECIPES[name], scale, **how)


__all__ = ["RECIPES", "Bench", "Claim", "Figure", "Findings", "Recipe", "Reproduction", "reproduce"]

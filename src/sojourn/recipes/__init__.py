"""The recipes, by name: one figure of a paper, or one question, each. Configs to start from lie beside them."""

from sojourn.recipes import thesis_2_2
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe, Reproduction, reproduce

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (thesis_2_2.RECIPE,)}

__all__ = ["RECIPES", "Bench", "Claim", "Figure", "Findings", "Recipe", "Reproduction", "reproduce"]

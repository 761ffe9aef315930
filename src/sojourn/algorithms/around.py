"""What methods share that stand around another: to engines they are what the method inside is."""

from typing import Any

from sojourn.algorithms.base import Algorithm, World
from sojourn.core.vec import Vec


class Around(Algorithm):
    """A method with another inside it."""

    inner: Algorithm

    @property
    def weighting(self) -> str:  # type: ignore[override]
        return self.inner.weighting

    @property
    def asynchronous(self) -> bool:  # type: ignore[override]
        return self.inner.asynchronous

    @property
    def layerwise(self) -> bool:  # type: ignore[override]
        return self.inner.layerwise

    def plain(self) -> Algorithm:
        return self.inner

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "method": self.inner.describe()}

    def check(self, world: World) -> None:
        self.inner.check(world)

    def needs_everyone(self) -> bool:
        return self.inner.needs_everyone()

    def init_client(self, x0: Vec) -> Any:
        return self.inner.init_client(x0)

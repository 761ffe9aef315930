"""Data sets by name. One more data set is one more file and one more line here."""

from collections.abc import Callable

from sojourn.core.errors import unknown_name
from sojourn.data.dataset import Dataset
from sojourn.data.digits import load_digits

DATASETS: dict[str, Callable[..., Dataset]] = {"digits": load_digits}


def load(name: str) -> Dataset:
    """The data set of this name, with its default options."""
    if name not in DATASETS:
        raise unknown_name("data.name", name, DATASETS)
    return DATASETS[name]()


__all__ = ["DATASETS", "Dataset", "load", "load_digits"]

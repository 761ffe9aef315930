"""Data sets and texts by name. One more is one more file and one more line here."""

from collections.abc import Callable

from sojourn.core.errors import unknown_name
from sojourn.data.cifar10 import load_cifar10
from sojourn.data.dataset import Dataset, Pixels
from sojourn.data.digits import load_digits
from sojourn.data.libsvm import load_a9a, load_mushrooms, load_w8a
from sojourn.data.mnist import load_fashion_mnist, load_mnist
from sojourn.data.shortened import tinyshakespeare_text, wikitext2_text
from sojourn.data.text import Text
from sojourn.data.tinyshakespeare import load_tinyshakespeare
from sojourn.data.wikitext2 import load_wikitext2

DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    "cifar10": load_cifar10,
    "a9a": load_a9a,
    "w8a": load_w8a,
    "mushrooms": load_mushrooms,
}
TEXTS: dict[str, Callable[..., Text]] = {"tinyshakespeare": tinyshakespeare_text, "wikitext-2": wikitext2_text}


def load(name: str) -> Dataset:
    """The data set of this name, with its default options."""
    if name not in DATASETS:
        raise unknown_name("data.name", name, DATASETS)
    return DATASETS[name]()


def load_text(name: str) -> Text:
    """The text of this name, with its default options."""
    if name not in TEXTS:
        raise unknown_name("text", name, TEXTS)
    return TEXTS[name]()


__all__ = [
    "DATASETS", "TEXTS", "Dataset", "Pixels", "Text", "load", "load_a9a", "load_cifar10", "load_digits",
    "load_fashion_mnist", "load_mnist", "load_mushrooms", "load_text", "load_tinyshakespeare", "load_w8a",
    "load_wikitext2",
]  # fmt: skip

"""A text as whole numbers: what a language model is trained and tested on."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from sojourn.core.errors import SojournError


@dataclasses.dataclass(frozen=True, eq=False)
class Text:
    """One long list of tokens per split; token k stands for vocabulary[k]."""

    name: str
    train: np.ndarray  # (n,) int32
    valid: np.ndarray
    test: np.ndarray
    vocabulary: tuple[str, ...]
    separator: str = " "  # between tokens when they are put together again; nothing for characters

    def __post_init__(self) -> None:
        for part in ("train", "valid", "test"):
            tokens = np.asarray(getattr(self, part))
            if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer) or tokens.size == 0:
                raise SojournError(
                    f"text {self.name!r}: {part} has shape {tokens.shape} and type {tokens.dtype}; expected a list of "
                    "at least one whole number."
                )
            outside = tokens[(tokens < 0) | (tokens >= len(self.vocabulary))]
            if outside.size:
                raise SojournError(
                    f"text {self.name!r}: {part} holds the token {outside[0]}; expected 0 to "
                    f"{len(self.vocabulary) - 1}, as the vocabulary goes."
                )
            object.__setattr__(self, part, tokens.astype(np.int32))  # the class is frozen; this is its constructor

    def decode(self, tokens: Iterable[int]) -> str:
        """Tokens as text."""
        return self.separator.join(self.vocabulary[int(token)] for token in tokens)

    def encode(self, words: Iterable[str]) -> np.ndarray:
        """Words, or the characters of a string, as tokens."""
        number = {word: k for k, word in enumerate(self.vocabulary)}
        try:
            return np.array([number[word] for word in words], np.int32)
        except KeyError as error:
            raise SojournError(f"{error.args[0]!r} is not in the vocabulary of text {self.name!r}.") from None


def decoded(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise SojournError(f"{where} is not text in UTF-8; replace it.") from None

"""The texts that configs name, and how to take less of them: fewer tokens, fewer different words."""

import dataclasses
from typing import Annotated

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.data.text import Text
from sojourn.data.tinyshakespeare import Share, load_tinyshakespeare
from sojourn.data.wikitext2 import load_wikitext2

UNKNOWN = "<unk>"

NumTrain = Annotated[int | None, Field(ge=2, description="tokens to train on, from the start; all if left out")]
NumTest = Annotated[int | None, Field(ge=2, description="tokens to test on, from the start; all if left out")]
MaxWords = Annotated[
    int | None, Field(ge=2, description="words of the vocabulary, the commonest; the others are <unk>")
]


def tinyshakespeare_text(
    *, valid_share: Share = 0.05, test_share: Share = 0.05, num_train: NumTrain = None, num_test: NumTest = None
) -> Text:
    """Plays of Shakespeare by the character, 65 of them; the last tenth is to validate and to test."""
    return shortened(load_tinyshakespeare(valid_share=valid_share, test_share=test_share), num_train, num_test)


def wikitext2_text(*, num_train: NumTrain = None, num_test: NumTest = None, max_words: MaxWords = None) -> Text:
    """Articles of Wikipedia by the word: 2,088,628 to train, a vocabulary of 33,278 with <unk> and <eos>."""
    return shortened(load_wikitext2(), num_train, num_test, max_words)


def shortened(text: Text, num_train: int | None, num_test: int | None, max_words: int | None = None) -> Text:
    """The first tokens of a text, with only its commonest words."""
    for name, wanted, tokens in (("num_train", num_train, text.train), ("num_test", num_test, text.test)):
        if wanted is not None and wanted > len(tokens):
            raise SojournError(
                f'data.{name} = {wanted} is more than the {len(tokens)} tokens of text "{text.name}"; take fewer.'
            )
    text = dataclasses.replace(text, train=text.train[:num_train], test=text.test[:num_test])
    return text if max_words is None or max_words >= len(text.vocabulary) else _with_words(text, max_words)


def _with_words(text: Text, max_words: int) -> Text:
    """The words that occur most often in what is left to train on, in their old order, and <unk> for all others."""
    counts = np.bincount(text.train, minlength=len(text.vocabulary))
    vocabulary = text.vocabulary
    if UNKNOWN not in vocabulary:
        vocabulary, counts = (*vocabulary, UNKNOWN), np.append(counts, 0)
    unknown = vocabulary.index(UNKNOWN)
    counts[unknown] = counts.sum() + 1  # always kept
    kept = np.sort(np.argsort(-counts, kind="stable")[:max_words])
    numbers = np.full(len(vocabulary), np.searchsorted(kept, unknown), np.int32)
    numbers[kept] = np.arange(max_words)
    return dataclasses.replace(
        text, train=numbers[text.train], valid=numbers[text.valid], test=numbers[text.test],
        vocabulary=tuple(vocabulary[k] for k in kept),
    )  # fmt: skip

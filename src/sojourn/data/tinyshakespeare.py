"""Tiny Shakespeare (Karpathy, 2015): 1.1 million characters of plays, one token each."""

from typing import Annotated

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.data.remote import Remote
from sojourn.data.source import File, Source, read_files
from sojourn.data.text import Text, decoded

_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
TINYSHAKESPEARE = Source(
    "tinyshakespeare",
    (File(("input.txt",), _SHA256),),
    (
        Remote(
            "input.txt",
            f"sha256:{_SHA256}",
            ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
        ),
    ),
)

Share = Annotated[float, Field(gt=0, lt=1, description="of the characters, from the end")]


def load_tinyshakespeare(*, valid_share: Share = 0.05, test_share: Share = 0.05) -> Text:
    """Plays of Shakespeare by the character, 65 of them; the last tenth is to validate and to test."""
    return load_characters(TINYSHAKESPEARE, valid_share, test_share)


def load_characters(source: Source, valid_share: float, test_share: float) -> Text:
    """A file by its characters, numbered in their order; the splits follow one another."""
    if not (valid_share > 0 and test_share > 0 and valid_share + test_share < 1):
        raise SojournError(f"valid_share + test_share = {valid_share + test_share:g} must lie between 0 and 1.")
    text = decoded(read_files(source)[0], f"{source.name}'s {source.files[0].names[0]}")
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    characters, tokens = np.unique(points, return_inverse=True)
    first = round(len(tokens) * (1 - valid_share - test_share))
    second = round(len(tokens) * (1 - test_share))
    vocabulary = tuple(map(chr, characters))
    return Text(source.name, tokens[:first], tokens[first:second], tokens[second:], vocabulary, separator="")

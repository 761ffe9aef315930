"""WikiText-2 (Merity, Xiong, Bradbury and Socher, 2016): two million words of articles, rare ones as <unk>."""

import numpy as np

from sojourn.data.remote import Remote
from sojourn.data.source import File, Source, read_files
from sojourn.data.text import Text, decoded

_SHA256 = {
    "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
    "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
}
_MIRROR = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2"
WIKITEXT2 = Source(
    "wikitext-2",
    tuple(File((f"{s}.txt", f"{s}.tokens", f"wiki.{s}.tokens"), sha256) for s, sha256 in _SHA256.items()),
    tuple(Remote(f"{s}.txt", f"sha256:{sha256}", (f"{_MIRROR}/{s}.txt",)) for s, sha256 in _SHA256.items()),
    folder="wikitext-2",
)
END = "<eos>"


def load_wikitext2() -> Text:
    """Articles of Wikipedia by the word: 2,088,628 to train, a vocabulary of 33,278 with <unk> and <eos>."""
    return load_words(WIKITEXT2)


def load_words(source: Source) -> Text:
    """Three files by their words, in the order in which these first occur; every line ends in <eos>."""
    numbers: dict[str, int] = {}
    splits = []
    for content, file in zip(read_files(source), source.files, strict=True):
        text = decoded(content, f"{source.name}'s {file.names[0]}")
        lines = text.split("\n")
        lines = lines[:-1] if lines[-1] == "" else lines
        words = (word for line in lines for word in [*line.split(), END])
        splits.append(np.fromiter((numbers.setdefault(word, len(numbers)) for word in words), np.int32))
    return Text(source.name, splits[0], splits[1], splits[2], tuple(numbers))

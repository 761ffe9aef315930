"""Messages: what is encoded is decoded, and nothing else is believed."""

import json
import random

import numpy as np
import pytest
import safetensors.numpy

from sojourn.deploy.wire import Rejected, Schema, check_numbers, decode, encode

TREE = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": [np.ones(4), np.zeros((), np.int32)]}
WORDS = frozenset({"task"})


def message(**words: str) -> bytes:
    return encode("upload", {"task": "7", **words}, TREE)


def test_what_is_sent_arrives_bit_for_bit() -> None:
    words, arrays = decode(message(), "upload", WORDS, Schema.of(TREE))
    assert words == {"task": "7"}
    for found, sent in zip(arrays, (TREE["a"], *TREE["b"]), strict=True):
        assert found.dtype == sent.dtype and found.tobytes() == np.asarray(sent).tobytes()


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "too short"),
        (b"\xff" * 8, "longer than it may be"),
        ((5).to_bytes(8, "little") + b"hello", "cannot be read"),
        ((2).to_bytes(8, "little") + b"[]", "not a table"),
        (message(extra="x"), "does not say what was asked for"),
        (encode("task", {"task": "7"}, TREE), "another kind"),
        (encode("upload", {"task": "7"}, TREE["a"]), "not hold the arrays"),
        (encode("upload", {"task": "7"}, {**TREE, "a": TREE["a"].T.copy()}), "another type or shape"),
        (encode("upload", {"task": "7"}, {**TREE, "a": TREE["a"].astype(np.float64)}), "another type or shape"),
        (message() + b"more", "more than was asked for"),
        (message()[:-1], "within the message|more than"),
        (message().replace(b'"sojourn":"1"', b'"sojourn":"2"'), "version 1"),
    ],
)  # fmt: skip
def test_what_is_not_as_expected_is_rejected(payload: bytes, why: str) -> None:
    with pytest.raises(Rejected, match=why):
        decode(payload, "upload", WORDS, Schema.of(TREE))


def test_a_name_that_occurs_twice_is_rejected() -> None:
    header = json.dumps({"__metadata__": {"sojourn": "1", "kind": "upload"}})[:-1] + ',"00000":1,"00000":2}'
    payload = len(header).to_bytes(8, "little") + header.encode()
    with pytest.raises(Rejected, match="cannot be read"):
        decode(payload, "upload", frozenset(), Schema.of(np.zeros(1)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_are_finite_and_within_their_bound(bad: float) -> None:
    assert check_numbers([np.array([3.0, 4.0])], 5.0) == 5.0
    with pytest.raises(Rejected, match="not finite"):
        check_numbers([np.array([1.0, bad])])
    with pytest.raises(Rejected, match="beyond the bound"):
        check_numbers([np.array([3.0, 4.0])], 4.9)


def mutated(rng: random.Random, payload: bytes) -> bytes:
    data = bytearray(payload)
    for _ in range(rng.randint(1, 6)):
        at, kind = rng.randrange(max(1, len(data))), rng.random()
        if kind < 0.6 and data:
            data[at] = rng.randrange(256)
        elif kind < 0.75:
            del data[at : at + rng.randint(1, 8)]
        elif kind < 0.9:
            data[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            data = data[: at + 1]
    return bytes(data)


@pytest.mark.parametrize("number", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_no_mutation_gets_past_the_schema(number: int) -> None:
    """Either it is rejected, or only numbers changed: same words, types and shapes. Nothing else is ever raised."""
    rng, schema, payload = random.Random(number), Schema.of(TREE), message()
    rejected = 0
    for _ in range(number):
        try:
            words, arrays = decode(mutated(rng, payload), "upload", WORDS, schema)
        except Rejected:
            rejected += 1
            continue
        assert words.keys() == {"task"} and [a.shape for a in arrays] == [(2, 3), (4,), ()]
    assert rejected > 0.8 * number


def test_messages_are_in_the_format_of_the_library() -> None:
    """Ours writes without copies; the library's reader finds the same."""
    arrays = [
        np.arange(6, dtype="f4").reshape(2, 3),
        np.array([7, 8], np.uint32),
        np.ones((), "f8"),
        np.zeros((0, 2), "f4"),
    ]
    found = safetensors.numpy.load(encode("task", {"task": "1"}, arrays))
    assert [found[name].tolist() for name in sorted(found)] == [array.tolist() for array in arrays]
    ours = safetensors.numpy.save({f"{i:05d}": a for i, a in enumerate(arrays)}, {"sojourn": "1", "kind": "task"})
    for mine, other in zip(decode(ours, "task", frozenset(), Schema.of(arrays))[1], arrays, strict=True):
        np.testing.assert_array_equal(mine, other)

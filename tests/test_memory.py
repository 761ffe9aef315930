"""Peak memory of a run, through the benchmark that measures it."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux forgets a peak on request")
def test_one_client_after_another_needs_twice_the_data_and_three_models_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Side by side is the negative control: ten clients hold ten models and ten gradients."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import memory

    wide = {"hidden": 20_000, "points": 200}  # a model of 64 MB: what two processes differ in by chance is far less
    assert memory.ratio("scan", **wide) < 2 < memory.ratio("vmap", **wide)

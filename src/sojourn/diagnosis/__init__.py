"""What a federation is like: its curvature, its noise, and how its clients differ, measured and priced."""

from sojourn.diagnosis.diagnose import diagnose
from sojourn.diagnosis.findings import Cost, Diagnosis, Measure, Miniature, load_diagnosis, save_diagnosis
from sojourn.diagnosis.miniature import as_federation

__all__ = [
    "Cost", "Diagnosis", "Measure", "Miniature", "as_federation", "diagnose", "load_diagnosis", "save_diagnosis",
]  # fmt: skip

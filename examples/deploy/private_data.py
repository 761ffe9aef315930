"""What each of the four workers of the demonstration holds: its own part of the digits, and nothing else.

A real worker reads its own files here. The function gets the worker's name and returns features and labels.
"""

from pathlib import Path

import numpy as np

from sojourn.config import load_config
from sojourn.data import DATASETS
from sojourn.partition import PARTITIONS

NAMES = ("ada", "ben", "cleo", "dot")
CONFIG = Path(__file__).with_name("digits.toml")


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    config = load_config(CONFIG)
    assert config.data is not None and config.partition is not None
    data = DATASETS[config.data.name](**config.data.options)
    options = {key: value for key, value in config.partition.options.items() if key != "redeal"}
    rows = PARTITIONS[config.partition.name](data.y_train, **options)[NAMES.index(name)]
    return data.x_train[rows], data.y_train[rows]

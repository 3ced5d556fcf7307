"""The data sets that experiments learn from: read, scaled, and split once into training and test rows."""

from __future__ import annotations

import dataclasses
import gzip
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from tiles.target.load import data_directory

SPLIT_SEED = 0
"""Seed of the one shuffle that decides which rows are test rows; apart from the seed of a run."""
TEST_FRACTION = 0.2

_DIGITS = pathlib.Path("data") / "digits.csv.gz"
_PIXEL_MAX = 16.0


@dataclasses.dataclass(frozen=True)
class Split:
    """Rows of one kind.

    Attributes:
      images: float32 ``[rows, features]``, each in ``[0, 1]``.
      labels: int32 ``[rows]``.
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)

    def batches(self, batch_size: int, order_seed: Sequence[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield one epoch of whole batches in the seed's order; rows left over wait for another epoch."""
        order = np.random.default_rng(order_seed).permutation(len(self))
        for start in range(0, len(self) - batch_size + 1, batch_size):
            rows = order[start : start + batch_size]
            yield self.images[rows], self.labels[rows]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Rows to learn from, and rows that are used once, at the end."""

    train: Split
    test: Split
    num_classes: int

    @property
    def num_features(self) -> int:
        """Return the number of values per row."""
        return self.train.images.shape[1]


def load_digits(path: pathlib.Path | None = None) -> Dataset:
    """Return the handwritten digits: 64 pixels each, 10 classes, a fifth of each class as test rows.

    Args:
      path: the compressed table; None for the project's own copy.

    Raises:
      OSError: the file cannot be read.
    """
    path = path or data_directory().parent / _DIGITS
    with gzip.open(path, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int32)
    images = (table[:, :-1] / _PIXEL_MAX).astype(np.float32)
    return split_dataset(images, table[:, -1])


def split_dataset(images: np.ndarray, labels: np.ndarray) -> Dataset:
    """Shuffle rows once, then take a fifth of each class, rounded, as test rows."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    images, labels = images[order], labels[order]
    is_test = np.zeros(len(labels), bool)
    classes = np.unique(labels)
    for label in classes:
        rows = np.flatnonzero(labels == label)
        is_test[rows[: round(TEST_FRACTION * len(rows))]] = True
    train = Split(images[~is_test], labels[~is_test])
    return Dataset(train, Split(images[is_test], labels[is_test]), len(classes))

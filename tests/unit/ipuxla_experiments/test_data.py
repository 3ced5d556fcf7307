"""The digits: what the file holds, and a split that is stratified, complete and the same every time."""

from __future__ import annotations

import gzip

import numpy as np

from ipuxla.experiments.data import load_digits, split_dataset
from tiles.target.load import data_directory


def _table() -> np.ndarray:
    """The file read by other means: its text, split by hand."""
    raw = (data_directory().parent / "data" / "digits.csv.gz").read_bytes()
    return np.array([[int(cell) for cell in row.split(",")] for row in gzip.decompress(raw).decode().split()])


def _sorted_rows(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    table = np.column_stack([np.rint(images * 16).astype(int), labels])
    return table[np.lexsort(table.T)]


def test_digits_are_those_of_the_file():
    data, table = load_digits(), _table()
    images = np.concatenate([data.train.images, data.test.images])
    labels = np.concatenate([data.train.labels, data.test.labels])
    assert images.dtype == np.float32 and labels.dtype == np.int32
    assert (images.min(), images.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(_sorted_rows(images, labels), table[np.lexsort(table.T)])
    assert (data.num_features, data.num_classes) == (64, 10)


def test_a_fifth_of_each_class_is_for_testing():
    data = load_digits()
    train, test = np.bincount(data.train.labels), np.bincount(data.test.labels)
    np.testing.assert_array_equal(test, np.round((train + test) / 5))
    assert abs(len(data.test) / (len(data.train) + len(data.test)) - 0.2) < 0.001


def test_split_is_the_same_every_time_and_shuffled():
    first, second = load_digits(), load_digits()
    np.testing.assert_array_equal(first.test.images, second.test.images)
    np.testing.assert_array_equal(first.train.labels, second.train.labels)
    assert len(set(first.train.labels[:20].tolist())) > 3
    rows = np.arange(100, dtype=np.float32)[:, None]
    split = split_dataset(rows, np.repeat(np.arange(2), 50))
    assert not np.all(np.diff(split.train.images[:, 0]) > 0)


def test_batches_are_whole_disjoint_and_ordered_by_their_seed():
    train = load_digits().train
    batches = list(train.batches(32, order_seed=(0, 1)))
    assert len(batches) == len(train) // 32
    assert all(images.shape == (32, 64) and labels.shape == (32,) for images, labels in batches)
    seen = np.concatenate([labels for _, labels in batches])
    again = np.concatenate([labels for _, labels in train.batches(32, order_seed=(0, 1))])
    other = np.concatenate([labels for _, labels in train.batches(32, order_seed=(0, 2))])
    np.testing.assert_array_equal(seen, again)
    assert (seen != other).any()
    counts, limit = np.bincount(seen, minlength=10), np.bincount(train.labels)
    assert (counts <= limit).all() and limit.sum() - counts.sum() < 32

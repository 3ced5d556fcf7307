"""Estimates beside measurements on silicon: records of measurements, the programs they describe, how far off we are."""

from ipuxla.calibration.card import as_data, as_text
from ipuxla.calibration.predict import Row, predict
from ipuxla.calibration.records import BadRecord, InvalidRecords, Record, read_records
from ipuxla.calibration.score import Score, score

__all__ = [
    "BadRecord",
    "InvalidRecords",
    "Record",
    "Row",
    "Score",
    "as_data",
    "as_text",
    "predict",
    "read_records",
    "score",
]

"""Predictions beside measurements on silicon, family by family.

python -m benchmarks.calibration

The records (``benchmarks/data/silicon.json``) name their sources. ``ipuxla calibrate`` does the same for any file.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from absl import app

from benchmarks.timing import write_result
from ipuxla.calibration import BadRecord, as_text, predict, read_records
from ipuxla.calibration.programs import FAMILIES

RECORDS = pathlib.Path(__file__).parent / "data" / "silicon.json"

TEXT = """# Predictions beside silicon

Every record is compiled by the ordinary pipeline; above a ratio of 1 we say that it takes longer than was measured. Error
factors are geometric means of the ratio or its inverse, whichever is larger; what is not modelled counts as ten. Bounds,
simulators' figures and times to train stand apart. docs/accuracy.md says what the families rest on.

```
{card}
```
"""


def main(argv: Sequence[str]) -> None:
    """Predict, print, and write ``benchmarks/results/calibration.md``."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    records, bad = read_records(RECORDS.read_text(), frozenset(FAMILIES))
    found = [predict(record) for record in records]
    bad += [row for row in found if isinstance(row, BadRecord)]
    if bad:
        raise app.UsageError("; ".join(map(str, bad)))
    text = TEXT.format(card=as_text([row for row in found if not isinstance(row, BadRecord)]))
    print(text)
    print(f"written: {write_result('calibration', text)}")


if __name__ == "__main__":
    app.run(main)

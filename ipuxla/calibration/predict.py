"""A record's prediction: its program, built and compiled, told in the unit of the measurement."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hlo_passes.errors import HloError
from ipuxla.calibration.figures import Figure
from ipuxla.calibration.parameters import MissingParameter
from ipuxla.calibration.programs import FAMILIES, NotModelled, Work
from ipuxla.calibration.records import CYCLES as CYCLE_UNITS
from ipuxla.calibration.records import (
    FLOP_RATES,
    ITEM_RATES,
    RATES,
    SAMPLE_RATES,
    SECONDS,
    BadRecord,
    Record,
    unit_of,
)
from tiles.errors import IpuError


@dataclass(frozen=True)
class Row:
    """A record and what we predict for it.

    Args:
      record: the measurement.
      predicted: in the record's unit; None where it is not modelled.
      low: the least that the band of such figures suggests.
      high: the most.
      basis_shares: share of the predicted cycles on each basis, 0 to 1.
      built: what was compiled, or why nothing was.
    """

    record: Record
    predicted: float | None
    low: float | None
    high: float | None
    basis_shares: dict[str, float]
    built: str

    @property
    def ratio(self) -> float | None:
        """Predicted over measured *time*: above 1 we say that it takes longer, whatever the unit."""
        if self.predicted is None:
            return None
        ratio = self.predicted / self.record.value
        return 1 / ratio if is_rate(self.record.unit) else ratio

    @property
    def is_inside(self) -> bool | None:
        """Whether the measurement lies in the range."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.record.value <= self.high


def is_rate(unit: str) -> bool:
    """Return whether more of a unit is faster."""
    bare = unit_of(unit) or unit
    rates = (*RATES, *FLOP_RATES, *ITEM_RATES, *SAMPLE_RATES, "x dense")
    return bare in rates or bare.startswith("of ")


def predict(record: Record) -> Row | BadRecord:
    """Return a record's prediction, or why the record cannot be used."""
    try:
        work = FAMILIES[record.family](record)
        return _told(record, work)
    except MissingParameter as error:
        return BadRecord(record.id, str(error))
    except NotModelled as error:
        return Row(record, None, None, None, {}, f"not modelled: {error}")
    except (IpuError, HloError) as error:
        return Row(record, None, None, None, {}, f"not modelled: {str(error).splitlines()[0]}")


def _told(record: Record, work: Work) -> Row:
    """Return what was predicted in the unit of the measurement."""
    found: Figure = work.figure
    unit = unit_of(record.unit)
    assert unit is not None
    if work.is_plain:
        value, low, high = found.cycles, found.low, found.high
    else:
        told = [_in_unit(unit, cycles, work) for cycles in (found.cycles, found.low, found.high)]
        if any(v is None for v in told):
            raise NotModelled(f"its program has no figure in {record.unit}")
        value, low, high = (v for v in told if v is not None)
    low, high = sorted((low, high))
    return Row(record, value, low, high, found.basis_shares, work.built)


def _in_unit(unit: str, cycles: float, work: Work) -> float | None:
    """Return cycles of one run of a program as a figure of a unit, None if the program states nothing that fits."""
    if cycles <= 0:
        return None
    seconds = cycles / work.clock_hz
    if unit in CYCLE_UNITS:
        return cycles
    if unit in SECONDS:
        return seconds / SECONDS[unit]
    if unit in RATES:
        return None if work.size_bytes is None else work.size_bytes / seconds / RATES[unit]
    if unit in FLOP_RATES:
        return None if work.flops is None else work.flops / seconds / FLOP_RATES[unit]
    if unit in SAMPLE_RATES and work.items is not None:
        scale = SAMPLE_RATES[unit]
        return work.items / seconds / scale if scale else work.items / cycles
    if unit in ITEM_RATES:
        return None if work.items is None else work.items / seconds
    if unit.startswith("of "):
        roof = roofline(unit)
        done = work.flops if roof is not None and roof[1] == "FLOP/s" else work.size_bytes
        return None if roof is None or done is None else done / seconds / roof[0]
    return None


def roofline(unit: str) -> tuple[float, str] | None:
    """Return the rate that a fraction is of, and its unit: "of 0.17 flop/B x 7.26 TB/s" is of 1.23e12 FLOP/s."""
    found = re.fullmatch(r"of (?:([\d.]+) flop/B x )?([\d.]+) ([KMGT]?)(B/s|FLOP/s)", unit)
    if found is None:
        return None
    intensity, rate, prefix, kind = found.groups()
    value = float(rate) * {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[prefix]
    return (value, kind) if intensity is None else (value * float(intensity), "FLOP/s")

"""Engine ``hlo``: the optimised module op by op, without tiles; the witness of the engines that have them."""

from ipuxla.hlo_engine.engine import HloEngine
from ipuxla.hlo_engine.replay import DECIDING, replaying

__all__ = ["DECIDING", "HloEngine", "replaying"]

"""Passes over HLO modules and the textual pipelines that run them.

``optimize(module)`` is the usual way in; ``indexing`` and ``buffers`` answer questions about its result.
"""

from hlo_passes.passes.associative_scans import AssociativeScans
from hlo_passes.passes.base import PASSES, Pass, find_pass
from hlo_passes.passes.batch_indices import BatchIndices
from hlo_passes.passes.buffers import Buffers, LiveRange, analyze
from hlo_passes.passes.canonicalize import Canonicalize
from hlo_passes.passes.complex import LegalizeComplex, has_complex, split_positions
from hlo_passes.passes.cse import EliminateCommonSubexpressions
from hlo_passes.passes.dce import EliminateDeadCode
from hlo_passes.passes.divergence import Uneven, uneven_collective
from hlo_passes.passes.early_updates import EarlyUpdates
from hlo_passes.passes.equal_decisions import with_equal_decisions
from hlo_passes.passes.errors import (
    BrokenPass,
    InvalidPassOption,
    InvalidPipeline,
    NoFixpoint,
    NotAffine,
    UnknownPass,
    UnknownPassOption,
)
from hlo_passes.passes.expand import Expand
from hlo_passes.passes.fixed_indices import FixedIndices
from hlo_passes.passes.fold_constants import FoldConstants
from hlo_passes.passes.fourier import ExpandFft
from hlo_passes.passes.fuse import Fuse
from hlo_passes.passes.hoist import Hoist
from hlo_passes.passes.indexing import ParameterMap, Row, expression, expressions, index_maps
from hlo_passes.passes.inline import Flatten, Inline, inline_where
from hlo_passes.passes.integer_quotients import FlooredQuotients, IntegerQuotients
from hlo_passes.passes.join_collectives import JoinCollectives
from hlo_passes.passes.join_rolls import JoinRolls
from hlo_passes.passes.join_transposes import JoinTransposes
from hlo_passes.passes.long_slices import LongSlices
from hlo_passes.passes.loop_products import LoopProducts
from hlo_passes.passes.masked_diagonals import MaskedDiagonals
from hlo_passes.passes.multi_output import MultiOutputFusion
from hlo_passes.passes.narrow_products import NarrowProducts
from hlo_passes.passes.outline import Outline
from hlo_passes.passes.pipeline import (
    DEFAULT_PIPELINE,
    PassTiming,
    Pipeline,
    PipelineRun,
    default_pipeline,
    optimize,
    run_pipeline,
)
from hlo_passes.passes.powers import Powers
from hlo_passes.passes.precompute import Precompute
from hlo_passes.passes.quotients import Quotients
from hlo_passes.passes.recompute import Recompute
from hlo_passes.passes.recover import RecoverNetworks
from hlo_passes.passes.regular_gathers import RegularGathers
from hlo_passes.passes.rematerialize import Rematerialize
from hlo_passes.passes.repeats import OutlineRepeats
from hlo_passes.passes.reshaped_windows import ReshapedWindows
from hlo_passes.passes.scatter_reductions import ScatterReductions
from hlo_passes.passes.schedule import Schedule
from hlo_passes.passes.scopes import with_whole_scopes
from hlo_passes.passes.serialize import LESS_HELD, Serialize
from hlo_passes.passes.share_costly import ShareCostly
from hlo_passes.passes.short_sorts import ShortSorts
from hlo_passes.passes.sparse_sums import AddSparseSums
from hlo_passes.passes.tabulate import Tabulate
from hlo_passes.passes.take_apart import TakeApart
from hlo_passes.passes.top_groups import TopGroups
from hlo_passes.passes.top_one import TopOne
from hlo_passes.passes.trim import Trim
from hlo_passes.passes.undefined import FoldNan
from hlo_passes.passes.while_to_repeat import WhileToRepeat
from hlo_passes.passes.window_expansion import RepeatElements, Windows

__all__ = [
    "DEFAULT_PIPELINE",
    "LESS_HELD",
    "PASSES",
    "AddSparseSums",
    "AssociativeScans",
    "BatchIndices",
    "BrokenPass",
    "Buffers",
    "Canonicalize",
    "EarlyUpdates",
    "EliminateCommonSubexpressions",
    "EliminateDeadCode",
    "Expand",
    "ExpandFft",
    "FixedIndices",
    "Flatten",
    "FlooredQuotients",
    "FoldConstants",
    "FoldNan",
    "Fuse",
    "Hoist",
    "Inline",
    "IntegerQuotients",
    "InvalidPassOption",
    "InvalidPipeline",
    "JoinCollectives",
    "JoinRolls",
    "JoinTransposes",
    "LegalizeComplex",
    "LiveRange",
    "LongSlices",
    "LoopProducts",
    "MaskedDiagonals",
    "MultiOutputFusion",
    "NarrowProducts",
    "NoFixpoint",
    "NotAffine",
    "Outline",
    "OutlineRepeats",
    "ParameterMap",
    "Pass",
    "PassTiming",
    "Pipeline",
    "PipelineRun",
    "Powers",
    "Precompute",
    "Quotients",
    "Recompute",
    "RecoverNetworks",
    "RegularGathers",
    "Rematerialize",
    "RepeatElements",
    "ReshapedWindows",
    "Row",
    "ScatterReductions",
    "Schedule",
    "Serialize",
    "ShareCostly",
    "ShortSorts",
    "Tabulate",
    "TakeApart",
    "TopGroups",
    "TopOne",
    "Trim",
    "Uneven",
    "UnknownPass",
    "UnknownPassOption",
    "WhileToRepeat",
    "Windows",
    "analyze",
    "default_pipeline",
    "expression",
    "expressions",
    "find_pass",
    "has_complex",
    "index_maps",
    "inline_where",
    "optimize",
    "run_pipeline",
    "split_positions",
    "uneven_collective",
    "with_equal_decisions",
    "with_whole_scopes",
]

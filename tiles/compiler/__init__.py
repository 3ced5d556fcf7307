"""The graph compiler: from Graph and Program to an Executable with addresses, lifetimes and costs."""

from tiles.compiler.certify import Certificate, certify
from tiles.compiler.check import check, load_executable
from tiles.compiler.compile import DECIDE_ALIKE, EVEN, compile_graph
from tiles.compiler.costs import StepCost, step_costs
from tiles.compiler.executable import Buffer, Executable, Variable
from tiles.compiler.oom import (
    Shortage,
    eased,
    out_of_memory,
    parts_text,
    peak_bytes,
    shortage,
    shortage_text,
    shortages,
    tightened,
)
from tiles.compiler.plans import plans_of, print_plans, read_plans, require_pinned
from tiles.compiler.steps import (
    HOST_STEPS,
    AbortStep,
    BetweenStep,
    CopyStep,
    ErrorStep,
    ExecuteStep,
    IndexStep,
    PrintStep,
    RemoteStep,
    StreamStep,
    SyncStep,
    UndefStep,
    VariableCopy,
    VertexGroup,
)

__all__ = [
    "DECIDE_ALIKE",
    "EVEN",
    "HOST_STEPS",
    "AbortStep",
    "BetweenStep",
    "Buffer",
    "Certificate",
    "CopyStep",
    "ErrorStep",
    "Executable",
    "ExecuteStep",
    "IndexStep",
    "PrintStep",
    "RemoteStep",
    "Shortage",
    "StepCost",
    "StreamStep",
    "SyncStep",
    "UndefStep",
    "Variable",
    "VariableCopy",
    "VertexGroup",
    "certify",
    "check",
    "compile_graph",
    "eased",
    "load_executable",
    "out_of_memory",
    "parts_text",
    "peak_bytes",
    "plans_of",
    "print_plans",
    "read_plans",
    "require_pinned",
    "shortage",
    "shortage_text",
    "shortages",
    "step_costs",
    "tightened",
]

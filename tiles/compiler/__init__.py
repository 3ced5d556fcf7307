"""The graph compiler: from Graph and Program to an Executable with addresses, lifetimes and costs."""

from tiles.compiler.compile import compile_graph
from tiles.compiler.costs import StepCost, step_costs
from tiles.compiler.executable import Buffer, CopyStep, Executable, ExecuteStep, Variable, VertexGroup

__all__ = [
    "Buffer",
    "CopyStep",
    "Executable",
    "ExecuteStep",
    "StepCost",
    "Variable",
    "VertexGroup",
    "compile_graph",
    "step_costs",
]

"""The machine's side: graphs of vertices on tiles, their compiler, engines and reports. Knows nothing of HLO.

The low-level way in, as in Poplar: build a ``Graph`` with the primitives of ``tiles.poplibs``, compile it,
run it::

    graph = tiles.Graph(tiles.Target.named("gc200"))
    x, y = (graph.add_input((4096,), "float32", name) for name in "xy")
    graph.outputs.append(tiles.popops.add(graph, x, y).name)
    executable = tiles.compile_graph(graph)
    (z,), trace = tiles.make_engine(executable).run(x_values, y_values)
"""

from tiles.compiler import Executable, certify, compile_graph, load_executable
from tiles.engine import make_engine
from tiles.errors import IpuError
from tiles.graph import (
    PARALLEL,
    REDUCTION,
    WINDOW,
    AbortOnCondition,
    Affine,
    AxisSplit,
    Call,
    Cell,
    Codelet,
    ComputeSet,
    Copy,
    CopyFromStream,
    CopyToStream,
    Cycles,
    Dim,
    Execute,
    Extents,
    Graph,
    If,
    IndexMap,
    Layout,
    OpForm,
    Plan,
    Repeat,
    RepeatWhileTrue,
    Sequence,
    Stream,
    Switch,
    Tensor,
    Vertices,
    along,
    identity_map,
    register,
    whole,
)
from tiles.poplibs import forms, poplin, popops, poputil
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

__all__ = [
    "PARALLEL",
    "REDUCTION",
    "WINDOW",
    "AbortOnCondition",
    "Affine",
    "AxisSplit",
    "Basis",
    "Call",
    "Cell",
    "Codelet",
    "ComputeSet",
    "Copy",
    "CopyFromStream",
    "CopyToStream",
    "Cycles",
    "Dim",
    "Executable",
    "Execute",
    "Extents",
    "Graph",
    "If",
    "IndexMap",
    "IpuError",
    "Layout",
    "OpForm",
    "Plan",
    "Repeat",
    "RepeatWhileTrue",
    "Sequence",
    "Stream",
    "Switch",
    "Target",
    "Tensor",
    "Vertices",
    "along",
    "certify",
    "compile_graph",
    "forms",
    "identity_map",
    "load_executable",
    "make_engine",
    "place",
    "poplin",
    "popops",
    "poputil",
    "register",
    "whole",
]

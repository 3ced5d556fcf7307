"""The walk over a recorded program: every step planned in program order, control kept as it is.

A loop's body is planned before what is copied into its carried variables, so that the first operation that reads one
says where it lies; a function's parameters lie as the arguments of its first call do, if those lie anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, replace

from tiles.errors import InvalidGraph
from tiles.graph import (
    ACROSS,
    Call,
    Choice,
    Composite,
    ComputeSet,
    Copy,
    CopyBetween,
    Execute,
    If,
    Operation,
    Repeat,
    RepeatWhileFalse,
    RepeatWhileTrue,
    Reshape,
    Sequence,
    Switch,
    Tensor,
    Vertices,
    aligned_layout,
    linear_layout,
    reshape_layout,
)
from tiles.graph.program import Step
from tiles.plan.exchange import MOST_STRETCHES, stretches_between
from tiles.planning.alternatives import cheapest
from tiles.planning.emit import settle
from tiles.planning.lanes import key_of, lanes_of
from tiles.planning.loops import Loop
from tiles.planning.names import outside_names, written_in
from tiles.planning.operations import plan_operation
from tiles.planning.preferred import Preferences
from tiles.planning.state import Planning, has_elements

NAMING = ("source", "sources", "destination", "predicate", "tensor", "rows")
"""Fields by which steps name tensors."""


def plan_program(
    planning: Planning, recorded: Sequence, program: Sequence, outside: Preferences | None = None
) -> None:
    """Plan a recorded sequence's steps into a planned one, in order."""
    planning.lanes.update(lanes_of(planning.given, recorded))
    _plan_steps(planning, recorded, program, outside)


def _plan_steps(
    planning: Planning, recorded: Sequence, program: Sequence, outside: Preferences | None = None
) -> None:
    """Plan the steps of a sequence, of which it is known what may run side by side, or of a way to compute something."""
    preferences = Preferences(planning, recorded, outside)
    for step in recorded.steps:
        preferences.set_preferred_layouts(step)
        _plan_step(planning, step, program, preferences)


def _plan_step(planning: Planning, step: Step, program: Sequence, preferences: Preferences) -> None:
    match step:
        case Operation():
            plan_operation(planning, step, program, preferences.met(step))
        case Reshape():
            _reshape(planning, step, program)
        case Choice():
            _choice(planning, step, program)
        case Copy():
            _copy(planning, step, program)
        case CopyBetween():
            _copy_between(planning, step, program)
        case Execute(name):
            program.add(Execute(_compute_set(planning, name)))
        case Sequence():
            inner = Sequence()
            plan_program(planning, step, inner)
            program.add(inner)
        case Composite(body, whole):
            inner = Sequence()
            plan_program(planning, body, inner)
            program.add(Composite(inner, _renamed(planning, whole)))
        case Call(function):
            _function(planning, function, preferences)
            planning.meet_control()
            program.add(step)
        case Repeat(count, body):
            loop = _loop(planning, count, (body,), program)
            program.add(Repeat(count, _body(planning, body, loop=loop)))
        case RepeatWhileTrue(condition, predicate, body) | RepeatWhileFalse(condition, predicate, body):
            loop = _loop(planning, 1, (condition, body), program)
            steps = _body(planning, body, loop=loop)
            check = _body(planning, condition, loop=loop)
            program.add(type(step)(check, planning.tensor(predicate).name, steps))
        case Switch(index, branches):
            planned = tuple(_body(planning, branch) for branch in branches)
            program.add(Switch(planning.tensor(index).name, planned))
        case If(predicate, then, otherwise):
            planned = tuple(_body(planning, branch) for branch in (then, otherwise))
            program.add(If(planning.tensor(predicate).name, *planned))
        case _:
            program.add(_with_planned_names(planning, step))


def _choice(planning: Planning, step: Choice, program: Sequence) -> None:
    """Plan the cheapest way to compute something."""
    around = planning.lane
    planning.lane = planning.lanes.get(key_of(step), around)
    taken = cheapest(planning, step, _plan_steps)
    _plan_steps(planning, taken.body, program)
    planning.lane = around
    for result, made in zip(step.results, taken.results, strict=True):
        planning.renamed[result] = planning.tensor(made).name


def _body(
    planning: Planning,
    recorded: Sequence,
    outside: Preferences | None = None,
    loop: Loop | None = None,
    runs: int | None = None,
) -> Sequence:
    """Plan the body of a loop, a branch or a function, which runs so often: as what it is in, times trips, by default."""
    planned, before = Sequence(), planning.runs
    planning.enter(loop)
    planning.runs = before * (loop.trips if loop else 1) if runs is None else runs
    plan_program(planning, recorded, planned, outside)
    planning.runs = before
    planning.leave()
    return planned


def _loop(planning: Planning, trips: int, bodies: Iterable[Sequence], program: Sequence) -> Loop:
    """Return a loop that stands at the end of a planned program, after what is prepared for it."""
    before = Sequence()
    program.add(before)
    written = set[str]().union(*(written_in(planning.given, body) for body in bodies))
    return Loop(
        trips, before, {planning.given.storage(name) for name in written if name in planning.given.tensors}
    )


def _function(planning: Planning, name: str, outside: Preferences) -> None:
    """Plan a function where it is first called; its parameters lie as what was copied into them."""
    if name in planning.graph.functions:
        return
    body = planning.given.functions[name]
    planning.graph.functions[name] = Sequence()  # a function that calls itself is refused when it is compiled
    waiting = {planning.tensor(n).name for n in outside_names(body)} & planning.deferred_names()
    planning.settle(lambda deferred: True, waiting)
    runs = max(1, planning.runs_of[name])
    planning.graph.functions[name] = _body(planning, body, outside, runs=runs)


def _reshape(planning: Planning, step: Reshape, program: Sequence) -> None:
    """Name the same memory in the new shape where parts stay whole and nothing says otherwise, else copy."""
    result = planning.tensor(step.destination)
    source = planning.placed(step.source, result.ipu)
    _follow(planning, (source.name,), result.name)
    assert source.layout is not None
    layout = reshape_layout(source.layout, result.shape)
    is_here = source.ipu == result.ipu
    if layout is not None and is_here and result.layout in (None, layout):
        planning.view(result.name, source, layout)
        return
    if result.layout is None and layout is not None and ACROSS not in (source.ipu, result.ipu):
        planning.place(result.name, layout)
    elif is_here:
        source = _moved_first(planning, step, source, program) or source
        if source.name == result.name:
            return
    if planning.tensor(result.name).layout is None:
        _spread(planning, result)
    if has_elements(result):
        program.add(Copy(result.name, (source.name,), None, step.location))


MANY = 2**20
"""Elements from which on what is reshaped is moved near where it is first: listing every stretch of a copy takes a second."""


def _moved_first(planning: Planning, step: Reshape, source: Tensor, program: Sequence) -> Tensor | None:
    """Move what is reshaped to where its reshape has whole parts, if there is such a layout: the copy then goes axis by axis.

    It is spread evenly over the tiles, or else, of ``MANY`` elements, lies nearly as it did; so does what is to lie elsewhere, if a
    copy to there has more stretches than can be listed.

    Returns it in its new shape: the result, unless that is to lie elsewhere.
    """
    assert source.layout is not None
    result, num_tiles = planning.tensor(step.destination), planning.graph.target.num_tiles
    if result.layout is None:
        is_large = math.prod(result.shape) >= MANY
    else:
        is_large = stretches_between(source.layout, result.layout) > MOST_STRETCHES
    with planning.graph.at(planning.graph.ipu if source.ipu is None else source.ipu):
        near = linear_layout(source.shape, source.dtype, num_tiles)
        layout = reshape_layout(near, result.shape) if result.layout is None else None
        if layout is None and is_large:
            near = aligned_layout(source.layout, result.shape, num_tiles)
            layout = None if near is None else reshape_layout(near, result.shape)
        if layout is None or not has_elements(source):
            return None
        label = f"{step.destination}.spread"
        moved = planning.graph.add_tensor(source.shape, source.dtype, label, near, location=step.location)
        program.add(Copy(moved.name, (source.name,), None, step.location))
        if result.layout is None:
            return planning.view(result.name, moved, layout)
        label = f"{step.destination}.reshaped"
        made = planning.graph.add_tensor(result.shape, result.dtype, label, layout, location=step.location)
        made = replace(made, view_of=moved.name, ipu=moved.ipu)
        planning.graph.tensors[made.name] = made
        return made


def _copy(planning: Planning, step: Copy, program: Sequence) -> None:
    """Copy into a tensor that lies somewhere, or wait until it does if its first reader shall say where.

    Other results lie as what they are a copy of, or, joined of several or in another shape, evenly over the tiles.
    """
    result = planning.tensor(step.destination)
    sources = [planning.tensor(name) for name in step.sources]
    alike = step.axis is None and len(sources) == 1 and sources[0].shape == result.shape
    _follow(planning, (t.name for t in sources), result.name)

    def write(slot: Sequence) -> None:
        names = tuple(planning.tensor(name).name for name in step.sources)
        slot.add(replace(step, destination=result.name, sources=names))

    if result.layout is None and planning.is_variable(step.destination):
        planning.defer(result.name, write, program, sources[0].name if alike else "")
        return
    if result.layout is None and alike:
        planning.follow(result.name, planning.placed(sources[0].name, result.ipu))
    elif alike:
        planning.follow(sources[0].name, result)
    if planning.tensor(result.name).layout is None:
        _spread(planning, result)
    write(program)


def _follow(planning: Planning, sources: Iterable[str], result: str) -> None:
    """Note that a copy can be read when what it is a copy of can."""
    if planning.loads is not None:
        planning.loads.set_level((result,), planning.loads.level(sources))


def _spread(planning: Planning, tensor: Tensor) -> None:
    """Place a tensor evenly over the tiles from the first one on."""
    with planning.graph.at(planning.graph.ipu if tensor.ipu is None else tensor.ipu):
        num_tiles = planning.graph.target.num_tiles
        planning.place(tensor.name, linear_layout(tensor.shape, tensor.dtype, num_tiles))


def _copy_between(planning: Planning, step: CopyBetween, program: Sequence) -> None:
    """Send what lies as it arrives: what nothing has placed yet lies as its source, else the source is copied first."""
    result = planning.tensor(step.destination)
    source = planning.placed(step.source, result.ipu)
    if not has_elements(source):
        return
    if step.stage:
        planning.placed(step.stage, source.ipu)
    assert source.layout is not None
    if result.layout is None:
        planning.follow(result.name, source)
        result = planning.placed(result.name)
    if (result.layout, result.ipu) != (source.layout, source.ipu):
        with planning.graph.at(result.ipu):
            moved = planning.graph.add_tensor(
                source.shape, source.dtype, f"{result.name}.sent", result.layout, location=step.location
            )
        program.add(Copy(moved.name, (source.name,), None, step.location))
        source = moved
    program.add(replace(step, source=source.name, destination=result.name))


def _compute_set(planning: Planning, name: str) -> str:
    """Keep a compute set that a builder planned itself."""
    groups = tuple(_renamed(planning, group) for group in planning.given.compute_sets[name].vertices)
    for group in groups:
        written = [planning.tensor(n) for n in group.results]
        with planning.graph.at(written[0].ipu):
            settle(planning, group.form, group.plan, [planning.tensor(n) for n in group.operands])
    planning.graph.compute_sets[name] = ComputeSet(name, groups)
    return name


def _renamed(planning: Planning, group: Vertices) -> Vertices:
    operands, results = (
        tuple(planning.tensor(name).name for name in names) for names in (group.operands, group.results)
    )
    return replace(group, operands=operands, results=results)


def _with_planned_names(planning: Planning, step: Step) -> Step:
    """Return a step that only names tensors, by their names in the planned graph."""
    changed: dict[str, object] = {}
    for each in fields(step):
        value = getattr(step, each.name)
        if each.name in NAMING and isinstance(value, str) and value:
            try:
                changed[each.name] = planning.tensor(value).name
            except InvalidGraph as error:
                raise error.at(getattr(step, "location", "") or None) from None
    return replace(step, **changed) if changed else step


def spliced(sequence: Sequence) -> Sequence:
    """Return a sequence whose nested sequences' steps stand in it."""
    steps: list[Step] = []
    for step in sequence.steps:
        match step:
            case Sequence():
                steps += spliced(step).steps
            case Composite(body, whole):
                steps.append(Composite(spliced(body), whole))
            case Repeat(count, body):
                steps.append(Repeat(count, spliced(body)))
            case RepeatWhileTrue(condition, predicate, body) | RepeatWhileFalse(condition, predicate, body):
                steps.append(type(step)(spliced(condition), predicate, spliced(body)))
            case Switch(index, branches):
                steps.append(Switch(index, tuple(map(spliced, branches))))
            case If(predicate, then, otherwise):
                steps.append(If(predicate, spliced(then), spliced(otherwise)))
            case _:
                steps.append(step)
    return Sequence(steps)

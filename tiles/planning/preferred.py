"""Where tensors would rather lie: parameters as contractions want them, results beside what they meet later.

An operand's first reader says where it lies. For a table that is looked up before it is multiplied with, or a weight
that is reshaped first, that would be the wrong one: what reads it next would exchange all of it. So a parameter waits as
a contraction that reads it wants it: of the ways in which those that read it would have it wait, that which costs all
of its readers together least. A gradient is best left where its parameter waits: everything between the
two, moments and clipping, then lies there too. What is sliced first, a row of its for instance, lies as the first operation
that reads most of it wants it. A variable that is updated, or read, at a few places and then read as a
whole, element by element, as a batched loop on a predicate or the columns of a factorization have it, waits as these two
together have it: the few places alone would do with few tiles.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from tiles.cached import cached_property
from tiles.graph import (
    INPUT,
    VARIABLE,
    Alternative,
    Choice,
    Copy,
    CopyFromStream,
    Layout,
    Operation,
    Plan,
    Reshape,
    Sequence,
    linear_layout,
    reshape_layout,
)
from tiles.graph.program import Step
from tiles.numerics.dtypes import itemsize
from tiles.plan import Operand, Priced, Question, draft, leaving, preferred_layout, search
from tiles.planning.choose import STAYS_FROM, best, copy_cost
from tiles.planning.met import Met
from tiles.planning.state import Planning
from tiles.poplibs.popnn import RowFunction

Reader = tuple[Operation, int]
"""An operation and the number of one of its operands."""

MOST_READERS = 8
"""Operations whose cost a parameter's layout is chosen by, those that read it first."""

SURELY_LESS = 0.95
"""To what share of the cost a variable that is first looked up comes down where the lookup does not say how it lies."""

LITTLE, MOST = 1 / 4, 1 / 2
"""Shares of a tensor: an operation that reads no more than the one does not say how all of it lies if one reads the other."""

FEW = 64
"""Elements that are exchanged, whatever for, in about as many cycles as one is."""

MOST_PASSES = 16
"""Operations that are counted on what is made of a result element by element."""


@dataclass(frozen=True)
class Preferences:
    """What the operations of one sequence say about where tensors had better lie.

    Args:
      planning: the graph being planned.
      sequence: recorded steps.
      outside: the same of the sequence that calls this one, if it is a function's.
    """

    planning: Planning
    sequence: Sequence
    outside: Preferences | None = None

    @cached_property
    def parameters(self) -> set[str]:
        """The inputs and variables that the sequence reads and does not write."""
        steps = self.sequence.steps
        written = {name for step in steps for name in written_by(step)}
        read = {name for step in steps for name in read_by(step)}
        tensors = self.planning.given.tensors
        return {
            name for name in read - written if name in tensors and tensors[name].kind in (INPUT, VARIABLE)
        }

    @cached_property
    def readers(self) -> dict[str, list[Reader]]:
        """Of each parameter that a contraction reads, but not first, the operations that read it, in program order.

        What reads a reshape of a parameter reads the parameter. So does what reads it with some elements updated in place: a cache
        of keys, of which a step of decoding writes one.
        """
        origin = {name: name for name in self.parameters | self._updated_in_choices}
        found: dict[str, list[Reader]] = {}
        early: set[str] = set()
        multiplied: set[str] = set()
        for step in self._followed(_updated_by):
            if isinstance(step, Reshape) and step.source in origin:
                origin[step.destination] = origin[step.source]
                early.add(origin[step.source])
                continue
            is_contraction = isinstance(step, Operation) and step.codelet.is_contraction
            for k, name in enumerate(read_by(step)):
                if name not in origin:
                    continue
                parameter = origin[name]
                if is_contraction:
                    multiplied.add(parameter)
                elif parameter not in multiplied:
                    early.add(parameter)
                if isinstance(step, Operation) and not _is_row_function(step):
                    found.setdefault(parameter, []).append((step, k))
                    if _is_update((step, k)):
                        origin[step.results[0]] = parameter
        return {name: readers for name, readers in found.items() if name in early & multiplied}

    @cached_property
    def _updated_in_choices(self) -> set[str]:
        """The inputs and variables, not written by another step, that are updated in one of several ways."""
        tensors = self.planning.given.tensors
        written = {name for step in self.sequence.steps for name in written_by(step)}
        found = {
            each.operands[k]
            for step in self.sequence.steps
            if isinstance(step, Choice)
            for each, k in _updated_by(step.alternatives[0])
        }
        return {n for n in found - written if n in tensors and tensors[n].kind in (INPUT, VARIABLE)}

    @cached_property
    def updated(self) -> dict[str, list[Reader]]:
        """The operations that read a variable, or an input, which is first updated, or read at a few places, then as a whole.

        They are in program order. Of what can be computed in several ways the first counts.
        """
        tensors = self.planning.given.tensors
        found: dict[str, list[Reader]] = {}
        made: dict[str, str] = {}  # what is left of an update, by the name of what was updated
        for step in self._followed():
            if isinstance(step, Reshape):
                if step.source in made and tensors[step.destination].shape == tensors[step.source].shape:
                    made[step.destination] = made[step.source]
            if not isinstance(step, Operation):
                continue
            for k, name in enumerate(step.operands):
                origin = made.get(name, name)
                if origin in tensors and tensors[origin].kind in (INPUT, VARIABLE):
                    found.setdefault(origin, []).append((step, k))
                    if _is_update((step, k)) and not _is_row_function(step):
                        made[step.results[0]] = origin
        return {
            name: readers
            for name, readers in found.items()
            if len(readers) > 1
            and (_is_update(readers[0]) or _is_lookup(readers[0]))
            # an input's layout does not say which way rows are computed, whole or in parts; a loop's variable is kept as it is
            and not (_is_row_function(readers[0][0]) and tensors[name].kind == INPUT)
            and math.prod(tensors[name].shape) > FEW
            and any(_is_whole(reader, tensors[name].shape) for reader in readers[1:])
        }

    @cached_property
    def sliced(self) -> dict[str, Reader | None]:
        """The first operation that reads most of an input or variable of which the first one reads little.

        None where several read a little each, or another shape of it is read, or whole rows, and none reads most.
        """
        tensors = self.planning.given.tensors
        first: dict[str, Reader | None] = {}
        little: Counter[str] = Counter()
        otherwise: set[str] = set()  # read in another shape, in one of several ways, or after it is updated
        made: dict[str, str] = {}  # what is left of an update, by the name of what was updated
        found: dict[str, Reader | None] = {}
        for step in self._followed():
            if not isinstance(step, Operation | Reshape):
                continue
            for k, name in enumerate(read_by(step)):
                if name in made and isinstance(step, Reshape):
                    made[step.destination] = made[name]
                elif name in made:
                    otherwise.add(made[name])
                tensor = tensors.get(name)
                if tensor is None or tensor.kind not in (INPUT, VARIABLE):
                    continue
                if isinstance(step, Reshape) or _is_row_function(step):
                    otherwise.add(name)
                    first.setdefault(name, None)
                    continue
                reader = step, k
                if _is_update(reader):
                    made[step.results[0]] = name
                share, is_first = _share_read(reader, tensor.shape), name not in first
                # how a table lies that is looked up in first, its plan says, which spreads it
                is_little = share <= LITTLE and math.prod(tensor.shape) > FEW
                if is_little and (name in little or (is_first and not _is_lookup(reader))):
                    little[name] += 1
                elif name in little and share >= MOST:
                    found.setdefault(name, reader)
                first.setdefault(name, reader)
        several = [name for name, count in little.items() if count > 1 or name in otherwise]
        several += [n for n in otherwise if (one := first.get(n)) is not None and self._is_spread(n, one)]
        return dict.fromkeys(sorted(several)) | found

    def _is_spread(self, name: str, reader: Reader) -> bool:
        """Whether what is updated, or looked up in, first had better be spread evenly where the rest reads it otherwise."""
        tensor, target = self.planning.given.tensors[name], self.planning.graph.target
        is_small = math.prod(tensor.shape) * itemsize(tensor.dtype) <= STAYS_FROM * target.bytes_per_tile
        return _is_update(reader) or (_is_lookup(reader) and is_small)

    def set_preferred_layouts(self, step: Step) -> None:
        """Give what a step is the first to read a layout that those which read it later want, too."""
        steps = step.alternatives[0].body.steps if isinstance(step, Choice) else (step,)
        for name in dict.fromkeys(name for each in steps for name in read_by(each)):
            reader = self.sliced.get(name)
            if name in self.sliced and reader is None and name not in {*self.readers, *self.updated}:
                if isinstance(step, Operation | Choice) and self.planning.tensor(name).kind == INPUT:
                    self.planning.placed(name, step.ipu if isinstance(step, Operation) else None)
                continue
            wanted = (
                _contractions(self.readers[name])
                if name in self.readers
                else self.updated[name][:MOST_READERS]
                if name in self.updated
                else [reader]
                if reader is not None
                else []
            )
            tensor = self.planning.tensor(name)
            if not wanted or tensor.layout is not None or tensor.ipu not in (None, wanted[0][0].ipu):
                continue
            readers = self.readers.get(name, wanted)
            surely = SURELY_LESS if name not in self.readers and _is_lookup(readers[0]) else 1.0
            with self.planning.graph.at(wanted[0][0].ipu):
                layout = self._preferred(tensor.shape, readers, wanted, surely)
                if layout is not None:
                    self.planning.place(name, layout)

    def _preferred(
        self, shape: tuple[int, ...], readers: Seq[Reader], wanted: Seq[Reader], surely: float
    ) -> Layout | None:
        """Return the layout of a tensor that costs its readers least, of those in which some of them would have it wait.

        Where one contraction has it is not where another does: the partials of one are summed over what the other keeps.

        Args:
          shape: of the tensor.
          readers: what reads it, in program order.
          wanted: those that say how it may wait.
          surely: to what share of what the first way of the first of them costs another one has to come down; None if none
            does.
        """
        planning = self.planning
        ways = [(found.plan, reader) for reader in wanted for found in self._ranked(reader)]
        layouts: dict[Layout, tuple[Plan, Reader]] = {}
        is_cut_across = is_too_much = False
        for plan, reader in ways if len(readers) > 1 else ways[:1]:
            layout = reshape_layout(self._waiting(reader, plan), shape)
            if layout is None:
                is_cut_across = True
            elif self._may_hold(layout, shape, reader):
                layouts.setdefault(layout, (plan, reader))
            else:
                is_too_much = True
        if not layouts:
            return None
        cheapest = next(iter(layouts))
        if len(layouts) > 1 or is_cut_across or is_too_much:
            costs = {layout: self._cost_of_all(readers, layout) for layout in layouts}
            if not is_too_much and min(costs.values()) > surely * costs[cheapest]:
                return None
            cheapest = min(costs, key=costs.__getitem__)
            if is_too_much or is_cut_across:
                # where a reshape leaves few ways, all of a tensor on one tile for instance, none may be better
                evenly = self._spread(shape, readers[0])
                if self._cost_of_all(readers, evenly) < costs[cheapest]:
                    return evenly if is_too_much else None
        plan, reader = layouts[cheapest]
        plan = replace(plan, base=planning.rotated_base(int(plan.tiles.max()) + 1, math.prod(shape)))
        return reshape_layout(self._waiting(reader, plan), shape)

    def _may_hold(self, layout: Layout, shape: tuple[int, ...], reader: Reader) -> bool:
        """Whether tiles may hold their parts of a tensor: as much of their memory as operands may take, or twice an even share."""
        operation, k = reader
        target = self.planning.graph.target
        each = itemsize(self.planning.given.tensors[operation.operands[k]].dtype)
        most = self.planning.policy.held_share * target.bytes_per_tile
        return math.prod(layout.part_shape) * each <= max(
            most, 2 * math.prod(shape) * each / target.num_tiles
        )

    def _cost_of_all(self, readers: Seq[Reader], layout: Layout) -> float:
        return sum(self._cost(reader, layout) for reader in readers[:MOST_READERS])

    def _spread(self, shape: tuple[int, ...], reader: Reader) -> Layout:
        """Return the layout of a tensor that nothing has placed; see ``Planning.placed``."""
        operation, k = reader
        dtype = self.planning.given.tensors[operation.operands[k]].dtype
        return linear_layout(shape, dtype, self.planning.graph.target.num_tiles)

    def _ranked(self, reader: Reader) -> Seq[Priced]:
        """Return the plans of a contraction of which nothing lies anywhere yet."""
        question = self._question(reader, None)
        return search(
            question.form, question.codelet, question.operands, question.result_dtypes, question.target
        )

    def _waiting(self, reader: Reader, plan: Plan) -> Layout:
        """Return the layout in which what a contraction reads waits best for a plan."""
        operation, k = reader
        tensor = self.planning.given.tensors[operation.operands[k]]
        return preferred_layout(
            operation.form, plan, k, tensor.shape, tensor.dtype, self.planning.graph.target
        )

    def _cost(self, reader: Reader, layout: Layout) -> float:
        """Return what an operation costs if what it reads lies so, in the shape that it reads, and nothing else anywhere.

        Where its result is what the next trip of a loop reads there, it costs to bring it back.
        """
        operation, k = reader
        name = operation.operands[k]
        tensor = self.planning.given.tensors[name]
        proportion = self.planning.policy.memory_proportion(operation.name)
        lies = reshape_layout(layout, tensor.shape)
        question = self._question(reader, lies)
        found = best(question, proportion, self.planning.policy.held_share)
        if lies is None or operation.name not in self._next_of.get(name, ()):
            return found.cost
        back = copy_cost(question, tensor.shape, tensor.dtype, found.plan.result_layout(operation.form), lies)
        there = leaving(operation.form, operation.codelet, lies, question.target)
        stays = math.inf if there is None else draft(question, there).priced.cost
        return min(found.cost + back, stays)

    @cached_property
    def _next_of(self) -> dict[str, set[str]]:
        """By variable the names of the operations of which a result is copied into it: what a loop's next trip reads."""
        operations = (step for step in self._followed() if isinstance(step, Operation))
        made = {result: step.name for step in operations for result in step.results}
        found: dict[str, set[str]] = {}
        for step in self.sequence.steps:
            if isinstance(step, Copy) and step.axis is None and len(step.sources) == 1:
                found.setdefault(step.destination, set()).update(
                    made[source] for source in step.sources if source in made
                )
        return found

    def _followed(self, is_followed: Callable[[Alternative], object] | None = None) -> Iterator[Step]:
        """Yield the steps; of what can be computed in several ways those of the first, then what its results are called later.

        Where ``is_followed`` says no of that way it is one step.
        """
        for step in self.sequence.steps:
            if isinstance(step, Choice):
                first = step.alternatives[0]
                if is_followed is None or is_followed(first):
                    yield from first.body.steps
                    for inside, outside in zip(first.results, step.results, strict=True):
                        yield Reshape(outside, inside)
                    continue
            yield step

    def _question(self, reader: Reader, layout: Layout | None) -> Question:
        operation, k = reader
        planning = self.planning
        tensors = [planning.given.tensors[name] for name in operation.operands]
        known = tuple(Operand(t.shape, t.dtype, layout if j == k else None) for j, t in enumerate(tensors))
        dtypes = tuple(planning.given.tensors[name].dtype for name in operation.results)
        target, code_price = planning.graph.target, planning.code_price
        return Question(operation.form, operation.codelet, known, dtypes, target, code_price)

    @cached_property
    def _consumers(self) -> dict[str, list[Step]]:
        found: dict[str, list[Step]] = {}
        for step in self.sequence.steps:
            for name in dict.fromkeys(read_by(step)):
                found.setdefault(name, []).append(step)
        return found

    @cached_property
    def _met(self) -> dict[str, dict[str, None]]:
        """For each result, the parameters of its shape that it meets further on, in program order.

        It meets what an operation reads beside it element by element, or beside what such operations made of it. A
        function's result meets what its copy after the first call does.
        """
        tensors = self.planning.given.tensors
        met: dict[str, dict[str, None]] = dict(self.outside._met) if self.outside else {}
        for step in reversed(self.sequence.steps):
            for name in written_by(step):
                found = met[name] = dict(met.get(name, {}))
                for reader in self._consumers.get(name, ()):
                    together = elementwise_operands(reader)
                    if name not in together or not isinstance(reader, Operation):
                        continue
                    shape = tensors[name].shape
                    found |= {
                        o: None for o in reader.operands if o in self.parameters and tensors[o].shape == shape
                    }
                    for result in reader.results:
                        found |= met.get(result, {})
            if isinstance(step, Copy) and step.axis is None:
                met[step.sources[0]] = met[step.destination]
        return met

    def met(self, operation: Operation) -> Met | None:
        """Return what an operation's result is read together with later, if that lies somewhere already.

        That is what its only reader reads beside it, else, for a contraction, the first of the parameters it meets.
        """
        if not _has_one_place(operation):
            return None
        return next(filter(None, (self._met_by(operation, result) for result in operation.results)), None)

    def _met_by(self, operation: Operation, result: str) -> Met | None:
        """Return what one of an operation's results is read together with later."""
        readers = self._consumers.get(result, ())
        if len(readers) == 1 and result in (together := elementwise_operands(readers[0])):
            shape = self.planning.given.tensors[result].shape
            others = [self.planning.tensor(name) for name in together if name != result]
            placed = next((t for t in others if t.layout is not None and t.shape == shape), None)
            if placed is not None and placed.layout is not None and placed.ipu == operation.ipu:
                return Met(placed.dtype, placed.layout)
        kept = self._kept_in(operation, result, readers)
        if kept is not None:
            return kept
        if not operation.codelet.is_contraction:
            return None
        for tensor in (self.planning.tensor(name) for name in self._met.get(result, ())):
            if tensor.layout is not None and tensor.ipu == operation.ipu:
                return Met(tensor.dtype, tensor.layout, len(self._passes(result)))
        return None

    def _kept_in(self, operation: Operation, result: str, readers: Seq[Step]) -> Met | None:
        """Return the variable that a few elements are copied into, at the end of a loop's body for instance, if it lies somewhere.

        Where they are computed there, the copy moves nothing between tiles, or is none.
        """
        shape = self.planning.given.tensors[result].shape
        if math.prod(shape) > FEW:
            return None
        copies = (r for r in readers if isinstance(r, Copy) and r.axis is None and len(r.sources) == 1)
        for copy in copies:
            kept = self.planning.tensor(copy.destination)
            if kept.layout is not None and kept.shape == shape and kept.ipu == operation.ipu:
                return Met(kept.dtype, kept.layout)
        return None

    def _passes(self, name: str) -> set[str]:
        """Return names of operations, at most so many, on a tensor and what they make of it, element by element."""
        found: set[str] = set()
        waiting: list[tuple[Preferences, str]] = [(self, name)]
        while waiting and len(found) < MOST_PASSES:
            where, made = waiting.pop()
            for reader in where._consumers.get(made, ()):
                if isinstance(reader, Operation) and made in elementwise_operands(reader):
                    if reader.name not in found:
                        found.add(reader.name)
                        waiting += [(where, result) for result in reader.results]
            if where.outside is not None:
                copied = where.outside._consumers.get(made, ())
                copy = next((c for c in copied if isinstance(c, Copy) and c.axis is None), None)
                waiting += [(where.outside, copy.destination)] if copy else []
        return found


def _contractions(readers: Seq[Reader]) -> list[Reader]:
    """Return the first of those that are contractions."""
    return [each for each in readers if each[0].codelet.is_contraction][:MOST_READERS]


def _is_update(reader: Reader) -> bool:
    """Whether an operation changes some elements of an operand in place, wherever they lie."""
    operation, k = reader
    is_update = not operation.codelet.is_pointwise and not operation.codelet.is_contraction
    return is_update and _reads_in_place(reader) and operation.form.results == (operation.form.operands[k],)


def _updated_by(way: Alternative) -> list[Reader]:
    """Return the operations of one of several ways that change some elements of an operand in place."""
    operations = [each for each in way.body.steps if isinstance(each, Operation)]
    readers = [(each, k) for each in operations for k in range(len(each.operands))]
    return [reader for reader in readers if _is_update(reader)]


def _is_row_function(operation: Operation) -> bool:
    """Whether an operation computes whole rows, as softmax does: there is another way, in parts, where these are long."""
    return isinstance(operation.codelet, RowFunction)


def _is_lookup(reader: Reader) -> bool:
    """Whether an operation reads some elements of an operand, wherever they lie."""
    operation, k = reader
    return operation.codelet.looked_up == k


def _share_read(reader: Reader, shape: tuple[int, ...]) -> float:
    """Return about which share of an operand an operation reads; what it looks up may be anywhere."""
    operation, k = reader
    if 0 in shape:
        return 1.0
    if _is_lookup(reader):
        return min(1.0, math.prod(operation.form.result_shape()) / math.prod(shape))
    sizes = [dim.size for dim in operation.form.dims]
    reach = (
        1 + sum(abs(c) * (sizes[d] - 1) for d, c in axis.terms) for axis in operation.form.operands[k].axes
    )
    return math.prod(min(n, size) / size for n, size in zip(reach, shape, strict=True))


def _is_whole(reader: Reader, shape: tuple[int, ...]) -> bool:
    """Whether an operation reads most of an operand, element by element or to sum it up, not where something says."""
    if reader[0].codelet.is_pointwise and _reads_in_place(reader):
        return True
    is_at_places = _is_lookup(reader) or _is_update(reader)
    return not is_at_places and not reader[0].codelet.is_contraction and _share_read(reader, shape) >= MOST


def _reads_in_place(reader: Reader) -> bool:
    operation, k = reader
    return operation.form.operands[k] == operation.form.results[0] and operation.codelet.may_overwrite(k)


def elementwise_operands(step: Step) -> tuple[str, ...]:
    """Return the operands of which an operation's results are made element by element, in place."""
    if not isinstance(step, Operation) or not _has_one_place(step) or step.codelet.is_contraction:
        return ()
    result = step.form.results[0]
    maps = zip(step.operands, step.form.operands, strict=True)
    return tuple(
        name for k, (name, read) in enumerate(maps) if read == result and step.codelet.may_overwrite(k)
    )


def _has_one_place(operation: Operation) -> bool:
    """Whether an operation has one result, or several that are made of the same elements at each point."""
    form = operation.form
    return len(form.results) == 1 or (operation.codelet.is_pointwise and len(set(form.results)) == 1)


def read_by(step: Step) -> tuple[str, ...]:
    """Return the tensors that a step itself reads."""
    match step:
        case Operation():
            return step.operands
        case Copy():
            return step.sources
        case Reshape():
            return (step.source,)
        case _:
            return ()


def written_by(step: Step) -> Iterator[str]:
    """Return the tensors that a step itself writes."""
    match step:
        case Operation():
            yield from step.results
        case Copy() | Reshape() | CopyFromStream():
            yield step.destination
        case _:
            pass

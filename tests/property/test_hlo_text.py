"""Generated modules: print, parse, print is stable, and what is parsed evaluates to the same bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo_passes import ops
from hlo_passes.errors import ConstraintViolation, ParseError
from hlo_passes.ir import (
    DTYPES,
    Builder,
    Location,
    Module,
    TensorType,
    canonical_names,
    evaluate_module,
    map_computations,
    parse_module,
    print_module,
    rebuild,
    verify,
)

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
DTYPE_NAMES = st.sampled_from(list(DTYPES))
TYPES = st.builds(TensorType, SHAPES, DTYPE_NAMES)
WORDS = st.sampled_from(
    ["model.py", "a b.py", "", 'quo"te', "back\\slash", "new\nline", "<lambda>", "日本語\x7f"]
)
TRANSFORMS = st.lists(st.sampled_from(["jvp", "transpose", "vmap", "rematted"]), max_size=3).map(tuple)
LOCATIONS = st.builds(Location, WORDS, st.integers(1, 10**6), st.integers(0, 200), WORDS, WORDS, TRANSFORMS)
UNARY = [ops.Abs, ops.Negate, ops.Not, ops.Sign, ops.Popcnt, ops.Floor, ops.IsFinite, ops.Sqrt]
BINARY = [ops.Add, ops.Multiply, ops.Maximum, ops.And, ops.Xor, ops.Subtract]


@st.composite
def constants(draw, type_=None):
    """Return a constant of any bits: NaNs with payloads, signed zeros, subnormals."""
    type_ = type_ or draw(TYPES)
    shape = draw(st.sampled_from([(), type_.shape]))
    size = int(np.prod(shape, dtype=int)) * type_.np_dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if type_.is_bool:
        data = bytes(byte & 1 for byte in data)
    return ops.Constant(np.frombuffer(data, type_.np_dtype).reshape(shape), type_)


@st.composite
def data_movements(draw, operand):
    """Return an operation that moves a value of that type somewhere."""
    rank = operand.rank
    kinds = ("transpose", "reverse", "slice", "reshape", "broadcast", "convert", "reduce_precision")
    kind = draw(st.sampled_from(kinds))
    if kind == "transpose":
        return ops.Transpose(tuple(draw(st.permutations(range(rank)))))
    if kind == "reverse":
        return ops.Reverse(tuple(sorted(draw(st.sets(st.integers(0, rank - 1)))) if rank else ()))
    if kind == "slice":
        bounds = [sorted(draw(st.tuples(*[st.integers(0, size)] * 2))) for size in operand.shape]
        strides = tuple(draw(st.integers(1, 3)) for _ in operand.shape)
        return ops.Slice(tuple(b[0] for b in bounds), tuple(b[1] for b in bounds), strides)
    if kind == "reshape":
        return ops.Reshape(draw(st.sampled_from([(operand.size,), (1, *operand.shape), (operand.size, 1)])))
    if kind == "broadcast":
        return ops.BroadcastInDim((draw(st.integers(0, 3)), *operand.shape), tuple(range(1, rank + 1)))
    if kind == "convert":
        return ops.Convert(draw(DTYPE_NAMES))
    return ops.ReducePrecision(draw(st.integers(1, 8)), draw(st.integers(0, 10)))


@st.composite
def combiners(draw, dtype):
    """Return a region that combines two scalars."""
    scalar = TensorType((), dtype)
    builder = Builder(draw(st.sampled_from(["region0", "odd name", "add.1"])))
    x, y = builder.parameter(scalar), builder.parameter(scalar, draw(st.sampled_from(["%arg1", "%y"])))
    fitting = [op for op in (ops.Add, ops.Maximum, ops.Multiply) if dtype in op.accepts]  # pyright: ignore
    return builder.build(builder.add(draw(st.sampled_from(fitting))(), x, y))


@st.composite
def modules(draw):
    """Return a module of up to a dozen operations; what does not type is left out."""
    builder = Builder("main")
    values = [builder.parameter(draw(TYPES)) for _ in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(0, 12))):
        value = draw(st.sampled_from(values))
        location = draw(LOCATIONS)
        match draw(st.integers(0, 4)):
            case 0:
                made = (draw(constants(value.type)), [], [])
            case 1:
                made = (draw(data_movements(value.type)), [value], [])
            case 2:
                made = (draw(st.sampled_from(UNARY))(), [value], [])
            case 3:
                made = (draw(st.sampled_from(BINARY))(), [value, draw(st.sampled_from(values))], [])
            case _:
                initial = builder.add(draw(constants(TensorType((), value.type.dtype))))
                axes = (
                    tuple(draw(st.sets(st.sampled_from(range(value.type.rank))))) if value.type.rank else ()
                )
                made = (ops.Reduce(axes), [value, initial], [draw(combiners(value.type.dtype))])
        op, operands, regions = made
        try:
            values += builder.emit(op, *operands, regions=regions, location=location)
        except ConstraintViolation:
            continue
    results = draw(st.lists(st.sampled_from(values), max_size=3))
    name = draw(WORDS)
    donated = draw(st.sets(st.sampled_from(range(len(builder.parameters)))))
    return Module(name, (builder.build(*results),), "main", tuple(sorted(donated)))


@given(modules())
def test_print_parse_print_is_stable(module):
    verify(module)
    text = print_module(module)
    again = parse_module(text)
    assert print_module(again) == text
    verify(again)
    mine, theirs = module.entry_computation, again.entry_computation
    assert [i.op for i in mine.instructions] == [i.op for i in theirs.instructions]
    assert [i.location for i in mine.instructions if i.location.is_known] == [
        i.location for i in theirs.instructions if i.location.is_known
    ]


@given(modules())
def test_renaming_and_rebuilding_keep_validity(module):
    canonical = canonical_names(module)
    verify(canonical)
    assert print_module(canonical_names(canonical)) == print_module(canonical)
    rebuilt = map_computations(module, lambda computation: rebuild(computation, lambda *_: None))
    assert print_module(rebuilt) == print_module(module)


@given(modules(), st.randoms(use_true_random=False))
def test_parsed_and_renamed_modules_evaluate_to_the_same_bits(module, random):
    arrays = []
    for parameter in module.entry_computation.parameters:
        type_ = parameter.type
        values = [
            random.randint(0, 1) if type_.is_bool else random.randint(0, 100) for _ in range(type_.size)
        ]
        arrays.append(np.array(values).astype(type_.np_dtype).reshape(type_.shape))
    expected = [np.asarray(result).tobytes() for result in evaluate_module(module, *arrays)]
    for other in (parse_module(print_module(module)), canonical_names(module)):
        assert [np.asarray(result).tobytes() for result in evaluate_module(other, *arrays)] == expected
    types = module.entry_computation.result_types
    assert [TensorType.of(result) for result in evaluate_module(module, *arrays)] == list(types)


@given(modules(), st.integers(0, 10**6), st.text(max_size=3))
def test_damaged_text_is_a_parse_error_or_another_module(module, position, inserted):
    text = print_module(module)
    at = position % (len(text) + 1)
    damaged = text[:at] + inserted + text[at + position % 5 :]
    try:
        parse_module(damaged)
    except ParseError as error:
        lines = damaged.split("\n")
        assert 1 <= error.line <= len(lines)
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_half_precision_value_prints_exactly(dtype):
    values = np.arange(2**16, dtype=np.uint16).view(DTYPES[dtype].np_dtype)
    for start in range(0, 2**16, 2**12):
        for value in values[start : start + 2**12 : 7]:
            constant = ops.Constant(value, TensorType((), dtype))
            builder = Builder("main")
            text = print_module(Module("m", (builder.build(builder.add(constant)),), "main"))
            assert parse_module(text).entry_computation.instructions[0].op == constant

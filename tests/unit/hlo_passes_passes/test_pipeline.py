"""Pipeline texts, the runner's checks, dumps and timings."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest

from hlo_passes.errors import VerificationError
from hlo_passes.ir import Module, parse_module, print_module, replace_values
from hlo_passes.passes import (
    DEFAULT_PIPELINE,
    PASSES,
    BrokenPass,
    InvalidPassOption,
    InvalidPipeline,
    NoFixpoint,
    Pass,
    Pipeline,
    UnknownPass,
    UnknownPassOption,
    optimize,
    run_pipeline,
)
from hlo_passes.passes.fold_constants import FoldConstants

TEXT = """module @m entry @main {
  @main(%x: tensor<4xf32>) {
    %a = stablehlo.negate(%x) : tensor<4xf32>
    %b = stablehlo.negate(%a) : tensor<4xf32>
    %c = stablehlo.tanh(%b) : tensor<4xf32>
    return %c
  }
}
"""


@pytest.fixture
def own_passes() -> Iterator[None]:
    """Forget the passes that a test defines."""
    known = dict(PASSES)
    yield
    PASSES.clear()
    PASSES.update(known)


def module() -> Module:
    return parse_module(TEXT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cse",
        DEFAULT_PIPELINE,
        "fold-constants{max-elements=8,floats=true},fix(canonicalize,fix(cse,dce)),flatten{fusions=true}",
    ],
)
def test_texts_read_back(text):
    assert str(Pipeline.parse(text)) == text


def test_spaces_are_ignored_and_defaults_are_left_out():
    text = " cse , fold-constants { max-elements = 64 , floats = true } , fix( dce ) "
    assert str(Pipeline.parse(text)) == "cse,fold-constants{floats=true},fix(dce)"


def test_options_are_read_by_type():
    (item,) = Pipeline.parse("fold-constants{max-elements=8,floats=true}").items
    assert item == FoldConstants(max_elements=8, floats=True)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("canonicalise", UnknownPass, "did you mean 'canonicalize'?"),
        (
            "fix(cse,xyz)",
            UnknownPass,
            "passes: add-sparse-sums, associative-scans, batch-indices, canonicalize",
        ),
        ("fold-constants{max-element=3}", UnknownPassOption, "did you mean 'max-elements'?"),
        ("cse{x=1}", UnknownPassOption, "it has no options"),
        ("fold-constants{max-elements=many}", InvalidPassOption, "expected an integer, got 'many'"),
        ("fold-constants{floats=1}", InvalidPassOption, "expected true or false, got '1'"),
        ("cse,", InvalidPipeline, "expected a pass name, got the end of the text"),
        ("cse dce", InvalidPipeline, "expected a comma or the end of the text, got 'd'"),
        ("fix(cse", InvalidPipeline, "expected ')', got the end of the text"),
        ("fold-constants{floats}", InvalidPipeline, "expected '=', got '}'"),
        ("fuse{max-ops=1,max-ops=2}", InvalidPipeline, "expected each option once"),
    ],
)
def test_bad_texts_are_named_errors(text, error, says):
    with pytest.raises(error) as caught:
        optimize(module(), text)
    assert says in str(caught.value)


def test_unreadable_text_is_shown_with_a_mark():
    with pytest.raises(InvalidPipeline) as caught:
        Pipeline.parse("cse,?dce")
    assert "  cse,?dce\n      ^\n" in str(caught.value)
    assert caught.value.offset == 4


def test_default_pipeline_runs_by_default():
    assert print_module(optimize(module())) == print_module(optimize(module(), DEFAULT_PIPELINE))


def test_invalid_input_is_not_blamed_on_a_pass():
    entry = module().entry_computation
    broken = Module("m", (replace_values(entry, {entry.instructions[1].result: entry.results[0]}),), "main")
    with pytest.raises(VerificationError):
        optimize(broken, "cse")


def test_the_pass_that_breaks_a_module_is_named(own_passes):
    @dataclass(frozen=True)
    class Break(Pass):
        name: ClassVar[str] = "break"

        def run(self, module: Module) -> Module:
            entry = module.entry_computation
            return Module("m", (replace_values(entry, {entry.parameters[0]: entry.results[0]}),), "main")

    with pytest.raises(
        BrokenPass, match="pass 'break' \\(number 2 of the run\\) left an invalid module"
    ) as caught:
        optimize(module(), "cse,break,dce")
    assert (caught.value.pass_name, caught.value.position) == ("break", 2)
    assert isinstance(caught.value.__cause__, VerificationError)


def test_a_pass_that_fails_is_named(own_passes):
    @dataclass(frozen=True)
    class Fail(Pass):
        name: ClassVar[str] = "fail"

        def run(self, module: Module) -> Module:
            raise KeyError("x")

    with pytest.raises(BrokenPass, match="pass 'fail' \\(number 1 of the run\\) failed"):
        optimize(module(), "fail")


def test_a_group_that_never_rests_is_an_error(own_passes):
    @dataclass(frozen=True)
    class Restless(Pass):
        name: ClassVar[str] = "restless"

        def run(self, module: Module) -> Module:
            return parse_module(print_module(module))

    with pytest.raises(NoFixpoint, match="fix\\(cse,restless\\) still changes the module after 64 rounds"):
        optimize(module(), "fix(cse,restless)")


def test_a_group_repeats_until_nothing_changes():
    run = run_pipeline(module(), "fix(canonicalize,dce)")
    assert [(t.pass_name, t.has_changed) for t in run.timings] == [
        ("canonicalize", True),
        ("dce", True),
        ("canonicalize", False),
        ("dce", False),
    ]
    assert run.seconds > 0 and "canonicalize (unchanged)" in run.timing_table()


def test_nothing_to_do_returns_the_same_module():
    done = optimize(module(), "recover-networks,fix(canonicalize,fold-constants,cse,dce),fuse,schedule")
    for name in PASSES:
        assert optimize(done, name) is done, name


def test_dumps_hold_the_module_before_and_after_each_pass(tmp_path):
    optimized = optimize(module(), "canonicalize,dce", dump_dir=tmp_path / "dumps")
    names = sorted(path.name for path in (tmp_path / "dumps").iterdir())
    assert names == [
        "01-canonicalize-after.hlo",
        "01-canonicalize-before.hlo",
        "02-dce-after.hlo",
        "02-dce-before.hlo",
    ]
    assert (tmp_path / "dumps" / names[1]).read_text() == TEXT
    assert (tmp_path / "dumps" / names[2]).read_text() == print_module(optimized)


def test_every_pass_is_documented():
    assert all(cls.__doc__ and cls.run.__doc__ for cls in PASSES.values())

"""Functions without a mesh on a system: shardings are chosen, printed and pinned; values are those of ``jax.jit``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import ipuxla
from ipuxla.errors import InvalidOption, OutOfTileMemory
from ipuxla.frontend import _jax_compat as compat
from ipuxla.frontend.candidates import find_candidates
from ipuxla.pinned_shardings import read_pinned
from tests import transformer
from tests.replicas import small_system
from tests.sharded_programs import PROGRAMS, arguments, close
from tiles.engine import certify
from tiles.graph import Shift
from tiles.plan.links import crossing

SYSTEM = small_system("pod4", 1)


def trained(loss):
    """Return a step of gradient descent with momentum: parameters, momentum and a batch to new ones, and the loss."""

    def step(params, momentum, *batch):
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum), momentum, value

    return step


def two_layers(params, x, y):
    return ((jnp.tanh(x @ params["a"]) @ params["b"] - y) ** 2).mean()


def two_layer_arguments(width=512):
    rng = np.random.default_rng(0)
    shapes = (64, width), (width, 64), (16, 64), (16, 64)
    a, b, x, y = ((rng.normal(size=s) / 8).astype(np.float32) for s in shapes)
    params = {"a": a, "b": b}
    return params, jax.tree.map(np.zeros_like, params), x, y


def runs_as_jax(step, given, target, steps):
    """Train with shardings that are chosen and by ``jax.jit``, and compare after every step; return the text of the choice."""
    ours, theirs = ipuxla.jit(step, target=target), jax.jit(step)
    params, momentum, *batch = given
    state, wanted = (params, momentum), (params, momentum)
    for _ in range(steps):
        *state, loss = ours(*state, *batch)
        *wanted, want = theirs(*wanted, *batch)
        close((state, loss), (wanted, want))
    return ours.lower(*given).as_text("sharding")


def test_training_that_does_not_fit_one_ipu_is_shared_out():
    step, given = trained(two_layers), two_layer_arguments()
    with pytest.raises(OutOfTileMemory, match="tile 0 needs"):
        ipuxla.jit(step, target=SYSTEM.chip).lower(*given).compile()
    text = runs_as_jax(step, given, SYSTEM, steps=2)
    assert "of 4 IPUs of pod4" in text.splitlines()[0] and "mesh: one IPU" not in text.splitlines()[2]
    assert text == ipuxla.jit(step, target=SYSTEM).lower(*given).as_text("sharding"), "the same every time"


def test_what_no_chip_holds_is_told_to_be_shared_out():
    def total(*arrays):
        return sum(arrays[1:], arrays[0])

    described = [jax.ShapeDtypeStruct((5000, 5000), np.float32)] * 12
    with pytest.raises(OutOfTileMemory, match=r"target='gc2 x 16' shares it out over IPUs \(not tried\)"):
        ipuxla.jit(total, target="gc2").lower(*described).compile()
    shared = ipuxla.jit(total, target="gc2 x 16").lower(*described).compile()
    assert shared.executable.fits and shared.executable.replicas.count > 4


def test_what_is_chosen_and_runners_up_can_be_pinned(tmp_path):
    def layer(x, w):
        return jnp.tanh(x @ w).sum(0)

    rng = np.random.default_rng(1)
    given = [rng.normal(size=shape).astype(np.float32) for shape in ((32, 16), (16, 64))]
    chosen = ipuxla.jit(layer, target=small_system("pod4")).lower(*given).as_text("sharding")
    instead = [line.removeprefix("//   ") for line in chosen.splitlines() if line.startswith("//   mesh: ")]
    ipuxla.jit(layer, target=small_system("pod4")).lower(*given).compile().save(tmp_path / "program")
    close(ipuxla.load(tmp_path / "program", engine="literal")(*given), jax.jit(layer)(*given))
    assert len(instead) > 3 and any(line == "mesh: one IPU" for line in [*instead, chosen.splitlines()[2]])
    for text in (chosen, *instead[:1], *instead[-1:]):
        lowered = ipuxla.jit(layer, target=small_system("pod4"), shard=text).lower(*given)
        compiled = lowered.compile()
        close(compiled(*given), jax.jit(layer)(*given))
        again = lowered.as_text("sharding")
        pinned = ipuxla.jit(layer, target=small_system("pod4"), shard=again).lower(*given)
        assert pinned.as_text("sharding") == again
        sizes = [
            int(part) for part in again.splitlines()[0].replace(",", "").split("=")[1:] for part in part[:1]
        ]
        assert compiled.executable.replicas.count == int(np.prod(sizes or [1]))


def test_one_ipu_is_taken_where_several_are_slower():
    def chain(x):
        return jax.lax.fori_loop(0, 50, lambda _, x: jnp.tanh(x @ x), x)

    x = np.eye(8, dtype=np.float32)
    lowered = ipuxla.jit(chain, target="c2_card").lower(x)
    text = lowered.as_text("sharding")
    assert text.startswith("// 1 of 2 IPUs of c2_card, the other 1 idle") and "\nmesh: one IPU\n" in text
    assert lowered.compile().executable.replicas.count == 1
    close(lowered.compile()(x), jax.jit(chain)(x))


def test_programs_that_exchange_values_with_the_host_run_on_one(capfd):
    def shown(x):
        jax.debug.print("sum {}", x.sum())
        return x * 2

    x = np.ones((64, 64), np.float32)
    compiled = ipuxla.jit(shown, target=SYSTEM).lower(x).compile()
    np.testing.assert_array_equal(compiled(x), x * 2)
    assert compiled.executable.replicas.count == 1 and "sum 4096.0" in capfd.readouterr().out


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_runs_as_it_is_promised_to(name):
    """The best candidate with a mesh, pinned: XLA makes a program of it, its values are right, and it certifies."""
    program = PROGRAMS[name]
    given, system = arguments(program), small_system("pod4")
    lowered = ipuxla.jit(program.function, target=system.chip).lower(*given)
    module = compat.module_bytecode(lowered._pipeline.stablehlo)
    found = find_candidates(module, system)
    assert found == find_candidates(module, system), "the same every time"
    assert sum(not candidate.mesh for candidate in found) == 1
    shared = next(candidate for candidate in found if candidate.mesh)
    pinned = ipuxla.choosing.pinned_of(shared)
    assert all(read_pinned("\n".join(p.lines())) == p for p in map(ipuxla.choosing.pinned_of, found))
    compiled = (
        ipuxla.jit(program.function, target=system, shard="\n".join(pinned.lines())).lower(*given).compile()
    )
    assert compiled.executable.replicas.count == shared.num_devices
    close(compiled(*given), jax.jit(program.function)(*given))
    certify(compiled.executable)


def test_memory_counts_in_the_closed_form():
    """Of what is predicted to fit least, everything fits more: cutting parameters and momentum makes them smaller."""
    step, given = trained(two_layers), two_layer_arguments()
    lowered = ipuxla.jit(step, target=SYSTEM.chip).lower(*given)
    found = find_candidates(compat.module_bytecode(lowered._pipeline.stablehlo), SYSTEM)
    whole = next(candidate for candidate in found if not candidate.mesh)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(given))
    assert whole.price.size_bytes >= 2 * held - 16 * 64 * 8, "arguments and results"
    assert found[-1].price.size_bytes >= found[0].price.size_bytes
    assert found[0].price.size_bytes < whole.price.size_bytes / 3, "four IPUs"


BAD = {
    "no mesh": ("argument 0: P('x')", "cannot be read"),
    "nothing": ("", "name no mesh"),
    "two meshes": ("mesh: x=2\nmesh: x=4", "cannot be read"),
    "a mesh that is none": ("mesh: 2 by 2", "mesh of pinned shardings cannot be read"),
    "too many devices": ("mesh: x=8", "8 devices does not fit on pod4"),
    "an axis that is not there": ("mesh: x=2; argument 0: P('y')", "no axis 'y'"),
    "an axis twice": ("mesh: x=2; argument 0: P('x', 'x')", "used twice"),
    "an argument that is not there": ("mesh: x=2; argument 7: P('x')", "no argument 7"),
    "an argument twice": (
        "mesh: x=2; arguments 0-1: P('x'); argument 1: P('x')",
        "argument 1 is pinned twice",
    ),
    "a size that is not divided": ("mesh: x=4; argument 0: P('x')", "4 parts do not divide dimension 0"),
    "more dimensions": ("mesh: x=2; argument 0: P(None, None, 'x')", "fewer dimensions"),
    "no spec": ("mesh: x=2; argument 0: P(x)", "a sharding cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_pins_are_one_clear_line(case):
    text, message = BAD[case]
    with pytest.raises(InvalidOption, match=message) as caught:
        ipuxla.jit(lambda x, w: x @ w, target=SYSTEM, shard=text)(
            np.ones((6, 4), np.float32), np.ones((4, 4), np.float32)
        )
    assert str(caught.value).splitlines()[0].startswith("shard: ")


def test_a_pin_beside_a_mesh_and_a_pin_that_is_no_text_are_refused():
    with pytest.raises(InvalidOption, match="expected"):
        ipuxla.jit(lambda x: x, shard=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidOption, match="is for one IPU"):
        ipuxla.jit(lambda x: x + 1, target="gc2", shard="mesh: x=2")(np.ones(4, np.float32))
    mesh = ipuxla.mesh(SYSTEM, (4,), ("z",))
    said = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("z"))
    with pytest.raises(InvalidOption, match=r"names a mesh itself \(z=4\)"):
        ipuxla.jit(lambda x: x + 1, target=SYSTEM, in_shardings=said, shard="mesh: x=2")(
            np.ones(4, np.float32)
        )


def test_modules_from_anywhere_are_shared_out_in_a_child_process():
    given = [np.ones(shape, np.float32) for shape in ((64, 16), (16, 32))]
    text = ipuxla.jit(lambda x, w: jnp.tanh(x @ w), target="gc2").lower(*given).as_text()
    one, other = (ipuxla.compile_stablehlo(text, SYSTEM, untrusted=untrusted) for untrusted in (True, False))
    assert one.as_text("sharding") == other.as_text("sharding")
    close(one(*given), other(*given))


def test_a_transformer_that_does_not_fit_one_ipu_trains_on_several():
    params = transformer.stacked(transformer.parameters(2, 64, 16, 64))
    given = params, jax.tree.map(np.zeros_like, params), *transformer.batch(16, 64)
    step, system = trained(transformer.loss), small_system("dss8440", 4)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(given[:2])) > system.chip.memory_bytes * 3 // 4
    with pytest.raises(OutOfTileMemory):
        ipuxla.jit(step, target=system.chip).lower(*given).compile()
    assert "of 16 IPUs" in runs_as_jax(step, given, system, steps=3)


def test_a_transformer_of_a_gigabyte_and_a_half_trains_on_sixteen_ipus():
    """Parameters and momentum are five times as large as a gc2's memory; no line of the step changes."""
    params = transformer.stacked(transformer.parameters(1, 1024, 64, 4096))
    params = {**params, "layers": jax.tree.map(lambda x: np.repeat(x, 14, axis=0), params["layers"])}
    tokens, labels = transformer.batch(64, 4096)
    step = trained(lambda p, tokens, labels: transformer.loss(p, tokens, labels, 16))
    given = params, jax.tree.map(np.zeros_like, params), tokens, labels
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(given[:2])) > 1_450_000_000
    with pytest.raises(OutOfTileMemory) as refused:
        ipuxla.jit(step, target="gc2", donate_argnums=(0, 1)).lower(*given).compile()
    assert refused.value.profile is not None and "B too many" in str(refused.value)
    compiled = ipuxla.jit(step, target="dss8440", donate_argnums=(0, 1)).lower(*given).compile()
    assert compiled.executable.fits and compiled.executable.replicas.count == 16
    got, wanted = (
        jax.tree.map(lambda x: np.asarray(x).reshape(-1)[::97], run(*given))
        for run in (compiled, jax.jit(step))
    )
    close(got, wanted)


def test_eight_replicas_of_two_chips_train_as_one():
    """Data over cards, the model over the two chips of each: what the model exchanges crosses rungs alone."""
    step, (params, momentum, x, y) = trained(two_layers), two_layer_arguments(64)
    system = small_system("dss8440", 2)
    pinned = "mesh: data=8, model=2; argument 0: P(None, 'model'); argument 1: P('model')"
    pinned += "; argument 2: P(None, 'model'); argument 3: P('model'); arguments 4-5: P('data')"
    shared = ipuxla.jit(step, target=system, shard=pinned).lower(params, momentum, x, y).compile()
    assert str(shared.executable.replicas) == "data 8 x model 2"
    state, wanted = (params, momentum), (params, momentum)
    for _ in range(2):
        *state, loss = shared(*state, x, y)
        *wanted, want = jax.jit(step)(*wanted, x, y)
        close((state, loss), (wanted, want))
    rungs = [system.node_name(a) + system.node_name(b) for a, b in system.table.ends.tolist()]
    crossed = crossing(system, shared.executable.replicas, ("model",), (Shift(1),)).unit
    assert crossed is not None and crossed.hops == 1
    used = [rungs[link] for link in np.flatnonzero(crossed.link_bytes.any(axis=1))]
    assert used == [f"ipu {n}ipu {n + 1}" for n in range(0, 16, 2)]


EXCHANGES_OF_ONE = {
    "sum": lambda x: lax.psum(x, "d"),
    "gather": lambda x: lax.all_gather(x, "d", tiled=True),
    "permutation": lambda x: lax.ppermute(x, "d", [(0, 0)]),
    "index": lambda x: x + lax.axis_index("d"),
    "in a loop": lambda x: lax.fori_loop(0, 3, lambda _, s: lax.ppermute(s, "d", [(0, 0)]), x),
}


@pytest.mark.parametrize("name", EXCHANGES_OF_ONE)
def test_what_exchanges_with_itself_alone_is_not_shared_out(name, capfd):
    """A mesh of one device is none; collectives over it name that device, whatever the system has."""
    mesh, exchange = Mesh(np.array(jax.devices()[:1]), ("d",)), EXCHANGES_OF_ONE[name]
    x, w = np.linspace(-1, 1, 512 * 256, dtype=np.float32).reshape(512, 256), np.ones((256, 256), np.float32)
    specs = {"in_specs": (PartitionSpec("d"), PartitionSpec()), "out_specs": PartitionSpec("d")}
    function = jax.shard_map(
        lambda x, w: exchange(jnp.tanh(x @ w / 256)), mesh=mesh, check_vma=False, **specs
    )
    ours = ipuxla.jit(function, target="c2_card")
    assert ours.lower(x, w).compile().executable.replicas.count == 1
    close(ours(x, w), jax.jit(function)(x, w))
    pinned = ipuxla.jit(function, target="c2_card", shard="mesh: x=2\nargument 0: P('x', None)")
    with pytest.raises(InvalidOption, match="among the one device that it is written for"):
        pinned.lower(x, w).compile()
    assert "RET_CHECK" not in capfd.readouterr().err

"""An experiment of your own: an absl program whose flags choose the machine.

python docs/examples/own_experiment.py --target=bow --steps=200
python docs/examples/own_experiment.py --engine=literal --report=runs/line
"""

import jax
import jax.numpy as jnp
from absl import app, flags

import ipuxla
from ipuxla import absl_flags

absl_flags.define()  # --target, --engine, --arithmetic, --check_memory
STEPS = flags.DEFINE_integer("steps", 100, "gradient steps", lower_bound=0)
REPORT = flags.DEFINE_string("report", None, "folder to write a report of one step into")


def loss(params, x, y):
    """Return the mean squared error of a line."""
    return jnp.mean((x * params["slope"] + params["offset"] - y) ** 2)


def step(params, x, y):
    """Return better parameters: one step of gradient descent."""
    return jax.tree.map(lambda p, g: p - 0.2 * g, params, jax.grad(loss)(params, x, y))


def main(argv):
    """Fit y = 3 x - 1."""
    del argv
    x = jnp.linspace(-1, 1, 4096)
    params = {"slope": jnp.float32(0), "offset": jnp.float32(0)}
    compiled = ipuxla.jit(step, **absl_flags.chosen()).lower(params, x, 3 * x - 1).compile()
    for _ in range(STEPS.value):
        params = compiled(params, x, 3 * x - 1)
    print(f"slope {params['slope']:.3f}, offset {params['offset']:.3f}")
    print(f"{compiled.cost_analysis()['cycles']:,} cycles a step")
    if REPORT.value is not None:
        compiled.report(REPORT.value, params, x, 3 * x - 1)


if __name__ == "__main__":
    app.run(main)

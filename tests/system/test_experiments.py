"""The main job as ``make run`` starts it, against NumPy and ``jax.jit``; its variants on a small machine."""

from __future__ import annotations

import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla import cli
from ipuxla.experiments import Settings, summary
from ipuxla.experiments.data import load_digits
from ipuxla.experiments.digits import make_job, run_digits
from ipuxla.experiments.training import Schedule
from tiles.target import Target

REPOSITORY = pathlib.Path(__file__).parents[2]
FLAGS = REPOSITORY / "configs" / "experiments" / "digits.flags"


@pytest.fixture(scope="module")
def main_job(tmp_path_factory) -> tuple[pathlib.Path, str]:
    """Run the main job once; return the folder with its files, and what it printed."""
    folder = tmp_path_factory.mktemp("digits")
    with pytest.MonkeyPatch.context() as patch, (folder / "printed.txt").open("w+") as out:
        patch.setattr("sys.stdout", out)
        assert cli.run(["ipuxla", "run", f"--flagfile={FLAGS}", f"--output_dir={folder}"]) == 0
        out.seek(0)
        return folder, out.read()


def _settings(target: Target, folder: pathlib.Path, **changes) -> Settings:
    """A job of a few steps."""
    small = {"hidden": (16,), "batch_size": 256, "epochs": 4, "compare": False}
    return Settings(target=target, output_dir=folder, **(small | changes))


def _losses(folder: pathlib.Path, who: str = "emulated") -> np.ndarray:
    return np.array(json.loads((folder / "results.json").read_text())["outcomes"][who]["losses"])


def _numpy_losses(settings: Settings, count: int) -> list[float]:
    """The first losses of the same run in float64, its gradients written out by hand."""
    job = make_job(settings)
    params = [{k: np.asarray(v, np.float64) for k, v in layer.items()} for layer in job.start()[0]]
    speed = [{k: np.zeros_like(v) for k, v in layer.items()} for layer in params]
    losses: list[float] = []
    for images, labels in job.schedule.batches(job.data):
        values = [images.astype(np.float64)]
        for layer in params:
            values.append(np.maximum(values[-1], 0 if len(values) > 1 else -np.inf) @ layer["w"] + layer["b"])
        shares = np.exp(values[-1]) / np.exp(values[-1]).sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        losses.append(-np.mean(np.log(shares[rows, labels])))
        if len(losses) == count:
            break
        shares[rows, labels] -= 1
        wave = shares / len(labels)
        for depth in reversed(range(len(params))):
            below = np.maximum(values[depth], 0) if depth else values[0]
            grads = {"w": below.T @ wave, "b": wave.sum(axis=0)}
            wave = (wave @ params[depth]["w"].T) * (values[depth] > 0)
            for name, grad in grads.items():
                speed[depth][name] = 0.9 * speed[depth][name] + grad
                params[depth][name] = params[depth][name] - settings.learning_rate * speed[depth][name]
    return losses


def _main_settings(target: Target) -> Settings:
    """The choices of the main job that decide what it learns."""
    flags = dict(
        line[2:].split("=") for line in FLAGS.read_text().splitlines() if "=" in line and line[:2] == "--"
    )
    return Settings(target=target, model=flags["model"], hidden=(int(flags["hidden"]),))


def _double_losses(settings: Settings, count: int) -> list[float]:
    """The first losses of a convolutional run in float64, by products of shifted images."""

    def positive(x):
        return jnp.where(x > 0, x, 0)  # no gradient at 0, which the blank corners of an image give

    def loss(params, images, labels):
        values = images.reshape(-1, 8, 8, 1)
        for layer in params[:2]:
            rows, columns = values.shape[1:3]
            padded = jnp.pad(values, ((0, 0), (1, 1), (1, 1), (0, 0)))
            shifted = [
                padded[:, i : i + rows, j : j + columns] @ layer["w"][i, j]
                for i in range(3)
                for j in range(3)
            ]
            values = positive(sum(shifted) + layer["b"])
            windows = values.reshape(-1, rows // 2, 2, columns // 2, 2, values.shape[-1])
            windows = windows.transpose(0, 1, 3, 5, 2, 4).reshape(
                -1, rows // 2, columns // 2, values.shape[-1], 4
            )
            first = jnp.argmax(windows, axis=-1, keepdims=True)  # of equals the first one has the gradient
            values = jnp.take_along_axis(windows, first, axis=-1)[..., 0]
        values = values.reshape(len(values), -1)
        for layer in params[2:-1]:
            values = positive(values @ layer["w"] + layer["b"])
        logits = values @ params[-1]["w"] + params[-1]["b"]
        rows = jnp.arange(len(labels))
        return jnp.mean(jax.nn.logsumexp(logits, axis=1) - logits[rows, labels])

    job = make_job(settings)
    start = job.start()[0]
    losses: list[float] = []
    with jax.enable_x64(True):
        double = lambda tree: jax.tree.map(lambda x: np.asarray(x, np.float64), tree)  # noqa: E731
        params = double(start)
        speed = jax.tree.map(np.zeros_like, params)

        @jax.jit
        def step(params, speed, images, labels):
            value, grads = jax.value_and_grad(loss)(params, images, labels)
            speed = jax.tree.map(lambda v, g: 0.9 * v + g, speed, grads)
            return value, jax.tree.map(lambda p, v: p - settings.learning_rate * v, params, speed), speed

        for images, labels in job.schedule.batches(job.data):
            value, params, speed = step(params, speed, double(images), labels)
            losses.append(float(value))
            if len(losses) == count:
                return losses
    return losses


# ---- the main job


def test_main_job_learns_and_agrees_with_plain_jit(main_job):
    folder, printed = main_job
    results = json.loads((folder / "results.json").read_text())
    ours, native = results["outcomes"]["emulated"], results["outcomes"]["jax.jit"]
    assert ours["accuracy"] >= 0.97 and native["accuracy"] >= 0.97
    assert f"{ours['accuracy']:.2%}" in printed and f"{native['accuracy']:.2%}" in printed
    assert len(ours["losses"]) == len(native["losses"]) == 20 * (1438 // 32)
    difference = np.abs(_losses(folder)[:20] - _losses(folder, "jax.jit")[:20]).max()
    assert difference <= 1e-4
    assert "20 steps agree with plain jax.jit" in printed


def test_main_job_starts_as_a_model_in_double_precision_does(main_job, gc200):
    folder, _ = main_job
    expected = _double_losses(_main_settings(gc200), 20)
    np.testing.assert_allclose(_losses(folder)[:20], expected, rtol=0, atol=1e-4)


def test_main_job_tells_cycles_memory_lines_and_files(main_job):
    folder, printed = main_job
    profile = json.loads((folder / "profile.json").read_text())
    assert profile["target"]["numTiles"] == 1472
    cost = profile["execution"]
    assert cost["cycles"] == sum(cost[f"{phase}Cycles"] for phase in ("compute", "exchange", "sync")) > 0
    for phase in ("compute", "exchange", "sync"):
        assert re.search(rf"{phase} +{cost[f'{phase}Cycles']:,} cycles +[\d.]+ us", printed)
    assert f"{profile['compilation']['memory']['peakBytes']:,} of 638,976 B" in printed
    assert "10 costliest" in printed
    written = [line.strip() for line in printed.partition("written:")[2].split()]
    assert len(written) >= 5 and all(pathlib.Path(path).is_file() for path in written)


def test_costliest_operations_name_the_lines_of_the_model(main_job):
    folder, _ = main_job
    operations = json.loads((folder / "profile.json").read_text())["operations"][:10]
    experiments = REPOSITORY / "ipuxla" / "experiments"
    for operation in operations:
        places = re.findall(r"([^;\s]+\.py):(\d+)", operation["location"])
        assert places
        for name, line in places:
            path = experiments.parent / name
            assert experiments in path.parents
            assert path.read_text().splitlines()[int(line) - 1].strip()


def test_saved_step_gives_the_first_loss_again(main_job, gc200):
    folder, _ = main_job
    _, _, loss = ipuxla.load(folder / "step.ipuxla")(*make_job(_main_settings(gc200)).first_arguments())
    assert float(loss) == _losses(folder)[0]


# ---- variants on a small machine


@pytest.mark.parametrize("engine", ["fast", "literal", "vertex", "hlo"])
def test_every_engine_trains_alike(engine, small_target, tmp_path):
    settings = _settings(small_target, tmp_path, engine=engine, epochs=1)
    run_digits(settings)
    np.testing.assert_allclose(_losses(tmp_path), _numpy_losses(settings, 5), rtol=0, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_other_optimizers_agree_with_plain_jit(optimizer, small_target, tmp_path):
    run_digits(_settings(small_target, tmp_path, optimizer=optimizer, learning_rate=0.01, compare=True))
    ours, native = _losses(tmp_path), _losses(tmp_path, "jax.jit")
    assert len(ours) == 20
    np.testing.assert_allclose(ours, native, rtol=0, atol=1e-4)
    assert ours[-1] < ours[0]


def test_logistic_regression_is_no_hidden_layer(small_target, tmp_path):
    settings = _settings(small_target, tmp_path, hidden=())
    run_digits(settings)
    np.testing.assert_allclose(_losses(tmp_path), _numpy_losses(settings, 20), rtol=0, atol=1e-4)


def test_a_run_repeats_to_the_byte(small_target, tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        run_digits(_settings(small_target, tmp_path / name, epochs=1))
    for name in ("profile.json", "summary.txt", "report.html", "step.ipuxla"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    np.testing.assert_array_equal(_losses(tmp_path / "first"), _losses(tmp_path / "second"))


def test_ring_arithmetic_proves_the_movement_of_a_step(small_target, tmp_path, capsys):
    run_digits(_settings(small_target, tmp_path, arithmetic="ring"))
    assert re.search(r"all [\d,]+ words of one step on engine fast equal", capsys.readouterr().out)
    assert not list(tmp_path.iterdir())


def test_one_wrong_word_is_an_error(capsys):
    words = np.arange(6, dtype=np.uint32)
    wrong = words.copy()
    wrong[4] ^= 1
    console = summary.Console()
    summary.require_same_words(console, "fast", {"w": words}, {"w": words.copy()})
    assert "all 6 words" in capsys.readouterr().out
    with pytest.raises(summary.WordsDiffer, match="1 of 6 words"):
        summary.require_same_words(console, "fast", {"w": wrong}, {"w": words})


def test_a_step_that_does_not_fit_leaves_its_report(gc200, tmp_path, capsys):
    target = gc200.replace(num_tiles=1, bytes_per_tile=65536).to_data()
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(target))
    code = cli.run(["ipuxla", "run", f"--target={path}", f"--output_dir={tmp_path / 'run'}"])
    err = capsys.readouterr().err
    assert code == 1
    assert "OutOfTileMemory" in err and "65,536 B" in err
    assert "DOES NOT FIT" in (tmp_path / "run" / "summary.txt").read_text()


def test_schedule_sees_the_training_rows_only():
    data = load_digits()
    schedule = Schedule(epochs=2, batch_size=100, seed=5)
    batches = list(schedule.batches(data))
    assert len(batches) == schedule.num_steps(data) == 28
    test_rows = {row.tobytes() for row in data.test.images} - {row.tobytes() for row in data.train.images}
    assert test_rows
    assert not any(row.tobytes() in test_rows for images, _ in batches for row in images)
    assert not np.array_equal(batches[0][1], batches[14][1])
    assert jax.tree.all(jax.tree.map(np.array_equal, batches, list(schedule.batches(data))))

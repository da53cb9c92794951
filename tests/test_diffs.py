"""The changes of docs/changing.md, kept as diffs in docs/diffs, apply to this tree and do what they say.

    .venv/bin/python tests/test_diffs.py

makes those that no longer apply fit again, from the commit that they were made for, where git can merge them;
of the others it leaves a folder to mend by hand.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DIFFS = sorted((ROOT / "docs" / "diffs").glob("*.diff"))
FIT_AGAIN = "to make diffs fit again: .venv/bin/python tests/test_diffs.py"
TINY = """
from topicjax.sweep import product

EXPERIMENT = "one_layer"
BASE = dict(topics=4, words_per_topic=3, length_min=20, length_max=30, batch_size=8, eval_documents=16)
SWEEP = product(seed=range(2), steps=60, record_every=20, learning_rate=0.01, key_visibility="unmasked")
"""
SETTINGS = {
    "second_head": "heads=2",
    "optimizer": "optimizer=lion",
    "loss": "objective=brier",
    "column": "l2=0",
}
CHECKS = {
    "second_head": """
from topicjax.experiments.one_layer import kernel, model
from topicjax.experiments.one_layer.settings import Hypers, Spec, traced
from topicjax.experiments.shared import bags
from topicjax.experiments.shared.lda import Documents
from topicjax.theory.document_settings import Stream

assert {"W_K2", "W_Q2", "W_V2"} <= {*run.restore(run.trials.trial_id[0])}
assert np.isfinite(last.a_topic2).all() and (last.a_topic2 != last.a_topic).all()
spec = Spec(topics=2, words_per_topic=3, shortest=7, longest=7, word_query_probability=1.0, heads=2)
stream, objective, rng = traced(Stream()), jnp.int32(0), np.random.default_rng(0)
word, masked, present = rng.integers(1, 7, (5, 7)), rng.random((5, 7)) < 0.5, np.ones((5, 7), bool)
shown = np.where(masked, np.where(rng.random((5, 7)) < 0.5, 0, rng.integers(1, 7, (5, 7))), word)
documents = Documents(*map(jnp.asarray, (word, shown, masked, present)))
params = model.init(spec, stream, traced(Hypers(init_scale=0.5)), jax.random.key(0))
bag = bags.from_documents(spec, stream, documents)


@jax.jit
def by_token(params):
    return model.token_loss(spec, stream, objective, params, documents)


@jax.jit
def by_type(params):
    return kernel.loss(kernel.effective(spec, kernel.pad(params)), bag, objective, kernel.real_types(spec))


assert abs(by_token(params) - by_token(params | dict(W_V2=0 * params["W_V2"]))) > 0.01
expected = jax.value_and_grad(by_token)(params)
jax.tree.map(
    lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6),
    jax.value_and_grad(by_type)(params),
    expected,
)
""",
    "optimizer": "assert (last.eval_loss < first.eval_loss - 0.01).all()",
    "loss": """
from topicjax.experiments.shared.losses import OBJECTIVES, queries_loss

output, target = np.random.default_rng(0).normal(size=(2, 5, 8))
real = np.arange(8) < 7
target, place = np.where(real, abs(target), 0), list(OBJECTIVES).index("brier")


def by_hand(output):
    p = np.exp(output[:, :7]) / np.exp(output[:, :7]).sum(axis=1, keepdims=True)
    return (target[:, :7] * ((p[:, None, :] - np.eye(7)) ** 2).sum(axis=2)).sum()


loss, gradient = queries_loss(place, *map(jnp.float32, (output, target)), real)
np.testing.assert_allclose(loss, by_hand(output), rtol=1e-5)
for r, v in np.ndindex(5, 8):
    nudge = 1e-5 * (np.arange(40).reshape(5, 8) == 8 * r + v)
    slope = (by_hand(output + nudge) - by_hand(output - nudge)) / 2e-5
    np.testing.assert_allclose(gradient[r, v], slope, atol=1e-4)
assert (last.eval_loss < first.eval_loss).all()
""",
    "column": """
weights = run.restore(last.index[0])
S = (weights["W_Q"].T @ weights["W_K"])[1:, 1:]
np.testing.assert_allclose(last.a_symmetry.iloc[0], (S * S.T).sum() / (S * S).sum(), rtol=1e-4)
""",
}
READ = """
import jax
import jax.numpy as jnp
import numpy as np
import topicjax

assert topicjax.__file__.startswith({place!r}), topicjax.__file__
run = topicjax.load("results/tiny")
records = run.trajectories.sort_values("step")
first, last = records.groupby("trial_id").first(), records.groupby("trial_id").last()
"""


def apply(diff: Path, folder: Path, *options: str) -> subprocess.CompletedProcess:
    """Apply a diff to a copy of the tree."""
    return subprocess.run(["git", "apply", *options, str(diff)], cwd=folder, capture_output=True, text=True)


def test_every_diff_is_shown_and_checked():
    page = (ROOT / "docs" / "changing.md").read_text()
    assert {path.stem for path in DIFFS} == {*CHECKS} == {*SETTINGS}
    for path in DIFFS:
        assert f"diffs/{path.name}" in page


@pytest.mark.parametrize("diff", DIFFS, ids=lambda path: path.stem)
def test_it_applies(diff: Path):
    done = apply(diff, ROOT, "--check")
    assert done.returncode == 0, f"{done.stderr}{FIT_AGAIN}"


@pytest.mark.slow
@pytest.mark.parametrize("diff", DIFFS, ids=lambda path: path.stem)
def test_it_does_what_it_says(diff: Path, tmp_path: Path, cache: Path):
    """Train with the changed code, laid out as it is installed, and compare with something independent."""
    for source, place in (
        ("topicjax", "topicjax"),
        ("analysis", "topicjax/analysis"),
        ("sweeps", "topicjax/sweeps"),
    ):
        shutil.copytree(ROOT / source, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
    done = apply(diff, tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "tiny.py").write_text(TINY)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(cache)}
    check = READ.format(place=str(tmp_path)) + CHECKS[diff.stem]
    for command in (["-m", "topicjax", "run", "tiny.py", "--set", SETTINGS[diff.stem]], ["-c", check]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def fit_again() -> None:
    """Merge the diffs that no longer apply into the tree of HEAD, and write them anew."""
    for diff in DIFFS:
        if apply(diff, ROOT, "--check").returncode == 0:
            print(f"{diff.name}: applies")
            continue
        place = Path(tempfile.mkdtemp(prefix=f"{diff.stem}-"))
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(place)], check=True)
        if apply(diff, place, "--3way").returncode == 0:
            made = ["git", "diff", "HEAD", "--", "topicjax", "analysis"]
            diff.write_text(
                subprocess.run(made, cwd=place, capture_output=True, text=True, check=True).stdout
            )
            print(f"{diff.name}: made anew")
            shutil.rmtree(place)
        else:
            print(
                f"{diff.name}: resolve the conflicts in {place}, then: git diff HEAD > docs/diffs/{diff.name}"
            )


if __name__ == "__main__":
    fit_again()

"""Results of other code or other arithmetic are never continued unawares; both are recorded."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd
import pytest
from support.command_line import DEEP, FAST
from support.engine_runs import DEEP_BASE, DEEP_LINEAR, columns, stopped_at_every_segment, train_sweep

import topicjax
from topicjax.engine import costs
from topicjax.engine.origin import PRECISION, arithmetic, pinned
from topicjax.store.files import StoreError
from topicjax.store.manifest import write_manifest
from topicjax.store.verify import repair, verify
from topicjax.sweep import product


def precision_of(function: Any, *args: Any) -> set[Any]:
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    return {str(equation.params["precision"]) for equation in jaxpr.eqns if "precision" in equation.params}


def test_products_are_traced_at_full_precision_unless_the_user_chose_another():
    matrix = jnp.ones((2, 2))
    assert precision_of(lambda x: x @ x, matrix) == {"None"}
    with pinned():
        assert all("HIGHEST" in text for text in precision_of(lambda x: x @ x, matrix))
    with jax.default_matmul_precision("bfloat16"), pinned():
        assert arithmetic()[PRECISION] == "bfloat16"
        assert all("HIGHEST" not in text for text in precision_of(lambda x: x @ x, matrix))
    assert arithmetic()[PRECISION] == "highest"


def test_a_run_records_its_arithmetic_and_others_are_refused(tmp_path):
    def train(rate: float, **options: Any) -> topicjax.Run:
        sweep = product(learning_rate=rate)
        return train_sweep(tmp_path / "run", sweep, DEEP_BASE, experiment=DEEP_LINEAR, **options)[0]

    found = train(0.1).manifest["runs"][0]["arithmetic"]
    assert found == arithmetic() and found["jax_enable_x64"] is False
    with jax.default_matmul_precision("bfloat16"):
        with pytest.raises(StoreError, match=r"was highest, is bfloat16.*--other-code"):
            train(0.2)
        run = train(0.2, other_code=True)
    assert [entry["arithmetic"][PRECISION] for entry in run.manifest["runs"]] == ["highest", "bfloat16"]


def test_x64_of_the_environment_is_noticed(tmp_path):
    """It once gave other numbers, and nothing was said."""
    command = [
        sys.executable,
        "-m",
        "topicjax",
        "run",
        DEEP,
        "--out",
        str(tmp_path / "run"),
        "--devices",
        "1",
    ]
    for fixed in ("depth=1", "width=3", "steps=20", "seed=0", "init_scale=0.1"):
        command += ["--set", fixed]
    environment = os.environ | {"XLA_FLAGS": FAST, "JAX_NUM_CPU_DEVICES": "1"}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    command += ["--axis", "learning_rate=0.5"]
    again = subprocess.run(
        command, check=False, env=environment | {"JAX_ENABLE_X64": "1"}, capture_output=True, text=True
    )
    # Not 2 exactly: a native library was once seen to abort while the process ended, after the sentence.
    assert again.returncode != 0 and "jax_enable_x64 was False, is True" in again.stderr


FIRST, SECOND = (
    replace(DEEP_LINEAR, version=version, init=lambda *args, scale=scale: [scale * w for w in START(*args)])
    for version, scale in ((1, 1.0), (2, 2.0))
)
START = DEEP_LINEAR.init
RATES = product(learning_rate=(0.01, 0.02))


def test_a_saved_state_of_other_code_is_set_aside(tmp_path, monkeypatch, caplog):
    """No trial was finished, so nothing is refused; but half a training by each would be neither's."""
    monkeypatch.setattr(costs, "SEGMENT_STEPS", 10)
    options = dict(sweep=RATES, base=DEEP_BASE)
    with stopped_at_every_segment(monkeypatch):
        train_sweep(tmp_path / "run", experiment=FIRST, **options)
    assert [*(tmp_path / "run" / "partial").iterdir()]
    found, outcome = train_sweep(tmp_path / "run", experiment=SECOND, **options)
    alone, _ = train_sweep(tmp_path / "alone", experiment=SECOND, **options)
    assert outcome.ok == 2 and "was saved with another origin" in caplog.text
    pd.testing.assert_frame_equal(columns(found, "loss"), columns(alone, "loss"))


def test_shorter_trainings_of_other_code_are_not_continued(tmp_path):
    """More steps with --other-code: these trials start again instead of going on from weights of others."""
    train_sweep(tmp_path / "run", RATES, DEEP_BASE | dict(steps=20), experiment=FIRST)
    longer = dict(sweep=RATES, base=DEEP_BASE | dict(steps=40))
    with pytest.raises(StoreError, match=r"other code \(changed since: version\)"):
        train_sweep(tmp_path / "run", experiment=SECOND, **longer)
    found, _ = train_sweep(tmp_path / "run", experiment=SECOND, other_code=True, **longer)
    alone, _ = train_sweep(tmp_path / "alone", experiment=SECOND, **longer)
    ids = alone.trials["trial_id"]
    pd.testing.assert_frame_equal(columns(found, "loss").loc[[*sorted(ids)]], columns(alone, "loss"))


def test_runs_that_a_repair_could_not_read_keep_their_numbers_and_count_as_other_code(tmp_path):
    """After a damaged manifest was repaired, the next run once was number 1, as the first one."""
    folder = tmp_path / "run"
    train_sweep(folder, product(learning_rate=0.01), DEEP_BASE, experiment=FIRST)
    train_sweep(folder, product(learning_rate=0.02), DEEP_BASE, experiment=FIRST)
    older = topicjax.load(folder).manifest
    (folder / "manifest.json").write_text("{")
    repair(folder)
    assert len(topicjax.load(folder).manifest["runs"]) == 2 and verify(folder).problems == []
    third = dict(sweep=product(learning_rate=0.03), base=DEEP_BASE, experiment=FIRST)
    with pytest.raises(StoreError, match=r"other code \(its record was lost\).*--other-code"):
        train_sweep(folder, **third)
    run, _ = train_sweep(folder, other_code=True, **third)
    assert run.trials.set_index("learning_rate")["run"].to_dict() == {0.01: 1, 0.02: 2, 0.03: 3}
    assert run.manifest["runs"][2]["code"] == older["runs"][0]["code"]
    # an older manifest, as in a copy that was taken during a run
    write_manifest(folder, older)
    (problem,) = verify(folder).problems
    assert problem.sentence == f"{folder}/manifest.json does not know run 3, which trials name"
    with pytest.raises(
        StoreError, match=f"trials of run 3, which its manifest.json does not.*repair {folder}`"
    ):
        train_sweep(folder, product(learning_rate=0.04), DEEP_BASE, experiment=FIRST)
    repair(folder)
    assert verify(folder).problems == [] and topicjax.load(folder).manifest["runs"][:2] == older["runs"]
    assert len(topicjax.load(folder).manifest["runs"]) == 3

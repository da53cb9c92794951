"""Options of jax that change numbers are pinned, recorded, and compared when a folder is continued."""

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support.command_line import FAST

import topicjax
from topicjax.engine.arithmetic import PRECISION, arithmetic, pinned
from topicjax.store.files import StoreError
from topicjax.sweep import product

SMALL = dict(topics=2, words_per_topic=2, batch_size=2, eval_documents=2, steps=2, record_every=2)
SMALL |= dict(length_min=4, length_max=6)


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
        devices = jax.devices()[:1]
        sweep = product(learning_rate=rate)
        return topicjax.sweep("one_layer", sweep, tmp_path / "run", SMALL, devices=devices, **options)

    found = train(0.1).manifest["runs"][0]["arithmetic"]
    assert found == arithmetic() and found["jax_enable_x64"] is False
    with jax.default_matmul_precision("bfloat16"):
        with pytest.raises(StoreError, match=r"= highest, and it is bfloat16 now.*--other-code"):
            train(0.2)
        run = train(0.2, other_code=True)
    assert [entry["arithmetic"][PRECISION] for entry in run.manifest["runs"]] == ["highest", "bfloat16"]


def test_x64_of_the_environment_is_noticed(tmp_path):
    """It once gave other numbers, and nothing was said."""
    settings = [text for name, value in SMALL.items() for text in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "topicjax", "run", "smoke", *settings, "--out", str(tmp_path / "run")]
    command += ["--set", "seed=0", "--devices", "1"]
    environment = os.environ | {"XLA_FLAGS": FAST, "JAX_NUM_CPU_DEVICES": "1"}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    command += ["--axis", "learning_rate=0.5"]
    again = subprocess.run(
        command, check=False, env=environment | {"JAX_ENABLE_X64": "1"}, capture_output=True, text=True
    )
    assert again.returncode == 2 and "jax_enable_x64 = False, and it is True now" in again.stderr

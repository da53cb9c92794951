"""The page for those who have a jit(vmap(train)): its files are written, run and reported as printed."""

import re
import runpy
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from topicjax import cli

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "from_purejaxrl.md").read_text()
CELLS = re.findall(r"^```{code-cell} ipython3\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = dict(re.match(r"%%writefile (\S+)\n(.*)", cell, re.DOTALL).groups() for cell in CELLS[:2])
COMMANDS = re.findall(r"^!topicjax (.*)$", CELLS[2], re.MULTILINE)
READ = CELLS[3:]
FEW = ["--set", "lr=0.1", "--axis", "seed=range:0:3", "--lanes", "3"]


@pytest.mark.usefixtures("undrawn")
def test_the_page_works_as_printed(tmp_path, monkeypatch):
    """Its metrics are those of the function, called alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("topicjax.engine.resources.use_all_cores", lambda *_: None)  # jax has started already
    for name, text in FILES.items():
        assert f"`{name}`" in PAGE
        Path(name).write_text(text)
    run, report = (command.split() for command in COMMANDS)
    assert cli.main([*run, *FEW]) == 0
    assert cli.main(report) == 0
    assert Path("results/sweep_bandit/report.html").exists()
    read: dict = {}
    for cell in READ:
        exec(cell, read)
    trials = read["run"].trials
    assert len(trials) == 6 and trials["final_regret"].between(0, 5).all()
    own = runpy.run_path("bandit.py")
    row = trials.query("seed == 2 and entropy == 0.01").iloc[0]
    alone = own["make_train"](own["CONFIG"] | dict(LR=0.1, ENTROPY=0.01))(jax.random.key(2))
    found = read["run"].trajectories.query("trial_id == @row.trial_id")["regret"].to_numpy()
    np.testing.assert_allclose(found[1:], alone["metrics"]["regret"][4::5], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(read["run"].restore(row["trial_id"]), alone["runner_state"][0], rtol=1e-4)


def test_twenty_lines_are_twenty_lines():
    lines = [line for line in FILES["sweep_bandit.py"].splitlines() if line.strip()]
    assert len(lines) <= 20

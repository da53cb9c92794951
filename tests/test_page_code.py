"""Python on the pages of the site: every block compiles and imports what exists; whole ones are executed."""

import ast
import re
import sys
from pathlib import Path

import pytest

from topicjax.sweep import expand, loguniform, product, sample, where
from topicjax.sweep.files import load_sweep

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {path.name: BLOCK.findall(path.read_text()) for path in (ROOT / "docs").glob("*.md")}
BLOCKS = [(page, number) for page, blocks in sorted(PAGES.items()) for number in range(len(blocks))]
NOT_EXECUTED = {
    "extending.md": "parts of docs/deep_linear.py and of a user's file, which need its other names",
}


@pytest.mark.parametrize(("page", "number"), BLOCKS)
def test_it_compiles_and_imports_what_exists(page, number):
    tree = ast.parse(PAGES[page][number], page)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), page, "exec"), {})


@pytest.mark.parametrize(("page", "number"), [each for each in BLOCKS if each[0] not in NOT_EXECUTED])
def test_it_runs(page, number):
    exec(compile(PAGES[page][number], page, "exec"), {"__name__": "page"})


def test_the_sweep_of_the_guide_expands(tmp_path, monkeypatch):
    (sweep,) = PAGES["sweeps.md"]
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(sweep)
    named = load_sweep(str(tmp_path / "mine.py"))
    assert named.description == "Does a larger batch move the edge of the map?"
    assert len(expand(named.settings, named.base, named.sweep)) == 3 * 3 * 4


def test_the_calls_in_the_table_of_the_guide_make_sweeps():
    guide = (ROOT / "docs" / "sweeps.md").read_text()
    (sampled,) = re.findall(r"^\| `(sample\(.*?\))` \|", guide, re.MULTILINE)
    (kept,) = re.findall(r"`(where\(SWEEP, .*?\))` \|", guide)
    assert len(eval(sampled, dict(sample=sample, loguniform=loguniform)).settings) == 100
    assert len(eval(kept, dict(where=where, SWEEP=product(seed=range(3)))).settings) == 2


def test_what_is_not_executed_has_a_page_and_a_reason():
    assert all(PAGES[page] and reason for page, reason in NOT_EXECUTED.items())

"""The gallery of the site: its table names figures of reports, and its page lists the pictures there are."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from PIL import Image

from topicjax.analysis.page.contract import entries_of
from topicjax.analysis.page.lookup import page_of
from topicjax.sweep.files import load_sweep

DOCS = Path(__file__).resolve().parents[1] / "docs"
RUNS = tomllib.loads((DOCS / "gallery" / "captions.toml").read_text())["run"]
PICTURES = {f"{run['name']}_{figure}.png" for run in RUNS for figure in run["figures"]}


def module(name: str):
    """Import a file of docs/."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["name"])
def test_its_figures_are_those_of_the_page(run):
    own = DOCS / f"{run['name']}.py"
    page = page_of(load_sweep(str(own) if own.exists() else run["name"]).experiment)
    figures = {entry.name for entries in entries_of(page.figures, "").values() for entry in entries}
    named = {re.sub(r"_\d$", "", name) for name in run["figures"]}  # an entry may make several pictures
    assert named <= figures | {entry.name for entry in page.lead}


def test_the_page_lists_the_pictures_there_are(tmp_path, monkeypatch):
    made = module("generated")
    there = {path.name for path in (DOCS / "gallery").glob("*.png")}
    assert there <= PICTURES  # no picture without a caption
    assert {*re.findall(r"\(gallery/(\w+\.png)\)", made.gallery())} == there
    (tmp_path / "captions.toml").write_text((DOCS / "gallery" / "captions.toml").read_text())
    (tmp_path / "syntax_square.png").touch()
    monkeypatch.setattr(made, "GALLERY", tmp_path)
    text = made.filled("<!-- made: gallery -->")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Syntax and topics"]
    assert re.findall(r"\w+\.png", text) == ["syntax_square.png"]


def test_figures_are_copied_and_what_is_missing_is_named(tmp_path, monkeypatch, capsys):
    pictures = module("pictures")
    figures = tmp_path / "syntax" / "figures"
    figures.mkdir(parents=True)
    Image.new("RGB", (30, 20), "red").save(figures / "square.png")
    (tmp_path / "gallery").mkdir()
    monkeypatch.setattr(pictures, "GALLERY", tmp_path / "gallery")
    pictures.main([tmp_path / "syntax"])
    (copied,) = (tmp_path / "gallery").iterdir()
    with Image.open(copied) as picture:
        assert copied.name == "syntax_square.png" and picture.size == (30, 20)
    assert "figures lacks which_first: make its report" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="nothing: the gallery has no pictures of this run; allowed"):
        pictures.main([tmp_path / "syntax", tmp_path / "nothing"])

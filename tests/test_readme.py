"""README and pages of the site: examples run as printed, commands are understood, links lead somewhere."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from support.one_trial import expand

import topicjax
from topicjax.cli.parser import make_parser
from topicjax.experiments import SHIPPED
from topicjax.sweep.files import load_sweep, sweep_names
from topicjax.sweep.overrides import override

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PAGES = {path.name: path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
FENCES = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES, EXPERIMENT = (text for kind, text in FENCES.findall(README) if kind == "python")
COMMAND = re.compile(r"^!?(?:\.venv/bin/)?(topicjax|make) (.*)$")
OWN_FILES = (
    "path/to/mine.py",
    "plateau.py",
    "smoke.py",
    "sweep_bandit.py",
)  # sweeps that a page asks the reader to write


def generated():
    """Import the extension that makes parts of the pages; it needs no Sphinx."""
    spec = importlib.util.spec_from_file_location("generated", ROOT / "docs" / "generated.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made():
    return generated()


@pytest.fixture(scope="module")
def folder(smoke, tmp_path_factory) -> Path:
    """A small run where the README expects the one of two_stage."""
    place = tmp_path_factory.mktemp("readme")
    shutil.copytree(smoke[0], place / "results" / "two_stage")
    return place


def test_the_example_works_as_printed(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    exec(EXAMPLES, {})
    assert "W_V" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["results"]


def test_the_experiment_of_the_readme_trains(tmp_path):
    """Its loss starts on the plateau at 1 and ends below, at the largest rate and start."""
    names: dict = {}
    exec(EXPERIMENT, names)
    largest = names["SWEEP"].settings[-1]
    run = topicjax.sweep(names["EXPERIMENT"], names["product"](**largest), tmp_path / "plateau")
    loss = run.trajectories.sort_values("step")["loss"]
    assert loss.iloc[0] > 0.9 and loss.iloc[-1] < 1e-3
    assert len(names["SWEEP"].settings) == 80


def commands() -> list[tuple[str, str]]:
    """Find the commands on the pages: in blocks without a language, and in cells of notebooks."""
    found = []
    for page, text in PAGES.items():
        for kind, block in FENCES.findall(text):
            if kind in ("", "bash") or kind.startswith("{code-cell}"):
                lines = [COMMAND.match(line.strip()) for line in block.replace("\\\n", " ").splitlines()]
                found += [(page, line[0].removeprefix("!")) for line in lines if line]
    return found


@pytest.mark.parametrize(("page", "command"), commands(), ids=lambda text: text[:60])
def test_commands_are_understood(page, command):
    """Parse the command; the sweeps, settings and axes that it names must exist."""
    tool, typed = COMMAND.match(command).groups()
    words = shlex.split(typed.split("   #")[0].split("  #")[0].split(" | ")[0], comments=True)
    if tool == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert words[0] in targets
        given = dict(word.split("=", 1) for word in words[1:])
        if words[0] not in ("sweep", "plan") or "SWEEP" not in given:
            return
        words = ["run", given["SWEEP"], *shlex.split(given.get("ARGS", ""))]
    parsed = make_parser().parse_args(words)
    sweep = getattr(parsed, "sweep", None)
    if sweep is None or sweep in ("SWEEP", *OWN_FILES) or page == "changing.md":  # its diffs add values
        return
    named = load_sweep(str(ROOT / sweep) if sweep.endswith(".py") else sweep)
    corpora = [axis for axis in getattr(parsed, "axes", []) if axis.startswith("corpus=")]  # of the reader
    axes = [axis for axis in getattr(parsed, "axes", []) if axis not in corpora]
    changed, _ = override(named, getattr(parsed, "sets", []), axes)
    trials = expand(changed.base, changed.sweep) if named.settings.experiment == "one_layer" else [True]
    assert trials
    if "results/quick" in typed:
        assert f"# {len(trials)} trials, one seed" in PAGES[page]


def test_accelerators_keep_the_editable_install_and_the_tested_versions():
    assert "make gpu" in PAGES["start.md"] and "make tpu" in PAGES["start.md"]
    for target, extra in (("gpu", "cuda12"), ("tpu", "tpu")):
        shown = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
        (command,) = [line for line in shown.stdout.splitlines() if f"[{extra}]" in line]
        assert "--constraint constraints.txt" in command and f"--editable '.[{extra}]'" in command


def test_the_wheel_that_is_installed_has_the_version_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*re.findall(r"topicjax-([\d.]+)-py3", PAGES["start.md"])} == {project["version"]}


def test_links_lead_somewhere():
    """The site checks links to headings as well; this also covers README and CONTRIBUTING."""
    places = {ROOT / "README.md": README, ROOT / "CONTRIBUTING.md": (ROOT / "CONTRIBUTING.md").read_text()}
    places |= {ROOT / "docs" / name: text for name, text in PAGES.items() if name != "README.md"}
    for path, text in places.items():
        for link in re.findall(r"\]\(([^)#\s]+)", FENCES.sub("", text)):
            assert "://" in link or (path.parent / link).exists(), f"{path.name}: {link}"


def test_verdicts_are_those_of_the_table_of_claims():
    rows = re.findall(r"^\| .* \| (.*?) \| (holds|fails|partly)[^|]*\| `(\w+)` \|$", README, re.MULTILINE)
    table = re.findall(
        r"^\| (.*?)(?: \(.*?\))? \| .*\(`(\w+)`\) \| (\w+) \|$", PAGES["claims.md"], re.MULTILINE
    )
    known = {(claim.split(" (")[0], sweep): verdict for claim, sweep, verdict in table}
    general = re.search(r"^GENERAL \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert len(rows) >= 17
    for claim, verdict, sweep in rows:
        if sweep in general:  # `make paper` does not run it
            assert claim in load_sweep(sweep).claims
        else:
            assert known[claim, sweep] == verdict, claim


def test_counts_of_the_readme_are_on_the_pages_of_the_science():
    pages = " ".join(PAGES[name] for name in ("claims.md", "general.md", "layers.md", "syntax.md"))
    counts = re.findall(r"^\| .*?\b(\d+ of \d+)", README, re.MULTILINE)
    assert len(counts) >= 6
    assert not [count for count in counts if count not in pages]


def test_every_experiment_is_in_the_reference(made):
    for name in SHIPPED:
        assert f"<!-- made: settings {name} -->" in PAGES["settings.md"]
        assert f"<!-- made: columns {name} -->" in PAGES["columns.md"]
        assert made.columns(name) and made.settings(name)
    listed = made.sweeps()
    assert all(f"## {name}\n" in listed for name in sweep_names())


def test_the_columns_of_the_reference_are_those_written(folder, made):
    written = [*pd.read_parquet(folder / "results/two_stage/trajectories")]
    assert made.column_names("one_layer") == [name for name in written if name not in ("trial_id", "step")]
    shown = re.findall(r"`(\w+)`", made.columns("one_layer"))
    assert sorted(shown) == sorted(made.column_names("one_layer"))


def test_the_run_folder_page_names_every_column_of_trials(folder):
    columns = {*pd.read_parquet(folder / "results/two_stage/trials")}
    settings = {*load_sweep("smoke").settings.settings}
    other = {name for name in columns - settings if not name.startswith("final_")}
    table = PAGES["folder.md"].split("## Trials")[1].split("## Reference")[0]
    assert other <= set(re.findall(r"`(\w+)`", table))


def test_every_public_name_is_in_the_reference():
    from topicjax.analysis import EXPORTED
    from topicjax.analysis.pictures import Picture

    public = {*topicjax.__all__, *EXPORTED} - {"__version__", "Figure"}  # Figure is another name of Picture
    shown = {name.rpartition(".")[2] for name in re.findall(r"auto\w+:: ([\w.]+)", PAGES["python.md"])}
    assert public | {Picture.__name__} <= shown


def test_notebooks_of_the_site_are_kept_without_outputs():
    for path in (ROOT / "docs").glob("*.ipynb"):
        assert not any(cell.get("outputs") for cell in json.loads(path.read_text())["cells"])


def test_the_import_graph_draws_every_room(made):
    svg = made.filled(
        "before\n\n```mermaid\ngraph TD\n  cli --> engine\n  engine --> store\n  cli --> store\n```\n"
    )
    assert svg.startswith("before\n\n<svg") and "\n\n" not in svg.split("<svg")[1].rstrip()
    for name in ("cli", "engine", "store"):
        assert f">{name}</text>" in svg
    assert svg.count("marker") or svg.count("<path") > 0


def test_docstrings_become_restructured_text(made):
    lines = ["Return W_K of `x`, *not* |a|.", "", "    Theta    one", "  two", "after"]
    made.as_restructured(lines)
    assert lines[0] == r"Return W\_K of ``x``, \*not\* \|a\|."
    assert lines[2:5] == ["", "::", ""] and lines[-2:] == ["", "after"]

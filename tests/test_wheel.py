"""The wheel, installed in a clean environment outside the repository: everything a user types there works."""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import jax
import pytest
from support.command_line import ROOT, environment

pytestmark = pytest.mark.slow
NOT_SOURCES = (".venv", ".git", "results", "data", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
CHECKOUT = re.compile(
    r"\bmake [a-z]+ [A-Z]+=|\bmake (corpus|gpu|tpu|ray|sweep|report)\b|\.venv/|constraints\.txt"
    r"|\bdocs/\w+\.md"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel of a copy of the sources."""
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, place / "source", ignore=shutil.ignore_patterns(*NOT_SOURCES))
    pip("wheel", "--no-deps", "--wheel-dir", str(place), str(place / "source"))
    (built,) = place.glob("topicjax-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Install it into an environment that finds its dependencies here, but not this checkout."""
    place = tmp_path_factory.mktemp("installed") / "environment"
    venv.create(place, symlinks=True)
    pip("--python", str(place / "bin" / "python"), "install", "--no-deps", str(wheel))
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(str(Path(jax.__file__).parents[1]))
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A user's project, which is a repository of its own."""
    place = tmp_path_factory.mktemp("project")
    subprocess.run(["git", "init", "--quiet", str(place)], check=True)
    return place


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def typed(installed, folder, cache):
    """A function that runs what a user types, with the environment on the PATH."""

    def run(line: str, code: int = 0) -> str:
        variables = environment(cache) | {"PATH": f"{installed / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(
            line, shell=True, cwd=folder, env=variables, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == code, (line, done.stdout, done.stderr)
        said = done.stdout + done.stderr
        pages = [page.read_text() for page in folder.glob("results/*/report.html")]
        assert not [found for text in (said, *pages) for found in CHECKOUT.findall(text)], said
        return said

    return run


def test_it_holds_every_module_and_every_file_of_the_pages(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "topicjax").rglob("*.py")}
    for room in ("analysis", "sweeps"):
        files = [path for path in (ROOT / room).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        wanted |= {f"topicjax/{path.relative_to(ROOT)}" for path in files}
    assert names == wanted | {"topicjax/py.typed"}


def test_it_is_the_installed_one(typed, installed):
    shown = typed("python -c 'import topicjax, topicjax.analysis; print(topicjax.analysis.__file__)'")
    assert shown.startswith(str(installed))
    assert typed("topicjax --version") == f"topicjax {importlib.metadata.version('topicjax')}\n"


def test_list_run_and_report_as_advised(typed, folder):
    assert re.search(r"two_stage +480 trials", typed("topicjax list"))
    out = typed("topicjax run smoke")
    assert "Done: 16 trials" in out
    advised = [line.strip() for line in out.split("Next:\n")[1].splitlines()]
    assert advised[0] == "topicjax report results/smoke"
    for line in advised[:3]:  # report, inspect, restore
        typed(line)
    for path in ("results/smoke/report.html", "weights.npz"):
        assert (folder / path).stat().st_size > 1000
    assert json.loads(typed("topicjax status results/smoke --json 2> /dev/null"))["finished"] == 16
    runs = json.loads((folder / "results/smoke/manifest.json").read_text())["runs"]
    assert [run["git_commit"] for run in runs] == [None]  # not that of the user's project
    example = "import topicjax; print(len(topicjax.load('results/smoke').trajectories))"
    assert int(typed(f"python -c {shlex.quote(example)}")) > 16


def test_an_experiment_of_ones_own(typed, folder):
    shutil.copy(ROOT / "docs" / "deep_linear.py", folder / "mine.py")
    typed("topicjax run mine.py --set depth=1 --set steps=100")
    typed("topicjax report results/mine")
    assert (folder / "results/mine/report.html").exists()
    assert "did you mean 'learning_rate'" in typed("topicjax plan mine.py --set learningrate=1", code=2)


WITHOUT_RAY = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "ray" else found(name, *rest)
from topicjax.cli import main
sys.exit(main(["plan", "smoke", "--cluster", "local:2"]))
"""


def test_what_is_missing_is_advised_for_this_environment(typed):
    said = typed(f"python -c {shlex.quote(WITHOUT_RAY)}", code=2)
    assert said.endswith("not installed; install it with: python -m pip install ray==2.60.0\n")
    assert "to make it: topicjax corpus\n" in typed("topicjax run wikipedia", code=2)


def test_help_names_pages_of_the_documentation(typed):
    """Its files are not in the wheel."""
    assert "page json of the documentation lists its fields" in " ".join(
        typed("topicjax bench --help").split()
    )

"""Which module may import which: the arrows of docs/internals.md, read from the code."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (  # from the ground up; a room may import from its own floor only itself, and from all floors below
    ("errors", "advice", "version", "stages", "pace"),
    ("settings",),
    ("trial", "theory"),
    ("experiments", "shared_settings"),
    ("shared", "sweep", "store"),
    ("corpora", "measures"),
    ("one_layer_settings", "encoder_settings", "syntax_settings", "text_settings"),
    ("one_layer", "encoder", "syntax", "text"),
    ("engine", "analysis", "export", "probe"),
    ("api", "bench"),
    ("cli",),
    ("__main__",),
)
FLOOR = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}
ANALYSIS_MAY_SEE = {
    "errors",
    "settings",
    "stages",
    "pace",
    "one_layer_settings",
    "encoder_settings",
    "shared_settings",
    "store",
    "theory",
    "analysis",
}
FINDS_EXPERIMENTS = {
    "topicjax.analysis.page.lookup": {"experiments", "sweep", "trial"},  # to find their pages
    "topicjax.analysis.page.claims_table": {"experiments", "sweep", "version"},  # which sweep asks what
}
OF_ANY_EXPERIMENT = (
    "settings",
    "trial",
    "sweep",
    "experiments",
    "store",
    "engine",
    "export",
    "measures",
)
WITHOUT_JAX = (
    "topicjax",
    "topicjax.bench.sleepers",
    "topicjax.cli",
    "topicjax.engine.options",
    "topicjax.engine.plan",
    "topicjax.store.reader",
    "topicjax.sweep.overrides",
)
FLOORS_OF_ANALYSIS = (  # rooms of a floor may import each other where the floor is shared by helpers
    ("outputs", "page.contract"),
    ("frames", "pictures"),
    ("tables", "topic_model", "layers", "scores"),
    ("maps", "figures"),
    ("page",),
    ("one_layer",),
    ("encoder", "probe", "syntax"),
    ("text",),
)
PLATFORM = (
    *(
        "errors",
        "settings",
        "trial",
        "stages",
        "pace",
        "api",
        "export",
        "sweep",
        "store",
        "engine",
        "measures",
    ),
    *("cli", "__main__", "__init__"),
)
PLATFORM_OF_ANALYSIS = ("frames", "pictures", "tables", "outputs", "maps", "figures", "page")


def modules() -> dict[str, Path]:
    """Return every module of the package by its name once installed."""
    found = {}
    for folder, package in (("topicjax", "topicjax"), ("analysis", "topicjax.analysis")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join((package, *parts)).removesuffix(".__init__")
            found[name] = path
    return found


MODULES = modules()
PACKAGES = {f"{name}.__init__" for name, path in MODULES.items() if path.name == "__init__.py"}


def imports(name: str) -> set[str]:
    """Return the modules of the package that a module imports anywhere in it, also inside functions."""
    path, found = MODULES[name], set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return {known for module in found if (known := nearest(module))} - {name}


def nearest(module: str) -> str:
    """Return the module that an imported name is, or is in; empty if it is not ours."""
    while module and module not in MODULES:
        module = module.rpartition(".")[0]
    return module


def room(module: str) -> str:
    """Return the room of a module: the first word after topicjax, or the experiment.

    The settings of an experiment are a room of their own, below theory and analysis: they need no jax.
    """
    first, *rest = (module.split(".") + [""])[1:]
    if first == "experiments" and f"topicjax.experiments.{rest[0]}.__init__" in PACKAGES:
        is_settings = rest[1] == "settings" or rest in (
            ["shared", "losses", ""],
            ["shared", "optimizers", ""],
        )
        return f"{rest[0]}_settings" if is_settings else rest[0]
    return first


def test_every_room_has_a_floor():
    assert {room(name) for name in MODULES} - {""} == set(FLOOR)


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down_only(name: str):
    for other in imports(name) - {"topicjax", "topicjax.version"}:
        here, there = room(name), room(other)
        if here and here != there:
            assert FLOOR[there] < FLOOR[here], f"{name} imports {other}"


@pytest.mark.parametrize("name", [name for name in MODULES if room(name) in OF_ANY_EXPERIMENT])
def test_the_engine_and_the_store_know_no_experiment(name: str):
    slices = {"one_layer", "encoder", "syntax", "text", "shared"}
    assert not {room(other).removesuffix("_settings") for other in imports(name)} & {*slices, "theory"}


def test_nothing_imports_the_command_line():
    users = {name for name in MODULES if any(room(other) == "cli" for other in imports(name))}
    assert {room(name) for name in users} == {"cli", "__main__"}


@pytest.mark.parametrize("name", [name for name in MODULES if room(name) == "analysis"])
def test_analysis_sees_settings_store_and_theory_only(name: str):
    assert {room(other) for other in imports(name)} <= ANALYSIS_MAY_SEE | FINDS_EXPERIMENTS.get(name, set())
    assert "topicjax.store.writer" not in imports(name)
    text = MODULES[name].read_text()
    assert "import jax" not in text and "from jax" not in text


def floor_of_analysis(name: str) -> int | None:
    """Return the floor of a module of analysis; none for the package itself."""
    parts = name.split(".")[2:]
    for number, rooms in enumerate(FLOORS_OF_ANALYSIS):
        if ".".join(parts) in rooms:
            return number
    return next((n for n, rooms in enumerate(FLOORS_OF_ANALYSIS) if parts and parts[0] in rooms), None)


@pytest.mark.parametrize("name", [name for name in MODULES if room(name) == "analysis"])
def test_imports_within_analysis_go_down_only(name: str):
    here = floor_of_analysis(name)
    for other in imports(name):
        there = floor_of_analysis(other) if room(other) == "analysis" else None
        if here is None or there is None:
            continue
        is_same_room = name.split(".")[2] == other.split(".")[2]
        assert there < here or is_same_room, f"{name} imports {other}"


@pytest.mark.parametrize("name", MODULES)
def test_no_platform_module_names_an_experiment(name: str):
    """Where the platform needs the name of an experiment, the contract lacks something."""
    parts = [*name.split("."), ""]
    is_contract = parts[1] == "experiments" and parts[2] in ("", "contract", "one_shot")
    is_page = parts[1] == "analysis" and parts[2] in ("", *PLATFORM_OF_ANALYSIS)
    is_probe = name == "topicjax.cli.probe_commands"  # "encoder" is a model to probe there
    if (parts[1] in PLATFORM and not is_probe) or is_contract or is_page:
        texts = [
            node.value
            for node in ast.walk(ast.parse(MODULES[name].read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        assert not {"one_layer", "encoder", "syntax", "text"} & {*texts}
        assert not re.search(r"\bone_layer\b|FIRST_EXPERIMENT", MODULES[name].read_text())


def test_there_is_no_circle():
    """Imports inside functions may hide one from Python, not from a reader."""
    graph = {name: imports(name) - {"topicjax"} for name in MODULES if name != "topicjax"}
    while graph:
        ready = {name for name, needs in graph.items() if not needs & graph.keys()}
        assert ready, f"these import each other: {sorted(graph)}"
        graph = {name: needs for name, needs in graph.items() if name not in ready}


def test_planning_and_reading_import_without_jax():
    check = """import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert not {'jax', 'orbax', 'matplotlib'} & {*sys.modules}, name"""
    done = subprocess.run([sys.executable, "-c", check, *WITHOUT_JAX], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_package_is_installed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    assert set(listed) == packages | {"topicjax.sweeps"}


def tree() -> str:
    """Return every module with the first line of its docstring, by room."""
    lines, shown = [], set()
    for path in sorted(MODULES.values(), key=lambda path: (path.parts[len(ROOT.parts)] != "topicjax", path)):
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        if not docstring:
            continue  # a package that only holds its modules
        parts = path.relative_to(ROOT).parts
        for depth in range(1, len(parts)):
            if parts[:depth] not in shown:
                shown.add(parts[:depth])
                lines.append(f"{'  ' * (depth - 1)}{parts[depth - 1]}/")
        first_line = docstring.splitlines()[0].rstrip(".")
        indent = "  " * (len(parts) - 1)
        lines.append(f"{indent + parts[-1]:26} {first_line}")
    return "\n".join(lines)


def graph() -> str:
    """Return which room imports which, as a Mermaid graph."""
    pairs = {(room(name), room(other)) for name in MODULES for other in imports(name)}
    arrows = sorted(
        (here, there)
        for here, there in pairs
        if here != there and here and there and there not in ("advice", "errors", "version")
    )
    return "\n".join(["graph TD", *(f"  {here} --> {there}" for here, there in arrows)])


DRAWN = {"tree": tree, "graph": graph}
INTERNALS = ROOT / "docs" / "internals.md"


def redrawn(text: str) -> str:
    """Return the text of docs/internals.md with both drawings as the code is now."""
    for name, draw in DRAWN.items():
        fence = "mermaid" if name == "graph" else "text"
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, rest = text.split(begin)
        text = f"{head}{begin}```{fence}\n{draw()}\n```\n{end}{rest.split(end)[1]}"
    return text


def test_the_page_shows_the_tree_and_the_graph_as_they_are():
    text = INTERNALS.read_text()
    assert redrawn(text) == text, "to draw them again: .venv/bin/python tests/test_architecture.py"


if __name__ == "__main__":
    INTERNALS.write_text(redrawn(INTERNALS.read_text()))

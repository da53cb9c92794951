"""Set before jax starts: four devices, quick compilations that are kept, strictness that catches mistakes."""

import os
import signal
from pathlib import Path

from support.command_line import FAST, ROOT, end_started, start

os.environ["XDG_CACHE_HOME"] = str(ROOT / ".pytest_cache" / "cache")  # not the user's own
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FAST}"

import jax
import pytest

from topicjax.analysis import pictures

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell, ...
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ... and under nohup
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_compilation_cache_dir", str(ROOT / ".pytest_cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
jax.config.update("jax_numpy_rank_promotion", "raise")
pictures.STYLE["savefig.dpi"] = 50


LONGEST = "cli report train engine terminal training experiments encoder kernel faults cluster text".split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: a worker has a whole file, and both should end together."""
    place = {f"test_{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.fixture(scope="session", autouse=True)
def programs_compiled_once():
    """Keep what runs of this process have compiled for other runs of equal trials, chunks and devices."""
    from topicjax.engine import programs

    compile_, known = programs.Programs._compile, {}

    def compile_once(self, name: str, *args) -> None:
        how = (self.shape, self.order, self.segment_windows, programs.on_cores(self.mesh))
        key = (name, self.group.experiment, self.spec, *how, *self.mesh.devices.flat)
        if key not in known:
            compile_(self, name, *args)
            known[key] = self.compiled[name]
        self.compiled[name] = known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs.Programs, "_compile", compile_once)
        yield


@pytest.fixture
def one_figure(monkeypatch):
    """Draw the first map of a report only."""
    from dataclasses import replace

    from topicjax.analysis.one_layer import page

    monkeypatch.setattr(page, "PAGE", replace(page.PAGE, figures={}))


@pytest.fixture
def undrawn(monkeypatch):
    """Make figures but draw none, which takes longest: for tests of what is around them."""
    from topicjax.analysis import outputs

    def save(self, path) -> list[Path]:
        return [outputs.write_file(Path(f"{path}.{kind}"), b"not drawn") for kind in ("png", "svg")]

    monkeypatch.setattr(pictures.Picture, "save", save)


@pytest.fixture(autouse=True)
def no_process_left():
    """Kill what a failed test left running."""
    yield
    end_started()


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def smoke(tmp_path_factory, cache) -> tuple[Path, str]:
    """One uninterrupted run of the smoke sweep: its folder and what it printed."""
    cwd = tmp_path_factory.mktemp("smoke")
    process = start("run", "smoke", "--lanes", "2", "--snapshots", "50,100", cache=cache, cwd=cwd)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert err == ""
    return cwd / "results" / "smoke", out

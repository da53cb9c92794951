"""Set before jax starts: four devices, quick compilations that are kept, strictness that catches mistakes."""

import ctypes
import fcntl
import gc
import os
import resource
import signal
import sys
from pathlib import Path

from support.command_line import FAST, ROOT, end_started, start

os.environ["XDG_CACHE_HOME"] = str(ROOT / ".pytest_cache" / "cache")  # not the user's own
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FAST}"
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # each worker has a core; more threads wait in busy loops

import jax
import pytest

from topicjax.analysis import pictures
from topicjax.engine import programs

programs.KEPT.most = 1000  # memory is watched below
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell, ...
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ... and under nohup
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_compilation_cache_dir", str(ROOT / ".pytest_cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
jax.config.update("jax_numpy_rank_promotion", "raise")
pictures.STYLE["savefig.dpi"] = 50
pictures.STYLE["figure.constrained_layout.use"] = False  # takes longer than drawing; see `laid_out`


LONGEST = (  # the first two do not wait for one another; later ones find the smoke run made
    *("cli", "train", "report", "encoder", "cluster", "engine", "own_experiment", "awkward_runs", "text"),
    *("terminal", "training", "records", "lines", "faults", "kernel", "admission", "bad_input", "watch"),
    *("accelerators", "trained", "experiments", "probe_command", "any_report", "text_report", "lda"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: a worker has a whole file, and both should end together."""
    place = {f"test_{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


KEPT_BYTES, MOST_BYTES = 1 << 30, 3 << 29  # with more memory, what was compiled is let go


@pytest.fixture(scope="module", autouse=True)
def memory_let_go_by_file():
    """Forget compiled programs after a file that has made the process large."""
    yield
    let_go_above(KEPT_BYTES)


@pytest.fixture(autouse=True)
def memory_let_go_by_test():
    """Forget them within a file too, before the process becomes too large; some will be compiled again."""
    yield
    let_go_above(MOST_BYTES)


def let_go_above(most: int) -> None:
    """Forget what was compiled if this process has more memory than this."""
    if resident_bytes() > most:
        programs.KEPT.known.clear()
        jax.clear_caches()
        gc.collect()
        if sys.platform == "linux":  # free memory goes back to the system only when asked for
            ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """Return the memory that this process has now; where that is not known, the most that it had."""
    path = Path("/proc/self/statm")
    if path.exists():
        return int(path.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture
def one_figure(monkeypatch):
    """Draw the first map of a report only."""
    from dataclasses import replace

    from topicjax.analysis.one_layer import page

    monkeypatch.setattr(page, "PAGE", replace(page.PAGE, figures={}))


@pytest.fixture
def laid_out(monkeypatch):
    """Place the panels of figures as outside the tests, so that no text is cut or covered."""
    monkeypatch.setitem(pictures.STYLE, "figure.constrained_layout.use", True)


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
def between_workers(tmp_path_factory) -> Path:
    """A folder of this run of the tests that all its worker processes share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def cache(between_workers) -> Path:
    folder = between_workers / "cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def smoke(between_workers, cache) -> tuple[Path, str]:
    """One uninterrupted run of the smoke sweep, for all workers: its folder and what it printed."""
    cwd = between_workers / "smoke"
    printed = cwd / "printed.txt"
    with open(between_workers / "smoke.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first to come makes it, the others wait
        if not printed.exists():
            cwd.mkdir(exist_ok=True)
            process = start("run", "smoke", "--lanes", "2", "--snapshots", "50,100", cache=cache, cwd=cwd)
            out, err = process.communicate(timeout=300)
            assert process.returncode == 0, err
            assert err == ""
            printed.write_text(out)
    return cwd / "results" / "smoke", printed.read_text()

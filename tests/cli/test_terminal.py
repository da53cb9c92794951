"""Training outlives its terminal: lost output, signals and full disks end in order, never in a traceback."""

import errno
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.command_line import DEEP, environment, start

import topicjax
from topicjax import cli
from topicjax.cli.terminal import Steady, one_line, steady_output
from topicjax.engine import resources, stopping
from topicjax.store.files import REASONS

SHALLOW = ("run", DEEP, *"--lanes 2 --set depth=2 --set seed=0 --set width=4 --out out".split())
LOST = {  # what a shell may do to a run's output
    "a reader that has seen enough": '"$@" 2> /dev/full | head -1',
    "everything closed": '"$@" <&- >&- 2>&-',
    "a full disk": '"$@" > /dev/full',
}


@pytest.mark.parametrize(
    "redirection",
    [
        next(iter(LOST.values())),
        *(pytest.param(each, marks=pytest.mark.slow) for each in [*LOST.values()][1:]),
    ],
)
def test_a_run_goes_on_without_its_output(redirection, tmp_path, cache):
    script = f"set -o pipefail; {redirection}"
    command = ["bash", "-c", script, "bash", sys.executable, "-m", "topicjax", *SHALLOW, "--set", "steps=100"]
    done = subprocess.run(command, env=environment(cache), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    found = topicjax.load(tmp_path / "out")
    assert len(found.trials) == 16 and not found.missing
    assert cli.main(["verify", str(tmp_path / "out")]) == 0
    assert found.restore(found.trials["trial_id"][0])


def test_an_ascii_terminal_gets_ascii(cache, tmp_path):
    process = start("list", cache=cache, cwd=tmp_path, PYTHONIOENCODING="ascii")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and err == "" and out.isascii()
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    out = Steady(stream)
    print("a · b \udc80", file=out, flush=True)
    assert stream.buffer.getvalue() == b"a \\xb7 b \\udc80\n"


class Broken(io.StringIO):
    """A stream whose flush fails, as a file's does: what was written before is kept back till then."""

    def __init__(self, error: Exception):
        super().__init__()
        self.error = error

    def flush(self):
        raise self.error


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 0, ""),
        (FULL, 1, "topicjax: cannot write to standard output: [Errno 28] No space left on device\n"),
        (ValueError("I/O operation on closed file"), 1, "topicjax: cannot write to standard output: I/O"),
    ],
    ids=["pipe", "full", "closed"],
)
def test_a_command_that_only_prints_says_if_nobody_can_read_it(error, code, said, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Broken(error))
        assert cli.main(["settings"]) == code
    assert capsys.readouterr().err.startswith(said)


def test_output_is_only_steady_while_a_command_runs():
    before = sys.stdout, sys.stderr
    with steady_output() as out:
        assert sys.stdout is out and not out.isatty()
    assert (sys.stdout, sys.stderr) == before


def test_messages_are_one_line_that_controls_no_terminal():
    assert one_line("a\nb\t c \x1b[2J\udcff") == "a b c \\x1b[2J\\udcff"


ENDLESS = (*SHALLOW, "--axis", "steps=100000000", "--axis", "record_every=1000")


def started(tmp_path: Path, cache: Path) -> subprocess.Popen:
    """Start a run that would take hours, and wait until it trains."""
    process = start(*ENDLESS, "--save-every", "0", cache=cache, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("out/partial/*.npz")):  # the first saved state
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(
    ("number", "times", "code"),
    [
        pytest.param(signal.SIGHUP, 2, 129, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, 143, marks=pytest.mark.slow),
        (signal.SIGINT, 1, 130),
    ],
)
def test_signals_stop_in_order_with_the_state_saved(number, times, code, tmp_path, cache):
    """A terminal that closes may send SIGHUP twice, and `timeout` SIGTERM: only Ctrl-C insists."""
    process = started(tmp_path, cache)
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.02)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "")
    assert "Continue with the same command" in out
    assert list(tmp_path.glob("out/partial/*.npz"))


@pytest.mark.parametrize("pause", [0.02, pytest.param(0.3, marks=pytest.mark.slow)])
def test_five_ctrl_c_end_the_process_without_a_traceback(pause, tmp_path, cache):
    process = started(tmp_path, cache)
    asked = time.monotonic()
    for _ in range(5):
        process.send_signal(signal.SIGINT)
        time.sleep(pause)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in out + err and err in ("", "topicjax: stopped\n")
    assert time.monotonic() - asked < 20  # about a second on a quiet machine


def test_ctrl_c_in_an_endless_sweep_file_is_one_line(tmp_path, cache):
    (tmp_path / "endless.py").write_text("open('begun', 'w')\nwhile True: pass\n")
    process = start("plan", "endless.py", cache=cache, cwd=tmp_path)
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "topicjax: stopped\n")


def test_the_second_ctrl_c_raises_and_the_third_ends(monkeypatch):
    ended = []
    monkeypatch.setattr(stopping, "end_process", lambda: ended.append(True))
    before = signal.getsignal(signal.SIGINT)
    with stopping.stop_requests() as is_stopping:
        assert not is_stopping()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert is_stopping() and is_stopping.first == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert not ended
        os.kill(os.getpid(), signal.SIGINT)
    assert ended == [True] and signal.getsignal(signal.SIGINT) is before


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping.stop_requests() as is_stopping:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not is_stopping()
    finally:
        signal.signal(signal.SIGHUP, before)


TINY = "depth=1 width=3 batch_size=2 seed=0 steps=40 record_every=10 learning_rate=0.003".split()
TRAINS = ("run", DEEP, "--save-every", "0", *(text for fixed in TINY for text in ("--set", fixed)))
TENSORSTORE = {
    number: ValueError(f"INTERNAL: Error writing: {os.strerror(number)}")
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
}


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("topicjax.store.writer.write_manifest", FULL),
        ("topicjax.store.writer.write_table", FULL),
        ("topicjax.store.checkpoints.save", FULL),
        *(("topicjax.store.checkpoints.save", error) for error in TENSORSTORE.values()),
        ("topicjax.store.checkpoints.save", OSError(errno.EIO, os.strerror(errno.EIO))),
        ("topicjax.store.checkpoints.save_state", FULL),
        ("topicjax.analysis.page.report.write", FULL),
    ],
)
def test_errors_of_the_disk_are_one_sentence_and_exit_1_wherever_they_strike(
    place, error, smoke, tmp_path, monkeypatch, capsys
):
    def full(*args, **kwargs):
        raise error

    folder, _ = smoke
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resources, "use_all_cores", lambda: None)
    monkeypatch.setattr("topicjax.engine.costs.SEGMENT_STEPS", 10)
    monkeypatch.setattr(place, full)
    assert cli.main(["report", str(folder)] if "report" in place else [*TRAINS]) == 1
    said = capsys.readouterr().err
    number = getattr(error, "errno", None) or next(n for n, own in TENSORSTORE.items() if own is error)
    assert said.count("\n") == 1 and REASONS[number] in said

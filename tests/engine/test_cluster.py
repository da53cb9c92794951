"""Sweeps on a Ray cluster: the numbers of a local run, whatever happens to workers, nodes and the driver."""

import contextlib
import functools
import os
import re
import signal
import threading
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from support import slow_trials
from support.command_line import ROOT, start
from support.ray_processes import (
    AGENT_SECONDS,
    LOOPBACK,
    agents,
    all_gone,
    descendants,
    listening,
    named,
    of_session,
    processes,
)

import topicjax
from topicjax import cli
from topicjax.engine import run
from topicjax.engine.cluster.connection import SETTINGS, Cluster
from topicjax.engine.options import Options, parse_address
from topicjax.engine.resources import Resources
from topicjax.store.reader import committed
from topicjax.store.verify import verify
from topicjax.sweep import expand
from topicjax.sweep.files import load_sweep

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # nodes start while jax is here

FILE = str(ROOT / "tests" / "support" / "slow_trials.py")
TRIALS, CHUNKS, STEPS = 32, 16, 20
HEALTH = dict(  # a dead node is noticed within a second or two
    health_check_initial_delay_ms=0, health_check_period_ms=300, health_check_failure_threshold=3
)
WAIT_SECONDS = 300.0


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    """Return how files that trials read are written: control(pause="0.1"), control() for none."""
    folder = tmp_path_factory.mktemp("control")
    os.environ[slow_trials.CONTROL] = str(folder)

    def write(**files: str) -> None:
        for name, text in files.items():  # replaced in one step: workers read them all the time
            (folder / f".{name}").write_text(text)
            (folder / f".{name}").replace(folder / name)
        for path in folder.iterdir():
            if path.name not in files:
                path.unlink()

    yield write
    del os.environ[slow_trials.CONTROL]


class Machines:
    """A real cluster of two nodes, with a CPU each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Nodes

        os.environ.update(SETTINGS)
        head = dict(num_cpus=1, include_dashboard=False, _system_config=HEALTH)
        self.nodes = Nodes(initialize_head=True, head_node_args=head)
        self.second = self.nodes.add_node(num_cpus=1)
        self.session = Path(self.nodes.head_node.get_session_dir_path()).name

    def kill(self) -> None:
        """Kill every process of the second node."""
        self.nodes.remove_node(self.second, allow_graceful=False)

    def join(self) -> None:
        """Let another node join in its place."""
        self.second = self.nodes.add_node(num_cpus=1)


@pytest.fixture(scope="module")
def machines(control):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's own code
        found = Machines()
        yield found
        found.nodes.shutdown()
    assert all_gone(functools.partial(of_session, found.session))


@pytest.fixture(scope="module")
def joined(machines):
    """This process as a driver of that cluster."""
    with Cluster(parse_address(machines.nodes.address)) as found:
        yield found


def train(folder: Path, cluster: Cluster | None = None, lanes: int = 2, steps: int = STEPS):
    """Run the sweep as the command line does; return the run and its outcome."""
    named = load_sweep(FILE)
    named = replace(named, base=named.base | {"steps": steps})
    devices = jax.devices()[:1] if cluster is None else cluster.devices
    trials = expand(named.settings, named.base, named.sweep)
    outcome = run.run_sweep(named, trials, folder, Options(lanes), Resources(devices, cluster))
    return topicjax.load(folder), outcome


@pytest.fixture(scope="module")
def local(tmp_path_factory, control):
    found, outcome = train(tmp_path_factory.mktemp("local") / "run")
    assert outcome.ok == TRIALS and len(set(found.trials["chunk"])) == CHUNKS
    return found


LAYOUT = ["chunk", "row", "snapshot_checksums"]  # of a trial: they follow its chunk, and its last bits


def assert_equal(found, other, **tolerance) -> None:
    """Check that runs have the same trials, records, ends and weights, bit for bit or within a tolerance."""
    for name, keys in (("trials", ["trial_id"]), ("trajectories", ["trial_id", "step"])):
        mine, its = (getattr(each, name).sort_values(keys, ignore_index=True) for each in (found, other))
        columns = [column for column in its if column not in ["run", *(LAYOUT if tolerance else [])]]
        exactly = tolerance or dict(check_exact=True)
        pd.testing.assert_frame_equal(mine[columns], its[columns], **exactly)
    for trial_id in other.trials["trial_id"]:
        mine, its = found.restore(trial_id), other.restore(trial_id)
        for name, array in its.items():
            np.testing.assert_allclose(mine[name], array, rtol=tolerance.get("rtol", 0))
    assert verify(found.folder).problems == []


def wait_for(condition) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_cluster_gives_the_bits_of_a_local_run(joined, local, control, tmp_path):
    """Also the limit lines: every chunk is asked, and the first ones have to wait for them."""
    control(pause="0.02")
    found, outcome = train(tmp_path / "run", joined)
    assert outcome.is_whole and outcome.ok == TRIALS and outcome.programs == 2
    assert_equal(found, local)
    assert set(joined.last.begun.values()) == {1} and len(joined.last.begun) == CHUNKS
    # two programs, two workers, eight chunks each: nobody compiles what another has, until the very end
    assert sum(map(len, joined.last.programs)) <= 3
    assert len(joined.last.done) == 2 and sum(joined.last.done.values()) == CHUNKS  # both nodes had work
    entry = topicjax.store.manifest.read_manifest(found.folder)["runs"][0]
    assert (entry["workers"], entry["devices"]) == (2, ["cpu"])


@pytest.mark.slow
def test_more_steps_go_on_where_shorter_trainings_ended(joined, local, control, tmp_path):
    """States and decisions of the folder travel to the workers."""
    control()
    train(tmp_path / "run", joined, steps=STEPS // 2)
    found, outcome = train(tmp_path / "run", joined)
    decided = local.trials.query("learning_rate == 0.5")
    assert outcome.ok == TRIALS and outcome.trial_steps == (TRIALS - len(decided)) * STEPS // 2
    assert set(found.select(decided["trial_id"].tolist()).trials["stopped_step"]) == {STEPS // 2}
    assert_equal(found.select(local.trials["trial_id"].tolist()), local, rtol=0)


def test_a_killed_node_costs_its_chunk_and_a_late_one_gets_work(joined, machines, local, control, tmp_path):
    control(pause="0.05")
    folder = tmp_path / "run"
    with ThreadPoolExecutor(1) as pool:  # nodes are started by the main thread
        running = pool.submit(train, folder, joined)
        wait_for(lambda: (folder / "trials").is_dir() and len(committed(folder)) >= 4)
        control(pause="1")
        machines.kill()
        machines.join()
        wait_for(lambda: machines.second.node_id in [member.node for member in joined.members.ready])
        control(pause="0.05")
        found, outcome = running.result()
    assert outcome.ok == TRIALS
    assert_equal(found, local)
    assert 1 <= len(joined.last.lost) <= 2 and set(joined.last.lost) <= joined.last.begun.keys()
    expected = Counter(joined.last.begun.keys()) + Counter(joined.last.lost)
    assert joined.last.begun <= expected  # nothing else was computed twice; a lost worker may not have told
    assert joined.last.done[machines.second.node_id] > 0
    assert "lost and repeated" in joined.last.described()


def test_what_raises_is_reported_and_tried_again(joined, local, control, tmp_path, monkeypatch, capsys):
    control(broken="yes")
    monkeypatch.setattr("topicjax.engine.resources.use_one_core", lambda: None)
    monkeypatch.setattr("topicjax.engine.resources.Cluster", lambda *_: contextlib.nullcontext(joined))
    monkeypatch.chdir(tmp_path)
    command = ["run", FILE, "--lanes", "2", "--cluster", "auto"]
    assert cli.main(command) == 1
    out = capsys.readouterr().out
    broken = local.trials.query("learning_rate == @slow_trials.BROKEN_RATE")
    lost = local.trials.loc[local.trials["chunk"].isin(broken["chunk"]), "trial_id"]
    assert f"Failed: {len(lost)} trials; {TRIALS - len(lost)} of this run are finished" in out
    said = re.findall(r"RuntimeError: broken on purpose \(\S*slow_trials\.py, line \d+, in \w+\) \(on ", out)
    assert len(said) == 2 * len(set(broken["chunk"]))
    assert "and so on" not in out and all(
        any(i in out for i in own) for _, own in lost.groupby(lost.index // 4)
    )
    assert committed(tmp_path / "results" / "slow_trials").isdisjoint(lost)
    control()
    assert cli.main(command) == 0
    assert_equal(topicjax.load(tmp_path / "results" / "slow_trials"), local)


@pytest.mark.slow
def test_a_worker_out_of_memory_gets_smaller_chunks(joined, local, control, tmp_path):
    control(hungry="yes")
    found, outcome = train(tmp_path / "run", joined)
    assert outcome.ok == TRIALS and not outcome.failures
    assert len(set(found.trials["chunk"])) == TRIALS  # one trial each
    assert_equal(found, local, rtol=1e-5)


def start_local(folder: Path, cache: Path, workers: int = 1):
    """Start the command with workers of its own."""
    return start(
        *("run", FILE, "--lanes", "2", "--cluster", f"local:{workers}", "--out", str(folder)),
        *("--save-every", "0"),  # a state at every segment, some of them sent when trials have ended
        cache=cache,
        cwd=folder.parent,
    )


@pytest.mark.slow  # Ray takes a minute to notice a killed driver
def test_ctrl_c_and_a_killed_driver_leave_no_process_and_lose_nothing(local, control, cache, tmp_path):
    folder, helpers = tmp_path / "run", set()
    for ending, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        control(pause="0.2")
        enough = (len(committed(folder)) if folder.exists() else 0) + 2
        process = start_local(folder, cache)
        wait_for(lambda: (folder / "trials").is_dir() and len(committed(folder)) >= enough)  # noqa: B023
        started = descendants(process.pid)
        assert (found := listening({process.pid, *started})) and found <= set(LOOPBACK)
        helpers = agents(started) if ending == signal.SIGKILL else set()
        process.send_signal(ending)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, out + err
        assert len(started) > 3 and all_gone(started - helpers)
    control()
    process = start_local(folder, cache, workers=2)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and err == "", out + err
    found = topicjax.load(folder)
    assert_equal(found, local)
    assert set(found.trials["run"]) == {1, 2, 3}  # what was finished is kept
    assert all_gone(helpers, AGENT_SECONDS)


@dataclass(frozen=True)
class Blow:
    """What happens to a process of a local cluster, and what the command may say then."""

    program: str  # the name of the process; "" for the driver itself
    codes: tuple[int, ...]  # exit codes of the command
    sentences: tuple[str, ...]  # patterns of what it may say beside its usual lines
    seconds: float = 0.0  # for which the process is stopped; 0: it is killed
    ends_run: bool = False


LOST = r"the worker on \S+ is lost \(its process ended\): its chunk of 2 trials again"
STARTING = r"topicjax: --cluster is local:2 and cannot be used: .+"
# Of Ray itself, which ends the process while it connects: no code of ours runs after that.
ENDED_BY_RAY = r"\[.+ core_worker_process\.cc:\d+: Failed to register worker to Raylet: .+"
CONTINUES = "finished trials are kept, the same command continues"
BLOWS = {
    "driver": Blow("", (-signal.SIGKILL,), ()),
    "head": Blow(
        "gcs_server",
        (0, 1, 2),
        (
            rf"topicjax: the head of the Ray cluster cannot be reached any more; {CONTINUES}",
            STARTING,
            ENDED_BY_RAY,
        ),
        ends_run=True,
    ),
    "raylet": Blow(
        "raylet",
        (0, 1, 2),
        (rf"topicjax: Ray on this machine cannot be reached any more; {CONTINUES}", STARTING, ENDED_BY_RAY),
        ends_run=True,
    ),
    "worker": Blow("ray::Handshake", (0,), (LOST,)),
    "stopped worker": Blow(
        "ray::Handshake",
        (0,),
        (
            r"the worker on \S+ has not answered for 2\d s: it is stopped or very busy; given up after .+",
            r"the worker on \S+ answers again",
        ),
        seconds=60.0,
    ),
}
BLOWS_EACH = 10
LATEST = 0.8  # of the time of an undisturbed run: later ones would often come too late
USUAL = "|".join(  # patterns of the lines of a run without trouble
    (
        r"^slow_trials: \d+ trials",
        "^results go to",
        "^compiling ",
        r"^\d+/\d+ trials",
        "^Done: ",
        "ok, 0 diverged$",
    )
    + (
        r"^\S+/(trials|trajectories|checkpoints) ",
        "^Next:$",
        "topicjax (report|inspect|restore) ",
        "^in Python:",
    )
    + (r"are finished", "^nothing", "^Nothing left to train")
)


class Watched:
    """A command with two workers of its own, and every process that it has started."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.process, self.started = start_local(folder, cache, workers=2), set[int]()

    def look(self) -> bool:
        """Note what it has started meanwhile; return whether it still runs."""
        time.sleep(0.1)
        self.started |= descendants(self.process.pid)
        return self.process.poll() is None

    def wait_for(self, program: str) -> int:
        """Wait until a process of this name has started; return its number."""
        while not (found := named(program, self.started)):
            assert self.look(), self.process.communicate()
        return min(found)

    def finish(self) -> list[str]:
        """Wait for its end; return the lines that it has printed."""
        until = time.monotonic() + WAIT_SECONDS
        while self.look():
            assert time.monotonic() < until, f"it does not end: {sorted(self.started & processes().keys())}"
        out, err = self.process.communicate()
        return [line.strip() for line in (out + err).splitlines() if line.strip()]


def strike(command: Watched, blow: Blow, moment: float, control) -> bool:
    """Wait for the process and a moment more, then kill or stop it; return whether it was there."""
    victim = command.wait_for(blow.program) if blow.program else command.process.pid
    until = time.monotonic() + moment
    while time.monotonic() < until and command.look():
        pass
    if command.process.poll() is not None or victim not in processes():
        return False
    if blow.ends_run:
        control(pause="3")  # so that the run is not over before it is noticed
    os.kill(victim, signal.SIGSTOP if blow.seconds else signal.SIGKILL)
    until = time.monotonic() + blow.seconds
    while time.monotonic() < until and command.look():
        pass
    if blow.seconds:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
    return True


def undisturbed_seconds(folder: Path, cache: Path, program: str) -> float:
    """Measure a run from the start of a process of this name to its end."""
    command = Watched(folder, cache)
    begun = time.monotonic() if not program else command.wait_for(program) and time.monotonic()
    lines = command.finish()
    assert command.process.returncode == 0 and unusual(lines) == [], lines
    return time.monotonic() - begun


def unusual(lines: list[str]) -> list[str]:
    """Select the lines that a run without trouble does not print."""
    return [line for line in lines if not re.search(USUAL, line)]


def check_blow(command: Watched, blow: Blow, is_struck: bool) -> Counter[str]:
    """Wait for the end of a command; check how it ended and return what it said, without numbers."""
    lines = command.finish()
    code = command.process.returncode
    assert code in (blow.codes if is_struck else (0,)), (code, lines)
    for line in unusual(lines):
        assert any(re.fullmatch(pattern, line) for pattern in blow.sentences), lines

    def left() -> set[int]:  # looked up each time: an agent takes its name a moment after its start
        helpers = agents(command.started) if not blow.program else set()
        return command.started & processes().keys() - helpers

    assert all_gone(left), [processes()[pid][1].strip() for pid in left()]
    return Counter([f"exit code {code}", *(re.sub(r"\d+", "N", line) for line in unusual(lines))])


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOWS)
def test_whatever_happens_to_a_local_cluster_is_a_sentence(
    name, local, control, cache, tmp_path, record_property
):
    """At random moments: no process is left, and the same command gives the local run."""
    blow, rng, counts, failed = BLOWS[name], np.random.default_rng(0), Counter[str](), []
    control(pause="0.1")
    seconds, started = undisturbed_seconds(tmp_path / "timed", cache, blow.program), set[int]()
    while counts["blows"] < BLOWS_EACH:
        folder = tmp_path / f"run{counts['blows'] + counts['too late']}"
        control(pause="0.1")
        command = Watched(folder, cache)
        moment = rng.uniform(0, LATEST) * seconds
        is_struck = strike(command, blow, moment, control)
        counts["blows" if is_struck else "too late"] += 1
        said = Counter[str]()
        try:
            said = check_blow(command, blow, is_struck)
            counts += said
            control()
            again = Watched(folder, cache)
            lines = again.finish()
            assert again.process.returncode == 0 and unusual(lines) == [] and all_gone(again.started), lines
            assert_equal(topicjax.load(folder), local)
        except AssertionError as error:
            failed.append(f"{moment:.1f} s: {error!s:.600}")
            said[f"FAILED {failed[-1]}"] += 1
        started |= command.started
        when = f"{moment:.1f} of {seconds:.1f} s" if is_struck else "too late"
        print(f"{name}, {when}: {'; '.join(said)}", flush=True)
    record_property(name, dict(counts))
    print(f"{name}: {dict(counts)}", flush=True)
    assert not failed, f"{len(failed)} of {BLOWS_EACH}: {failed[0]}"
    assert all_gone(started, AGENT_SECONDS)


@pytest.mark.slow
def test_a_node_killed_at_twenty_moments(joined, machines, local, control, tmp_path, record_property):
    control(pause="0.03")
    begun = time.monotonic()
    train(tmp_path / "timed", joined)
    seconds, lost = time.monotonic() - begun, Counter[int]()
    for place, moment in enumerate(np.random.default_rng(0).uniform(0, 1.1 * seconds, 20)):
        timer = threading.Timer(moment, machines.kill)
        timer.start()
        found, outcome = train(tmp_path / str(place), joined)
        timer.join()
        assert outcome.ok == TRIALS
        assert_equal(found, local)
        assert joined.last.begun <= Counter(joined.last.begun.keys()) + Counter(joined.last.lost)
        lost[len(joined.last.lost)] += 1
        machines.join()
    record_property("chunks lost by runs", dict(lost))
    print(dict(lost))
    assert lost[1] + lost[2] >= 8

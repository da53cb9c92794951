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
from dataclasses import replace
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


ENDINGS = {  # a process of a local cluster, the signal it gets, the exit code, and what is said then
    "head": (
        "gcs_server",
        signal.SIGKILL,
        1,
        "topicjax: the head of the Ray cluster cannot be reached any more",
    ),
    "node": ("raylet", signal.SIGKILL, 1, "topicjax: Ray on this machine cannot be reached any more"),
    "worker": (
        "ray::Handshake",
        signal.SIGKILL,
        0,
        "is lost (its process ended): its chunk of 2 trials again",
    ),
    "a worker that is stopped": ("ray::Handshake", signal.SIGSTOP, 0, "has not answered for 2"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ending", "code", "said"), ENDINGS.values(), ids=ENDINGS)
def test_whatever_ends_of_a_local_cluster_is_a_sentence(
    name, ending, code, said, local, control, cache, tmp_path
):
    """The run ends or goes on, no process is left, and the same command gives the local run."""
    folder = tmp_path / "run"
    control(pause="0.2")
    process = start_local(folder, cache, workers=2)
    wait_for(lambda: (folder / "trials").is_dir() and len(committed(folder)) >= 4)
    started = descendants(process.pid)
    victim = min(named(name, started))
    if code == 1:
        control(pause="3")  # so that the run is not over before it is noticed
    os.kill(victim, ending)
    if ending == signal.SIGSTOP:
        time.sleep(30)
        os.kill(victim, signal.SIGCONT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    assert said in out + err and "Traceback" not in err and err.count("\n") == code
    assert all_gone(started)
    control()
    process = start_local(folder, cache, workers=2)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and err == "", out + err
    assert_equal(topicjax.load(folder), local)


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

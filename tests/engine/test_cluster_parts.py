"""Parts of the cluster room without a cluster: addresses, who gets which chunk, versions, estimates."""

import importlib.util
import socket
import subprocess
import sys
import types
from pathlib import Path

import jax
import pytest
from support import slow_trials

from topicjax import cli
from topicjax.bench import driver_load
from topicjax.bench.sleepers import Sleeper
from topicjax.engine import costs
from topicjax.engine.chunk import Chunk, Start
from topicjax.engine.cluster import connection, driver
from topicjax.engine.cluster.driver import Jobs, Lifeline, Member, Members, share_of
from topicjax.engine.cluster.handshake import Handshake
from topicjax.engine.cluster.messages import Lost, Orders, Task, WorkerDevice
from topicjax.engine.cluster.processes import Processes
from topicjax.engine.options import Address, Options, parse_address
from topicjax.engine.plan import make_groups
from topicjax.errors import ClusterLost, UserError
from topicjax.sweep import expand

FILE = str(Path(slow_trials.__file__))


def groups(lanes: int = 2, devices: int = 1):
    own = slow_trials.EXPERIMENT
    trials = expand(own.settings, {}, slow_trials.SWEEP)
    by_id = {own.settings.trial_id(trial): trial for trial in trials}
    return make_groups(own, by_id, devices, lanes, "last")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", Address("auto")),
        ("local:8", Address("local:8", local=8)),
        ("head.example:6379", Address("head.example:6379", host="head.example", port=6379)),
        ("[::1]:6379", Address("[::1]:6379", host="::1", port=6379)),
    ],
)
def test_addresses(text, expected):
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text", ["", "local", "local:0", "local:-1", "local:2000", "ray://host:1", "host", "a b:1"]
)
def test_other_texts_are_refused_in_a_sentence(text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "smoke", f"--cluster={text}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("topicjax: --cluster is ") and "allowed: auto or HOST:PORT" in err
    assert err.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["run", "plan"])
def test_without_ray_it_says_what_to_install(command, capsys, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    monkeypatch.chdir(tmp_path)
    assert cli.main([command, "smoke", "--cluster", "local:2"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("topicjax: --cluster needs Ray, which is not installed; install it with: ")
    assert " install ray==" in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_no_cluster_at_an_address_is_a_sentence(capsys, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("topicjax.engine.resources.use_one_core", lambda: None)
    assert cli.main(["run", "smoke", "--cluster", "127.0.0.1:9"]) == 2
    err = capsys.readouterr().err
    assert "nothing answers there (Connection refused)" in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_worker_gets_chunks_of_its_own_program_first():
    jobs = Jobs(groups())
    first, second = jobs.programs
    assert jobs.take(set(), [{first}]).program == second  # nobody has it
    assert [jobs.take({second}, [{first}]).program for _ in range(7)] == [second] * 7
    assert jobs.take({second}, [{first}]).program == first  # nothing else is left
    assert len(jobs.waiting) == 7


def test_halves_have_the_same_trials_and_share_a_program():
    jobs = Jobs(groups(lanes=4))
    whole = [jobs.take(set(), []) for _ in range(2)]
    left = len(jobs.waiting)
    assert all(jobs.halve(job, 1) for job in whole)
    halves = jobs.waiting[: len(jobs.waiting) - left]
    assert {len(job.trial_ids) for job in halves} == {2} and len({job.program for job in halves}) == 1
    assert sorted(i for job in halves for i in job.trial_ids) == sorted(
        i for job in whole for i in job.trial_ids
    )
    assert jobs.group(halves[0]).lanes == 2 and jobs.group(halves[0]).spec == jobs.group(whole[0]).spec


def test_one_trial_per_device_has_no_half():
    jobs = Jobs(groups(lanes=1, devices=2))
    assert jobs.group(jobs.waiting[0]).rows_per_chunk == 2
    assert not jobs.halve(jobs.waiting[0], 2) and len(jobs.waiting) == 16


def node(**resources):
    return {"Resources": resources}


@pytest.mark.parametrize(
    ("nodes", "asked", "resource", "devices"),
    [
        ([node(CPU=2.0), node(CPU=64.0), node()], None, "CPU", 2),
        ([node(CPU=32.0), node(CPU=64.0)], None, "CPU", 8),
        ([node(CPU=32.0)], 16, "CPU", 16),
        ([node(CPU=8.0), node(CPU=8.0, GPU=4.0)], None, "GPU", 1),
        ([node(CPU=8.0, TPU=4.0)], None, "TPU", 4),
    ],
)
def test_what_a_worker_gets_of_its_node(nodes, asked, resource, devices):
    assert share_of(nodes, asked)[:2] == (resource, devices)


@pytest.mark.parametrize(("nodes", "asked"), [([node()], None), ([node(CPU=4.0)], 5)])
def test_no_room_for_a_worker_is_a_sentence(nodes, asked):
    with pytest.raises(UserError, match=r"no CPUs, GPUs or TPUs|--devices is 5; allowed: 1 to 4"):
        share_of(nodes, asked)


def members() -> tuple[Members, Member, list[str]]:
    """A cluster whose one worker is being asked for its versions."""
    found, said = Members.__new__(Members), []
    found.ray = types.SimpleNamespace(kill=lambda actor: None)
    found.versions, found.devices, found.say = Handshake().versions(), [], said.append
    found._refused, member = set(), Member(None, "node", "far")
    found.all = [member]
    return found, member, said


@pytest.mark.parametrize("name", ["Python", "topicjax", "jax", "the code of topicjax"])
def test_other_versions_are_refused_in_a_sentence(name):
    found, member, said = members()
    with pytest.raises(
        UserError, match=rf"^the worker on far has {name} 0 and this machine .*; install the same"
    ):
        found._welcome(member, found.versions | {name: "0"})
    found, member, said = members()
    found.devices = [WorkerDevice("cpu", "cpu", 1)]  # others are at work
    found._welcome(member, found.versions | {name: "0"})
    assert len(said) == 1 and said[0].endswith("that machine gets no work") and not found.all


@pytest.mark.parametrize(
    ("ended", "said"),
    [(0, "the head of the Ray cluster cannot be reached any more; finished trials are kept")]
    + [(1, "Ray on this machine cannot be reached any more; finished trials are kept")],
)
def test_a_cluster_that_ends_is_noticed(ended, said, monkeypatch):
    """Ray itself waits a minute for its head, and for its node on this machine for ever."""
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    head, node = (each.getsockname() for each in listening)
    context = types.SimpleNamespace(gcs_address=f"{head[0]}:{head[1]}", get_node_id=lambda: "mine")
    own = {"NodeID": "mine", "NodeManagerAddress": node[0], "NodeManagerPort": node[1]}
    ray = types.SimpleNamespace(nodes=lambda: [own], get_runtime_context=lambda: context)
    now = [100.0]
    monkeypatch.setattr(driver.time, "monotonic", lambda: now[0])
    lifeline = Lifeline(ray)

    def check(seconds: float) -> None:
        now[0] += seconds
        lifeline.check()

    check(100)
    listening[ended].close()
    check(driver.PROBE_SECONDS / 2)  # not asked again within a second
    check(driver.ENDED_SECONDS / 2)  # a head with a backup may come back
    with pytest.raises(ClusterLost, match=f"^{said}, the same command continues$"):
        check(driver.ENDED_SECONDS)
    for each in listening:
        each.close()


def test_a_worker_that_does_not_answer_is_named_and_given_up_after_minutes(monkeypatch):
    found, member, said = members()
    now, answers = [100.0], []
    monkeypatch.setattr(driver.time, "monotonic", lambda: now[0])
    found.lifeline = types.SimpleNamespace(check=lambda: None)
    found.ray.wait = lambda calls, **_: (answers, [call for call in calls if call not in answers])
    found.ray.get = lambda call: driver.Report()
    member.stage, member.call, member.called = "ready", "first call", now[0]
    now[0] += driver.SILENT_SECONDS - 1
    assert found.listen(0) == [] and said == []
    now[0] += 2
    assert found.listen(0) == found.listen(0) == []
    assert said == [
        "the worker on far has not answered for 21 s: it is stopped or very busy; given up after 5 min 00 s"
    ]
    answers = ["first call"]
    assert [answer for _, answer in found.listen(0)] == [driver.Report()]
    assert said[1:] == ["the worker on far answers again"]
    answers, member.call, member.called = [], "second call", now[0]
    now[0] += driver.LOST_SECONDS + 1
    assert found.listen(0) == [(member, Lost("it did not answer for 5 min 00 s", False, False))]
    assert found.all == []


def test_versions_are_those_of_this_process():
    found = Handshake().versions()
    assert found["jax"] == jax.__version__ and len(found["the code of topicjax"]) == 8


@pytest.mark.parametrize(
    ("seconds", "compiling", "workers", "limit"),
    [
        (1.0, 0.0, 2, "training"),
        (1.0, 1000.0, 2, "compiling, on every worker for itself"),
        (1.0, 0.0, 100, "too few chunks, 16 for 100 workers"),
        (1e-5, 0.0, 2, "writing"),
    ],
)
def test_an_estimate_says_what_limits(seconds, compiling, workers, limit):
    """16 chunks of 2 trials x 20 steps, one second per trial-step."""
    found = driver.estimate(groups(), workers, lambda group, steps: seconds * steps, compiling)
    assert found.limit.startswith(limit)
    if limit == "training":
        assert found.training == found.seconds == 16 * 40 / 2
    if workers == 100:
        assert found.seconds == 40


def test_a_plan_for_a_cluster_starts_none(capsys, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("topicjax.engine.resources.use_one_core", lambda: None)
    monkeypatch.setattr("topicjax.engine.cluster.connection.connect", None)
    monkeypatch.setattr(driver.os, "sched_getaffinity", lambda process: range(4))
    assert cli.main(["plan", FILE, "--lanes", "2", "--cluster", "local:8"]) == 0
    out = capsys.readouterr().out
    assert "2 programs on 8 workers of 1 x cpu" in out and "limited by " in out
    assert "8 workers share the cores of this machine" in out


def test_a_sleeping_worker_returns_what_a_trained_chunk_would_be():
    group, by_id = driver_load.sleeping_group(6)
    worker, chunk = Sleeper(1, True), Chunk(group.chunks[0])
    task = Task(3, 0, 0, group, Options(order="lane"), {}, chunk, Start(), {}, [])
    report = worker.exchange(Orders([task]))
    assert [event.kind for event in report.events] == ["begun", "trained"] and report.steps == {3: (6000, 0)}
    trained = report.events[1].content
    expected = costs.disk_bytes(group)
    of_one = expected["records"] + expected["snapshots"] + expected["states"]
    assert driver_load.chunk_bytes(trained) == 6 * of_one
    assert set(trained.trial_ids) <= set(by_id) and worker.tasks == []


@pytest.mark.parametrize(
    ("num_bytes", "said"),
    [(10**6, "feeds 40 workers, then writing is what limits (over 1 Gbit/s: 40 workers, then writing)")]
    + [(250 * 10**6, "feeds 40 workers, then writing is what limits (over 1 Gbit/s: 20 workers, then the")],
)
def test_the_slowest_part_of_the_driver_limits_how_many_workers_it_feeds(num_bytes, said):
    """A chunk of 512 trials x 1,000 steps takes 40 s on 8 cores of 1,600 trial-steps/s."""
    cost = driver_load.Costs(dispatch=0.1, fetch=0.1, write=0.8, num_bytes=num_bytes)
    assert said in driver_load.text(cost, [])


def test_a_local_cluster_is_started_on_loopback_and_only_that_one(monkeypatch):
    constants = types.SimpleNamespace(ENABLE_RAY_CLUSTER=True)
    seen = []

    def init(**where):
        seen.append((where["address"], constants.ENABLE_RAY_CLUSTER))

    private = types.SimpleNamespace(ray_constants=constants, worker=types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(__file__="", init=init, _private=private))
    for name in ("check_installed", "check_reachable"):
        monkeypatch.setattr(connection, name, lambda *_: None)
    for text in ("local:2", "10.0.0.5:6379"):
        connection.connect(parse_address(text), 2)
    assert seen == [("local", False), ("10.0.0.5:6379", True)] and constants.ENABLE_RAY_CLUSTER


def test_ray_still_has_the_switch_for_loopback():
    constants = pytest.importorskip("ray._private.ray_constants")
    assert constants.ENABLE_RAY_CLUSTER is True or sys.platform != "linux"


NODE = """
import pathlib, subprocess, sys
agent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", sys.argv[1]])
pathlib.Path(sys.argv[1], "agent").write_text(str(agent.pid))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere orphans cannot be found")
def test_what_a_node_starts_in_its_last_moment_is_killed_too(tmp_path):
    """Seen with Ray: the head was killed, the node started its agents, and ended before they were noticed."""
    psutil = pytest.importorskip("psutil")
    found = Processes(types.SimpleNamespace(__file__=str(tmp_path / "__init__.py")), "local:1")
    found._over.set()  # nobody looks while the node lives
    found._thread.join()
    node = subprocess.Popen([sys.executable, "-c", NODE, str(tmp_path)])
    node.wait(20)
    agent = psutil.Process(int((tmp_path / "agent").read_text()))
    assert agent.is_running()
    found.end()
    assert not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE

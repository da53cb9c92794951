"""What a machine cannot take is refused by plan and run alike: one sentence, at once, nothing created."""

import re
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from support.one_trial import expand

from topicjax import cli
from topicjax.engine import admission, costs, resources
from topicjax.engine.plan import group_trials, make_groups, shaped
from topicjax.errors import UserError
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.experiments.one_layer.settings import Spec, make_trial, trial_id
from topicjax.experiments.shared import bags
from topicjax.store.files import StoreError, ids_name
from topicjax.store.manifest import FORMAT, write_manifest
from topicjax.sweep import logspace, product

GB = 10**9
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine of 16 GB and 50 GB of disk, whatever this one has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resources, "use_all_cores", lambda: None)
    monkeypatch.setattr(costs, "host_memory", lambda: 16 * GB)
    monkeypatch.setattr(admission.shutil, "disk_usage", lambda path: Usage(100 * GB, 50 * GB, 50 * GB))


TOO_LARGE = [
    (
        "--set batch_size=1e9",
        "a trial needs about 1.* TB of memory on its device and 4 GB are there; lower batch_size",
    ),
    ("--set topics=1e5", "a trial needs about .* TB of memory .*; lower topics = 100000"),
    (
        "--set words_per_topic=1e9",
        "a trial needs about .* TB of memory .*; lower words_per_topic = 1000000000",
    ),
    ("--set eval_documents=1e9", "a trial needs about .* TB of memory .*; lower eval_documents = 1000000000"),
    ("--set attention_dim=1e8", "a trial needs about .* of memory .*; lower attention_dim = 100000000"),
    ("--set attention_dim=1e12", "attention_dim is 1000000000000; allowed: 0 or more, at most 2147483647"),
    (
        "--set embedding_dim=1e9 --set embedding=trained",
        "a trial needs about .* TB of memory .*; lower embedding_dim = 1000000000",
    ),
    (
        "--set length_max=1e9",
        "documents have 999,999,981 different lengths; allowed: up to 100,000; bring length_max =",
    ),
    ("--set length_max=1e9 --set length_min=1e9", "a trial needs about .* of memory .*; lower .*length_max"),
    ("--set topics_per_document=1e12", "is 1000000000000; allowed: 1 or more, at most 2147483647"),
    ("--set steps=1e12", "steps is 1000000000000; allowed: 1 or more, at most 2147483647"),
    (
        "--set steps=2e9",
        "a chunk of .* trials needs about .* of memory and the machine has 16 GB; raise record_every",
    ),
    (
        "--set steps=1e9 --set record_every=1",
        "a chunk of .* needs about .* the machine has 16 GB; raise record_every",
    ),
    (
        "--set steps=2e9 --set record_every=2e9",
        "2,000,000,000 steps from one record to the next take about .* h .* lower record_every = 2000000000",
    ),
    ("--set steps=1e6 --axis seed=range:0:1000", "the run needs about .* on disk and 50 GB are free in /"),
    ("--snapshots log:1000000000", "snapshots is 'log:1000000000'; allowed: log:1 to log:1000"),
    ("--snapshots log:0", "snapshots is 'log:0'; allowed: log:1 to log:1000"),
    ("--snapshots log:-1", "snapshots is 'log:-1'; allowed: log:1 to log:1000"),
    ("--snapshots log:1,2", "snapshots is 'log:1,2'; allowed: log:1 to log:1000"),
    ("--snapshots -5", "snapshots is '-5'; allowed: steps from 0 to steps = 100"),
    ("--snapshots 50,101", "snapshots is '50,101'; allowed: steps from 0 to steps = 100"),
    ("--snapshots " + "1," * 2000 + "1", "allowed: last, none, log:N, or up to 1000 steps"),
    (
        "--axis seed=range:0:1000000 --axis init_scale=lin:0:1:1000000",
        "axis .* too many|axis .* up to 100000 values",
    ),
    (
        "--axis seed=range:0:100000 --axis init_scale=lin:0:1:100000",
        "10,000,000,000 trials; allowed: up to 1,000,000",
    ),
    (
        "--axis batch_size=range:1:1000 --set objective=squared",
        "the sweep needs 1,998 programs, one for each combination of batch_size, optimizer; allowed: up to",
    ),
]


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(("options", "sentence"), TOO_LARGE, ids=lambda text: text[:40])
def test_what_is_too_large_is_one_sentence_at_once_and_creates_nothing(
    command, options, sentence, tmp_path, capsys
):
    before = time.process_time()
    assert cli.main([command, "smoke", *options.split()]) == 2
    assert time.process_time() - before < 10  # half a second; minutes, if anything of that size were made
    error = capsys.readouterr().err
    assert re.search(sentence, error), error
    assert error.startswith("topicjax: ") and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


NAMES = ("smoke", "two_stage", "two_stage_map")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", ["embeddings", *SLOW])
def test_a_small_machine_takes_the_shipped_sweeps(name, monkeypatch, capsys):
    monkeypatch.setattr(costs, "host_memory", lambda: 4 * GB)
    assert cli.main(["plan", name]) == 0


def groups_of(snapshots: str = "last", lanes: int = 16, **settings):
    trials = {trial_id(trial): trial for trial in expand(settings, product(seed=range(4)))}
    return make_groups(EXPERIMENT, trials, 4, lanes, snapshots)


def chosen(sweep, num_devices: int = 2, order: str = "", most: int = 64, **settings):
    """Choose the lanes of a sweep; return them and the shape of its chunks."""
    trials = {trial_id(trial): trial for trial in expand(settings, sweep)}
    groups, devices = group_trials(EXPERIMENT, trials), jax.devices()[:num_devices]
    lanes = costs.chosen_lanes([replace(group, order=order) for group in groups], devices, most)
    return lanes, [shaped(group, num_devices, lanes) for group in groups]


def test_chunks_are_as_large_as_fits_if_they_end_soon():
    lanes, (group,) = chosen(product(seed=range(120)), steps=100)
    assert lanes == 64 and len(group.chunks) == 1


def test_long_trials_make_short_chunks():
    """A trial of 1,000 steps takes half a second, and its data, drawn for it alone, a second."""
    lanes, (group,) = chosen(product(seed=range(120)), steps=1000)
    longest, _ = costs.training_seconds([group], jax.devices()[:2], lanes)
    assert lanes == 16 and len(group.chunks) == 4 and 15 < longest < costs.CHUNK_SECONDS
    lanes, (group,) = chosen(product(seed=range(120)), steps=100_000)
    assert lanes == 1 and [len(chunk) for chunk in group.chunks] == [2] * 60  # one trial for each device


def test_no_stream_is_cut_for_the_sake_of_short_chunks():
    """Data drawn for half as many trials are drawn twice."""
    sweep = product(seed=range(8), learning_rate=logspace(1e-3, 1, 30))
    lanes, (group,) = chosen(sweep, steps=10_000)
    assert lanes == 32 and group.lanes == 30 and group.rows_per_chunk == 2
    _, quickest = costs.training_seconds([group], jax.devices()[:2], 64)
    assert costs.training_seconds([group], jax.devices()[:2], lanes)[1] <= costs.MOST_SLOWER * quickest
    assert costs.training_seconds([group], jax.devices()[:2], 16)[1] > costs.MOST_SLOWER * quickest


def test_trials_that_are_trained_together_stay_together():
    lanes, _ = chosen(product(seed=range(600)), order="together", most=512, steps=100_000)
    assert lanes == costs.TOGETHER_LANES
    assert chosen(product(seed=range(600)), order="together", most=20, steps=100_000)[0] == 20


def test_all_programs_of_a_sweep_have_lanes_that_suit_the_slowest():
    sweep = product(steps=[500, 1000], seed=range(120))
    assert chosen(sweep)[0] == chosen(product(seed=range(120)), steps=1000)[0]


def test_a_resumed_run_has_the_lanes_of_the_run_before(tmp_path, monkeypatch):
    """Whatever would be chosen now: unfinished chunks are found by their trials."""
    trials = {trial_id(trial): trial for trial in expand({}, product(seed=range(8)))}
    groups, devices, folder = group_trials(EXPERIMENT, trials), jax.devices()[:2], tmp_path / "run"
    monkeypatch.setattr(costs, "chosen_lanes", lambda *_: 5)
    kinds = [device.device_kind for device in devices]
    entry = dict(sweep="test", experiment="one_layer", plan=ids_name(list(trials)), devices=kinds)
    folder.mkdir()

    def lanes_after(*runs) -> int:
        write_manifest(
            folder, dict(format=FORMAT, sweep="test", runs=[entry | run for run in runs], references=[])
        )
        return admission.best_lanes(groups, trials, folder, devices)

    assert lanes_after() == 5
    assert lanes_after(dict(lanes=3)) == 3
    assert lanes_after(dict(lanes=3), dict(lanes=2), dict(lanes=4, plan="a" * 12)) == 2
    assert lanes_after(dict(lanes=3, devices=kinds[:1])) == 5
    assert lanes_after(dict(lanes=10**9)) == 5  # more than fit


def test_the_largest_setting_is_named():
    for name, value in dict(topics=500, words_per_topic=500, eval_documents=10**6, batch_size=10**5).items():
        spec = make_trial({name: value}).spec
        assert admission.largest_setting(EXPERIMENT, spec) == f"{name} = {value}"
    longest = "the largest length_max among a program's trials = 1000000"
    assert admission.largest_setting(EXPERIMENT, Spec(longest=10**6)) == longest


def test_less_memory_is_needed_by_fewer_lanes_and_records(monkeypatch):
    devices = jax.devices()[:4]
    groups = groups_of()
    needed = costs.device_bytes(groups[0], 4)
    monkeypatch.setattr(costs, "host_memory", lambda: 4 * int(needed) - 8)
    with pytest.raises(UserError, match=r"training 1 at once needs about .*; lower --lanes, or"):
        admission.check_groups(groups, devices)
    monkeypatch.setattr(costs, "host_memory", lambda: 16 * GB)
    admission.check_groups(groups, devices)
    with pytest.raises(UserError, match="has 16 GB; raise record_every"):
        admission.check_groups(groups_of(steps=10**9), devices)
    with pytest.raises(UserError, match="has 16 GB; keep fewer --snapshots"):
        admission.check_groups(groups_of("log:1000", steps=10**5, words_per_topic=60), devices)


def test_only_what_is_left_to_train_needs_disk(tmp_path):
    (group,) = groups_of(steps=10**6)
    needed = sum(costs.disk_bytes(group).values())
    finished = {row.trial_ids[0] for row in group.streams[:3]}
    free = Usage(0, 0, needed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission.shutil, "disk_usage", lambda path: free)
        with pytest.raises(UserError, match=r"on disk and .* are free in .*; raise record_every"):
            admission.check_disk([group], tmp_path / "a" / "b")
        admission.check_disk([group.without(finished)], tmp_path / "a" / "b")


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_folder_that_cannot_be_is_refused(command, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out in ("file", "file/below", "mine", "link", "", "x" * 300, "a/" * 3000, "a\0b"):
        try:
            returned = cli.main([command, "smoke", "--out", out])
        except SystemExit as stopped:
            returned = stopped.code
        error = capsys.readouterr().err
        assert returned == 2 and error.count("\n") == 1, (out, error)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "mine", "link"}


def test_memory_limits_of_container_and_shell_count(tmp_path, monkeypatch):
    monkeypatch.undo()
    here = costs.host_memory()
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(costs, "CONTAINER_LIMITS", [tmp_path / "missing", limit])
    for text, memory in (("max\n", here), (f"{GB}\n", GB)):
        limit.write_text(text)
        assert costs.host_memory() == memory
    monkeypatch.setattr(costs.resource, "getrlimit", lambda which: (GB // 2, -1))
    assert costs.host_memory() == GB // 2


def test_the_nearest_existing_parent(tmp_path):
    assert admission.existing_parent(tmp_path / "a" / "b" / "c") == tmp_path
    assert admission.existing_parent(Path("a/b")) == tmp_path  # where we are
    with pytest.raises(StoreError, match="not valid UTF-8"):
        admission.check_folder(tmp_path / "a\udc80", EXPERIMENT)


def test_nothing_of_their_size_is_made_for_large_numbers(monkeypatch):
    """The kernel's own room for queries is asked for only once the documents are known to fit."""
    monkeypatch.setattr(bags, "query_capacity", None)
    for settings in (dict(longest=10**9), dict(batch_size=10**9), dict(shortest=10**8, longest=10**8)):
        with pytest.raises(UserError):
            admission.check_specs(EXPERIMENT, [Spec(**settings)], jax.devices())

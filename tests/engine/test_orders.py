"""The order of work over lanes and the size of chunks: timed where it pays, kept by machine and folder."""

import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import pandas as pd
import pytest
from support.engine_runs import DEEP_BASE, DEEP_LINEAR, columns, train_sweep

import topicjax
from topicjax.bench.linear_attention import EXPERIMENT as LINEAR_ATTENTION
from topicjax.engine import admission, costs, orders, programs
from topicjax.engine.plan import group_trials, make_groups
from topicjax.engine.programs import Programs, device_mesh
from topicjax.experiments.one_layer.experiment import EXPERIMENT as ONE_LAYER
from topicjax.sweep import chain, expand, logspace, product

RATES = product(learning_rate=(0.01, 0.02))
OPTIONS = dict(sweep=RATES, base=DEEP_BASE, experiment=DEEP_LINEAR, devices=1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Remember nothing of other tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def always_pays(monkeypatch):
    monkeypatch.setattr(orders, "PAYS", 0)
    monkeypatch.setattr(orders, "TIMED_SECONDS", 0.0)


def with_seconds(monkeypatch, **seconds: float) -> None:
    """Let training take these seconds by order."""
    monkeypatch.setattr(orders.Timed, "seconds", lambda self, steps: seconds[self.programs.order])


def calls_of(monkeypatch, owner: type, name: str) -> list[str]:
    """Return a list that gets an item for every call of a method from now on."""
    noted, own = [], getattr(owner, name)

    def call(*args, **kwargs):
        noted.append(name)
        return own(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return noted


def orders_of(run: topicjax.Run) -> list[list[str]]:
    return [[*entry["orders"].values()] for entry in run.manifest["runs"]]


@pytest.mark.parametrize("fastest", programs.ORDERS)
def test_the_faster_order_is_taken_recorded_and_remembered(fastest, tmp_path, monkeypatch, always_pays):
    with_seconds(monkeypatch, **{order: 1.0 + (order != fastest) for order in programs.ORDERS})
    run, _ = train_sweep(tmp_path / "first", **OPTIONS)
    assert orders_of(run) == [[fastest]]
    other, _ = train_sweep(tmp_path / "second", **OPTIONS | dict(sweep=product(learning_rate=0.03)))
    with_seconds(monkeypatch, lane=1.0, together=1.0)  # they would be equal now, but nothing is timed again
    tried = calls_of(monkeypatch, orders.Timed, "__init__")
    run, _ = train_sweep(tmp_path / "first", **OPTIONS | dict(sweep=product(learning_rate=0.04)), extend=True)
    assert not tried and orders_of(other) == [[fastest]] and orders_of(run) == [[fastest]] * 2


def test_a_folder_keeps_its_order_whatever_the_machine_remembers(tmp_path, monkeypatch, always_pays):
    with_seconds(monkeypatch, lane=2.0, together=1.0)
    train_sweep(tmp_path / "run", **OPTIONS)
    path = tmp_path / "cache" / "topicjax" / orders.REMEMBERED
    (name,) = json.loads(path.read_text())
    path.write_text(json.dumps({name: "lane"}))
    more = OPTIONS | dict(sweep=product(learning_rate=0.04))
    run, _ = train_sweep(tmp_path / "run", **more, extend=True)
    assert orders_of(run) == [["together"]] * 2
    again, _ = train_sweep(tmp_path / "again", **more, layout=tmp_path / "run")
    assert orders_of(again) == [["together"]]
    path.write_text("[")  # a damaged file is as good as none
    assert orders.remembered() == {}


def test_an_order_that_is_asked_for_is_not_timed_and_later_runs_keep_it(tmp_path, monkeypatch, always_pays):
    tried = calls_of(monkeypatch, orders.Timed, "__init__")
    train_sweep(tmp_path / "run", **OPTIONS, order="together")
    more = OPTIONS | dict(sweep=product(learning_rate=0.04))
    run, _ = train_sweep(tmp_path / "run", **more, extend=True)
    assert not tried and orders_of(run) == [["together"]] * 2 and orders.remembered() == {}


def test_a_short_training_is_not_worth_another_program(tmp_path, monkeypatch):
    made = calls_of(monkeypatch, Programs, "__init__")
    run, _ = train_sweep(tmp_path / "run", **OPTIONS)
    assert len(made) == 1 and orders_of(run) == [["together"]] and orders.remembered() == {}


def test_both_orders_are_timed_for_equally_many_steps(monkeypatch):
    """Nothing is pretended here: whichever is faster, all calls but the search are alike."""
    monkeypatch.setattr(orders, "PAYS", 0)
    trials = expand(DEEP_LINEAR.settings, DEEP_BASE, RATES)
    by_id = {DEEP_LINEAR.settings.trial_id(trial): trial for trial in trials}
    (group,) = make_groups(DEEP_LINEAR, by_id, 1, 2)
    timed, own = [], orders.Timed.seconds

    def seconds(self, steps: int) -> float:
        timed.append((self.programs.order, steps))
        return own(self, steps)

    monkeypatch.setattr(orders.Timed, "seconds", seconds)
    found = orders.faster(Programs(group, device_mesh(jax.devices()[:1])))
    assert found.order in programs.ORDERS
    last = timed[-2 * orders.REPEATS :]
    assert [order for order, _ in last] == ["together", "lane"] * orders.REPEATS
    assert len({steps for _, steps in last}) == 1 and 1 <= last[0][1] <= found.segment_steps


def test_a_core_begins_with_lanes_together_if_steps_are_tiny_and_no_trial_ends_early():
    core, gpu = ([SimpleNamespace(platform=platform)] for platform in ("cpu", "gpu"))

    def usual(experiment, devices, **settings) -> str:
        trial = experiment.settings.make_trial(settings)
        return costs.usual_order(make_groups(experiment, {"": trial}, 1, 1)[0], devices)

    assert usual(LINEAR_ATTENTION, core) == usual(DEEP_LINEAR, core, **DEEP_BASE) == "together"
    assert usual(DEEP_LINEAR, core, **DEEP_BASE | dict(until="decided")) == "lane"
    assert usual(ONE_LAYER, core) == "lane" and usual(ONE_LAYER, gpu) == "together"


EIGHT = OPTIONS | dict(sweep=product(learning_rate=[0.01 * rate for rate in range(1, 9)]))


@pytest.fixture
def cached_states(monkeypatch, always_pays):
    """Let these cores be devices that train lanes together, with a cache for the states of two trials."""
    spec = DEEP_LINEAR.settings.make_trial(DEEP_BASE).spec
    state = costs.sizes(DEEP_LINEAR, spec).state
    monkeypatch.setattr(costs, "has_shared_cache", lambda devices: True)
    monkeypatch.setattr(costs, "cache_bytes", lambda kind: 2 * state)


def with_seconds_of_sizes(monkeypatch, **seconds: float) -> list[int]:
    """Let a chunk of so many trials take these seconds; return a list of the sizes that get timed."""
    noted = []

    def timed(self, steps: int) -> float:
        noted.append(self.programs.group.trials_per_chunk)
        return seconds[f"of_{noted[-1]}"]

    monkeypatch.setattr(orders.Timed, "seconds", timed)
    return noted


def test_the_size_of_chunks_starts_at_the_cache_and_grows_while_that_is_faster(
    tmp_path, monkeypatch, cached_states
):
    """Eight trials take 4 x 1.0 s two at a time, 2 x 1.5 s four at a time, 1 x 3.5 s all at once."""
    timed = with_seconds_of_sizes(monkeypatch, of_2=1.0, of_4=1.5, of_8=3.5)
    run, _ = train_sweep(tmp_path / "run", **EIGHT)
    assert orders_of(run) == [["together:4"]] and sorted(run.trials["chunk"].value_counts()) == [4, 4]
    assert list(dict.fromkeys(timed)) == [
        2,
        4,
        8,
    ]  # once larger chunks are faster, smaller ones are not tried
    assert orders.remembered() == {
        name: orders.Way("together", 4) for name in run.manifest["runs"][0]["orders"]
    }
    timed.clear()
    more = EIGHT | dict(sweep=product(learning_rate=[0.001 * rate for rate in range(1, 9)]))
    run, _ = train_sweep(tmp_path / "run", **more, extend=True)
    other, _ = train_sweep(tmp_path / "other", **more)
    again, _ = train_sweep(tmp_path / "again", **more, layout=tmp_path / "run")
    asked, _ = train_sweep(tmp_path / "asked", **more, lanes=8)
    assert not timed and orders_of(run) == [["together:4"]] * 2
    assert orders_of(other) == orders_of(again) == [["together:4"]] and orders_of(asked) == [["together"]]
    assert run.trials["chunk"].nunique() == 4 and asked.trials["chunk"].nunique() == 1
    columns = ["trial_id", "step", "loss"]
    losses = [each.trajectories[columns].sort_values(columns).reset_index() for each in (other, again)]
    assert losses[0].equals(losses[1]) and len(losses[0])


def test_smaller_chunks_are_tried_if_larger_ones_are_slower_or_have_no_room(
    tmp_path, monkeypatch, cached_states
):
    timed = with_seconds_of_sizes(monkeypatch, of_2=1.0, of_1=0.4)  # eight chunks of 0.4 s, four of 1 s
    own = orders.Timed.__init__

    def without_room(self, programs) -> None:
        if programs.group.trials_per_chunk > 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        own(self, programs)

    monkeypatch.setattr(orders.Timed, "__init__", without_room)
    run, _ = train_sweep(tmp_path / "run", **EIGHT)
    assert orders_of(run) == [["together:1"]] and {*timed} == {1, 2}


def test_a_search_ends_after_a_minute(tmp_path, monkeypatch, cached_states):
    monkeypatch.setattr(orders, "SEARCH_SECONDS", -1.0)
    timed = with_seconds_of_sizes(monkeypatch, of_2=1.0, of_4=0.1, of_8=0.1)
    run, _ = train_sweep(tmp_path / "run", **EIGHT)
    assert orders_of(run) == [["together:4"]] and 8 not in timed  # the first other size is always tried


def test_sizes_double_to_what_fits_and_the_cache_is_that_of_the_kind():
    trials = expand(DEEP_LINEAR.settings, DEEP_BASE, product(seed=range(600)))
    by_id = {DEEP_LINEAR.settings.trial_id(trial): trial for trial in trials}
    (group,) = make_groups(DEEP_LINEAR, by_id, 2, 4)
    assert costs.sizes_to_try(group, 2, 114, 512) == (114, 228, 456, 57, 28)
    assert costs.sizes_to_try(group, 2, 114, 400) == (114, 228, 57, 28)
    assert costs.sizes_to_try(group, 1, 1, 1) == (1,)
    assert costs.cache_bytes("NVIDIA A100-SXM4-40GB") == 40 * 2**20
    assert costs.cache_bytes("NVIDIA RTX A1000") == costs.OTHER_CACHE * 2**20
    trial = ONE_LAYER.settings.make_trial(dict(optimizer="adam"))
    (group,) = make_groups(ONE_LAYER, {"": trial}, 1, 1)
    # three matrices and their moments, an earlier value matrix, each padded to 104; a bias and the step
    a100 = SimpleNamespace(device_kind="NVIDIA A100-SXM4-40GB", platform="gpu")
    assert costs.lanes_in_cache([group], [a100]) == 40 * 2**20 // (4 * (10 * 104**2 + 105)) == 96
    assert costs.chosen_lanes([group], [a100], 512) == 96
    assert parsed_ways("lane", "together:64", "other", "lane:x") == ["lane", "together:64", None, None]


def parsed_ways(*texts: str) -> list[str | None]:
    ways = map(orders.parse_way, texts)
    return [None if way is None else str(way) for way in ways]


def test_a_second_sweep_compiles_nothing_again(tmp_path, monkeypatch):
    train_sweep(tmp_path / "first", **OPTIONS)
    compiled = calls_of(monkeypatch, Programs, "_new")
    train_sweep(tmp_path / "second", **OPTIONS | dict(sweep=product(learning_rate=(0.05, 0.06))))
    assert not compiled
    train_sweep(tmp_path / "third", **OPTIONS | dict(base=DEEP_BASE | dict(width=5)))
    assert compiled


@pytest.mark.parametrize("lanes", [0, 3])
def test_a_refined_round_compiles_nothing_again(lanes, tmp_path, monkeypatch):
    """Its streams have other numbers of trials, so chunks of its own would have another shape."""
    first = product(seed=range(3), learning_rate=(0.01, 0.02, 0.03, 0.04))
    more = chain(product(seed=0, learning_rate=(0.05, 0.06, 0.07)), product(seed=2, learning_rate=0.08))
    given = OPTIONS | dict(lanes=lanes, sweep=first)
    train_sweep(tmp_path / "run", **given)
    compiled = calls_of(monkeypatch, Programs, "_new")
    run, _ = train_sweep(tmp_path / "run", **given | dict(sweep=chain(first, more), first=first))
    assert not compiled and len(run.trials) == 16 and run.missing == ()
    whole, _ = train_sweep(tmp_path / "whole", **given | dict(sweep=chain(first, more)))
    assert compiled
    found, expected = (columns(each, "loss", "test_loss") for each in (run, whole))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-5, atol=1e-7)


def test_a_round_much_larger_than_the_first_trials_has_chunks_of_its_own():
    first, more = product(seed=range(2)), product(seed=range(2), learning_rate=logspace(1e-3, 1, 300))
    trials = expand(ONE_LAYER.settings, dict(steps=100), chain(first, more))
    by_id = {ONE_LAYER.settings.trial_id(trial): trial for trial in trials}
    (group,) = make_groups(ONE_LAYER, by_id, 2, 64)
    later, devices = [*by_id][2:], jax.devices()[:2]
    assert admission.shaped_as_first(group, later, 64, devices) is group
    # one of the later trials costs about as much in chunks of either shape
    few = group.without(later[1:])
    found = admission.shaped_as_first(few, later[:1], 64, devices)
    assert (found.lanes, found.rows_per_chunk) == (1, 2)
    assert admission.shaped_as_first(few, [], 64, devices) is few


@pytest.mark.parametrize("order", programs.ORDERS)
def test_the_duration_of_chunks_against_a_count_by_hand(order):
    """Streams of three trials and of one, in chunks of two stream rows of two lanes, on two devices."""
    sweep = chain(product(seed=0, learning_rate=(0.1, 0.2, 0.3)), product(seed=1))
    trials = expand(ONE_LAYER.settings, dict(steps=100), sweep)
    by_id = {ONE_LAYER.settings.trial_id(trial): trial for trial in trials}
    (group,) = group_trials(ONE_LAYER, by_id)
    group = replace(group, lanes=2, rows_per_chunk=2, order=order)
    each = 100 * costs.step_flops(ONE_LAYER, group.spec) / costs.CPU_FLOP_RATE
    lanes = 2 + 1 if order == "lane" else 2 + 2  # two and one trial side by side, then the last one alone
    expected = (lanes + 2 * ONE_LAYER.draw_cost) * each + 2 * costs.CHUNK_OVERHEAD
    assert costs.group_seconds(group, jax.devices()[:2]) == pytest.approx(expected)


def test_the_programs_used_longest_ago_are_let_go():
    kept = programs.Kept(most=2)
    made = [kept.get(name, lambda name=name: f"program {name}") for name in "abacab"]
    assert made == [f"program {name}" for name in "abacab"] and [*kept.known] == ["a", "b"]

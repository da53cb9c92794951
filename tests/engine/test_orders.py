"""The order of work over lanes: timed where it pays, then kept by the machine and by the folder."""

import json

import jax
import pytest
from support.engine_runs import DEEP_BASE, DEEP_LINEAR, train_sweep

import topicjax
from topicjax.engine import orders, programs
from topicjax.engine.plan import make_groups
from topicjax.engine.programs import Programs, device_mesh
from topicjax.sweep import expand, product

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
    assert len(made) == 1 and orders_of(run) == [["lane"]] and orders.remembered() == {}


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
    found = orders.faster(Programs(group, device_mesh(jax.devices()[:1])), group.chunks[0])
    assert found.order in programs.ORDERS
    last = timed[-2 * orders.REPEATS :]
    assert [order for order, _ in last] == ["lane", "together"] * orders.REPEATS
    assert len({steps for _, steps in last}) == 1 and 1 <= last[0][1] <= found.segment_steps


def test_a_second_sweep_compiles_nothing_again(tmp_path, monkeypatch):
    train_sweep(tmp_path / "first", **OPTIONS)
    compiled = calls_of(monkeypatch, Programs, "_new")
    train_sweep(tmp_path / "second", **OPTIONS | dict(sweep=product(learning_rate=(0.05, 0.06))))
    assert not compiled
    train_sweep(tmp_path / "third", **OPTIONS | dict(base=DEEP_BASE | dict(width=5)))
    assert compiled


def test_the_programs_used_longest_ago_are_let_go():
    kept = programs.Kept(most=2)
    made = [kept.get(name, lambda name=name: f"program {name}") for name in "abacab"]
    assert made == [f"program {name}" for name in "abacab"] and [*kept.known] == ["a", "b"]

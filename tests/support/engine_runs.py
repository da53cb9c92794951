"""Small sweeps of the one-layer model and of a quicker one, trained like the command line does; Ctrl-C."""

import contextlib
import signal
from dataclasses import replace
from pathlib import Path

import jax
import pandas as pd
from support.command_line import DEEP

import topicjax
from topicjax.engine import run
from topicjax.engine.options import Options
from topicjax.engine.resources import Resources
from topicjax.engine.stopping import StopRequests
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.sweep import expand as expand_any
from topicjax.sweep import product
from topicjax.sweep.files import NamedSweep, load_sweep

BASE = dict(
    topics=3,
    words_per_topic=2,
    length_min=8,
    length_max=12,
    batch_size=4,
    eval_documents=6,
    optimizer="sgd",
    steps=40,
    record_every=10,
)


WITHOUT_LINES = replace(EXPERIMENT, references=None)  # reference losses take seconds
# for tests of the engine that would be the same with any experiment: it compiles in a second
DEEP_LINEAR = replace(load_sweep(DEEP).experiment, references=None)
DEEP_BASE = dict(width=4, batch_size=8, steps=40, record_every=10, rare_every=2)


SWEEP = product(seed=(0, 1, 2), learning_rate=(0.1, 0.5, 1.0), init_scale=(0.01, 0.3))


def train_sweep(
    folder: Path,
    sweep=SWEEP,
    base=BASE,
    lanes=0,
    devices=4,
    snapshots="last",
    experiment=None,
    first=None,
    **options,
):
    """Run a sweep like the command line does, without limit lines; return the run and its outcome.

    If it refines another one, that is the `first`.
    """
    own = experiment or WITHOUT_LINES
    named = NamedSweep("test", "A sweep of the tests.", own, base, sweep)
    chosen = Options(lanes, snapshots=snapshots, **options)
    resources = Resources(jax.devices()[:devices])
    trials, begun = (expand_any(own.settings, base, each) if each else [] for each in (sweep, first))
    outcome = run.run_sweep(named, trials, folder, chosen, resources, begun)
    return topicjax.load(folder), outcome


def columns(run, *names) -> pd.DataFrame:
    frame = run.trajectories.sort_values(["trial_id", "step"])
    return frame.set_index(["trial_id", "step"])[list(names)]


@contextlib.contextmanager
def stopped_at_every_segment(monkeypatch):
    """Simulate Ctrl-C in the first segment of every run; polls come before and after a segment."""

    class Pressed(StopRequests):
        def __init__(self):
            super().__init__()
            self.polls = 0

        def __call__(self) -> bool:
            self.polls += 1
            self.first = signal.SIGINT if self.polls > 1 else 0
            return bool(self.first)

    def stop_requests():
        return contextlib.nullcontext(Pressed())

    with monkeypatch.context() as patch:
        patch.setattr(run, "stop_requests", stop_requests)
        yield

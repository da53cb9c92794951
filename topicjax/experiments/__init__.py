"""What the engine trains: the contract of an experiment, and the names of those shipped.

An experiment is a few pure functions of ONE trial.  The engine adds lanes, streams, devices, records,
snapshots and resuming, and chooses the order of the work: it may draw the data of many steps first, train one
trial after another or all together.  So data, update and measurement are separate functions, and what they
return depends on their arguments alone.

A trial is trained for its `steps`, or less: if its Spec has a setting `until` of value "decided", the engine
asks the experiment at every tenth record (DECIDE_RECORDS) whether the trial's answer can still change.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from topicjax.errors import UserError, shown, unknown_name
from topicjax.trial import Trial, TrialSettings

SHIPPED = {  # each with settings.TRIALS and experiment.EXPERIMENT
    "one_layer": "topicjax.experiments.one_layer",
    "encoder": "topicjax.experiments.encoder",
    "text": "topicjax.experiments.text",
}


DECIDE_RECORDS = 10  # from one question whether a trial is decided to the next: the same on every machine
Records = Mapping[str, Any]  # of one trial so far: a NumPy array per column
Decide = Callable[[Trial, Records], str]  # why a trial's answer can no longer change; empty: it still can


class Line(NamedTuple):
    """A limit line that is computed beside the training: the settings it is of, and its values by name."""

    entry: dict[str, Any]
    compute: Callable[[], dict[str, Any]]


class Data(NamedTuple):
    """Data from outside that trials of a Spec share: the shapes of its arrays, and what loads them."""

    shapes: Any  # a tree of things with a shape and a dtype; known without the data, for plans
    load: Callable[[], Any]  # the same tree of NumPy arrays, or a UserError that says how to get them


def no_lines(trials: Iterable[Trial], known: Sequence[dict[str, Any]]) -> list[Line]:
    """Return no limit lines: nothing is known of how well the data can be fitted."""
    return []


def same_spec(spec: Any, streams: Collection[Any]) -> Any:
    """Return the Spec: its program needs to know nothing of the streams it will see."""
    return spec


def no_decider(lines: Sequence[dict[str, Any]]) -> Decide:
    """Return a rule that decides nothing: every trial is trained for all of its steps."""
    return lambda trial, records: ""


@dataclass(frozen=True)
class Experiment:
    """The contract: settings, the columns of a record, and pure functions of one trial.

    Spec, Stream and Hypers are the three classes of `settings`; streams and hypers arrive as traced scalars.
    Fields of a Record are scalars, unless `detail` names an index: then some are arrays of one dimension,
    with a value per place of it, and have a table of their own.  How many places there are may depend on the
    Spec.
    """

    settings: TrialSettings
    Record: type  # NamedTuple: the columns of the trajectories, and of the details if there are any
    source: Callable[..., Any]  # (spec, stream, data if any) -> what a stream fixes for the whole training
    batch: Callable[..., Any]  # (spec, stream, source, step) -> the data of a step
    init: Callable[..., Any]  # (spec, stream, hypers) -> state
    update: Callable[..., Any]  # (spec, stream, hypers, state, batch) -> (next state, by-products)
    measure: Callable[..., Any]  # (spec, stream, hypers, source, state, batch, by-products) -> Record
    weights: Callable[..., Any]  # (spec, state) -> dict of arrays: what a snapshot keeps of a trial
    healthy: tuple[str, ...] = ()  # columns that are finite in every healthy record; none: all of them
    fit: Callable[..., Any] = same_spec  # (spec, streams) -> spec with its execution settings
    missing: Callable[..., Any] | None = None  # (source, batch) -> above 0: the program has no room for them
    trial_bytes: Callable[..., float] | None = None  # (spec) -> about the least memory of a trial, at once
    step_flops: Callable[..., float] | None = None  # (spec) -> useful work; None: counted in the program
    draw_cost: float = 2.0  # drawing a step's data takes about as long as training so many trials one step
    data: Callable[[Any], Data] | None = None  # (spec) -> data from outside; None: streams draw all there is
    lines: Callable[..., list[Line]] = no_lines  # (trials, known entries) -> limit lines yet to be computed
    decider: Callable[[Sequence[dict[str, Any]]], Decide] = (
        no_decider  # (limit lines) -> when a trial may end
    )

    detail: str = ""  # what arrays in a Record have a value for, as "layer"; empty: all fields are scalars

    def __post_init__(self) -> None:
        """Raise a UserError if the index of details cannot be a column beside the others."""
        taken = {"trial_id", "step", *self.Record._fields, *self.settings.settings}  # type: ignore[attr-defined]
        if self.detail and (not self.detail.isidentifier() or self.detail in taken):
            raise UserError(
                f"detail of {self.name} is {shown(self.detail)}; allowed: letters, digits and _, and no name "
                "of a setting or column"
            )

    @property
    def name(self) -> str:
        """The name of the experiment, as manifests have it."""
        return self.settings.experiment

    def may_stop(self, spec: Any) -> bool:
        """Return whether the trials of a Spec end once they are decided, as its setting `until` says."""
        return getattr(spec, "until", "steps") == "decided"

    def make_source(self, spec: Any, stream: Any, data: Any) -> Any:
        """Return what a stream fixes for the whole training, with the data from outside if there are any."""
        return self.source(spec, stream) if self.data is None else self.source(spec, stream, data)

    def data_shapes(self, spec: Any) -> Any:
        """Return the shapes of the data from outside; an empty tree if there are none."""
        return () if self.data is None else self.data(spec).shapes

    def load_data(self, spec: Any) -> Any:
        """Return the data from outside; an empty tree if there are none."""
        return () if self.data is None else self.data(spec).load()

    @property
    def healthy_columns(self) -> tuple[str, ...]:
        """The columns that tell a healthy trial from one that has diverged."""
        return self.healthy or self.Record._fields  # type: ignore[attr-defined]


def trial_settings(experiment: Any) -> TrialSettings:
    """Return the settings of an experiment, given itself or its name; a shipped one is not imported."""
    if isinstance(experiment, Experiment):
        return experiment.settings
    return import_module(f"{package_of(experiment)}.settings").TRIALS


def load_experiment(experiment: str | Experiment) -> Experiment:
    """Return the experiment, given itself or its name."""
    if isinstance(experiment, Experiment):
        return experiment
    return import_module(f"{package_of(experiment)}.experiment").EXPERIMENT


def package_of(name: Any) -> str:
    """Return the package of a shipped experiment, or raise a UserError that lists them."""
    if not isinstance(name, str):
        raise UserError(
            f"EXPERIMENT is {shown(name)}; allowed: an Experiment, or one of {', '.join(SHIPPED)}"
        )
    if name not in SHIPPED:
        raise UserError(unknown_name("experiment", name, SHIPPED))
    return SHIPPED[name]

"""The contract of an experiment: its settings, and pure functions of ONE trial.

The engine adds lanes, streams, devices, records, snapshots and resuming, and chooses the order of the work:
it may draw the data of many steps first, train one trial after another or all together.  So data, update and
measurement are separate functions, and what they return depends on their arguments alone.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from topicjax.errors import UserError, shown
from topicjax.trial import NEEDED, Trial, TrialSettings

Records = Mapping[str, Any]  # of one trial so far: a NumPy array per column
References = Mapping[str, float]  # reference losses of one trial, by name
TAKEN = ("trial_id", "step")  # columns of every table of records
STOPS = "until"  # the setting that says whether trials may end before their last step ...
DECIDED = "decided"  # ... if it has this value


class Data(NamedTuple):
    """Data from outside that trials of a Spec share: the shapes of its arrays, and what loads them."""

    shapes: Any  # a tree of things with a shape and a dtype; known without the data, for plans
    load: Callable[[], Any]  # the same tree of NumPy arrays, or a UserError that says how to get them


def no_source(spec: Any, stream: Any) -> tuple[()]:
    """Return nothing: the stream fixes nothing but the data of each step."""
    return ()


def no_batch(spec: Any, stream: Any, source: Any, step: Any) -> tuple[()]:
    """Return nothing: steps need no data."""
    return ()


def whole_state(spec: Any, state: Any) -> Any:
    """Return the state: snapshots keep all of it."""
    return state


def same_spec(spec: Any, streams: Collection[Any]) -> Any:
    """Return the Spec: its program needs to know nothing of the streams it will see."""
    return spec


@dataclass(frozen=True)
class Experiment:
    """Settings, and pure functions of one trial; `docs/extending.md` walks through them.

    Spec, Stream and Hypers are the three classes of `settings`; streams and hypers arrive as traced scalars.
    `measure` and `measure_rarely` return a dict or NamedTuple of columns: scalars go to the trajectories,
    arrays to the details, with an axis per index that `details` names.  A trial is trained for its `steps`,
    or less: if its Spec has `until` at "decided", `decided` is asked every `decide_every` records.
    """

    settings: TrialSettings
    init: Callable[..., Any]  # (spec, stream, hypers) -> state: any tree of arrays
    update: Callable[..., Any]  # (spec, stream, hypers, state, batch, step) -> (next state, by-products)
    measure: Callable[..., Any]  # (spec, stream, hypers, source, state, batch, by-products) -> columns
    batch: Callable[..., Any] = no_batch  # (spec, stream, source, step) -> the data of a step
    source: Callable[..., Any] = no_source  # (spec, stream, data if any) -> what a stream fixes for good
    weights: Callable[..., Any] = whole_state  # (spec, state) -> the tree that snapshots keep of a trial
    measure_rarely: Callable[..., Any] | None = None  # columns of every `rare_every`-th record, else NaN
    details: tuple[str, ...] = ()  # the indices of array columns, as ("layer", "head")
    healthy: tuple[str, ...] = ()  # columns that are finite in every healthy record; none: all of `measure`
    references: Callable[[Trial], References] | None = None  # reference losses of a trial's data, by name
    reference_settings: Callable[[Trial], Collection[str]] | None = None  # what they depend on
    decided: Callable[[Trial, Records, References], str] | None = None  # why a trial may end; "": it goes on
    decide_every: int = 10  # records from one question to the next: the same on every machine
    report: Callable[[], Any] | None = None  # -> analysis.Page; called by reports only
    fit: Callable[..., Any] = same_spec  # (spec, streams) -> spec with its execution settings
    missing: Callable[..., Any] | None = None  # (source, batch) -> above 0: the program has no room for them
    trial_bytes: Callable[..., float] | None = None  # (spec) -> about the least memory of a trial, at once
    step_flops: Callable[..., float] | None = None  # (spec) -> useful work; None: counted in the program
    draw_cost: float = 2.0  # drawing a step's data takes about as long as training so many trials one step
    data: Callable[[Any], Data] | None = None  # (spec) -> data from outside; None: streams draw all there is

    def __post_init__(self) -> None:
        """Raise a UserError if fields contradict each other or the settings."""
        if isinstance(self.details, str):
            object.__setattr__(self, "details", (self.details,))
        names = {*TAKEN, *self.settings.settings}
        for index in self.details:
            if not isinstance(index, str) or not index.isidentifier() or index in names:
                raise UserError(
                    f"details of {self.name} has {shown(index)}; allowed: letters, digits and _, each name "
                    "once and no name of a setting or column"
                )
            names.add(index)
        if not isinstance(self.decide_every, int) or self.decide_every < 1:
            raise UserError(
                f"decide_every of {self.name} is {shown(self.decide_every)}; allowed: 1 or more records"
            )
        if self.measure_rarely is not None and "rare_every" not in self.settings.spec_names:
            raise UserError(
                f"{self.name} has measure_rarely and its Spec no rare_every; allowed: a setting rare_every, "
                "the number of records from one rare measurement to the next"
            )

    @property
    def name(self) -> str:
        """The name of the experiment, as manifests have it."""
        return self.settings.experiment

    def may_stop(self, spec: Any) -> bool:
        """Return whether the trials of a Spec end once they are decided."""
        return getattr(spec, STOPS, "") == DECIDED

    def make_source(self, spec: Any, stream: Any, data: Any) -> Any:
        """Return what a stream fixes for the whole training, with the data from outside if there are any."""
        return self.source(spec, stream) if self.data is None else self.source(spec, stream, data)

    def data_shapes(self, spec: Any) -> Any:
        """Return the shapes of the data from outside; an empty tree if there are none."""
        return () if self.data is None else self.data(spec).shapes

    def load_data(self, spec: Any) -> Any:
        """Return the data from outside; an empty tree if there are none."""
        return () if self.data is None else self.data(spec).load()

    def reference_key(self, trial: Trial) -> dict[str, Any]:
        """Return the settings that the reference losses of a trial depend on; equal ones are computed once.

        Unless the experiment says which, those of the data: Spec and Stream, but for how long trials train.
        """
        if self.reference_settings is not None:
            names = self.reference_settings(trial)
        else:
            spec, stream, _ = self.settings.names
            names = [name for name in (*spec, *stream) if name not in (*NEEDED, STOPS, "rare_every")]
        every = self.settings.settings_of(trial)
        return {name: every[name] for name in names}


def columns_of(measured: Any) -> dict[str, Any]:
    """Return what `measure` returned as columns by name, in its order."""
    columns = measured._asdict() if hasattr(measured, "_asdict") else measured
    if not isinstance(columns, Mapping):
        raise UserError(f"measure returns {shown(measured)}; allowed: a dict or NamedTuple of arrays")
    return dict(columns)

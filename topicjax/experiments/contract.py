"""The contract of an experiment: its settings, and pure functions of ONE trial.

The engine adds lanes, streams, devices, records, snapshots and resuming, and chooses the order of work: it
may draw the data of many steps first, or train trials one after another or all together.  So data, update and
measurement are separate functions whose results depend only on their arguments.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from topicjax.errors import UserError, shown
from topicjax.pace import PER_DECADE
from topicjax.trial import NEEDED, Trial, TrialSettings

Records = Mapping[str, Any]  # of one trial so far: a NumPy array per column
References = Mapping[str, float]  # reference losses of one trial, by name
TAKEN = ("trial_id", "step")  # columns of every table of records
PACE = (PER_DECADE, "rare_every")  # settings of a Spec that change which records are taken, and no others
STOPS = "until"  # the setting that lets trials end before their last step ...
DECIDED = "decided"  # ... if it has this value


class Data(NamedTuple):
    """External data that trials of a Spec share: the shapes of its arrays, and a function that loads them."""

    shapes: Any  # a tree of shapes and dtypes; known without the data, for planning
    load: Callable[[], Any]  # the same tree as NumPy arrays, or a UserError that says how to get them


def no_source(spec: Any, stream: Any) -> tuple[()]:
    """Return an empty source: the stream determines only the data of each step."""
    return ()


def no_batch(spec: Any, stream: Any, source: Any, step: Any) -> tuple[()]:
    """Return an empty batch: steps need no data."""
    return ()


def whole_state(spec: Any, state: Any) -> Any:
    """Return the whole state: snapshots keep all of it."""
    return state


def same_spec(spec: Any, streams: Collection[Any]) -> Any:
    """Return the Spec unchanged: its program does not depend on the streams."""
    return spec


@dataclass(frozen=True)
class Experiment:
    """Settings, and pure functions of one trial; the page extending of the documentation walks through them.

    Spec, Stream and Hypers are the three classes of `settings`; streams and hypers arrive as traced scalars.
    `measure` and `measure_rarely` return a dict or NamedTuple of columns: scalars go to the trajectories,
    arrays to the details, with one axis per index in `details`.  A trial trains for `steps` steps, or fewer
    if its Spec has `until` at "decided": then `decided` is called every `decide_every` times `record_every`
    steps, with the records so far and their steps (`records["step"]`).
    """

    settings: TrialSettings
    init: Callable[..., Any]  # (spec, stream, hypers) -> state: any tree of arrays
    update: Callable[..., Any]  # (spec, stream, hypers, state, batch, step) -> (next state, by-products)
    measure: Callable[..., Any]  # (spec, stream, hypers, source, state, batch, by-products) -> columns
    batch: Callable[..., Any] = no_batch  # (spec, stream, source, step) -> the data of a step
    source: Callable[..., Any] = no_source  # (spec, stream, data if any) -> what a stream fixes for all steps
    weights: Callable[..., Any] = whole_state  # (spec, state) -> the tree that snapshots keep
    loss: Callable[..., Any] | None = None  # (spec, stream, hypers, weights, batch) -> scalar; for measures
    trained: Callable[..., Any] | None = None  # (spec, weights) -> True for each trained array; None: all are
    measure_rarely: Callable[..., Any] | None = None  # columns of every `rare_every`-th record, else NaN
    details: tuple[str, ...] = ()  # the indices of array columns, as ("layer", "head")
    healthy: tuple[str, ...] = ()  # columns that are finite unless a trial diverged; empty: all of `measure`
    references: Callable[[Trial], References] | None = None  # reference losses of a trial's data, by name
    reference_settings: Callable[[Trial], Collection[str]] | None = None  # the settings they depend on
    decided: Callable[[Trial, Records, References], str] | None = None  # why a trial may end; "": it goes on
    decide_every: int = 10  # windows between two calls of `decided`: the same on every machine
    report: Callable[[], Any] | None = None  # -> analysis.Page; called only by reports
    fit: Callable[..., Any] = same_spec  # (spec, streams) -> spec with its execution settings
    missing: Callable[..., Any] | None = None  # (source, batch) -> above 0: more than the program can hold
    trial_bytes: Callable[..., float] | None = None  # (spec) -> estimate of the minimum memory per trial
    step_flops: Callable[..., float] | None = None  # (spec) -> useful FLOPs; None: counted in the program
    draw_cost: float = 2.0  # drawing a step's data takes as long as this many trial-steps of training
    version: int | str | None = None  # of its results; None: the code that defines it is compared
    data: Callable[[Any], Data] | None = None  # (spec) -> external data; None: streams draw all data

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
        """The name of the experiment, as manifests store it."""
        return self.settings.experiment

    def may_stop(self, spec: Any) -> bool:
        """Whether the trials of a Spec end once they are decided."""
        return getattr(spec, STOPS, "") == DECIDED

    def make_source(self, spec: Any, stream: Any, data: Any) -> Any:
        """Make what a stream fixes for the whole training, from external data if there are any."""
        return self.source(spec, stream) if self.data is None else self.source(spec, stream, data)

    def data_shapes(self, spec: Any) -> Any:
        """Return the shapes of the external data; an empty tree if there are none."""
        return () if self.data is None else self.data(spec).shapes

    def load_data(self, spec: Any) -> Any:
        """Load the external data; an empty tree if there are none."""
        return () if self.data is None else self.data(spec).load()

    def reference_key(self, trial: Trial) -> dict[str, Any]:
        """Return the settings that a trial's reference losses depend on; equal ones are computed once.

        By default these are the data settings: Spec and Stream, without those that set the length of
        training.
        """
        if self.reference_settings is not None:
            names = self.reference_settings(trial)
        else:
            spec, stream, _ = self.settings.names
            names = [name for name in (*spec, *stream) if name not in (*NEEDED, STOPS, *PACE)]
        every = self.settings.settings_of(trial)
        return {name: every[name] for name in names}


def columns_of(measured: Any) -> dict[str, Any]:
    """Convert the result of `measure` to columns by name, in its order."""
    columns = measured._asdict() if hasattr(measured, "_asdict") else measured
    if not isinstance(columns, Mapping):
        raise UserError(f"measure returns {shown(measured)}; allowed: a dict or NamedTuple of arrays")
    return dict(columns)

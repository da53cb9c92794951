"""Trials of any experiment: static settings (Spec), those that fix the data (Stream), and the rest (Hypers).

A trial is fully described by its settings, and its identity is a short hash of them.  Each distinct Spec is
compiled once; Streams and Hypers are traced numbers, so a new learning rate never recompiles.  An experiment
declares its settings as fields of three classes (see `topicjax.settings`); conversion, range checks, help and
table columns follow.
"""

import functools
import hashlib
import json
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from topicjax.errors import UserError, shown, unknown_name
from topicjax.pace import PER_DECADE
from topicjax.settings import Choice, Role, Setting, declared

NEEDED = ("steps", "record_every")  # every Spec has them: the engine counts in them
REMEMBERED = 4096  # values of a setting, and texts of parts, that many trials share


class Trial(NamedTuple):
    """One training run, fully described."""

    spec: Any
    stream: Any
    hypers: Any


class TrialSettings:
    """The settings of an experiment by name; builds, validates and identifies its trials."""

    def __init__(
        self,
        experiment: str,
        Spec: type,
        Stream: type,
        Hypers: type,
        check: Callable[[Trial], object] = lambda trial: None,
        id_prefix: str | None = None,
        id_in_spec: tuple[str, ...] = (),
        id_unless_default: tuple[str, ...] = (),
        refused: Mapping[str, str] | None = None,
    ) -> None:
        """Store an experiment's name and its three classes.

        `check` raises a UserError if the settings of a trial, each valid by itself, contradict each other.
        The other arguments shape the text that is hashed into the id.  `id_prefix` starts it (default: the
        name).  `id_in_spec` lists Stream settings that are hashed with the Spec.  `id_unless_default` lists
        settings that are hashed only if they differ from their defaults, so that settings added later leave
        older ids unchanged.  `refused` names settings that a user may expect here, with the reason why there
        are none.
        """
        check_classes(experiment, Spec, Stream, Hypers)
        self._given = (experiment, Spec, Stream, Hypers, check, id_prefix, id_in_spec, id_unless_default)
        self._refused = dict(refused or {})
        self.experiment, self.classes, self._check = experiment, (Spec, Stream, Hypers), check
        self._prefix = f"{experiment}\n" if id_prefix is None else id_prefix
        id_unless_default = (*id_unless_default, PER_DECADE)  # a setting that any experiment may add later
        every = {name: setting for part in self.classes for name, setting in declared(part).items()}
        self.settings: dict[str, Setting] = {  # those that identify a trial
            name: setting for name, setting in every.items() if setting.role is not Role.EXECUTION
        }
        self.defaults: dict[str, Any] = {name: setting.default for name, setting in self.settings.items()}
        self.spec_names = tuple(name for name in declared(Spec) if name in self.settings)
        self.names = (self.spec_names, tuple(declared(Stream)), tuple(declared(Hypers)))
        self._every = every
        self._part_of = {name: number for number, names in enumerate(self.names) for name in names}
        remember = functools.lru_cache(maxsize=REMEMBERED)
        exactly = functools.lru_cache(maxsize=REMEMBERED, typed=True)  # 1 is a number of steps, 1.0 is not
        self._check_value = {name: exactly(setting.check) for name, setting in every.items()}
        self.conditional = [setting for setting in self.settings.values() if setting.only is not None]
        spec, stream, hypers = map(set, self.names)
        id_names = map(sorted, (spec | set(id_in_spec), stream - set(id_in_spec), hypers))
        self._id_parts = [
            (self._values_of(names), remember(part_writer(names, self.defaults, id_unless_default)))
            for names in id_names
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return TrialSettings, (*self._given, self._refused)  # caches are not pickled

    def convert(self, name: Any, value: Any) -> Any:
        """Convert a value to the type of the setting, or raise a UserError that says what is allowed."""
        return self.setting(name).convert(value)

    def setting(self, name: Any) -> Setting:
        """Look up a setting, or raise a UserError that says what there is."""
        if name in self.settings:
            return self.settings[name]
        why = self._refused.get(name) if isinstance(name, str) else None
        if why is not None:
            raise UserError(f"{self.experiment} has no setting {name}: {why}")
        raise UserError(unknown_name("setting", name, self.settings))

    def extended_by(self, later: Collection[str]) -> "TrialSettings":
        """Return the same settings, some of which came later: at their defaults they leave ids unchanged."""
        unless = self._given[-1]
        names = (*unless, *(name for name in later if name not in unless))
        return TrialSettings(*self._given[:-1], id_unless_default=names, refused=self._refused)

    def converted(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Convert every value to the type of its setting."""
        if not isinstance(settings, Mapping):
            raise UserError(f"the base is {shown(settings)}; allowed: a dict of settings")
        return {name: self.convert(name, value) for name, value in settings.items()}

    def make_trial(self, settings: Mapping[str, Any]) -> Trial:
        """Make the validated trial with these settings and defaults for the rest."""
        given = self.converted(settings)
        parts = (
            part(**{name: given[name] for name in names if name in given})
            for part, names in zip(self.classes, self.names, strict=True)
        )
        return self.valid(Trial(*parts))

    def valid(self, trial: Trial) -> Trial:
        """Reset settings that have no effect and return the trial, or raise a UserError if it is invalid."""
        for part, names in zip(trial, self.names, strict=True):
            self.check_part(part, names)
        return self.settled(trial, self.conditional)

    def check_part(self, part: Any, names: Iterable[str]) -> None:
        """Raise a UserError if one of these settings of a Spec, Stream or Hypers is out of range."""
        for name in names:
            self._check_value[name](getattr(part, name))
        if isinstance(part, self.classes[0]) and part.steps % part.record_every:
            raise UserError(
                f"steps is {part.steps}; allowed: a multiple of record_every = {part.record_every}"
            )

    def settled(self, trial: Trial, conditional: Iterable[Setting]) -> Trial:
        """Reset those of some conditional settings that have no effect; check the settings together."""
        trial = self.without_inert(trial, conditional)
        self._check(trial)
        return trial

    def without_inert(self, trial: Trial, conditional: Iterable[Setting]) -> Trial:
        """Reset those of some conditional settings that have no effect in this trial to their defaults."""
        changes: dict[str, Any] = {}
        for setting in conditional:
            assert setting.only is not None
            acts = self.value(trial, setting.only.name) in setting.only.values
            if not acts and self.value(trial, setting.name) != setting.default:
                changes[setting.name] = setting.default
        return trial if not changes else self.changed(trial, changes)

    def changed(self, trial: Trial, changes: Mapping[str, Any]) -> Trial:
        """Return a copy of the trial with some settings changed."""
        spec, stream, hypers = ({n: v for n, v in changes.items() if n in names} for names in self.names)
        return Trial(
            replace(trial.spec, **spec), trial.stream._replace(**stream), trial.hypers._replace(**hypers)
        )

    def value(self, trial: Trial, name: str) -> Any:
        """Look up a setting of a trial."""
        return getattr(trial[self._part_of[name]], name)

    def code(self, name: str, value: str) -> int:
        """Return the number that encodes a value of a choice in compiled programs."""
        kind = self.settings[name].kind
        if not isinstance(kind, Choice):
            raise TypeError(f"{name} is not a choice of names")
        return kind.code(value)

    def settings_of(self, trial: Trial) -> dict[str, Any]:
        """Return every setting that identifies the trial, by name."""
        every = vars(trial.spec) | trial.stream._asdict() | trial.hypers._asdict()
        return {name: every[name] for name in self.settings}

    def trial_id(self, trial: Trial) -> str:
        """Compute the trial's id: 12 hexadecimal digits that depend on its settings alone."""
        texts = (text_of(values_of(trial)) for values_of, text_of in self._id_parts)
        return hashlib.sha256((self._prefix + "\n".join(texts)).encode()).hexdigest()[:12]

    def _values_of(self, names: Sequence[str]) -> Callable[[Trial], tuple[Any, ...]]:
        """Make the function that looks up these settings of a trial."""
        paths = [f"{Trial._fields[self._part_of[name]]}.{name}" for name in names]
        if len(paths) > 1:
            return operator.attrgetter(*paths)
        return lambda trial: tuple(operator.attrgetter(path)(trial) for path in paths)

    def traced(self, part: Any) -> Any:
        """Convert a Stream or Hypers to the NumPy scalars that compiled programs take."""
        values = part._asdict().items()
        return part._replace(**{name: self._every[name].kind.traced(value) for name, value in values})


def check_classes(experiment: str, Spec: type, Stream: type, Hypers: type) -> None:
    """Raise a UserError unless Spec is a frozen dataclass and Stream and Hypers are NamedTuples."""
    if not experiment.isidentifier():
        raise UserError(f"the name of an experiment is {shown(experiment)}; allowed: letters, digits and _")
    if not is_dataclass(Spec) or not Spec.__hash__:
        raise UserError(f"Spec of {experiment} is {shown(Spec)}; allowed: a frozen dataclass")
    for name in NEEDED:
        if name not in {field.name for field in fields(Spec)}:
            raise UserError(f"Spec of {experiment} has no {name}; allowed: one with {' and '.join(NEEDED)}")
    for what, part in (("Stream", Stream), ("Hypers", Hypers)):
        if not (issubclass(part, tuple) and hasattr(part, "_fields")):
            raise UserError(f"{what} of {experiment} is {shown(part)}; allowed: a NamedTuple")


def part_writer(
    names: Sequence[str], defaults: Mapping[str, Any], unless: Collection[str]
) -> Callable[[tuple[Any, ...]], str]:
    """Make the function from values of these settings to the JSON that is hashed.

    It equals json.dumps of a dict without those of `unless` that have their default.  Most values of most
    trials are defaults, whose text is made once.
    """
    fields = []
    for name in names:
        key, default = f"{json.dumps(name)}: ", defaults[name]
        fields.append((key, default, "" if name in unless else key + value_text(default)))

    def write(values: tuple[Any, ...]) -> str:
        texts = [
            text if value is default or (not text and value == default) else key + value_text(value)
            for (key, default, text), value in zip(fields, values, strict=True)
        ]
        return f"{{{', '.join(filter(None, texts))}}}"

    return write


def value_text(value: Any) -> str:
    """Write a value as JSON; numbers are by far the most, and json writes them by their repr."""
    kind = type(value)
    return repr(value) if kind is int or (kind is float and math.isfinite(value)) else json.dumps(value)

"""topicjax: sweeps of tiny models.  `sweep` trains an experiment, `load(folder)` opens what a run left.

`topicjax.sweep` is the function; the algebra of sweeps is imported from the module of the same name, as in
`from topicjax.sweep import product`.
"""

from topicjax.api import Run, load, sweep, use_all_cores
from topicjax.experiments import Experiment
from topicjax.settings import Choice, Flag, Only, Real, Whole
from topicjax.trial import TrialSettings
from topicjax.version import __version__

__all__ = [
    "Choice",
    "Experiment",
    "Flag",
    "Only",
    "Real",
    "Run",
    "TrialSettings",
    "Whole",
    "__version__",
    "load",
    "sweep",
    "use_all_cores",
]

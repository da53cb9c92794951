"""topicjax: sweeps of tiny models.  `sweep` trains an experiment; `load(folder)` opens a run folder.

`topicjax.sweep` is the function; the sweep algebra is imported from the module of the same name:
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

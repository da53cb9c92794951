"""topicjax: sweeps of tiny models.  `sweep` trains an experiment; `load(folder)` opens a run folder.

`topicjax.sweep` is the function; the sweep algebra is imported from the module of the same name:
`from topicjax.sweep import product`.
"""

from typing import TYPE_CHECKING, Any

from topicjax.api import Run, load, sweep, use_all_cores
from topicjax.experiments import Experiment
from topicjax.settings import Choice, Flag, Only, Real, Whole
from topicjax.trial import TrialSettings
from topicjax.version import __version__

if TYPE_CHECKING:
    from topicjax.experiments.one_shot import one_shot

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
    "one_shot",
    "sweep",
    "use_all_cores",
]


def __getattr__(name: str) -> Any:
    """Import `one_shot` on first use: it needs jax, and reading a run does not."""
    if name != "one_shot":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from topicjax.experiments.one_shot import one_shot

    return one_shot

"""topicjax: sweeps of tiny transformers on topic models.  `load(folder)` opens what a run left."""

from topicjax.store.reader import Run, load
from topicjax.version import __version__

__all__ = ["Run", "__version__", "load"]

"""topicjax: sweeps of tiny transformers on topic models.  `load(folder)` opens what a run left."""

from topicjax.store import load

__all__ = ["load"]

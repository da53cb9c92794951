"""Analysis of run folders with pandas; imports topicjax's settings, theory and store, never jax.

What an experiment's `report` needs is imported from here on first use, so that training never loads
matplotlib.
"""

from importlib import import_module
from typing import Any

EXPORTED = {  # public name: (module, name in that module)
    "Chart": (".page.contract", "Chart"),
    "Claim": (".page.contract", "Claim"),
    "Entry": (".page.contract", "Entry"),
    "Figure": (".pictures", "Picture"),
    "Look": (".page.contract", "Look"),
    "Page": (".page.contract", "Page"),
    "Staged": (".page.contract", "Staged"),
    "Verdict": (".page.contract", "Verdict"),
    "View": (".page.contract", "View"),
    "curves_by": (".figures.any_run", "curves_by"),
    "stages": (".scores", "stages"),
}


def __getattr__(name: str) -> Any:
    if name not in EXPORTED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = EXPORTED[name]
    return getattr(import_module(module, __name__), own)

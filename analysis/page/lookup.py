"""Find the page of a run: from the slice of a shipped experiment, or from the user's file."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from topicjax.errors import UserError
from topicjax.experiments import SHIPPED, Experiment, trial_settings
from topicjax.store.manifest import last_run
from topicjax.store.reader import Run
from topicjax.sweep.files import load_sweep
from topicjax.trial import TrialSettings

from .contract import Page, entries_of

PLAIN = "the page shows only what any run has"


@dataclass(frozen=True)
class Found:
    """The page of a run's experiment, its settings if known, and a remark for readers."""

    page: Page
    settings: TrialSettings | None = None
    file: str = ""  # the user's file, if the page is from there: its exceptions are not defects of topicjax
    remark: str = ""


def find_page(run: Run) -> Found:
    """Find the page of a run's experiment; an empty Page if it has none."""
    if run.experiment in SHIPPED:
        return Found(page_of(run.experiment), trial_settings(run.experiment))
    file = last_run(run.manifest).get("file", "")
    if not file:
        return Found(Page())
    # The path is from the manifest.  A folder may come from someone else, so no file inside it is executed.
    path = Path(file)
    if not path.is_absolute() or not path.is_file() or path.resolve().is_relative_to(run.folder.resolve()):
        remark = f"The file {file} that defines the experiment {run.experiment} is gone: {PLAIN}."
        return Found(Page(), remark=remark)
    return own_page(run, path)


def page_of(experiment: str | Experiment) -> Page:
    """Return the page of an experiment, given the experiment or the name of a shipped one."""
    if isinstance(experiment, Experiment):
        page = Page() if experiment.report is None else experiment.report()
        if not isinstance(page, Page):
            raise UserError(f"report of {experiment.name} returns {type(page).__name__}; allowed: a Page")
        for listed in (page.figures, page.tables):
            entries_of(listed, "")  # fails here unless these are lists of functions
        return page
    module = f"topicjax.analysis.{experiment}"
    return import_module(f"{module}.page").PAGE if find_spec(module) else Page()


def own_page(run: Run, path: Path) -> Found:
    """Load the page from a user's file; any exception becomes a remark."""
    settings = None
    try:
        experiment: Any = load_sweep(str(path)).experiment
        if not isinstance(experiment, Experiment) or experiment.name != run.experiment:
            name = experiment.name if isinstance(experiment, Experiment) else experiment
            raise UserError(f"the file {path} defines {name}, not {run.experiment}")
        settings = experiment.settings
        return Found(page_of(experiment), settings, str(path))
    except UserError as error:
        reason = str(error)
    except (Exception, SystemExit) as error:
        reason = f"report of {path.name} raises {type(error).__name__}: {error}"
    return Found(Page(), settings, remark=f"{reason.removesuffix('.')}; {PLAIN}.")

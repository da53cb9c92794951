"""Find the page of a run: that of a shipped experiment's slice, or that of the user's own file."""

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

PLAIN = "the page shows what any run can"


@dataclass(frozen=True)
class Found:
    """The page of a run's experiment, its settings if they are known, and what a reader must know of it."""

    page: Page
    settings: TrialSettings | None = None
    file: str = ""  # of the user, if the page is from there: what it raises is no defect of topicjax
    remark: str = ""


def find_page(run: Run) -> Found:
    """Return the page of the experiment that a run is of; an empty Page where it brings none."""
    if run.experiment in SHIPPED:
        return Found(page_of(run.experiment), trial_settings(run.experiment))
    file = last_run(run.manifest).get("file", "")
    if not file:
        return Found(Page())
    # The path is the manifest's.  A folder may come from someone else: no file inside it is run.
    path = Path(file)
    if not path.is_absolute() or not path.is_file() or path.resolve().is_relative_to(run.folder.resolve()):
        remark = f"The file {file} that defines the experiment {run.experiment} is gone: {PLAIN}."
        return Found(Page(), remark=remark)
    return own_page(run, path)


def page_of(experiment: str | Experiment) -> Page:
    """Return the page that an experiment brings, given itself or the name of a shipped one."""
    if isinstance(experiment, Experiment):
        page = Page() if experiment.report is None else experiment.report()
        if not isinstance(page, Page):
            raise UserError(f"report of {experiment.name} returns {type(page).__name__}; allowed: a Page")
        for listed in (page.figures, page.tables):
            entries_of(listed, "")  # what is no list of functions is noticed here
        return page
    module = f"topicjax.analysis.{experiment}"
    return import_module(f"{module}.page").PAGE if find_spec(module) else Page()


def own_page(run: Run, path: Path) -> Found:
    """Return the page that a user's file gives its experiment; whatever it raises becomes a remark."""
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

"""Write report.html of a run: its answer and the map, then claims, findings, figures, tables, provenance.

All experiments share one pipeline.  The experiment's own Page (`lookup`) comes first, then the figures and
tables of any run (`figures.any_run`) that the Page does not replace.  All files go into the run folder,
report.html last.
"""

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from topicjax.errors import UserError, counted
from topicjax.settings import SEEDS
from topicjax.store.files import StoreError, write_whole
from topicjax.store.manifest import last_run
from topicjax.store.reader import Run, load, status

from ..figures import any_trial
from ..figures.any_run import any_page, cell_table
from ..frames import varying
from ..outputs import subfolder, write_file
from ..pictures import Picture, label
from ..tables import to_csv, to_markdown, to_text
from . import html
from .claims import Judged, asked_claims, evidence, judge
from .contract import CLASS, Entry, Page, Scores, entries_of
from .explorer import explorer
from .live import Announcer, Live
from .lookup import Found, find_page
from .provenance import (
    CELLS,
    FIGURES_FOLDER,
    REPORT,
    TABLES_FOLDER,
    arithmetic_sentence,
    code_sentence,
    files,
    plans_sentence,
    provenance,
    settings_tables,
)
from .selection import Selection

MOST_ROWS = 40  # of a table on the page; its CSV file has all
MOST_LINES = 1000  # of a Markdown file; a longer table is pooled there and on the page, if possible
KEPT_WEIGHTS = 256  # trials whose weights stay in memory while a report is made
INSPECT_FOLDER = "inspect"
EVERYTHING = Selection()
FIGURES, TABLES = "Figures", "Tables"  # sections for what a Page lists without a section
ANSWER, WORDS = "Answer", "Words"
ABSENT = {"figure": "Not drawn", "table": "No table", "page": "No interactive map"}
Say = Callable[[str], object]
logger = logging.getLogger(__name__)


def nothing(message: str) -> None:
    """Ignore a message."""


def write(
    folder: str | Path, say: Say = nothing, chosen: Selection = EVERYTHING, live: Live | None = None
) -> Path:
    """Write report.html with its figures and tables into a run folder; return its path.

    `say` is called with a line of text before each piece of work, and repeatedly during long work.  A `live`
    page has only the answer, maps and tables, and reloads itself.
    """
    with Announcer(say) as announcer:
        run = load(folder)
        announcer("reading the run ...")
        found = find_page(run)
        report = Report(run, found, any_page(found.page), announcer, chosen, live)
        chosen.check(run, found, [entry for entry, _ in report.entries])
        report.score()
        return write_file(run.folder / REPORT, report.render())


def inspect(run: Run, trial_id: str, step: int | None = None, out: str | Path | None = None) -> list[Path]:
    """Draw one trial at a snapshot (by default its last) into FOLDER/inspect; return the files.

    `trial_id` may be the beginning of an id.  The experiment's page draws the trial; without one, its weights
    are drawn as plain arrays.
    """
    trial_id = run.find(trial_id)
    step, found = run.snapshot_step(trial_id, step), find_page(run)
    try:
        own = found.page.inspect
        made = own(run, trial_id, step) if own else any_trial.inspect(run, trial_id, step, found.page)
    except (UserError, StoreError):
        raise
    except Exception as error:
        if not found.file or found.page.inspect is None:
            raise
        where = f"inspect of {Path(found.file).name}"
        raise UserError(f"{where} raises {type(error).__name__}: {error}") from error
    pictures = list(made) if isinstance(made, list | tuple) else [made]
    folder, name = Path(out or subfolder(run.folder, INSPECT_FOLDER)), f"{trial_id}-step{step}"
    names = [name, *(f"{name}_{number}" for number in range(2, len(pictures) + 1))]
    return [file for own, each in zip(names, pictures, strict=True) for file in each.save(folder / own)]


@dataclass
class Report:
    """A report being made: the run, its experiment's page, the general page, and the scores once computed."""

    run: Run
    found: Found
    general: Page
    say: Announcer = field(default_factory=lambda: Announcer(nothing))
    chosen: Selection = EVERYTHING
    live: Live | None = None
    scores: Scores = field(default_factory=pd.DataFrame)
    cells: pd.DataFrame = field(default_factory=pd.DataFrame)
    filtered: str = ""  # a sentence on the trials that are shown
    failed: Markup = field(default_factory=Markup)  # why there are no scores
    judged: list[Judged] = field(default_factory=list)  # the claims that the sweep is about
    findings: list[str] = field(default_factory=list)  # what the run says, in sentences
    words: html.Words = html.NO_WORDS  # of the page's own; texts link to its glossary
    plain: Run = field(init=False)  # the run as loaded: `page.prepare` has added no columns

    def __post_init__(self) -> None:
        """Start with the run as loaded."""
        self.plain = self.run

    @property
    def page(self) -> Page:
        """The experiment's own page."""
        return self.found.page

    def score(self) -> None:
        """Score all trials and write the scores to the folder; then select the chosen trials."""
        page, run = self.page, self.run
        _ = run.trials, run.trajectories  # unreadable tables end the report here
        run = self.plain = run.replace(restore=functools.lru_cache(KEPT_WEIGHTS)(run.restore))
        try:
            prepared = page.prepare(run) if page.prepare else run
            if page.score:
                self.say(f"scoring {counted(len(run.trials), 'trial')} ...")
            scores = checked_scores(prepared, page.score(prepared), page) if page.score else run.trials
            self.run, self.scores = prepared, scores
            self.cells = self._cells()
        except (Exception, SystemExit) as error:
            self.failed = self.absent("Not scored", getattr(page.score, "__name__", "score"), error, page)
            self.run, self.scores, self.cells = run, run.trials, cell_table(run)
            self.found, page = replace(self.found, page=Page()), Page()
            self.general = any_page(page)
        self._keep_chosen()

    def _keep_chosen(self) -> None:
        """Write scores and cells of all trials to files, then select the chosen trials."""
        page, run = self.page, self.run
        by_trial = self.trial_scores
        classes = dict(zip(by_trial["trial_id"], by_trial[CLASS], strict=True)) if CLASS in by_trial else {}
        kept = self.chosen.kept(run, self.found, classes)  # raises before anything is written
        if page.score:
            self._write(page.file, self.scores)
        if page.cells:
            self._write(CELLS, self.cells)
        self.filtered = self.chosen.sentence(kept.sum(), len(kept))
        if not kept.all():
            shown = run.trials.loc[kept, "trial_id"].tolist()
            self.run, self.plain = run.select(shown), self.plain.select(shown)
            is_shown = self.scores["trial_id"].isin(self.run.trials["trial_id"])
            self.scores = self.scores.loc[is_shown].reset_index(drop=True)
            self.cells = self._cells()

    def _write(self, name: str, frame: pd.DataFrame) -> None:
        """Write a table into the folder; if parquet cannot hold it, the page says so."""
        try:
            write_whole(self.run.folder / name, functools.partial(frame.to_parquet, index=False))
        except StoreError:
            raise
        except Exception as error:
            self.failed += self.absent("Not written", name, error, self.page)

    def _cells(self) -> pd.DataFrame:
        """Make the table of cells: the page's own, or the general one."""
        names = [str(name) for name in self.scores if name in self.plain.setting_names and name not in SEEDS]
        return self.page.cells(self.scores, names) if self.page.cells else cell_table(self.plain)

    @property
    def trial_scores(self) -> Scores:
        """The scores with one row per trial."""
        return self.page.of_trials(self.scores) if self.page.of_trials else self.scores

    @property
    def entries(self) -> list[tuple[Entry, Page]]:
        """Every figure and table that may be on the page, each with the Page that lists it."""
        sections = ((entry, page) for _, page, entries, _ in self._sections() for entry in entries)
        return [*((entry, self.page) for entry in self.page.lead), *sections]

    def _sections(self) -> Iterator[tuple[str, Page, list[Entry], Callable[[Entry, Page], Markup]]]:
        """Yield sections of figures and tables: heading, Page, entries, and the method that renders them."""
        for page in (self.page, self.general):
            for head, entries in entries_of(page.figures, FIGURES).items():
                if self.live is None or page is self.general or head in page.live:
                    yield head, page, entries, self.draw
            for head, entries in entries_of(page.tables, TABLES).items():
                yield head, page, entries, self.tabulate

    def render(self) -> str:
        """Render the page; its figures and tables are written to files on the way."""
        run, live, page = self.plain, self.live, self.page
        self.say.total = sum(self._fits(entry, of) for entry, of in self.entries)
        glossary = self.part("words", self.explain_words, of=page)
        claims = self.part("claims", self.judged_claims, of=page)
        opened, shown_first = self.shown_first()
        failed = self.part("answer", self.find, of=page) + self.failed
        lead = html.paragraph(live.sentence(run), "live") if live else Markup()
        lead += self.part("answer", self.answer, of=page) + failed
        lead += Markup().join(map(html.paragraph, filter(None, (self.found.remark, self.filtered))))
        lead += self.explore()
        found = html.items(map(self.words.linked, self.findings)) if self.findings else Markup()
        first = Markup().join(self.draw(entry, page) for entry in page.lead if entry is not opened)
        sections = [(ANSWER, self.part("plans", self.remarks) + claims + found + shown_first + first)]
        sections += [
            (head, Markup().join(make(entry, of) for entry in entries if entry is not opened))
            for head, of, entries, make in self._sections()
        ]
        defaults = self.found.settings.defaults if self.found.settings else {}
        sections += [
            (WORDS, glossary),
            ("Settings", self.part("settings", settings_tables, run, defaults)),
            ("Provenance", self.part("provenance", provenance, run)),
            ("Files", self.part("files", files, run.folder, {page.file: page.file_holds})),
        ]
        question = str(last_run(run.manifest).get("description", "")).split("\n")[0]
        counts = f"{counted(len(run.trials), 'trial')} in {counted(len(self.cells), 'cell')}."
        subtitle = f"{question} Experiment {run.experiment}: {counts}".strip()
        shown = [section for section in sections if section[1]]
        return html.page(f"topicjax: {run.name}", subtitle, lead, shown, live.reload_seconds if live else 0)

    def remarks(self) -> Markup:
        """Say which plans, versions of the code and arithmetic the folder has, where that is unusual."""
        state = status(self.run.folder)
        texts = (plans_sentence(state), code_sentence(state), arithmetic_sentence(state))
        return Markup().join(html.paragraph(text) for text in texts if text)

    def judged_claims(self) -> Markup:
        """Judge the claims that the sweep is about; each links to what shows it."""
        asked = asked_claims(self.plain, self.found)
        if not asked:
            return Markup()
        judged = self.judged = [judge(claim, self.run, self.scores, self._why) for claim in asked]
        places = ["-".join(filter(None, evidence(claim, self.page))) for claim in asked]
        shown = [(own.claim, own.verdict, place) for own, place in zip(judged, places, strict=True)]
        return html.claims(shown, self.words)

    def _why(self, name: str, error: BaseException) -> str:
        return self.reason(name, error, self.page)

    def shown_first(self) -> tuple[Entry | None, Markup]:
        """Draw what shows the first claim of the sweep; return its entry too, to leave it out below."""
        try:
            claim = next(iter(asked_claims(self.plain, self.found)), None)
        except UserError:  # `judged_claims` says so
            return None, Markup()
        kind, name = evidence(claim, self.page) if claim else ("", "")
        wanted = {"figure": self.draw, "table": self.tabulate}.get(kind)
        lead = [("", self.page, [*self.page.lead], self.draw)]
        for _, page, entries, make in (*lead, *self._sections()):
            for entry in entries:
                if page is self.page and make == wanted and entry.name == name:
                    return entry, make(entry, page)
        return None, Markup()

    def find(self) -> Markup:
        """Collect the findings of the run; return what cannot be shown."""
        state, failed = status(self.run.folder), Markup()
        for page in (self.page, self.general):
            try:
                found = (
                    page.findings(self._run_for(page), self.scores, self.cells, state)
                    if page.findings
                    else ()
                )
                self.findings += map(str, found)
            except (Exception, SystemExit) as error:
                failed += self.absent("Not shown", "answer", error, page)
        return failed

    def answer(self) -> Markup:
        """Write the answer: the verdict on the first claim of the sweep, or else the first finding."""
        others = [(claim.name, verdict.verdict) for claim, verdict in self.judged[1:]]
        if self.judged:
            (claim, verdict), *_ = self.judged
            return html.answer(verdict.sentence, claim.name, verdict.verdict, others, self.words)
        return html.answer(self.findings.pop(0), "", "", others, self.words) if self.findings else Markup()

    def explore(self) -> Markup:
        """Make the interactive map."""
        make = functools.partial(explorer, page=self.page, words=self.words, explain=self._why)
        entry = Entry("explorer", make, axes=("x", "y"))

        def show(entry: Entry, page: Page) -> Markup:
            return Markup(entry.make(self.run, self.trial_scores))

        return self._attempt("page", entry, self.page, show)

    def explain_words(self) -> Markup:
        """Write the glossary; texts that are made from now on link to it."""
        words = html.Words(self.page.words)
        glossary = words.glossary()
        self.words = words
        return glossary

    def draw(self, entry: Entry, page: Page) -> Markup:
        """Draw the figures of an entry, or say why they are missing; empty if they do not fit the run."""
        return self._attempt("figure", entry, page, self._figures)

    def tabulate(self, entry: Entry, page: Page) -> Markup:
        """Make the table of an entry, or say why it is missing; empty if it does not fit the run."""
        return self._attempt("table", entry, page, self._table)

    def _attempt(self, kind: str, entry: Entry, page: Page, show: Callable[[Entry, Page], Markup]) -> Markup:
        try:
            if not entry.fits(self._run_for(page), self.scores):
                return Markup()
            self.say(f"{kind} {entry.name} ...")
            return show(self.chosen.applied(entry, self.filtered), page)
        except (Exception, SystemExit) as error:
            return self.absent(ABSENT[kind], entry.name, error, page)

    def _fits(self, entry: Entry, page: Page) -> bool:
        try:
            return entry.fits(self._run_for(page), self.scores)
        except Exception:  # `_attempt` reports it
            return False

    def _run_for(self, page: Page) -> Run:
        """Return the run that a Page's functions take: prepared for the experiment's own, else as loaded."""
        return self.run if page is self.page else self.plain

    def _figures(self, entry: Entry, page: Page) -> Markup:
        """Write the pictures of an entry to files, close them, and return their HTML."""
        made = entry.make(self._run_for(page), self.scores)
        pictures = list(made) if isinstance(made, list | tuple) else [made]
        folder, found = subfolder(self.run.folder, FIGURES_FOLDER), Markup()
        for number, picture in enumerate(pictures, 1):
            if not isinstance(picture, Picture):
                raise UserError(f"it returns {type(picture).__name__}; allowed: a Figure, or a list of them")
            name = entry.name if number == 1 else f"{entry.name}_{number}"
            found += html.figure(picture, picture.save(folder / name), self.run.folder, self.words)
            picture.close()
        return found

    def _table(self, entry: Entry, page: Page) -> Markup:
        """Write the table of an entry to files and return its HTML; a long one is pooled or cut."""
        run, headers = self._run_for(page), self.page.headers
        frame = entry.make(run, self.scores)
        if not isinstance(frame, pd.DataFrame):
            raise UserError(f"it returns {type(frame).__name__}; allowed: a DataFrame")
        path = to_csv(frame, subfolder(run.folder, TABLES_FOLDER) / f"{entry.name}.csv")
        shown, more = frame, ""
        if len(frame) > MOST_LINES and entry.can_pool:
            pooled = settings_to_pool(self.plain, MOST_ROWS)
            shown = entry.make(run, self.scores, pooled)
            names = ", ".join(map(label, pooled))
            more = f"; rows pool all values of {names} ({len(frame):,} rows in the csv)"
        if len(shown) > MOST_ROWS:
            more += f" (the first {MOST_ROWS} of {len(shown)} rows)"
        text = to_markdown(shown.head(MOST_LINES), headers)
        if len(shown) > MOST_LINES:
            text += f"\nThe first {MOST_LINES:,} of {len(shown):,} rows; all are in {path.name}.\n"
        markdown = write_file(path.with_suffix(".md"), text)
        links = html.links([path, markdown], run.folder)
        read = to_text(shown.head(MOST_ROWS), headers)
        return html.table(read, f"{entry.title}{more}.", links, f"table-{entry.name}", self.words)

    def part(
        self, name: str, make: Callable[..., Markup], *arguments: object, of: Page | None = None
    ) -> Markup:
        """Make a part of the page, or a paragraph that says why it is missing."""
        try:
            return make(*arguments)
        except (Exception, SystemExit) as error:
            return self.absent("Not shown", name, error, of)

    def absent(self, what: str, name: str, error: BaseException, page: Page | None = None) -> Markup:
        """Write a paragraph that says what is missing and why; `page` is the Page it belongs to."""
        return html.paragraph(f"{what} ({name}): {self.reason(name, error, page)}.")

    def reason(self, name: str, error: BaseException, page: Page | None) -> str:
        """Say why something is missing; a defect of topicjax is logged with its traceback."""
        if isinstance(error, UserError | StoreError):
            return str(error).removesuffix(".")
        if self.found.file and page is self.found.page:
            return f"{name} of {Path(self.found.file).name} raises {type(error).__name__}: {error}"
        logger.error("%s could not be made", name, exc_info=error)
        return f"this is a defect of topicjax, please report it: {type(error).__name__}: {error}"


def checked_scores(run: Run, scores: Any, page: Page) -> Scores:
    """Check that the scores have one row per trial of the run; raise a UserError otherwise."""
    if not isinstance(scores, pd.DataFrame) or "trial_id" not in scores:
        raise UserError("score does not return a table with a column trial_id; allowed: one row per trial")
    by_trial = page.of_trials(scores) if page.of_trials else scores
    missing = np.setdiff1d(run.trials["trial_id"].to_numpy(str), by_trial["trial_id"].to_numpy(str))
    if len(missing) or by_trial["trial_id"].duplicated().any():
        raise UserError("score does not return one row per trial")
    return scores


def settings_to_pool(run: Run, rows: int) -> list[str]:
    """Choose the settings to pool, those with the most values first, so that at most `rows` rows remain."""
    keys: list[str] = varying(run.trials, [name for name in run.setting_names if name not in SEEDS])
    pooled: list[str] = []
    for name in sorted(keys, key=lambda name: -run.trials[name].nunique()):
        if len(run.trials[keys].drop_duplicates()) <= rows:
            break
        keys.remove(name)
        pooled.append(name)
    return pooled

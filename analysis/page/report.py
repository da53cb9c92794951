"""report.html of a run: the answer first, then figures, tables, settings and where it came from.

`catalogue` says which figures and tables there are.  All files go into the run folder, report.html last.
"""

import functools
import html
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from topicjax.store.files import write_whole
from topicjax.store.manifest import last_run
from topicjax.store.reader import Run, load, status
from topicjax.theory.progress import CUTS

from ..encoder import page as encoder
from ..frames import aligned
from ..one_layer import tables
from ..one_layer.catalogue import EXPLORER, FIGURES, LEAD, TABLES, Entry, has_few_cells
from ..one_layer.cells import score_cells
from ..one_layer.definitions import definitions
from ..one_layer.end_tables import convergence
from ..one_layer.findings import findings
from ..one_layer.scores import score_trials, write_stages
from ..outputs import subfolder, write_file
from ..pictures import Picture, counted, label
from ..text import page as text
from . import any_experiment
from . import html as page
from .live import Live
from .progress import Progress
from .provenance import (
    CELLS,
    FIGURES_FOLDER,
    REPORT,
    TABLES_FOLDER,
    files,
    plans_sentence,
    provenance,
    settings_tables,
)
from .safely import absent, part
from .selection import FIRST_EXPERIMENT, Selection, only

MOST_ROWS = 40  # of a table on the page; its CSV file has all
MOST_LINES = 1000  # of a Markdown file; a longer table is pooled for the page and for it, if it can be
KEPT_WEIGHTS = 256  # trials whose weights stay in memory while a report is made
CLASS_WORDS = (
    f"two-stage: Θ at least {CUTS.two_stage:g} (V is learned before attention helps), and stage 2 happened: "
    f"attention gained at least {CUTS.stage2:.0%} of what topics can give and became topical, its score of "
    f"same-topic pairs {CUTS.topical:g} or more above that of other pairs",
    "two-stage, non-topical: the same without the topics; stage 2 begun: Θ as high, but attention gained "
    "less than that in the steps given",
    "reversed: attention helps before V is learned",
    f"simultaneous: Θ and its reverse below {CUTS.simultaneous:g}; V leads, attention leads: all between",
    "V-only: V is learned, attention has not moved in the steps given",
    "compensated: the loss gets there, but not with uniform attention",
    f"unfinished: the loss came less than {CUTS.finished:.0%} of the way to the stage-1 line; no-learning: "
    f"less than {CUTS.no_learning:.0%}",
    "diverged: not finite; collapsed: finite, never finished, and the loss ended above where it began",
    "only the way up is scored; what came after is a suffix. then lost: the trial ended with less than "
    f"{CUTS.lost:.0%} of its gain; then copying: in the end a word counts for itself more than for its topic",
)
CATALOGUES = {
    "encoder": (encoder.CATALOGUE,),
    "text": (text.CATALOGUE,),
}  # of experiments that have more than any has
LIVE_FIGURES = ("Maps",)  # sections of a page that is made again and again
EVERYTHING = Selection()
ABSENT = {"figure": "Not drawn", "table": "No table", "page": "No map to explore"}
Say = Callable[[str], object]
Show = Callable[[Entry, Run, pd.DataFrame], str]


def nothing(message: str) -> None:
    """Take a message and do nothing."""


def write(
    folder: str | Path, say: Say = nothing, chosen: Selection = EVERYTHING, live: Live | None = None
) -> Path:
    """Write report.html with its figures and tables into a run folder; return its path.

    `say` is called with a line of text before each piece of work, and again while it takes long.  A `live`
    page has the answer, maps and tables only, and loads itself again.
    """
    with Progress(say) as progress:
        run = load(folder)
        progress("reading the run ...")
        chosen.check(run)
        make = any_page if run.experiment != FIRST_EXPERIMENT else first_page
        return write_file(run.folder / REPORT, make(run, progress, chosen, live))


def any_page(run: Run, progress: Progress, chosen: Selection, live: Live | None) -> str:
    """Return the page of a run of another experiment; figures and tables are written on the way.

    What is known of an experiment comes first, what holds for any after it.
    """
    kept = chosen.kept(run)
    filtered = chosen.sentence(kept.sum(), len(kept))
    run, _ = only(run, kept)
    known = [*CATALOGUES.get(run.experiment, ()), any_experiment.CATALOGUE]
    return any_experiment.render(run, known, draw, tabulate, progress, chosen, filtered, live)


def first_page(run: Run, progress: Progress, chosen: Selection, live: Live | None) -> str:
    """Return the page of a run of the topic model; scores, figures and tables are written on the way."""
    run = aligned(run)
    run = run.replace(restore=functools.lru_cache(KEPT_WEIGHTS)(run.restore))
    progress(f"scoring {counted(len(run.trials), 'trial')} ...")
    scores = score_trials(run)
    kept = chosen.kept(run, scores["class"])
    cells = score_cells(scores)
    write_stages(scores, run.folder)
    write_whole(run.folder / CELLS, lambda file: cells.to_parquet(file, index=False))
    filtered = chosen.sentence(kept.sum(), len(kept))
    run, tables = only(run, kept, scores=scores)
    scores = tables["scores"]
    return render(run, scores, cells if kept.all() else score_cells(scores), progress, chosen, filtered, live)


def render(
    run: Run,
    scores: pd.DataFrame,
    cells: pd.DataFrame,
    progress: Progress,
    chosen: Selection = EVERYTHING,
    filtered: str = "",
    live: Live | None = None,
) -> str:
    """Return the page; figures and tables are written on the way."""
    first, explorer, *others = (chosen.applied(entry, filtered) for entry in (LEAD, EXPLORER, *TABLES))
    groups = {head: FIGURES[head] for head in (LIVE_FIGURES if live else FIGURES) if head in FIGURES}
    groups = {head: [chosen.applied(entry, filtered) for entry in own] for head, own in groups.items()}
    every = [first, *(entry for own in groups.values() for entry in own), *others]
    progress.total = sum(any_experiment.fits(entry, run, scores) for entry in every)
    lead = live.sentence(run) if live else ""
    lead += part("plans", plans_paragraph, run)
    lead += f"<p>{html.escape(filtered)}</p>\n" if filtered else ""
    lead += part("answer", answer, scores, cells, run)
    static = draw(first, run, scores, progress)
    lead += attempt("page", explorer, explore, run, scores, progress) + static
    sections = [
        (head, "".join(draw(entry, run, scores, progress) for entry in own)) for head, own in groups.items()
    ]
    sections.append(("Tables", "".join(tabulate(entry, run, scores, progress) for entry in others)))
    sections.append(("Words", words()))
    sections.append(("Settings", part("settings", settings_tables, run)))
    sections.append(("Provenance", part("provenance", provenance, run)))
    sections.append(("Files", part("files", files, run.folder)))
    question = str(last_run(run.manifest).get("description", "")).split("\n")[0]
    counts = f"{counted(len(run.trials), 'trial')} in {counted(len(cells), 'cell')}."
    subtitle, head = f"{question} {counts}".strip(), live.head if live else ""
    return page.page(f"topicjax: {run.name}", subtitle, lead, [each for each in sections if each[1]], head)


def answer(scores: pd.DataFrame, cells: pd.DataFrame, run: Run) -> str:
    """Return the answer, and what its words mean."""
    sentences = findings(scores, cells, run.missing)
    sentences += convergence(run) if has_few_cells(run, scores) else []
    return page.items(sentences, "answer") + definitions(sentences)


def plans_paragraph(run: Run) -> str:
    """Return which plans the folder holds trials of; empty if it is one."""
    plans = plans_sentence(status(run.folder))
    return f"<p>{html.escape(plans)}</p>\n" if plans else ""


def draw(entry: Entry, run: Run, scores: pd.DataFrame, say: Say = nothing) -> str:
    """Return the figures of an entry, or why there are none; nothing if they do not fit the run."""
    return attempt("figure", entry, figures, run, scores, say)


def tabulate(entry: Entry, run: Run, scores: pd.DataFrame, say: Say = nothing) -> str:
    """Return the table of an entry, or why there is none; nothing if it does not fit the run."""
    return attempt("table", entry, table, run, scores, say)


def attempt(kind: str, entry: Entry, show: Show, run: Run, scores: pd.DataFrame, say: Say) -> str:
    """Return what an entry makes, as `show` writes it, or a paragraph with the reason why it cannot."""
    try:
        if not entry.fits(run, scores):
            return ""
        say(f"{kind} {entry.name} ...")
        return show(entry, run, scores)
    except Exception as error:
        return absent(ABSENT[kind], entry.name, error)


def figures(entry: Entry, run: Run, scores: pd.DataFrame) -> str:
    """Write the pictures of an entry and return them for the page."""
    made: Picture | list[Picture] = entry.make(run, scores)
    pictures = made if isinstance(made, list) else [made]
    names = [entry.name, *(f"{entry.name}_{place}" for place in range(2, len(pictures) + 1))]
    folder = subfolder(run.folder, FIGURES_FOLDER)
    pairs = zip(names, pictures, strict=True)
    return "".join(page.figure(each, each.save(folder / name), run.folder) for name, each in pairs)


def explore(entry: Entry, run: Run, scores: pd.DataFrame) -> str:
    """Return the map to explore."""
    return entry.make(run, scores)


def table(entry: Entry, run: Run, scores: pd.DataFrame) -> str:
    """Write the table of an entry and return it for the page, pooled or its first rows if it is long."""
    frame: pd.DataFrame = entry.make(run, scores)
    path = tables.to_csv(frame, subfolder(run.folder, TABLES_FOLDER) / f"{entry.name}.csv")
    shown, more = frame, ""
    if len(frame) > MOST_LINES and entry.can_pool:
        pooled = tables.settings_to_pool(run.trials, MOST_ROWS)
        shown = entry.make(run, scores, pooled)
        more = f"; rows pool all values of {', '.join(map(label, pooled))} ({len(frame):,} rows in the csv)"
    if len(shown) > MOST_ROWS:
        more += f" (the first {MOST_ROWS} of {len(shown)} rows)"
    text = tables.to_markdown(shown.head(MOST_LINES))
    if len(shown) > MOST_LINES:
        text += f"\nThe first {MOST_LINES:,} of {len(shown):,} rows; all are in {path.name}.\n"
    markdown = write_file(path.with_suffix(".md"), text)
    links = " · ".join(page.link(file, run.folder, file.suffix[1:]) for file in (path, markdown))
    return page.table(tables.to_text(shown.head(MOST_ROWS)), entry.title + more + ".", links)


def words() -> str:
    """Return how the classes are to be read."""
    text = (
        "Three views of a trial. Loss: how much of the way to the best uniform-attention loss (stage 1) W^V "
        "has gone when attention is forced uniform, and what attention adds in units of stage 1 - stage 2. "
        "Order parameters: same-topic minus other-topic entries of the value matrix and of the attention "
        "scores. Norms: as in the paper's Figure 4. Θ is the largest, over the steps, of the smaller of "
        "progress of V and 1 - progress of attention: 1 if V was done before attention began; log lag is by "
        "how many e-foldings of the step V is ahead."
    )
    return f"<p>{html.escape(text)}</p>\n" + page.items(CLASS_WORDS)

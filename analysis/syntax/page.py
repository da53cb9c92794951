"""The page of runs on syntax and topics: which of the two is learned first, and on what that depends."""

from dataclasses import replace
from typing import Any

import pandas as pd

from topicjax.errors import counted
from topicjax.settings import SEEDS
from topicjax.store.reader import Run

from ..frames import cell_of_rows, varying
from ..maps.cells import UNSCORED
from ..maps.drawing import run_map
from ..page.contract import Chart, Entry, Look, Page, Staged, View
from ..pictures import Picture
from . import figures, tables
from .claims import CLAIMS
from .findings import WORDS, findings
from .scores import (
    DIVERGED,
    NEITHER,
    OTHER_RATIOS,
    RATIO,
    SCORES_FILE,
    SYNTAX,
    SYNTAX_ONLY,
    TOGETHER,
    TOPICS,
    TOPICS_ONLY,
    UNDECIDED,
    V_ALONE,
    V_FIRST,
    V_FIRST_THETA,
    V_NOT_FIRST,
    prepared,
    score_syntax,
)

LOOKS: dict[str, str | Look] = {  # Okabe and Ito's colours: syntax is blue, topics are red
    SYNTAX: "#0072B2",
    SYNTAX_ONLY: "#56B4E9",
    TOGETHER: "#009E73",
    TOPICS_ONLY: "#E69F00",
    TOPICS: "#D55E00",
    V_FIRST: "#CC79A7",
    V_NOT_FIRST: "#8A6BF2",
    V_ALONE: "#F0E442",
    UNDECIDED: Look("#DDDDDD", "////"),
    NEITHER: Look("#A6A6A6", "...."),
    UNSCORED: Look("#FFFFFF", "\\\\\\\\"),
    DIVERGED: Look("#333333", "xxxx"),
}
VIEWS = (
    View("which first", "", f"half-way steps that differ by more than a factor {RATIO:g}", "order"),
    *(
        View(
            f"which first, ratio {ratio:g}",
            end,
            f"half-way steps that differ by more than a factor {ratio:g}",
        )
        for end, ratio in OTHER_RATIOS.items()
    ),
    View("V before scores, syntax", "_v_syntax", f"Θ of V before the bias at ±1, from {V_FIRST_THETA:g}"),
    View(
        "V before scores, topics",
        "_v_topic",
        f"Θ of V before the score of content words, from {V_FIRST_THETA:g}",
    ),
    *(
        View(
            f"V before attention, {name}",
            f"_loss_{part}",
            f"by losses: Θ of V before attention, from {V_FIRST_THETA:g}",
        )
        for part, name in (("syntax", "syntax"), ("topic", "topics"))
    ),
)
STAGED = tuple(
    Staged(
        f"V before scores, {name}",
        (V_FIRST,),
        (V_ALONE,),
        f"class_v_{part}",
        f"v_theta_{part}",
        words,
        by="order parameters",
    )
    for part, name, words in (
        ("topic", "topics", "the topic blocks of the value map and the attention score of content words"),
        (
            "syntax",
            "syntax",
            "the map from visible to neighbouring classes and the attention bias towards the neighbours",
        ),
    )
) + tuple(
    Staged(
        f"V before attention, {name}",
        (V_FIRST,),
        (V_ALONE,),
        f"class_loss_{part}",
        f"loss_theta_{part}",
        "the losses with uniform and with trained attention",
        by="loss",
    )
    for part, name in (("topic", "topics"), ("syntax", "syntax"))
)
CHARTS = (
    Chart("Held-out loss", {"eval_loss": "loss"}, references=True),
    Chart("Progress", {"p_syntax": "syntax", "p_topic": "topics"}),
    Chart("Parts of the loss", {"eval_class": "class", "eval_topic": "topic", "eval_word": "word"}),
)


def which_first(run: Run, scores: pd.DataFrame, **axes: Any) -> Picture:
    """Draw the map of classes, by default of alpha against bias gain.

    Cells that stand alone, with a value of another setting that no other cell has, are left out: each would
    be a panel of its own.
    """
    usual = {"x": "alpha", "y": "bias_gain"}
    across = {at: name for at, name in usual.items() if varying(run.trials, [name])} | axes
    others = [name for name in run.setting_names if name not in (*SEEDS, *across.values())]
    panel, cell = cell_of_rows(scores, others), cell_of_rows(scores, [*others, *across.values()])
    cells = pd.Series(cell).groupby(panel).nunique().to_numpy()
    is_alone = cells[panel] == 1
    if is_alone.all() or not is_alone.any():
        return run_map(run, scores, PAGE, **across)
    picture = run_map(run, scores.loc[~is_alone], PAGE, **across)
    left_out = f" Not drawn: {counted(int((cells == 1).sum()), 'cell')} in which another setting is changed."
    return replace(picture, caption=picture.caption + left_out)


def has_several_cells(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether any setting but the seed varies."""
    return bool(varying(run.trials, [name for name in run.setting_names if name not in SEEDS]))


PAGE = Page(
    # Panels by all that the sweeps change beside them, so that the axes of the map are alpha and bias gain.
    panels=("optimizer", "init", "learning_rate", "sharpness", "length_min"),
    prepare=prepared,
    score=score_syntax,
    classes=LOOKS,
    views=VIEWS,
    staged=STAGED,
    charts=CHARTS,
    references=tuple(f"held_out_{name}" for name in ("unigram", "topics", "syntax", "both")),
    claims=CLAIMS,
    findings=findings,
    lead=(
        Entry("square", figures.square),
        Entry("which_first", which_first, has_several_cells, axes=("x", "y")),
    ),
    figures={
        "Order": (Entry("order_ratio", figures.order_ratio, figures.has_ratios),),
        "Trainings": (Entry("examples", figures.examples, figures.has_scored),),
        "What the model uses": (Entry("changed_models", figures.changed, tables.has_changed_models),),
    },
    tables={
        "Tables": (
            Entry(
                "classes",
                tables.classes,
                title="Cells: which is first at three ratios of half-way steps, Θ both ways, and the ratio: "
                "median, lowest and highest over seeds",
            ),
            Entry(
                "half_way_steps",
                tables.half_way_steps,
                title="Steps at which the loss has come to the unigram line, syntax or topics begin, "
                "and at which each is at 20, 50 and 80 %: medians over seeds",
            ),
            Entry(
                "v_before_scores",
                tables.v_before_scores,
                tables.has_details,
                "Whether V came before the scores that use it, and by losses before attention: most frequent "
                "class, Θ, and the steps at which both have made half of their own rise, medians over seeds",
            ),
            Entry(
                "final_losses",
                tables.final_losses,
                title="Last held-out losses and their parts, mean and standard error over seeds, with the "
                "reference losses on the same documents",
            ),
            Entry(
                "changed_models",
                tables.changed_models,
                tables.has_changed_models,
                "P of syntax and of topics as trained, and with attention or visible words changed, at the "
                "end: mean and standard error over seeds; negative: worse than the unigram line",
            ),
        )
    },
    headers=tables.HEADERS,
    words=WORDS,
    refine_by=lambda cells: zip(cells["class"], cells["theta"], strict=True),
    replaces=("records", "details"),
    live=("Order",),
    file=SCORES_FILE,
    file_holds="one row per trial: progress of syntax and topics, which is first, whether V came first",
)

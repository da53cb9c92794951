"""The page of runs of the one-layer model: its figures, tables and words.

Each figure and table comes with a function that tells whether it applies to a run.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from topicjax.store.manifest import last_run
from topicjax.store.reader import Run, Status

from ..page.contract import Entry, Page, Staged
from ..topic_model import LINES, MAIN_SETTINGS, aligned
from . import (
    attention_kinds,
    budget,
    co_occurrence,
    dilution,
    forced,
    gradients,
    learning_coefficient,
    many_topics,
    spread,
    tables,
    unbounded,
)
from .attention_theory import attention_theory, has_uniform_blocks, with_exact_loss
from .cells import count_cells, score_cells
from .claims import ABOUT_STAGES, CLAIMS
from .embedding_theory import embedding_cases, embeddings_alone, theorem1_equations, trains_all
from .endings import joint_gains, joint_losses
from .findings import WORDS, documents, findings
from .inside import token_matrices, topic_blocks
from .landscape import landscapes
from .loss_curves import loss_curves
from .matrices import figure1, figure2
from .onsets import LEVEL, onset_by_init_scale
from .phase_maps import (
    CHARTS,
    LOOKS,
    MAP_VIEWS,
    OTHERS,
    VIEW_WORDS,
    log_lag_map,
    norm_phase_map,
    phase_map,
    theta_map,
    view_disagreement,
)
from .robustness import axes_of, robustness
from .scores import (
    CLASSES,
    HAS_STAGE2,
    STAGES_FILE,
    VIEWS,
    score_trials,
    trains_attention,
    trains_both,
    trains_value,
)
from .stability import longest_steps
from .trained_models import has_data_model, with_weights
from .trajectories import figure4, norm_bands, rotation, turning
from .trial_page import inspect

FEW_CELLS = 24  # a run of more cells is shown by maps, not by single matrices
FEW_ROWS = 40  # a run of more cells has no tables with a row per cell
NO_STAGE2 = tuple(name for name in CLASSES if name not in HAS_STAGE2)


def some_train_both(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether any trial trains both V and attention."""
    return bool(trains_both(scores).any())


def is_map(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether there is a map to draw: both parts trained, in more than one cell."""
    return some_train_both(run, scores) and count_cells(scores) > 1


def some_train_attention(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether any trial trains attention."""
    return bool(trains_attention(scores).any())


def has_seeds(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether there are several seeds."""
    return len(set(scores["seed"])) > 1


def has_rotation(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether the rotation of W^V was recorded."""
    return bool(turning(run).any())


def has_weights(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether any finite trial has stored weights."""
    return len(with_weights(run.trials)) > 0


def has_embeddings(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether there are trained embeddings among the stored weights."""
    return has_weights(run, scores) and bool((scores["embedding"] == "trained").any())


def has_values(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether there are trained value matrices among the stored weights."""
    return has_weights(run, scores) and bool(trains_value(scores).any())


def has_landscape(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether any finite trial with trained attention has documents whose landscape is known."""
    trials: Any = run.trials
    if not {"final_a_topic", "final_a_self"} <= {*trials}:
        return False
    ends = np.isfinite(trials[["final_a_topic", "final_a_self"]].to_numpy(float)).all(axis=1)
    sizes = (trials["topics"] > 1) & (trials["words_per_topic"] > 1) & has_data_model(trials)
    sizes &= has_uniform_blocks(trials)
    return bool((ends & sizes & (trials["attention"] == "trained") & (trials["status"] == "ok")).any())


def has_onset(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether attention became topical in any trial of a run with several init scales."""
    return shows_onset(run, scores) and bool((run.trajectories["a_topic"] >= LEVEL).any())


def has_few_matrices(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether weights are stored and the cells few enough for single matrices to represent the run."""
    return count_cells(scores) <= FEW_CELLS and has_weights(run, scores)


def shows_onset(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether the run shows how the onset depends on the init scale."""
    return some_train_attention(run, scores) and len(set(scores["init_scale"])) >= 3


def can_be_cut(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether trials that train both parts have enough records to be scored with fewer steps."""
    return some_train_both(run, scores) and longest_steps(run) > 0


def has_attention_theory(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether any of few cells froze W^V at an optimum of stage 1 and trained attention."""
    known = with_exact_loss(run.trials)
    return count_cells(scores) <= FEW_CELLS and bool((known["value"] == "blocks").any())


def has_embeddings_alone(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether any of few cells match Theorem 1: embeddings trained alone, squared loss."""
    alone = embeddings_alone(with_weights(run.trials))
    is_known = (alone["objective"] == "squared") & (alone["key_visibility"] == "all") & has_data_model(alone)
    return count_cells(scores) <= FEW_CELLS and bool(is_known.any())


def has_both_cases(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether some trials trained embeddings alone and others all parts."""
    return len(embeddings_alone(run.trials)) > 0 and bool(trains_all(run.trials).any())


def varies_alone(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether several settings are varied one at a time in trials that train both parts."""
    return some_train_both(run, scores) and len(axes_of(score_cells(scores))[1]) > 1


def has_pairs(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether some trials differ only in attention, trained or uniform."""
    kinds = {"trained", "uniform"} <= {*scores["attention"]}
    return kinds and len(joint_gains(run)) > 0


def has_few_cells(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether a table can have a row per cell."""
    return count_cells(scores) <= FEW_ROWS


AXES = ("x", "y", "panel")
LEAD = Entry("phase_map", phase_map, is_map, axes=AXES)
FIGURES: dict[str, list[Entry]] = {  # by section
    "Trajectories": [
        Entry("figure4", figure4),
        Entry("bands", norm_bands, has_seeds),
        Entry("rotation", rotation, has_rotation),
        Entry("loss", loss_curves),
        Entry("dilution", dilution.dilution_figure, dilution.has_frequencies),
    ],
    "Joint training": [
        Entry("joint_loss", joint_losses, has_pairs),
        Entry("forced_stages", forced.schedule_figure, forced.is_scheduled),
    ],
    "Topics or co-occurrence": [
        Entry("pairs", co_occurrence.pair_figure, co_occurrence.is_paired),
        Entry("pairs_over_steps", co_occurrence.pair_course, co_occurrence.is_paired),
    ],
    "Maps": [
        Entry("robustness", robustness, varies_alone),
        Entry("budget", budget.edge_figure, budget.has_edge),
        Entry("theta", theta_map, is_map, axes=AXES),
        Entry("log_lag", log_lag_map, is_map, axes=AXES),
    ],
    "Norms against loss": [
        Entry("views", view_disagreement, is_map, axes=AXES),
        Entry("phase_map_norm", norm_phase_map, is_map, axes=AXES),
    ],
    "Inside the models": [
        Entry("figure1", figure1, has_embeddings),
        Entry("figure2", figure2, has_values),
    ],
    "Theory": [
        Entry("landscape", landscapes, has_landscape),
        Entry("onset", onset_by_init_scale, has_onset),
        Entry("theorem1", theorem1_equations, has_embeddings_alone),
        Entry("embedding_cases", embedding_cases, has_both_cases),
        Entry("attention_theory", attention_theory, has_attention_theory),
        Entry("theorem3_limit", many_topics.limit_figure, many_topics.has_limit),
        Entry("remark1", unbounded.growth_figure, unbounded.has_penalties),
        Entry("gradients", gradients.gradient_ratios, gradients.has_first_gradients),
        Entry("seed_causes", spread.spread_figure, spread.is_crossed),
    ],
    "With and without softmax": [
        Entry("softmax_control", attention_kinds.kinds_figures, attention_kinds.has_kinds),
        Entry("escape", attention_kinds.escape_figure, attention_kinds.has_escape),
    ],
}
EVERY_CLAIM = (
    *CLAIMS,
    forced.TWO_STAGES,
    forced.ALTERNATING,
    forced.DELAY,
    gradients.CLAIM,
    many_topics.CLAIM,
    unbounded.CLAIM,
    budget.CLAIM,
    co_occurrence.CLAIM,
    spread.CLAIM,
    dilution.CLAIM,
    *attention_kinds.CLAIMS,
    learning_coefficient.CLAIM,
)
TABLES = [
    Entry("classes", tables.classes, title="Trials per class, in the three views"),
    Entry(
        "final_losses",
        tables.final_losses,
        has_few_cells,
        "Final held-out loss (mean over the last tenth of the steps; median and quartiles over seeds), its "
        "share of the way from the uniform prediction to the stage-1 line, how many seeds converged there, "
        "and the most frequent class",
    ),
    Entry(
        "joint_loss",
        tables.joint_against_uniform,
        has_pairs,
        "Joint training against W^V alone under uniform attention: final held-out losses, their "
        "difference for equal seeds, and the limit lines; median and quartiles over seeds",
    ),
    Entry(
        "forced_stages",
        forced.schedule_table,
        forced.is_scheduled,
        "Schedules: final held-out losses by kind of query, loss above joint training with as many steps of "
        "each part (also in units of stage 1 - stage 2), order parameters and norms; medians over seeds",
    ),
    Entry(
        "gradients",
        gradients.gradient_table,
        gradients.has_first_gradients,
        "Gradient norms at step 0 by init scale; medians over starts",
    ),
    Entry(
        "theorem3_limit",
        many_topics.limit_table,
        many_topics.has_limit,
        "alpha' of trained attention, of the best attention (weight of [MASK] free), of the best of "
        "Assumption 2's kind, of the limit of many topics at this ratio, and Theorem 3's limit",
    ),
    Entry(
        "remark1",
        unbounded.growth_table,
        unbounded.has_penalties,
        "Norms after a quarter, half and all of the steps, growth per e-folding in the last doubling, and "
        "what theory predicts without L2 (rate) and with it (norm); medians over seeds",
    ),
    Entry(
        "budget",
        budget.edge_table,
        budget.has_edge,
        "Learning rate x onset step of SGD: median over learning rates, least and most",
    ),
    Entry(
        "pairs",
        co_occurrence.pair_table,
        co_occurrence.is_paired,
        "Words in pairs: the pair's and the topic's part of what was learned, the pair's share in the model "
        "and in the documents (covariance and log PMI of two words, best W^V of squared loss), and the "
        "first steps at which topics and pairs are half learned; medians over seeds",
    ),
    Entry(
        "table3",
        tables.table3,
        some_train_attention,
        "Table 3: final mean attention between positions that show the same word, words of the same topic, "
        "and words of different topics; mean and standard error over seeds",
        can_pool=True,
    ),
    Entry(
        "distances",
        tables.distances,
        has_few_matrices,
        "Relative distance of the value matrix to Theorem 2 and to the stage-1 optimum of its documents",
    ),
    Entry(
        "onset",
        tables.onsets,
        shows_onset,
        "Onset: measured and predicted slope of learning rate x onset step over ln(1 / init scale)",
    ),
    Entry(
        "theorem1",
        tables.theorem1,
        has_embeddings_alone,
        "Theorem 1: embeddings trained alone.  Residual: 0 if W_E^T W_E satisfies all of its equations "
        "(without its bias: those of Lemma 1), 1 if it is as far from them as a matrix of zeros.  Blocks: "
        "same topic minus other topics.  Gain in loss: 0 for uniform predictions, 1 for the best under "
        "uniform attention",
    ),
    Entry(
        "attention_theory",
        tables.attention_theory,
        has_attention_theory,
        "Theorem 3: weights of keys relative to words of other topics; alpha' = ((v - 1) alpha + beta)/v.  "
        "Missed: the loss above the best, in % of what the best attention gains over uniform attention",
    ),
    Entry(
        "coefficients",
        learning_coefficient.coefficient_table,
        learning_coefficient.has_coefficients,
        "Local learning coefficient of snapshots by their place relative to the stages, medians",
    ),
    Entry(
        "sensitivity",
        tables.sensitivity,
        some_train_both,
        "Share of trials and of cells that change class with the cut of Theta",
    ),
    Entry(
        "stability",
        tables.stability,
        can_be_cut,
        "Scored after a quarter and half of the steps: how many of the trials that are two-stage then still "
        "are after twice as many; a trial that has ended keeps its class",
    ),
    Entry(
        "seed_causes",
        spread.spread_table,
        spread.is_crossed,
        "Spread over seeds by its cause: mean, standard deviations and shares of the variance, with "
        "jackknife standard errors",
    ),
    Entry(
        "dilution",
        dilution.dilution_table,
        dilution.has_frequencies,
        "Focus on frequent words and dilution: cycles of each seed, how many curves rise again at the end, "
        "first peak and end of the score, participation ratio of W^K; medians over seeds",
    ),
    Entry(
        "softmax_control",
        attention_kinds.kinds_table,
        attention_kinds.has_kinds,
        "Kinds of attention: most frequent classes and Θ by the loss (against uniform attention, and against "
        "the scores of [MASK] for every query) and by norms, medians over seeds; escape: step at which |W^K| "
        f"reaches {attention_kinds.LEVEL:g}; contrast: 1 - weight of keys of other topics / of the own; "
        "drift: change of |W^V|^2 - |W^K|^2 until then, relative; first ratio: |dL/dW^V| / |dL/dW^K| at "
        "step 0",
    ),
]

STAGED = (
    *(
        Staged(
            *(OTHERS.get(name, name), ("two-stage",), NO_STAGE2, f"class{end}", f"theta{end}"),
            words=VIEW_WORDS[name],
            rows=None if name == "norm" else attention_kinds.without_free_factors,
        )
        for name, end in VIEWS.items()
    ),
    Staged(
        *("loss against [MASK] scores", ("two-stage", "two-stage, non-topical"), NO_STAGE2),
        *("class_mask_query", "theta_mask_query"),
        words="the loss split against the scores of [MASK] for every query, whether attention is topical or "
        "not; S only and 1 + S, where uniform attention is no baseline, are judged here and by norms only",
    ),
)


def opening(run: Run, scores: pd.DataFrame, cells: pd.DataFrame, state: Status) -> Iterator[str]:
    """Yield the answer and its caveats, and how many trials converged if no claim says more."""
    claims = last_run(run.manifest).get("claims", ())
    yield from findings(scores, cells, run.missing, claims)
    if not claims or not ABOUT_STAGES.isdisjoint(claims):
        yield from documents(run, scores)
    if not claims and has_few_cells(run, scores):
        yield from tables.convergence(run)
    if attention_kinds.has_linear(scores):
        yield attention_kinds.NOTE


PAGE = Page(
    prepare=aligned,
    score=score_trials,
    cells=score_cells,
    classes=LOOKS,
    views=tuple(MAP_VIEWS.values()),
    staged=STAGED,
    charts=CHARTS,
    references=LINES,
    claims=EVERY_CLAIM,
    findings=opening,
    lead=(LEAD,),
    figures=FIGURES,
    tables=TABLES,
    headers=tables.HEADERS,
    words=WORDS,
    inspect=inspect,
    inside=topic_blocks,
    inside_cell=token_matrices,
    panels=MAIN_SETTINGS,
    refine_by=lambda cells: zip(cells["class"], cells["theta"], strict=True),
    replaces=("findings", "losses", "records", "finals", "cells"),
    live=("Maps",),
    file=STAGES_FILE,
    file_holds="one row per trial: scores, classes, flags in three views",
)

"""The figures and tables of a report, each with a test of whether it fits a run.

Everything here is a function of (run, scores), so a sweep of one's own has its page too, and a new figure
is one more entry.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from topicjax.store.reader import Run, Status

from ..page.explorer import explorer
from . import end_tables, tables
from .attention_theory import attention_theory, has_uniform_blocks, with_exact_loss
from .cells import count_cells, score_cells
from .embedding_theory import embedding_cases, embeddings_alone, theorem1_equations, trains_all
from .endings import joint_gains, joint_losses
from .landscape import landscapes
from .loss_curves import loss_curves
from .matrices import figure1, figure2
from .onsets import LEVEL, onset_by_init_scale
from .phase_maps import (
    MAP_PAGE,
    log_lag_map,
    norm_phase_map,
    phase_map,
    theta_map,
    view_disagreement,
)
from .robustness import axes_of, robustness
from .scores import trains_attention, trains_both, trains_value
from .stability import longest_steps
from .trained_models import has_data_model, with_weights
from .trajectories import figure4, norm_bands, rotation, turning

FEW_CELLS = 24  # up to so many cells single matrices stand for a run; beyond, it is a map
FEW_ROWS = 40  # up to so many cells a table with a row for each is shown whole


@dataclass(frozen=True)
class Entry:
    """A figure (or several) or a table: the name of its file, whether it fits a run, and what makes it."""

    name: str
    fits: Callable[[Run, pd.DataFrame], bool]
    make: Callable[..., Any]  # of (run, scores); a table that can be pooled also of the settings to pool
    title: str = ""
    can_pool: bool = False
    axes: tuple[str, ...] = ()  # what a reader may choose: names of arguments of `make`


@dataclass(frozen=True)
class Catalogue:
    """What a page says and shows of a run: scores, and sentences, figures and tables of (run, scores)."""

    score: Callable[..., pd.DataFrame]  # of (run, x, y): axes that a reader may choose
    findings: Callable[[Run, pd.DataFrame, Status], Iterable[str]]
    lead: tuple[Entry, ...] = ()  # figures above the list of contents
    figures: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)  # by the section they are in
    tables: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    words: tuple[str, ...] = ()  # what the sentences and figures mean
    file: str = ""  # of the run folder that keeps the scores
    live: bool = True  # whether its figures are drawn on a page that is made again and again
    replaces: tuple[str, ...] = ()  # figures of catalogues after it that have no place beside its own

    @property
    def entries(self) -> list[Entry]:
        """Every figure and table."""
        sections = (*self.figures.values(), *self.tables.values())
        return [*self.lead, *(entry for section in sections for entry in section)]

    def without(self, names: Collection[str]) -> "Catalogue":
        """Return the catalogue without the figures of these names."""
        kept = {
            head: tuple(entry for entry in entries if entry.name not in names)
            for head, entries in self.figures.items()
        }
        return replace(self, figures=kept)


def any_run(run: Run, scores: pd.DataFrame) -> bool:
    """Return True."""
    return True


def some_train_both(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether some trial trains both V and attention."""
    return bool(trains_both(scores).any())


def is_map(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether there is a map to draw: both parts trained, in more than one cell."""
    return some_train_both(run, scores) and count_cells(scores) > 1


def some_train_attention(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether some trial trains attention."""
    return bool(trains_attention(scores).any())


def has_seeds(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether there are several seeds."""
    return len(set(scores["seed"])) > 1


def has_rotation(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether the rotation of W^V was recorded."""
    return bool(turning(run).any())


def has_weights(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether some finite trial has stored weights."""
    return len(with_weights(run.trials)) > 0


def has_embeddings(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether there are trained embeddings among the stored weights."""
    return has_weights(run, scores) and bool((scores["embedding"] == "trained").any())


def has_values(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether there are trained value matrices among the stored weights."""
    return has_weights(run, scores) and bool(trains_value(scores).any())


def has_landscape(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether some finite trial with trained attention has documents whose landscape is known."""
    trials: Any = run.trials
    if not {"final_a_topic", "final_a_self"} <= {*trials}:
        return False
    ends = np.isfinite(trials[["final_a_topic", "final_a_self"]].to_numpy(float)).all(axis=1)
    sizes = (trials["topics"] > 1) & (trials["words_per_topic"] > 1) & has_data_model(trials)
    sizes &= has_uniform_blocks(trials)
    return bool((ends & sizes & (trials["attention"] == "trained") & (trials["status"] == "ok")).any())


def has_onset(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether attention became topical somewhere, at one of several init scales."""
    return shows_onset(run, scores) and bool((run.trajectories["a_topic"] >= LEVEL).any())


def has_few_matrices(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether weights are stored of so few cells that single matrices stand for the run."""
    return count_cells(scores) <= FEW_CELLS and has_weights(run, scores)


def shows_onset(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether the run can tell how the onset depends on the init scale."""
    return some_train_attention(run, scores) and len(set(scores["init_scale"])) >= 3


def can_be_cut(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether trials that train both parts have enough records to be scored with fewer steps."""
    return some_train_both(run, scores) and longest_steps(run) > 0


def has_attention_theory(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether some of few cells froze W^V at an optimum of stage 1 and trained attention."""
    known = with_exact_loss(run.trials)
    return count_cells(scores) <= FEW_CELLS and bool((known["value"] == "blocks").any())


def has_embeddings_alone(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether some of few cells are those of Theorem 1: embeddings trained alone, squared loss."""
    alone = embeddings_alone(with_weights(run.trials))
    is_known = (alone["objective"] == "squared") & (alone["key_visibility"] == "all") & has_data_model(alone)
    return count_cells(scores) <= FEW_CELLS and bool(is_known.any())


def has_both_cases(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether some trials trained embeddings alone and others all parts."""
    return len(embeddings_alone(run.trials)) > 0 and bool(trains_all(run.trials).any())


def varies_alone(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether several settings are varied alone, around one point, in trials that train both parts."""
    return some_train_both(run, scores) and len(axes_of(score_cells(scores))[1]) > 1


def has_pairs(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether some trials differ in attention alone, trained or uniform."""
    kinds = {"trained", "uniform"} <= {*scores["attention"]}
    return kinds and len(joint_gains(run)) > 0


def has_few_cells(run: Run, scores: pd.DataFrame) -> bool:
    """Return whether a table can have a row per cell."""
    return count_cells(scores) <= FEW_ROWS


AXES = ("x", "y", "panel")
LEAD = Entry("phase_map", is_map, phase_map, axes=AXES)
EXPLORER = Entry(
    "explorer", any_run, partial(explorer, page=MAP_PAGE), axes=("x", "y")
)  # above the first map, not a file of its own
FIGURES: dict[str, list[Entry]] = {  # by the section they are in
    "Trajectories": [
        Entry("figure4", any_run, figure4),
        Entry("bands", has_seeds, norm_bands),
        Entry("rotation", has_rotation, rotation),
        Entry("loss", any_run, loss_curves),
    ],
    "Joint training": [Entry("joint_loss", has_pairs, joint_losses)],
    "Maps": [
        Entry("robustness", varies_alone, robustness),
        Entry("theta", is_map, theta_map, axes=AXES),
        Entry("log_lag", is_map, log_lag_map, axes=AXES),
    ],
    "Norms against loss": [
        Entry("views", is_map, view_disagreement, axes=AXES),
        Entry("phase_map_norm", is_map, norm_phase_map, axes=AXES),
    ],
    "Inside the models": [
        Entry("figure1", has_embeddings, figure1),
        Entry("figure2", has_values, figure2),
    ],
    "Theory": [
        Entry("landscape", has_landscape, landscapes),
        Entry("onset", has_onset, onset_by_init_scale),
        Entry("theorem1", has_embeddings_alone, theorem1_equations),
        Entry("embedding_cases", has_both_cases, embedding_cases),
        Entry("attention_theory", has_attention_theory, attention_theory),
    ],
}
TABLES = [
    Entry("classes", any_run, tables.classes, "Trials per class, in the three views"),
    Entry(
        "final_losses",
        has_few_cells,
        end_tables.final_losses,
        "Held-out loss at the end (mean over the last tenth of the steps; median and quartiles over seeds), "
        "its share of the way from the uniform prediction to the stage-1 line, how many seeds converged "
        "there, and the class of most seeds",
    ),
    Entry(
        "joint_loss",
        has_pairs,
        end_tables.joint_against_uniform,
        "Joint training against W^V alone under uniform attention: held-out losses at the end, their "
        "difference for equal seeds, and the limit lines; median and quartiles over seeds",
    ),
    Entry(
        "table3",
        some_train_attention,
        tables.table3,
        "Table 3: mean attention between positions that show the same word, words of the same topic, of "
        "different topics; mean and standard error over seeds, at the end",
        can_pool=True,
    ),
    Entry(
        "distances",
        has_few_matrices,
        tables.distances,
        "Relative distance of the value matrix to Theorem 2 and to the stage-1 optimum of its documents",
    ),
    Entry(
        "onset",
        shows_onset,
        tables.onsets,
        "Onset: measured and predicted slope of learning rate x onset step over ln(1 / init scale)",
    ),
    Entry(
        "theorem1",
        has_embeddings_alone,
        tables.theorem1,
        "Theorem 1: embeddings trained alone.  Residual: 0 if W_E^T W_E satisfies all of its equations "
        "(without its bias: those of Lemma 1), 1 if some are missed as far as by a matrix of zeros.  Blocks: "
        "same topic minus other topics.  Gain of the loss: 0 for uniform predictions, 1 for the best under "
        "uniform attention",
    ),
    Entry(
        "attention_theory",
        has_attention_theory,
        tables.attention_theory,
        "Theorem 3: how words weigh keys beside words of other topics; alpha' = ((v - 1) alpha + beta)/v.  "
        "Missed: the loss above the best, in % of what the best attention gains over uniform attention",
    ),
    Entry(
        "sensitivity",
        some_train_both,
        tables.sensitivity,
        "Share of trials and of cells that change class with the cut of Theta",
    ),
    Entry(
        "stability",
        can_be_cut,
        tables.stability,
        "Scored after a quarter and half of the steps: of the trials that are two-stage then, how many still "
        "are at twice as many; a trial that has ended keeps its class",
    ),
]

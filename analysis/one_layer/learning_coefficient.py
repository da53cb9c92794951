"""Does the local learning coefficient step with the two stages?  From snapshots measured after training.

A snapshot is before stage 1, on the plateau between the stages, or after stage 2, by the steps at which V and
attention had come half way.  Where attention is uniform there is no stage 2, and the plateau goes on.
Snapshots that are far from a minimum are left out: where most draws lie below the snapshot's own loss, the
estimate is negative and no learning coefficient.
"""

from typing import Any

import numpy as np
import pandas as pd

from topicjax.errors import counted
from topicjax.store.reader import Run

from ..frames import Frame
from ..page.contract import Claim, Verdict

PLACES = ("before stage 1", "plateau", "after stage 2")
SETTLED, EARLY, LATE = 4.0, 1.5, 1.25  # times an onset: V is learned; attention is not yet; it is
CLEAR = 3.0  # standard errors of a rise that count as a step
SPREAD = 0.7  # virial below which chains have not spread far enough to judge
MOST_BELOW = 0.5  # share of draws below the snapshot's loss from which it is no minimum
COLUMNS = ("llc", "llc_se", "llc_below", "llc_virial")


def has_coefficients(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether the coefficient was measured."""
    return {*COLUMNS} <= {*run.trajectories}


def placed(run: Run, scores: pd.DataFrame) -> Frame:
    """Select the snapshots whose coefficient was measured, with their place relative to the stages."""
    rows = run.trajectories.filter(["trial_id", "step", *COLUMNS])
    rows = rows[rows["llc"].notna() & (rows["llc_below"] <= MOST_BELOW)]
    named = ["trial_id", "attention", "onset_v", "onset_attention"]
    rows = rows.merge(scores[named], on="trial_id")
    value, attention = rows["onset_v"].to_numpy(float), rows["onset_attention"].to_numpy(float)
    attention = np.where(rows["attention"] == "uniform", np.inf, attention)
    step = rows["step"].to_numpy(float)
    is_place = (step < value, (step > SETTLED * value) & (step < attention / EARLY), step > LATE * attention)
    place = np.select(is_place, PLACES, default="")
    return rows.assign(place=place)[place != ""]


def coefficient_table(run: Run, scores: pd.DataFrame) -> Frame:
    """Tabulate medians of the coefficient and its diagnostics by attention and place."""
    rows = placed(run, scores)
    rows["place"] = pd.Categorical(rows["place"], PLACES, ordered=True)
    groups = rows.groupby(["attention", "place"], observed=True)
    counts: Any = groups.agg(trials=("trial_id", "nunique"), snapshots=("trial_id", "size"))
    return counts.join(groups[list(COLUMNS)].median()).reset_index()


def coefficient_steps(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that the coefficient rises from the plateau to after stage 2, in every two-stage trial."""
    how = "`topicjax measure FOLDER learning_coefficient`, on a run with --snapshots log:12"
    if not has_coefficients(run, scores):
        return Verdict("undecided", "The coefficient was not measured.", how)
    every = placed(run, scores)
    control = every.loc[(every["attention"] == "uniform") & (every["place"] == PLACES[1]), "llc"]
    rows = every[every["attention"] == "trained"]
    means: Any = rows.assign(square=rows["llc_se"] ** 2).groupby(["trial_id", "place"])
    table = means[["llc", "square"]].mean().join(means.size().rename("count")).unstack()
    between = [place for place in PLACES if place in table.get("llc", pd.DataFrame()).columns]
    if not {*PLACES[1:]} <= {*between} or table["llc"][list(PLACES[1:])].dropna().empty:
        return Verdict("undecided", "No trial has snapshots on the plateau and after stage 2.", how)
    table = table[table["llc"][list(PLACES[1:])].notna().all(axis=1)]
    plateau, after = (table["llc"][place] for place in PLACES[1:])
    errors = sum(table["square"][place] / table["count"][place] for place in PLACES[1:]) ** 0.5
    steps_up = int((after - plateau > CLEAR * errors).sum())
    virial = float(rows["llc_virial"].median())
    sentence = (
        f"The coefficient is {plateau.median():.1f} on the plateau and {after.median():.1f} after stage 2 "
        f"(medians over trials); it rises by more than {CLEAR:g} standard errors in {steps_up} of "
        f"{counted(len(table), 'trial')}."
    )
    if len(control):
        sentence += f" Under uniform attention it stays at {control.median():.1f}."
    sentence += f" Virial {virial:.2f} (1: chains have spread)."
    verdict = {len(table): "holds", 0: "fails"}.get(steps_up, "partly")
    if virial < SPREAD:
        verdict = "undecided"
    change = "longer chains, if the virial is below 1; another n beta or gamma"
    return Verdict(verdict, sentence, change, plateau=float(plateau.median()), after=float(after.median()))


CLAIM = Claim(
    "Learning coefficient",
    "The local learning coefficient steps where the stages are: it rises again as attention leaves the "
    "plateau.",
    coefficient_steps,
    "our prediction",
    "coefficients",
)

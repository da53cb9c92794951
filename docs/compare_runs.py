"""Compare runs of the one-layer model trial by trial: classes of cells, and onsets of both stages.

    .venv/bin/python docs/compare_runs.py results/two_stage results/tf32 results/bf16

Prints how each further run differs from the first, over the trials that both have.  Docs: precision.md.
"""

import argparse
from collections.abc import Iterator

import numpy as np
import pandas as pd

import topicjax
from topicjax.analysis.one_layer.cells import cell_settings, score_cells
from topicjax.analysis.one_layer.scores import score_trials

STREAMS = ["optimizer", "objective"]
ONSETS = {"onset_v": "W^V", "onset_attention": "attention"}


def on_both(first: pd.DataFrame, second: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Select the trials that both have, in the same order."""
    shared = np.intersect1d(first["trial_id"], second["trial_id"])
    one, other = (scores.set_index("trial_id").loc[shared].reset_index() for scores in (first, second))
    return one, other


def compare_classes(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, int]:
    """Count cells and trials, those whose class in the loss view differs, and two-stage ones."""
    trials = [scores["class"].to_numpy() for scores in on_both(first, second)]
    cells = [score_cells(scores)["class"].to_numpy() for scores in on_both(first, second)]
    (one, other), (cell, other_cell) = trials, cells
    return {
        "trials": len(one),
        "trials of another class": np.count_nonzero(one != other),
        "two-stage trials, first run": np.count_nonzero(one == "two-stage"),
        "two-stage trials": np.count_nonzero(other == "two-stage"),
        "cells": len(cell),
        "cells of another class": np.count_nonzero(cell != other_cell),
        "two-stage cells, first run": np.count_nonzero(cell == "two-stage"),
        "two-stage cells": np.count_nonzero(other_cell == "two-stage"),
    }


def changed_cells(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """List the cells of another class: their settings that vary, classes, and shares of trials that agree."""
    one, other = (score_cells(scores) for scores in on_both(first, second))
    varied = [name for name in cell_settings(first) if one[name].nunique() > 1]
    table = one[varied].assign(
        before=one["class"], share=one["agreement"], after=other["class"], share_after=other["agreement"]
    )
    return table[table["before"] != table["after"]]


def compare_onsets(first: pd.DataFrame, second: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Compare the steps at which V and attention get half way.

    Signed percentages are of the first run's step; steps are absolute differences.  Onsets that only one of
    the runs has are counted as lost or new.
    """
    one, other = on_both(first, second)
    of_stream = one.groupby(STREAMS).indices
    for stage, words in ONSETS.items():
        for stream, places in {("all", ""): np.arange(len(one)), **of_stream}.items():
            before, after = (scores[stage].to_numpy(float)[places] for scores in (one, other))
            has_both = np.isfinite(before + after)
            steps, moved = np.abs(after - before)[has_both], 100 * (after / before - 1)[has_both]
            low, middle, high = np.percentile(moved, (25, 50, 75)) if len(moved) else [np.nan] * 3
            yield {
                "stage": words,
                "trials": " ".join(stream).strip(),
                "both have": len(moved),
                "lost": np.count_nonzero(np.isfinite(before) & np.isnan(after)),
                "new": np.count_nonzero(np.isnan(before) & np.isfinite(after)),
                "median %": round(middle, 2),
                "quartiles %": f"{low:.2f} to {high:.2f}",
                "largest %": round(moved[np.argmax(np.abs(moved))], 1) if len(moved) else np.nan,
                "median steps": round(np.median(steps), 2) if len(steps) else np.nan,
                "largest steps": round(steps.max(), 1) if len(steps) else np.nan,
            }


def main() -> None:
    """Print the comparison of each further folder with the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("first", help="run folder to compare with")
    parser.add_argument("others", nargs="+", help="run folders of the same trials")
    given = parser.parse_args()
    first = score_trials(topicjax.load(given.first))
    others = {folder: score_trials(topicjax.load(folder)) for folder in given.others}
    counts = {folder: compare_classes(first, scores) for folder, scores in others.items()}
    print(f"{pd.DataFrame(counts).to_string()}\n")
    for folder, scores in others.items():
        onsets = pd.DataFrame(compare_onsets(first, scores))
        print(f"{folder}: cells of another class\n{changed_cells(first, scores).to_string(index=False)}\n")
        print(f"{folder}: onsets\n{onsets.to_string(index=False)}\n")


if __name__ == "__main__":
    main()

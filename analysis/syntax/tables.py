"""Tables of runs on syntax and topics: classes, half-way steps, losses, V before scores, changed models."""

import pandas as pd

from topicjax.store.reader import Run

from ..frames import Frame, cell_of_rows, sort_records
from ..tables import ERROR
from .scores import LEVELS, OTHER_RATIOS, PARTS, cell_settings, line, prepared, progress, syntax_cells

CHANGED = {  # end of the columns: the model or the documents are changed in this way
    "": "trained",
    "_uniform": "uniform",
    "_positional": "positional",
    "_content": "content",
    "_shuffled": "shuffled",
    "_redrawn": "redrawn",
}
NAMES = dict(zip(PARTS, ("syntax", "topics"), strict=True))
LOSS_LINES = ("unigram", "topics", "syntax", "within_1", "within_2", "both")
PART_LINES = {"class": ("unigram", "within_1", "within_2", "best"), "topic": ("unigram", "best")}
HEADERS = {
    **{"agreement": "share of seeds", "class_125": "at ratio 1.25", "class_2": "at ratio 2"},
    **{
        "class": "class (at ratio 1.5)",
        "theta": "Θ, syntax before topics",
        "theta_reversed": "Θ, topics first",
    },
    **{"ratio": "half-way step, topics / syntax", "ratio_low": "lowest seed", "ratio_high": "highest seed"},
    **{"max_p_syntax": "largest P of syntax", "max_p_topic": "largest P of topics"},
    **{f"{part}_{level}": f"{name} {level} %" for part, name in NAMES.items() for level in LEVELS},
    **{"syntax_50_low": "lowest seed", "syntax_50_high": "highest seed"},
    **{"topic_50_low": "lowest seed", "topic_50_high": "highest seed"},
    **{"unigram_step": "loss at the unigram line", "begun_step": "syntax or topics at 10 %"},
    **{"loss": "held-out loss", "class_loss": "class part", "topic_loss": "topic part"},
    **{f"line_{name}": f"{name.replace('_', ' ')} line" for name in LOSS_LINES},
    **{
        f"line_{part}_{name}": f"{part}: {name.replace('_', ' ')}"
        for part, own in PART_LINES.items()
        for name in own
    },
    **{"class_v_syntax": "syntax", "class_v_topic": "topics"},
    **{"agreement_v_syntax": "share of seeds", "agreement_v_topic": "share of seeds"},
    **{"v_theta_syntax": "Θ, V before the bias", "v_theta_topic": "Θ, V before the content score"},
    **{"v_50_syntax": "V, classes: half way", "scores_50_syntax": "bias at ±1: half way"},
    **{"v_50_topic": "V, topics: half way", "scores_50_topic": "content score: half way"},
    **{f"class_loss_{part}": f"{name}, by losses" for part, name in NAMES.items()},
    **{f"loss_theta_{part}": f"Θ, V before attention ({name})" for part, name in NAMES.items()},
    **{f"loss_gain_{part}": f"gain by attention ({name})" for part, name in NAMES.items()},
    **{f"passed_{name}": f"loss passes {name.replace('_', ' ')}" for name in ("within_1", "within_2")},
    **{"then_lost": "then lost (seeds)"},
    **{"left_50": "bias at -1: half way", "right_50": "bias at +1: half way"},
    **{
        f"{part}_{name}": f"{text}, {name}"
        for part, text in (("syntax", "P of syntax"), ("topic", "P of topics"))
        for name in CHANGED.values()
    },
}


def classes(run: Run, scores: Frame) -> Frame:
    """Tabulate each cell: class, its sensitivity to the ratio, Theta both ways, ratio over seeds."""
    shown = ["class", "agreement", *(f"class{end}" for end in OTHER_RATIOS), "theta", "theta_reversed"]
    shown += ["ratio", "ratio_low", "ratio_high", "max_p_syntax", "max_p_topic", "then_lost"]
    return syntax_cells(run, scores)[[*cell_settings(run), "trials", "diverged", *shown]]


def half_way_steps(run: Run, scores: Frame) -> Frame:
    """Tabulate each cell: the steps at which the loss is at the unigram line, and each part at its levels."""
    shown = ["unigram_step", "begun_step"]
    for part in PARTS:
        shown += [f"{part}_20", f"{part}_50", f"{part}_50_low", f"{part}_50_high", f"{part}_80"]
    shown += ["passed_within_1", "passed_within_2", "last_step"]
    return syntax_cells(run, scores)[[*cell_settings(run), "trials", "class", *shown]]


def v_before_scores(run: Run, scores: Frame) -> Frame:
    """Tabulate each cell: whether V came before the scores that use it, with the half-way steps of both."""
    shown = ["trials"]
    for part in PARTS:
        shown += [
            f"class_v_{part}",
            f"agreement_v_{part}",
            f"v_theta_{part}",
            f"v_50_{part}",
            f"scores_50_{part}",
            f"class_loss_{part}",
            f"loss_theta_{part}",
            f"loss_gain_{part}",
        ]
    return syntax_cells(run, scores)[[*cell_settings(run), *shown, "left_50", "right_50"]]


def final_losses(run: Run, scores: Frame) -> Frame:
    """Tabulate each cell: the last held-out loss and its parts, with errors, and the lines beside them."""
    run = prepared(run)
    records, owner = sort_records(run.trajectories, run.trials)
    last = records.groupby(owner).last()
    found = {"loss": "eval_loss", **{f"{part}_loss": f"eval_{part}" for part in PARTS.values()}}
    columns: dict[str, Frame] = {name: last[column] for name, column in found.items()}
    lines = {"loss": {f"line_{name}": f"held_out_{name}" for name in LOSS_LINES}}
    lines |= {
        f"{part}_loss": {f"line_{part}_{name}": f"held_out_{part}_{name}" for name in own}
        for part, own in PART_LINES.items()
    }
    names, is_ok = cell_settings(run), run.trials["status"].to_numpy() == "ok"
    cell = cell_of_rows(run.trials, names)[is_ok]
    table = {}
    for name, values in columns.items():
        groups = values[is_ok].groupby(cell)
        table |= {name: groups.mean(), name + ERROR: groups.sem()}
        for shown, reference in lines[name].items():
            table[shown] = pd.Series(line(run, reference)[is_ok]).groupby(cell).mean()
    losses = pd.DataFrame(table).dropna(axis=1, how="all")
    return by_cell(run, names, cell).join(losses)


def changed_models(run: Run, scores: Frame) -> Frame:
    """Tabulate each cell: P of syntax and of topics, as trained and with scores or words changed, at the end.

    All are read at the last record at which the changed models were measured, and are not clipped.
    """
    measured = changed_progress(run)
    names, is_ok = cell_settings(run), run.trials["status"].to_numpy() == "ok"
    last = measured.groupby("trial").last().drop(columns="step").reindex(range(len(is_ok)))
    cell = cell_of_rows(run.trials, names)[is_ok]
    groups = last.loc[is_ok].groupby(cell)
    table = {}
    for name in last:
        table |= {name: groups[name].mean(), f"{name}{ERROR}": groups[name].sem()}
    return by_cell(run, names, cell).join(pd.DataFrame(table))


def changed_progress(run: Run) -> Frame:
    """Compute the progress of each part for each changed model, at the records at which they were measured.

    One row per record: trial (its row), step, and syntax_uniform, topic_shuffled, ... .
    """
    run = prepared(run)
    records, owner = sort_records(run.trajectories, run.trials)
    columns = {
        f"{part}_{name}": progress(run, records, owner, part, end)
        for part in PARTS
        for end, name in CHANGED.items()
        if f"eval_{PARTS[part]}{end}" in records
    }
    table = pd.DataFrame(dict(trial=owner, step=records["step"], **columns))
    rare = [name for name in columns if not name.endswith(CHANGED[""])]
    return table.dropna(subset=rare, how="all").reset_index(drop=True) if rare else table.iloc[:0]


def by_cell(run: Run, names: list[str], cell: Frame) -> Frame:
    """Make the first columns of a table: the settings of each cell and its number of trials that are ok."""
    ok = run.trials.loc[run.trials["status"] == "ok"]
    first = ok[names].groupby(cell).first() if names else pd.DataFrame(index=sorted({*cell}))
    return first.assign(trials=pd.Series(cell).value_counts())


def has_changed_models(run: Run, scores: Frame) -> bool:
    """Tell whether changed models were measured in a trial that did not diverge."""
    measured = changed_progress(run)
    return bool((run.trials["status"].to_numpy() == "ok")[measured["trial"].to_numpy(int)].any())


def has_details(run: Run, scores: Frame) -> bool:
    """Tell whether V can be compared with the scores in any trial."""
    return bool(scores[[f"scores_rise_{part}" for part in PARTS]].notna().to_numpy().any())

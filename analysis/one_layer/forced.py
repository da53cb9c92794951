"""Compare schedules: W^V and W^K, W^Q trained jointly, one after the other, or in turns (sections 5.1, 8.1).

Only trials in which every part is trained for the same number of steps are compared with each other; joint
training to the last step is a control of the budget.  Final values are means over the last tenth of the
steps.  Copying shows in the loss of kept words: a model that knows their topic and nothing else cannot go
below ln v (cross-entropy) or 1 - 1/v (squared loss).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from topicjax.errors import counted
from topicjax.experiments.one_layer.settings import SOFTMAX
from topicjax.stages import Records
from topicjax.store.reader import Run
from topicjax.theory.progress import CUTS

from ..frames import Array, Frame, column
from ..page.contract import Claim, Verdict
from ..pictures import PALETTE, SMALL, WIDTH, Picture, label, sentences, setting_text, style
from ..topic_model import MAIN_SETTINGS, STAGE_LINES, aligned, settings_in
from .scores import topic_bound, trains_both

JOINT, FROZEN, TURNS, LONGER = "joint", "V, then K/Q (V frozen)", "in turns", "joint, twice the steps"
DELAYED = "V, then joint from "  # and the step
LOSSES = ("eval_loss", "eval_loss_mask", "eval_loss_kept", "eval_loss_random")
ORDER = ("v_block", "v_diag", "a_topic", "a_self")
NORMS = ("norm_v", "norm_k", "norm_q")
KIND = (*MAIN_SETTINGS, "key_visibility", "learning_rate")  # schedules are compared within these
SAME_GAIN = 0.1  # of stage 1 - stage 2: the largest difference of final losses that counts as none
STANDARD_ERRORS = 3.0  # that a mean difference over seeds must exceed
SURE = 2.0  # standard errors that are added to a difference before it counts as small
SAME_VALUE = 0.2  # of joint training: the largest difference of an order parameter or norm that goes unsaid
COMPARED = {"v_block": "v_block", "a_topic": "a_topic"} | {
    f"norm_{part}": f"|W^{part.upper()}|" for part in "vkq"
}
PANELS = {"eval_loss": "held-out loss", "eval_loss_kept": "of kept words", "a_topic": "a_topic"}


def is_scheduled(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether parts were trained by a schedule, jointly as well as in another way."""
    return "training" in run.trials and len(set(schedules(run.trials)) - {LONGER, ""}) > 1


def schedules(trials: pd.DataFrame) -> list[str]:
    """Name the schedule of each trial; empty for trials without one, or with a frozen part."""
    return [schedule(row) for row in trials.to_dict("records")]


def schedule(row: Mapping[Any, Any]) -> str:
    """Name the schedule of a trial."""
    if row.get("training") != "by_part" or row["attention"] != "trained" or row["value"] != "trained":
        return ""
    if row.get("attention_weights", SOFTMAX) != SOFTMAX:
        return ""  # the claims are about the paper's model
    if row["alternate"]:
        return TURNS
    start, end = int(row["attention_from"]), int(row["value_until"])
    if 0 < end <= start:
        return FROZEN
    return f"{DELAYED}{start:,}" if start else JOINT if end else LONGER


def part_steps(row: Mapping[Any, Any]) -> tuple[int, int]:
    """Count the steps that train W^V, and those that train W^K and W^Q."""
    step = np.arange(int(row["steps"]))
    counts = []
    for part, turn in (("value", 0), ("attention", 1)):
        end = int(row[f"{part}_until"]) or len(step)
        used = (step >= row[f"{part}_from"]) & (step < end)
        if row["alternate"]:
            used &= (step // int(row["alternate"])) % 2 == turn
        counts.append(int(used.sum()))
    return counts[0], counts[1]


def schedule_endings(run: Run) -> Frame:
    """Tabulate the trials with a schedule: settings, steps of each part, final values, lines and copying."""
    run = aligned(run)
    records = Records.of(run.trajectories["step"].to_numpy())
    last = records.last(CUTS.last)
    found = {
        name: records.mean(column(run.trajectories, name), last)
        for name in (*LOSSES, *ORDER, *NORMS)
        if name in run.trajectories
    }
    trials: Any = run.trials.assign(**found, schedule=schedules(run.trials))
    trials = trials[(trials["schedule"] != "") & (trials["status"] == "ok") & trains_both(trials)]
    steps = np.array([part_steps(row) for row in trials.to_dict("records")]).reshape(-1, 2)
    stage1, stage2 = (line_of(trials, name) for name in ("stage1", "stage2"))
    least = topic_bound(trials)
    return trials[["trial_id", *settings_in(trials), "schedule", *found]].assign(
        steps_v=steps[:, 0],
        steps_a=steps[:, 1],
        stage1=stage1,
        stage2=stage2,
        topic_bound=least,
        copies=trials["eval_loss_kept"].to_numpy(float) < least,
    )


def line_of(trials: Frame, name: str) -> Array:
    """Read the limit line of each trial: that of its held-out documents, or else that of all documents."""
    given = trials.reindex(columns=[STAGE_LINES[f"held_out_{name}"], STAGE_LINES[name]]).to_numpy(float)
    return np.where(np.isfinite(given[:, 0]), given[:, 0], given[:, 1])


def against_joint(endings: Frame) -> Frame:
    """Compare each schedule with joint training of the same seed: a row per kind and schedule.

    difference is the mean loss above that of joint training, in units of what topical attention can gain,
    stage 1 - stage 2.  by_kept is the share of it that kept words account for.  {name}_more is the mean of an
    order parameter or norm above that of joint training, relative to joint training.  All are differences
    between equal seeds; *_se are standard errors over seeds.
    """
    rows = []
    for kind, own in endings.groupby(list(KIND), sort=True):
        joint = own[own["schedule"] == JOINT].set_index("seed")
        if joint.empty:
            continue
        budget = tuple(joint[["steps_v", "steps_a"]].iloc[0])
        for name, other in own.groupby("schedule", sort=False):
            other = other.set_index("seed")
            seeds = joint.index.intersection(other.index)
            more = {each: (other[each] - joint[each]).loc[seeds] for each in ("eval_loss", *COMPARED)}
            unit = (joint["stage1"] - joint["stage2"]).loc[seeds]
            share, error = mean_and_error(more["eval_loss"] / unit.where(unit > 0))
            kept = (joint["p_keep"] * (other["eval_loss_kept"] - joint["eval_loss_kept"])).loc[seeds].mean()
            values: dict[str, float] = {}
            for each in COMPARED:
                relative = more[each] / abs(joint.loc[seeds, each].mean())
                values[f"{each}_more"], values[f"{each}_more_se"] = mean_and_error(relative)
            middle = other.loc[seeds, [*LOSSES, *ORDER, *NORMS, "stage1", "stage2", "topic_bound"]].median()
            apart = float(more["eval_loss"].mean())
            rows.append(
                dict(zip(KIND, kind, strict=True))
                | dict(schedule=name, seeds=len(seeds), apart=apart)
                | dict(difference=share, difference_se=error, by_kept=kept / apart if apart else np.nan)
                | values
                | dict(copies=int(other.loc[seeds, "copies"].sum()))
                | dict(topical=int((other.loc[seeds, "a_topic"] >= CUTS.topical).sum()))
                | dict(equal_steps=tuple(other[["steps_v", "steps_a"]].iloc[0]) == budget)
                | middle.to_dict()
            )
    return pd.DataFrame(rows)


def mean_and_error(values: Any) -> tuple[float, float]:
    """Average over seeds; return the mean and its standard error, NaN for a single seed."""
    found = np.asarray(values, float)
    return float(found.mean()), float(found.std(ddof=1) / len(found) ** 0.5) if len(found) > 1 else np.nan


def schedule_table(run: Run, scores: pd.DataFrame) -> Frame:
    """Tabulate the schedules: losses by kind of query, order parameters and norms, medians over seeds."""
    table = against_joint(schedule_endings(run))
    names = [*KIND, "schedule", "seeds", *LOSSES, "apart", "difference", "difference_se", "copies", "topical"]
    return table[[*names, *ORDER, *NORMS, "stage1", "stage2"]]


def schedule_figure(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw final loss, loss of kept words and a_topic of each schedule, a row of panels per kind of trial."""
    endings = schedule_endings(run)
    names = sorted(set(endings["schedule"]), key=in_order)
    keys = sorted(set(endings["key_visibility"]), reverse=True)
    colours = dict(zip(keys, PALETTE, strict=False))
    kinds = list(endings.groupby(list(MAIN_SETTINGS), sort=True))
    with style():
        figure = Figure(figsize=(WIDTH, 0.5 + len(kinds) * (0.5 + 0.2 * len(names))))
        axes = figure.subplots(len(kinds), len(PANELS), squeeze=False, sharey=True)
        for line, (kind, own) in zip(axes, kinds, strict=True):
            for ax, (column_name, text) in zip(line, PANELS.items(), strict=True):
                for (key, name), seeds in own.groupby(["key_visibility", "schedule"]):
                    place = -names.index(name) + 0.16 * (0.5 - keys.index(key)) * (len(keys) > 1)
                    values = seeds[column_name].to_numpy(float)
                    ax.plot(
                        values,
                        np.full(len(values), place),
                        "o",
                        color=colours[key],
                        ms=3,
                        mfc="none",
                        mew=0.7,
                    )
                for key, seeds in own.groupby("key_visibility"):
                    draw_lines(ax, column_name, seeds, colours[key])
                ax.set_xlabel(text)
                ax.grid(axis="y", color="0.93", lw=0.8)
            line[0].set_yticks(-np.arange(len(names)), names, fontsize=SMALL)
            line[1].set_title(", ".join(map(label, kind)))
        handles = [
            Line2D([], [], color=colours[key], ls="", marker="o", ms=4, mfc="none", label=f"keys {key}")
            for key in keys
        ]
        handles += [
            Line2D([], [], color="0.4", lw=0.9, ls="-", label="stage 1"),
            Line2D([], [], color="0.4", lw=0.9, ls="--", label="stage 2"),
            Line2D([], [], color="black", lw=0.9, ls=":", label="topic known, word not"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    steps = endings.loc[endings["schedule"] == JOINT, "steps_v"].max()
    parts = {
        f"Final values, a ring per seed; every part is trained for {steps:,} steps, except in the last "
        f"row.": True,
        "Kept words that are predicted better than knowing their topic allows (left of the dotted line) are "
        "copied.": True,
    }
    return Picture(figure, "Joint training against forced stages", sentences(parts))


def in_order(name: str) -> tuple[int, int]:
    """Order schedules: joint, then by the delay of W^K and W^Q, turns, and the control last."""
    fixed = {JOINT: 0, FROZEN: 2, TURNS: 3, LONGER: 4}
    return fixed.get(name, 1), 0 if name in fixed else int(name.split()[-1].replace(",", ""))


def draw_lines(ax: Any, column_name: str, seeds: Frame, colour: str) -> None:
    """Draw the lines of the stages, or the least loss of a word whose topic is known."""
    if column_name == "eval_loss":
        ax.axvline(seeds["stage1"].median(), color=colour, lw=0.8, zorder=1)
        ax.axvline(seeds["stage2"].median(), color=colour, lw=0.8, ls="--", zorder=1)
    elif column_name == "eval_loss_kept":
        ax.axvline(seeds["topic_bound"].median(), color="black", lw=0.9, ls=":", zorder=1)


def two_stages_suffice(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that training W^V first and then W^K, W^Q with W^V frozen ends where joint training ends."""
    return compared(run, FROZEN, "W^V frozen in stage 2")


def turns_end_alike(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that training the parts in turns ends where joint training ends."""
    return compared(run, TURNS, "training in turns")


def delays_end_alike(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that training W^V some steps ahead of W^K and W^Q ends where joint training ends."""
    return compared(run, DELAYED, "W^K and W^Q delayed")


def compared(run: Run, begin: str, words: str) -> Verdict:
    """Judge the schedules whose name begins so against joint training with as many steps of each part.

    Each kind of trial ends alike, elsewhere, or is undecided: see `outcome`.
    """
    if not is_scheduled(run, run.trials):
        return Verdict("undecided", "No trial trains its parts by a schedule.", "a run of forced_stages")
    table = against_joint(schedule_endings(run))
    table = table[table["equal_steps"]]
    joint = {
        tuple(row[each] for each in KIND): row for row in table.to_dict("records") if row["schedule"] == JOINT
    }
    several_rates = (table.groupby(list(KIND[:-1]))["learning_rate"].nunique() > 1).any()
    found: dict[str, list[str]] = dict(elsewhere=[], alike=[], undecided=[], open=[])
    copying = 0
    for row in table[table["schedule"].str.startswith(begin)].to_dict("records"):
        kind = tuple(row[each] for each in KIND)
        text = f"{label(kind[0])}, {label(kind[1])}, keys {kind[2]}"
        text += f", {setting_text(KIND[-1], kind[-1])}" if several_rates else ""
        text += f", from step {row['schedule'].removeprefix(begin)}" if begin == DELAYED else ""
        start = joint[kind]
        if row["stage1"] - min(row["eval_loss"], start["eval_loss"]) < CUTS.stage2 * (
            row["stage1"] - row["stage2"]
        ):
            found["open"].append(text)
            continue
        way = outcome(row, start)
        text += f" {row['difference']:+z.2f} +- {row['difference_se']:.2f}"
        notes = [other_values(row)]
        if way == "elsewhere":
            copying += by_copying(row, start)
            losses = f"loss {row['eval_loss']:.4f}, joint {start['eval_loss']:.4f}"
            notes = [f"{losses}; {copying_text(row, start)}", *notes]
        note = "; ".join(filter(None, notes))
        found[way].append(f"{text} ({note})" if note else text)
    counts = {name: len(texts) for name, texts in found.items()}
    reached = counts["elsewhere"] + counts["alike"] + counts["undecided"]
    change = (
        f"a difference that is known to lie within {SAME_GAIN:.0%} of what topical attention gains, and "
        "copying in both or in neither, for every kind: more seeds where it is undecided, more steps where a "
        "schedule is still learning. Order parameters and norms are reported; they do not decide."
    )
    if not reached:
        reason = f"; no gain by attention yet: {'; '.join(found['open'])}" if found["open"] else ""
        return Verdict("undecided", f"No kind of trial shows stage 2 within its steps{reason}.", "more steps")
    seeds = int(table["seeds"].max())
    parts = {
        f"With {words}, {counts['elsewhere']} of {counted(reached, 'kind')} of trial that "
        f"{'reaches' if reached == 1 else 'reach'} stage 2 {'ends' if counts['elsewhere'] == 1 else 'end'} "
        f"elsewhere than joint training, {counts['alike']} alike and {counts['undecided']} undecided; loss "
        f"above joint training, of what topical attention gains, mean +- standard error over "
        f"{counted(seeds, 'seed')}.": True,
        f"Elsewhere ({copying} of {counts['elsewhere']} by copying): {'. '.join(found['elsewhere'])}.": (
            counts["elsewhere"]
        ),
        f"Alike: {'. '.join(found['alike'])}.": counts["alike"],
        f"Undecided: {'. '.join(found['undecided'])}.": counts["undecided"],
        f"Without stage 2 in these steps: {'; '.join(found['open'])}.": counts["open"],
    }
    return Verdict(in_kinds(counts), sentences(parts), change, **counts, copying=copying)


def outcome(row: Mapping[str, Any], joint: Mapping[str, Any]) -> str:
    """Tell whether a kind of trial ends alike or elsewhere than joint training, or whether that is open."""
    apart, error = abs(row["difference"]), row["difference_se"]
    if copied(row) != copied(joint) or (apart > SAME_GAIN and apart > STANDARD_ERRORS * error):
        return "elsewhere"
    return "alike" if apart + SURE * error <= SAME_GAIN else "undecided"


def in_kinds(counts: Mapping[str, int]) -> str:
    """Judge by the kinds that reach stage 2: the claim is about all of them."""
    if not counts["elsewhere"]:
        return "undecided" if counts["undecided"] else "holds"
    return "partly" if counts["alike"] or counts["undecided"] else "fails"


def copied(row: Mapping[str, Any]) -> bool:
    """Tell whether most seeds predict kept words better than knowing their topic allows."""
    return row["copies"] > row["seeds"] / 2


def by_copying(row: Mapping[str, Any], joint: Mapping[str, Any]) -> bool:
    """Tell whether copying explains a difference: one side copies, and kept words are half of it at least."""
    return (copied(row) or copied(joint)) and row["by_kept"] >= 0.5


def copying_text(row: Mapping[str, Any], joint: Mapping[str, Any]) -> str:
    """Say whether copying explains the difference to joint training."""
    losses = f"loss {row['eval_loss_kept']:.2f} against {joint['eval_loss_kept']:.2f}"
    return (
        f"{'by copying' if by_copying(row, joint) else 'not by copying'}: {row['copies']} and "
        f"{joint['copies']} of {row['seeds']} seeds copy, kept words ({losses}) account for "
        f"{100 * row['by_kept']:z.0f} % of the difference"
    )


def other_values(row: Mapping[str, Any]) -> str:
    """List the order parameters and norms that differ clearly from joint training; empty if none does."""
    texts = []
    for name, words in COMPARED.items():
        more, error = row[f"{name}_more"], row[f"{name}_more_se"]
        if abs(more) > SAME_VALUE and abs(more) > STANDARD_ERRORS * error:
            texts.append(f"{words} {100 * more:+.0f} +- {100 * error:.0f} %")
    return ", ".join(texts)


TWO_STAGES = Claim(
    "Section 8.1, two stages",
    "No qualitative aspect of joint training is missed by training W^V first and then W^K, W^Q with W^V "
    "frozen.",
    two_stages_suffice,
    "sections 5.1 and 8.1",
    "forced_stages",
)
ALTERNATING = Claim(
    "Section 8.1, alternating",
    "Training W^V and W^K, W^Q in turns ends where joint training ends: the two stages are one iteration "
    "of it.",
    turns_end_alike,
    "section 8.1",
    "forced_stages",
)
DELAY = Claim(
    "Section 8.1, delay",
    "Training W^V some steps ahead of W^K and W^Q, and then all together, ends where joint training ends, "
    "also with a tenfold delay.",
    delays_end_alike,
    "a reading of sections 5.1 and 8.1",
    "forced_stages",
)

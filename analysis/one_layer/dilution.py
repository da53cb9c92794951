"""Count cycles of focus and dilution: attention turns to frequent words, and away from them again.

The curve is the attention score of frequent minus rare words (columns a_frequent for keys of the query's
topic, a_frequent_other for keys of other topics).  It has a turning point where it goes back by more than a
least swing: the largest of a score that changes attention noticeably, several times the noise of the records,
and what a control has swung until then.  A rise that is followed by a fall is a cycle.

Noise that is slower than the records looks like cycles: late in training, words that are equally likely are
no longer treated alike.  The control shows how far this goes: trials with the same settings but exponent 0 of
Zipf's law, whose words are ranked and equally likely.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from topicjax.errors import counted
from topicjax.settings import SEEDS
from topicjax.stages import Records, steady
from topicjax.store.reader import Run
from topicjax.theory.progress import CUTS

from ..figures.step_panels import panel_grid, title_lines
from ..frames import Array, Frame, column, distinct, varying
from ..page.contract import Claim, Verdict
from ..pictures import PALETTE, Picture, described, evenly, label, sentences, style
from ..topic_model import MAIN_SETTINGS, aligned, settings_in
from .scores import trains_attention

FREQUENT = ("a_frequent", "a_frequent_other")  # the columns whose cycles count
CURVES = {  # columns of scores: name and colour
    "a_frequent": ("frequent - rare words, same topic", PALETTE[0]),
    "a_frequent_other": ("frequent - rare words, other topics", PALETTE[1]),
    "a_topic_weighted": ("same - other topic, by frequency", "0.55"),
}
RANKS = {"rank_k": ("$W^K$", PALETTE[3]), "rank_q": ("$W^Q$", PALETTE[5]), "rank_v": ("$W^V$", PALETTE[2])}
LEAST_SWING = CUTS.attention  # in units of scores: attention to a word changes by a tenth
NOISES = 7.0  # standard deviations of a record about its neighbours
QUARTERS = 4  # parts of a training whose noise is estimated apart
LEAST_RECORDS = 20
SECOND = 2  # cycles that make a repetition
MOST_KINDS = 12  # per figure
MOST_LINES = 5  # seeds per panel


class Course(NamedTuple):
    """The turning points of one curve, as indices of its records."""

    places: tuple[int, ...]
    sizes: tuple[float, ...]  # of the swings between them: rises above 0, falls below

    @property
    def cycles(self) -> int:
        """Count the rises that are followed by a fall."""
        return sum(first > 0 > second for first, second in zip(self.sizes, self.sizes[1:], strict=False))

    @property
    def rises(self) -> int:
        """Count the rises; one more than cycles if the last has not ended."""
        return sum(size > 0 for size in self.sizes)


def turning_points(values: Array, least: Array | float) -> tuple[int, ...]:
    """Find the extremes between which a curve swings by more than `least`, the last one included.

    `least` may be given for each record.  A curve that never moves by more has its first record only.
    """
    turns, direction, low, high = [], 0, 0, 0
    for place, (value, bound) in enumerate(zip(values, np.broadcast_to(least, len(values)), strict=True)):
        low, high = (place if value < values[low] else low), (place if value > values[high] else high)
        if direction <= 0 and value - values[low] > bound:
            turns.append(low)
            direction, high = 1, place
        elif direction >= 0 and values[high] - value > bound:
            turns.append(high)
            direction, low = -1, place
    return (*turns, high if direction > 0 else low) if direction else (0,)


def noise_of(values: Array) -> Array:
    """Estimate the noise of each record from distances of records to the mean of their neighbours.

    It is a robust standard deviation of a quarter of the records, the largest one so far: noise grows with
    the scores.
    """
    if len(values) < 3:
        return np.zeros(len(values))
    apart = np.abs(values[1:-1] - (values[:-2] + values[2:]) / 2)
    quarters = np.array_split(np.r_[apart[:1], apart, apart[-1:]], QUARTERS)
    deviation = [1.4826 * np.median(own) / 1.5**0.5 if len(own) else 0.0 for own in quarters]
    return np.repeat(np.maximum.accumulate(deviation), [len(own) for own in quarters])


def course_of(values: Array, control: Array | float = 0.0) -> Course:
    """Find the swings of a curve beyond its noise, and beyond those of a control until each record."""
    least = np.maximum(np.maximum(LEAST_SWING, NOISES * noise_of(values)), control)
    places = turning_points(values, least)
    return Course(places, tuple(np.diff(values[list(places)]).tolist()))


def swung(values: Array) -> Array:
    """Compute how far a curve has swung until each record: its highest value so far minus its lowest."""
    return np.maximum.accumulate(values) - np.minimum.accumulate(values)


def has_frequencies(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether any trial trains attention on words that are ranked by frequency."""
    if not {*FREQUENT, *RANKS} <= {*run.trajectories}:
        return False
    used = ranked(run.trials)
    return bool(used.any()) and bool(courses(run)["records"].max() >= LEAST_RECORDS)


def ranked(trials: Frame) -> Array:
    """Mask the finite trials that train attention on words which have ranks."""
    is_ranked = (trials["word_distribution"] != "uniform").to_numpy() & (trials["words_per_topic"] > 2)
    return np.asarray(is_ranked & trains_attention(trials) & (trials["status"] == "ok").to_numpy(), bool)


def is_control(trials: Frame) -> Array:
    """Mask the trials whose words are ranked by Zipf's law but equally likely."""
    is_equal = (trials["word_distribution"] == "zipf") & (trials["zipf_exponent"] == 0)
    return is_equal.to_numpy()


def courses(run: Run) -> Frame:
    """Tabulate the swings of each curve: a row per trial and column, with the trial's settings.

    `control` is how far the trials of the control have swung by the end; NaN without any.
    """
    run = aligned(run)
    frame, records = run.trajectories, Records.of(run.trajectories["step"].to_numpy())
    smooth = {name: steady(records, column(frame, name)) for name in CURVES if name in frame}
    settings = settings_in(run.trials)
    kind = distinct(run.trials, [name for name in settings if name not in (*SEEDS, "zipf_exponent")])[0]
    used, equal = ranked(run.trials), is_control(run.trials)
    rows = []
    for place in np.flatnonzero(used):
        own = slice(records.start[place], records.end[place] + 1)
        step = records.step[own]
        others = np.flatnonzero(used & equal & (kind == kind[place])) if not equal[place] else []
        for name, values in smooth.items():
            if not np.isfinite(values[own]).all():
                continue
            control = [
                np.interp(step, records.step[at], swung(values[at]))
                for at in (slice(records.start[each], records.end[each] + 1) for each in others)
                if name in FREQUENT  # topics are real in the control too
            ]
            bound = np.max(control, axis=0) if control else np.zeros(len(step))
            course = course_of(values[own], bound)
            rises = [at for at, size in zip(course.places[1:], course.sizes, strict=True) if size > 0]
            rows.append(
                run.trials[["trial_id", *settings]].iloc[place].to_dict()
                | dict(column=name, records=len(step), cycles=course.cycles, rises=course.rises)
                | dict(places=course.places, control=bound[-1] if control else np.nan)
                | dict(peak_step=step[rises[0]] if rises else np.nan)
                | dict(peak=values[own][rises[0]] if rises else np.nan, end=values[own][-1])
            )
    return pd.DataFrame(rows, columns=None if rows else ["records", "column"])


def kinds_of(found: Frame) -> tuple[list[str], list[tuple[dict[str, Any], Frame]]]:
    """Sort rows by their settings except the seeds; return the settings that vary, and the rows of each."""
    names = [name for name in settings_in(found) if name not in SEEDS]
    several = [*MAIN_SETTINGS, *varying(found, [name for name in names if name not in MAIN_SETTINGS])]
    number, kinds = distinct(found, several)
    order = kinds.sort_values(several, kind="stable").index
    return several, [(kinds.loc[place].to_dict(), found[number == place]) for place in order]


def dilution_table(run: Run, scores: pd.DataFrame) -> Frame:
    """Tabulate cycles and first peaks by kind and column (medians over seeds), and participation ratios."""
    found, ranks = courses(run), rank_course(run)
    rows = []
    for settings, own in kinds_of(found)[1]:
        for name, curves in own.groupby("column", sort=False):
            row = settings | dict(curve=CURVES[str(name)][0], seeds=len(curves))
            row |= dict(cycles=" ".join(map(str, sorted(curves["cycles"]))))
            row |= dict(rising=int((curves["rises"] > curves["cycles"]).sum()))
            row |= {each: curves[each].median() for each in ("peak_step", "peak", "end")}
            ends = ranks.loc[curves["trial_id"]].median()
            rows.append(row | {str(each): float(value) for each, value in ends.items()})
    return pd.DataFrame(rows)


def rank_course(run: Run) -> Frame:
    """Tabulate the participation ratio of W^K: least, largest and last value of each trial."""
    run = aligned(run)
    values: Any = run.trajectories.groupby("trial_id")["rank_k"]
    return pd.DataFrame(dict(rank_k_least=values.min(), rank_k_most=values.max(), rank_k_end=values.last()))


def dilution_figure(run: Run, scores: pd.DataFrame) -> list[Picture]:
    """Draw scores and participation ratios over the steps, a figure per optimizer and a panel per kind."""
    run, found = aligned(run), courses(run)
    several, kinds = kinds_of(found)
    pictures = []
    for optimizer in dict.fromkeys(settings["optimizer"] for settings, _ in kinds):
        of_kind = [kind for kind in kinds if kind[0]["optimizer"] == optimizer]
        chosen = [of_kind[place] for place in evenly(len(of_kind), MOST_KINDS)]
        names = varying(pd.DataFrame([settings for settings, _ in of_kind]), several)
        across = min(2, len(chosen))
        titles = [title_lines(described(settings, names or ["optimizer"]), across) for settings, _ in chosen]
        with style():
            figure, panels = panel_grid(titles, across, {"score": 1.25, "participation\nratio": 0.8})
            for axes, (_, own) in zip(panels, chosen, strict=True):
                draw_kind(run, own, axes)
            lines = [
                Line2D([], [], color=colour, label=text)
                for text, colour in (*CURVES.values(), *RANKS.values())
            ]
            turn = Line2D([], [], color="0.2", ls="", marker="o", ms=3, label="turning point")
            figure.legend(handles=[*lines, turn], loc="outside lower center", ncols=2)
        most = max(own["trial_id"].nunique() for _, own in chosen)
        parts = {
            f"Above: attention scores of word queries; a line per seed ({min(most, MOST_LINES)}), dots where "
            "those of frequent words turn beyond their noise and the control.": True,
            "Below: participation ratios (tr G)^2 / tr G^2, G = W W^T, the number of directions a matrix "
            "uses.": True,
            "With exponent 0, the control, all words are equally likely: their ranks mean nothing.": (
                "zipf_exponent" in names
            ),
            f"Shown: {len(chosen)} of {len(of_kind)} settings.": len(chosen) < len(of_kind),
        }
        title = f"Focus on frequent words, and dilution: {label(optimizer)}"
        pictures.append(Picture(figure, title, sentences(parts)))
    return pictures


def draw_kind(run: Run, own: Frame, axes: Any) -> None:
    """Draw the trials of a kind: scores with turning points above, participation ratios below."""
    upper, lower = axes
    upper.axhline(0, color="0.85", lw=0.6, zorder=0)
    for trial_id in list(dict.fromkeys(own["trial_id"]))[:MOST_LINES]:
        frame: Any = run.trajectories.loc[run.trajectories["trial_id"] == trial_id]
        step = column(frame, "step")
        for ax, curves in ((upper, CURVES), (lower, RANKS)):
            for name, (_, colour) in curves.items():
                width = 0.6 if name == "a_topic_weighted" else 0.9
                ax.plot(step[1:], column(frame, name)[1:], color=colour, lw=width)
        for row in own[(own["trial_id"] == trial_id) & own["column"].isin(FREQUENT)].to_dict("records"):
            turns = list(row["places"][1:-1])
            values = column(frame, row["column"])[turns]
            upper.plot(step[turns], values, "o", color=CURVES[row["column"]][1], ms=3, mec="0.2", mew=0.5)
    for ax in axes:
        ax.set_xscale("log")
    lower.set_ylim(0, None)


def cycles_repeat(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check whether attention to frequent words rises and falls more than once."""
    if not has_frequencies(run, scores):
        why = "No trial has words that are ranked by frequency, and enough records."
        return Verdict("undecided", why, "a run of dilution")
    found = courses(run)
    found = found[found["column"].isin(FREQUENT) & ~is_control(found)]
    if found.empty:
        return Verdict("undecided", "All words are equally likely.", "words of Zipf's law")
    several, kinds = kinds_of(found)
    names = varying(pd.DataFrame([settings for settings, _ in kinds]), several) or ["optimizer"]
    texts, repeats, once = [], [], []
    for settings, own in kinds:
        cycles = own.groupby("trial_id", sort=False)["cycles"].max().to_numpy()
        repeats.append(most_of(cycles >= SECOND))
        once.append(most_of(cycles >= 1))
        said = [first_peak(own[own["column"] == name]) for name in FREQUENT]
        swing = own["control"].max()
        told = f"control swings by {swing:.2f}" if np.isfinite(swing) else "no control"
        texts.append(
            f"{', '.join(described(settings, names))}: {', '.join(map(str, cycles))} cycles, same topic "
            f"{said[0]}, other topics {said[1]}, {told}"
        )
    rising = found[(found["rises"] > found["cycles"]) & (found["cycles"] > 0)]
    parts = {
        f"Attention to frequent words repeats its cycle in most seeds of {sum(repeats)} of "
        f"{counted(len(kinds), 'setting')}, and has a cycle in those of {sum(once)}: "
        f"{'; '.join(texts)}.": True,
        f"Another rise has begun after a cycle in {counted(len(rising), 'curve')}.": len(rising),
        f"A cycle is a rise and a fall by more than {LEAST_SWING:g}, {NOISES:g} times the noise of the "
        "curve, and the swings of the control until then, of the score of frequent minus rare words of the "
        "same topic or of others.": True,
    }
    verdict = "holds" if all(repeats) else "partly" if any(repeats) else "fails"
    change = "two cycles in most seeds of each setting, beyond the swings of a control"
    counts = dict(settings=len(kinds), repeat=sum(repeats), once=sum(once))
    return Verdict(verdict, sentences(parts), change, **counts)


def first_peak(curves: Frame) -> str:
    """Say how high a curve rises first, when, and where it ends: medians over seeds."""
    end, rising = f"{curves['end'].median():.2f} at the end", curves[curves["peak"].notna()]
    if 2 * len(rising) <= len(curves):
        return f"without a rise, {end}"
    return f"up to {rising['peak'].median():.2f} at step {rising['peak_step'].median():,.0f}, {end}"


def most_of(mask: Array) -> bool:
    """Check whether more than half are in the mask."""
    return bool(2 * mask.sum() > len(mask))


CLAIM = Claim(
    "Focus and dilution",
    "Attention turns to frequent words and away from them, and the cycle repeats: the two-stage curve is the "
    "first of several cycles.",
    cycles_repeat,
    "arXiv 2605.01199",
    "dilution",
)

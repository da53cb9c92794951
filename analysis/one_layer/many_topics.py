"""Theorem 3's limit: alpha' as the number of topics grows, for trained attention and for the exact optimum.

The theorem needs tau to grow, but more slowly than T; then alpha'* approaches tau / ((1 - p_c) p_m).  The
optimum of Assumption 2's kind is exact for any T and tau, far beyond what can be trained.
"""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from topicjax.errors import counted
from topicjax.store.reader import Run
from topicjax.theory.documents import DataModel
from topicjax.theory.stage2 import best_symmetric_attention, optimal_attention
from topicjax.theory.theorems import many_topics_weight, theorem2_matrix, theorem3_interval, theorem3_limit

from ..frames import Frame
from ..page.contract import Claim, Verdict
from ..pictures import PALETTE, WIDTH, Picture, sentences, style
from ..topic_model import uses_softmax
from .attention_theory import KNOWN, has_uniform_blocks, measured_weights
from .cells import lowest_seeds
from .trained_models import effective_model, has_data_model, with_weights

TOPICS = np.unique(np.geomspace(10, 1e6, 41).round().astype(int))  # of the curves
RULES = {r"$\tau = \sqrt{T}$": lambda T: round(T**0.5), r"$\tau = T/10$": lambda T: T // 10}
FIXED = (2, 4)  # topics per document of the curves that do not follow a rule
LEAST_SIZES = 3  # numbers of topics in a run about the limit
NEAR = 0.05  # relative distance to the exact optimum that counts as trained
FAR_TOPICS = 10**6  # where the approach to the limit is judged
LIMIT = 0.01  # relative distance to the limit there
LATE = 0.25  # share of the steps at the end over which alpha' must move little to count as final
LITTLE = 0.1  # of what is missing to the optimum: at this pace 2.5 times the steps would not reach it


def with_known_limit(trials: Any) -> Any:
    """Select the trials with W^V at Theorem 2 whose optimum is known, whatever the number of topics."""
    known = with_weights(trials)
    for name, value in (KNOWN | dict(value="blocks", key_visibility="all")).items():
        known = known[known[name] == value]
    known = known[uses_softmax(known)]
    blocks = has_uniform_blocks(known) & (known.reindex(columns=["value_shift"]).fillna(0.0) == 0).all(axis=1)
    return known[blocks & has_data_model(known) & (known["topics_per_document"] > 1)]


def has_limit(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether attention was trained at several numbers of topics."""
    return with_known_limit(run.trials)["topics"].nunique() >= LEAST_SIZES


@cache
def optimum(data: DataModel) -> tuple[float, float]:
    """Find alpha' of the best attention that treats topics alike, and of the best of Assumption 2's kind."""
    best, _ = best_symmetric_attention(data, theorem2_matrix(*data.sizes_and_masking))
    return best.average(data.words_per_topic), optimal_attention(data)[0]


def limit_table(run: Run, scores: pd.DataFrame) -> Frame:
    """Tabulate alpha' by number of topics: trained (median and range over seeds), best, and the limit."""
    read = lowest_seeds(with_known_limit(run.trials))
    rows = []
    for row in read.to_dict("records"):
        data = DataModel.of(row)
        model = effective_model(run.restore(row["trial_id"]), row)
        weight = np.exp(model.S - model.S.max(axis=0)).T  # query x key
        found = measured_weights(weight, data.words_per_topic)["weight_average"]
        best, assumed = optimum(data)
        lower, upper = theorem3_interval(data)
        masking = data.p_mask, data.p_keep, data.p_random
        rows.append(
            dict(topics=data.topics, tau=data.topics_per_document, words_per_topic=data.words_per_topic)
            | dict(moved=late_move(run, row["trial_id"]))
            | dict(trained=found, best=best, assumed=assumed, lower=lower, upper=upper)
            | dict(many=many_topics_weight(data.topics, data.topics_per_document, *masking))
            | dict(limit=theorem3_limit(data.topics_per_document, data.p_mask, data.p_keep))
        )
    grouped: Any = pd.DataFrame(rows).groupby(["topics", "tau", "words_per_topic"])
    table = grouped.first().drop(columns="trained").assign(moved=grouped["moved"].max())
    table.insert(0, "seeds", grouped.size())
    for name, reduce in (("trained", "median"), ("trained_min", "min"), ("trained_max", "max")):
        table.insert(1, name, grouped["trained"].agg(reduce))
    return table.assign(of_limit=table["assumed"] / table["limit"]).reset_index()


def late_move(run: Run, trial_id: str) -> float:
    """Compute by how much ln alpha moved in the last quarter of the steps; NaN without records."""
    if "a_topic" not in run.trajectories:
        return np.nan
    own: Any = run.trajectories[run.trajectories["trial_id"] == trial_id]
    late = own.loc[own["step"] >= (1 - LATE) * own["step"].max(), "a_topic"].to_numpy(float)
    return float(abs(late[-1] - late[0])) if len(late) > 1 else np.nan


def exact_ratio(topics: int, tau: int, like: DataModel) -> float:
    """Compute alpha'* of Assumption 2's kind in units of the limit."""
    masking = dict(p_mask=like.p_mask, p_keep=like.p_keep, p_random=like.p_random)
    data = DataModel(
        topics=topics,
        words_per_topic=like.words_per_topic,
        documents="tau",
        infinite_documents=True,
        topics_per_document=tau,
        **masking,
    )
    return optimal_attention(data)[0] / theorem3_limit(tau, like.p_mask, like.p_keep)


def limit_figure(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw alpha' in units of the limit against the number of topics."""
    table, like = limit_table(run, scores), first_data(run)
    with style():
        figure = Figure(figsize=(WIDTH, 3.3))
        ax = figure.subplots()
        for colour, (text, rule) in zip(PALETTE, RULES.items(), strict=False):
            sizes = [size for size in TOPICS if 1 < rule(size) < size]
            ax.plot(sizes, [exact_ratio(size, rule(size), like) for size in sizes], color=colour, label=text)
        for dashes, tau in zip(("--", ":"), FIXED, strict=True):
            curve = [exact_ratio(size, tau, like) for size in TOPICS]
            ax.plot(TOPICS, curve, color="0.5", lw=1, ls=dashes, label=rf"$\tau = {tau}$")
        trained = (table[name] / table["limit"] for name in ("trained", "trained_min", "trained_max"))
        middle, low, high = (np.asarray(each, float) for each in trained)
        ax.errorbar(
            table["topics"],
            middle,
            yerr=[middle - low, high - middle],
            fmt="o",
            color="black",
            ms=4,
            mfc="none",
            lw=1,
            label="trained (range over seeds)",
        )
        ax.plot(
            table["topics"],
            table["best"] / table["limit"],
            "d",
            color="#D55E00",
            ms=6,
            mfc="none",
            label="best attention, weight of [MASK] free",
        )
        ax.axhline(1, color="0.7", lw=0.8, zorder=1)
        ax.set(xscale="log", xlabel="topics $T$", ylim=(0, 1.08))
        ax.set_ylabel(r"$\alpha'\,/\,$ limit $\tau/((1-p_c)\,p_m)$")
        figure.legend(loc="outside lower center", ncols=2)
    parts = {
        "Weight of the own topic in units of Theorem 3's limit. Lines: the exact optimum of Assumption 2's "
        "kind for infinite documents.": True,
        f"Points: {counted(int(table['seeds'].sum()), 'trained model')} with "
        f"{', '.join(map(str, table['tau']))} topics per document.": True,
        "The limit needs more and more topics per document, but few of all: a fixed tau stays below it, and "
        "so does a fixed share of the topics.": True,
    }
    return Picture(figure, "Theorem 3's limit as topics grow", sentences(parts))


def first_data(run: Run) -> DataModel:
    """Return the documents of the first trial of the run that Theorem 3 speaks of."""
    return DataModel.of(with_known_limit(run.trials).iloc[0].to_dict())


def limit_is_approached(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check trained attention against the exact optimum at each T, and the optimum against its limit.

    A size speaks against the claim if its trained alpha' stays away from the optimum, or reaches it outside
    Theorem 3's interval.  A size whose alpha' is still on its way there says nothing.
    """
    if not has_limit(run, scores):
        return Verdict("undecided", f"Fewer than {LEAST_SIZES} numbers of topics were trained.", "such a run")
    table, like = limit_table(run, scores), first_data(run)
    off = np.abs(table["trained"] / table["best"] - 1).to_numpy(float)
    inside = ((table["trained_min"] > table["lower"]) & (table["trained_max"] < table["upper"])).to_numpy()
    missing = np.abs(np.log(table["trained"] / table["best"])).to_numpy(float)
    good = (off < NEAR) & inside
    final = (off < NEAR) | (table["moved"].to_numpy(float) < LITTLE * missing)
    against = ~good & final
    far = exact_ratio(FAR_TOPICS, round(FAR_TOPICS**0.5), like)
    share = table["of_limit"].to_numpy(float)
    cells = "; ".join(
        f"T = {row['topics']}, tau = {row['tau']}: {row['trained']:.4g} [{row['trained_min']:.4g}, "
        f"{row['trained_max']:.4g}], best {row['best']:.4g}, limit {row['limit']:.3g}"
        for row in table.to_dict("records")
    )
    text = (
        f"Trained alpha' follows the best attention within {100 * off.max():.2g} % ({cells}), inside Theorem "
        f"3's interval at {inside.sum()} of {counted(len(table), 'size')}. At these sizes the optimum is "
        f"{share.min():.2f} to {share.max():.2f} of the limit; with tau = sqrt(T) the exact optimum reaches "
        f"{exact_ratio(1000, 32, like):.2f} of it at T = 1,000 and {far:.3f} at T = 10^6: 1 / alpha' is "
        "about (1 - p_c) p_m / tau + 1 / T."
    )
    if against.any():
        text += f" At {against.sum()} of the sizes attention has settled elsewhere."
    if (~final).any():
        text += f" At {(~final).sum()} of the sizes alpha' is still on its way to the best."
    reached = abs(far - 1) < LIMIT
    if not reached or (against.any() and not good.any()):
        verdict = "fails"
    elif against.any():
        verdict = "partly"
    else:
        verdict = "holds" if good.all() else "undecided"
    change = (
        f"more steps, if trained attention is more than {NEAR:.0%} from the best"
        if verdict == "undecided"
        else f"a trained alpha' that settles more than {NEAR:.0%} from the best attention or outside the "
        f"interval, or an exact optimum further than {LIMIT:.0%} from the limit at T = 10^6"
    )
    numbers = dict(furthest=float(off.max()), of_limit=float(share[-1]), far=float(far))
    return Verdict(verdict, text, change, **numbers, sizes=len(table), against=int(against.sum()))


CLAIM = Claim(
    "Theorem 3, limit",
    "As T and tau grow, tau = o(T), the best alpha' approaches tau / ((1 - p_c) p_m).",
    limit_is_approached,
    "Theorem 3, Assumption 3, appendix D",
    "theorem3_limit",
)

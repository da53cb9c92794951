"""Claims about the one-layer model: the paper's, and our own predictions, each with the check of a run.

A check selects the trials that the claim speaks of and compares what was measured with a threshold, whose
reason is written beside it.  A cell (trials that differ only in the seed) counts by its median, or by the
most frequent class; sentences give the median and, in brackets, the range over seeds.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from topicjax.errors import counted
from topicjax.store.reader import Run
from topicjax.theory.progress import CUTS
from topicjax.theory.theorems import theorem2_matrix

from ..frames import Frame, column, distinct, once_per_run, varying
from ..page.contract import Claim, Verdict
from ..pictures import first_of, label, setting_text, written
from ..topic_model import MAIN_SETTINGS, aligned, settings_in
from .attention_theory import attention_rows, member, value_text
from .cells import cell_settings, lowest_seeds, score_cells, where
from .embedding_theory import embedding_rows, embeddings_alone, trains_all, with_gains
from .endings import CONVERGED, endings, joint_gains, pair_settings
from .onsets import FLAT, PER_DECADE, onset_fit, onset_times, with_prediction
from .robustness import axes_of, survival
from .scores import trains_both
from .seed_rows import short_text, telling_apart
from .tables import is_converged
from .trained_models import (
    block_share,
    effective_model,
    optimum_error,
    pair_means,
    relative_error,
    sizes_and_masking,
    with_weights,
)
from .trajectories import turning

CLEAR = 0.5  # of the variance between entries: sharing a topic explains more than everything else together
AGREES = 0.1  # relative distance of a matrix to a predicted one: stochastic steps leave a few per cent
MEMBER = 0.01  # relative residual of a family's equations: a hundredth of that of a matrix of zeros
SAME_LOSS = 1e-4  # relative difference: float32 sums over 100 words agree to about 1e-6
NEAR_BEST = 0.05  # share of the best attention's gain that may be missed before attention counts as trained
APART = 0.05  # relative: attention to [MASK], or between topics, that differs by less counts as equal
SLIGHTLY = 0.1  # of what W^V alone gains over uniform words: "only slightly" is read as a tenth at most
NEARLY = 0.9  # share of the full model's gain that "only slightly worse" is read as
SLOPE = 0.02  # relative error of a slope: onsets are interpolated between records, a few per cent of them
PLATEAU = 0.1  # relative: |W^V| is on a plateau in stage 2 if it stays within a range of this width
LEAST_TURN = 0.1  # degrees in ten steps: smaller rotations count as none (float32 resolves about 0.03)
RADIAL = 1 / 3  # of the turn: a norm that changes by more, in the same unit, moves with it
LEAST_RECORDS = 5  # of stage 2
BUDGET = ("V-only", "unfinished", "stage 2 begun", "no-learning")  # classes that more steps may change
FOUR = "cross-entropy and squared loss, SGD and Adam"
MORE_SEEDS = "more seeds, if cells are close to the threshold"


def theorem3(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that alpha' lies in Theorem 3's interval for W^V frozen at Theorem 2's optimum."""
    rows = attention_rows(run)
    is_theorem2 = np.array([not any(member(row)) for row in rows.to_dict("records")], bool)
    frozen = is_theorem2 & (rows["value"] == "blocks").to_numpy()
    return interval_verdict(rows[frozen & rows["lower"].notna()], "W^V frozen at Theorem 2's optimum")


def theorem3_trained(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that alpha' lies in Theorem 3's interval although W^V is trained too."""
    rows = attention_rows(run)
    return interval_verdict(rows[(rows["value"] == "trained") & rows["lower"].notna()], "W^V trained")


def interval_verdict(rows: Frame, of: str) -> Verdict:
    """Judge Theorem 3's interval on these models."""
    if rows.empty:
        return Verdict("undecided", f"No model with {of} fulfils the assumptions of Theorem 3.", "such a run")
    unfinished = rows["missed"] > NEAR_BEST
    value, lower, upper = (rows[name].to_numpy(float) for name in ("weight_average", "lower", "upper"))
    inside = (value > lower) & (value < upper)
    text = (
        f"alpha' lies inside the interval in {inside.sum()} of {counted(len(rows), 'model')} with {of}: "
        f"{by_cell(rows, 'weight_average')}; the interval begins at {span(lower)} and ends at "
        f"{upper.max():,.0f}."
    )
    if rows["missed"].notna().any():
        text += (
            f" The loss misses at most {100 * rows['missed'].max():.2g} % of the gain of the best attention, "
            f"whose alpha' is {span(rows['best_average'])}."
        )
    if unfinished.any() and not inside.all():
        more = f"{unfinished.sum()} of them miss more than {NEAR_BEST:.0%} of that gain: not trained enough."
        return Verdict("undecided", f"{text} {more}", "more steps")
    change = (
        f"an alpha' below the lower end: the smallest is {(value / lower).min():.1f} times as large. The "
        "upper end is far away, so only the lower one is a test, and the theorem is about the limit of many "
        "topics."
    )
    numbers = dict(models=len(rows), inside=int(inside.sum()), smallest=float((value / lower).min()))
    return Verdict(in_all(inside), text, change, **numbers)


def assumption2(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check whether the attention pattern of Assumption 2 is among the best ones."""
    rows = attention_rows(run)
    rows = rows[rows["assumed"].notna() & rows["best_mask"].notna()]
    trained = rows[rows["missed"] <= NEAR_BEST]
    if trained.empty:
        why = "no model with uniform blocks in W^V has trained its attention to the best loss"
        return Verdict("undecided", f"Not tested: {why}.", "a run of theorem3 with more steps")
    mask, missed = trained["weight_mask"].to_numpy(float), 100 * trained["assumed_missed"]
    is_one = np.abs(mask - 1) < APART
    beaten = (trained["missed"] < trained["assumed_missed"]).to_numpy()
    text = (
        f"Words weigh [MASK] {by_cell(trained, 'weight_mask')} times as much as a word of another topic; "
        f"Assumption 2 says 1. The best pattern of its kind misses {span(missed)} % of what the best "
        f"attention gains; {beaten.sum()} of {counted(len(trained), 'trained model')} have a lower loss than "
        "it."
    )
    verdict = "holds" if is_one.all() or not beaten.any() else "fails" if beaten.all() else "partly"
    change = f"a weight of [MASK] within {APART:.0%} of 1: the rest of the pattern is not in doubt."
    return Verdict(verdict, text, change, weight_of_mask=float(np.median(mask)), missed=float(missed.max()))


def remark6(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that several optima of stage 1 exist, and whether attention depends on which one W^V is."""
    rows = attention_rows(run)
    rows = rows[(rows["value"] == "blocks").to_numpy()]
    rows = rows.assign(member=[value_text(row) for row in rows.to_dict("records")])
    groups = rows.groupby("member", sort=False)
    if len(groups) < 2:
        return Verdict("undecided", "All models have the same W^V.", "a run of remark6")
    spread, _ = uniform_spread(run, rows)
    alpha, average = groups["weight_topic"].median(), groups["weight_average"].median()
    below = alpha.index[(alpha < 1).to_numpy()]
    differ = average.max() / average.min() - 1
    text = (
        f"{len(groups)} different W^V have the same loss under uniform attention (to {spread:.1g}), yet "
        f"attention depends on which it is: alpha' from {written(float(average.min()))} ({average.idxmin()}) "
        f"to {written(float(average.max()))} ({average.idxmax()})."
    )
    if len(below):
        text += (
            f" In {len(below)} of them words weigh other words of their topic less than words of other "
            f"topics (alpha {span(alpha[below])}) and themselves more."
        )
    verdict = "fails" if spread > SAME_LOSS else "holds" if differ > APART else "partly"
    change = (
        f"alpha' within {APART:.0%} for all members, or a member whose loss under uniform attention differs."
    )
    return Verdict(verdict, text, change, members=len(groups), spread=spread, below=len(below))


def lemma1(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check Lemma 1: its members have one loss, and trained embeddings without a bias are members."""
    found, texts, numbers = [], [], {}
    rows = attention_rows(run)
    rows = rows[(rows["value"] == "blocks").to_numpy()]
    members = [member(row) for row in rows.to_dict("records")]
    if len({*members}) > 1:
        spread, loss = uniform_spread(run, rows)
        found.append(spread < SAME_LOSS)
        numbers["spread"] = spread
        texts.append(
            f"{len({*members})} members of the family have the same held-out loss under uniform attention, "
            f"{loss:.5f}, to a relative difference of {spread:.1g}"
        )
    alone = embedding_rows(run)
    alone = alone[((alone["output_bias"] == "zero") & alone["infinite_documents"]).to_numpy(bool)]
    alone = alone[alone["residual"].notna()]
    if len(alone):
        found.append(bool((alone["residual"] < MEMBER).all()))
        numbers["residual"] = float(alone["residual"].max())
        texts.append(residual_text(alone, "embeddings trained without a bias satisfy its equations"))
    if not found:
        return Verdict("undecided", "No trial of this run tests it.", "a run of theorem1 or remark6")
    change = f"a relative residual above {MEMBER:g} (1: a matrix of zeros), or members of different loss."
    return Verdict(in_all(found), capital("; ".join(texts)) + ".", change, **numbers)


def uniform_spread(run: Run, rows: Frame) -> tuple[float, float]:
    """Compare the held-out losses at step 0 with attention forced uniform: relative spread, and median."""
    records = run.trajectories
    is_first = (records["step"] == 0) & records["trial_id"].isin(rows["trial_id"])
    loss = records.loc[is_first, "eval_loss_uniform"].to_numpy(float)
    return float(np.ptp(loss) / np.median(loss)), float(np.median(loss))


def theorem1(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that embeddings trained alone satisfy the equations of Theorem 1."""
    rows = embedding_rows(run)
    rows = rows[((rows["output_bias"] == "theorem1") & rows["residual"].notna()).to_numpy()]
    infinite, finite = (
        rows[rows["infinite_documents"].to_numpy(bool)],
        rows[~rows["infinite_documents"].to_numpy(bool)],
    )
    if infinite.empty:
        why = "No model trained its embeddings alone on infinite documents with Theorem 1's bias."
        return Verdict("undecided", why, "a run of theorem1")
    held = (infinite["residual"] < MEMBER) & (infinite["final_e_block"] > 0)
    text = residual_text(infinite, "embeddings trained alone satisfy the equations")
    text += f"; words of a topic are closer than others in all of them: {by_cell(infinite, 'final_e_block')}"
    if len(finite):
        text += (
            ". On finite documents, which the theorem does not cover, the residual is "
            f"{span(finite['residual'])}"
        )
    change = f"a residual above {MEMBER:g} on infinite documents (1: as far as a matrix of zeros)."
    numbers = dict(models=len(infinite), residual=float(infinite["residual"].max()))
    return Verdict(in_all(held), f"{capital(text)}.", change, **numbers)


def residual_text(rows: Frame, what: str) -> str:
    """Say to which relative residual models satisfy the equations of their family."""
    good = int((rows["residual"] < MEMBER).sum())
    return (
        f"{what} in {good} of {counted(len(rows), 'model')}, to a relative residual of "
        f"{span(rows['residual'])} (1: a matrix of zeros)"
    )


def section4(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that embeddings alone end only slightly worse than models whose parts are all trained."""
    frame = with_gains(run)
    is_alone = np.isin(frame["trial_id"], embeddings_alone(frame)["trial_id"])
    both = is_alone | trains_all(frame)
    frame, is_alone = frame[both], is_alone[both]
    names = [
        "objective",
        *varying(frame, ("documents", "infinite_documents", "key_visibility", "embedding_scale")),
    ]
    by_setting: Any = frame[is_alone].groupby(names)["gain"]
    every = frame[~is_alone].groupby(names)["gain"].median()
    share = (by_setting.median() / every).dropna()
    apart = (((by_setting.max() - by_setting.min()) / every).loc[share.index]).max()
    if share.empty:
        why = "No two trials of this run are both cases on the same documents."
        return Verdict("undecided", why, "a run of theorem1")
    parts = [
        f"{label(kind)} {span(100 * own, '{:z.0f}')} %" for kind, own in share.groupby(level=0, sort=True)
    ]
    blocks = frame["final_e_block"] > 0
    text = (
        f"Embeddings alone reach, of the gain in loss of the full model on the same documents: "
        f"{', '.join(parts)} ({counted(len(share), 'setting')}, medians over seeds, which differ by at most "
        f"{points(apart)}). Dot products are larger "
        f"within topics in {blocks.sum()} of {counted(len(blocks), 'trial')} of both cases."
    )
    held = (share >= NEARLY).to_numpy()
    change = f"the threshold: 'only slightly worse' is read as at least {NEARLY:.0%} of the gain."
    verdict = in_all(held) if blocks.all() else "partly" if held.any() else "fails"
    return Verdict(verdict, text, change, settings=len(share), least=float(share.min()))


def theorem2(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that W^V under uniform attention has the entries of Theorem 2."""
    rows = value_rows(run, "uniform")
    rows = rows[((rows["objective"] == "squared") & rows["from_optimum"].notna()).to_numpy()]
    is_infinite = rows["infinite_documents"].to_numpy(bool)
    infinite, finite = rows[is_infinite], rows[~is_infinite]
    reached = finite[(finite["from_optimum"] < AGREES).to_numpy()]
    if infinite.empty and reached.empty:
        why = (
            f"None of {counted(len(rows), 'model')} with squared loss has reached the optimum of "
            "its documents."
        )
        return Verdict("undecided", why, "more steps" if len(rows) else "a run of value_matrix")
    judged = reached if infinite.empty else infinite
    exact = (judged["from_theorem2"] < AGREES).to_numpy()
    texts = []
    if len(infinite):
        texts.append(
            f"On infinite documents W^V comes to Theorem 2's matrix in {exact.sum()} of "
            f"{counted(len(infinite), 'model')} with squared loss, to a relative distance of "
            f"{span(infinite['from_theorem2'])}."
        )
    if len(finite):
        texts.append(
            "On finite documents, which the theorem does not cover, a word that is kept predicts itself: W^V "
            f"is at a distance of {span(finite['from_optimum'])} from the optimum of these documents, of "
            f"{span(finite['from_theorem2'])} from Theorem 2 and of {span(finite['off_diagonal'])} from it "
            "without the diagonal."
        )
    change = (
        f"a distance above {AGREES:g} on infinite documents, where the optimum is exactly Theorem 2's matrix."
    )
    return Verdict(in_all(exact), " ".join(texts), change, distance=float(judged["from_theorem2"].median()))


def value_rows(run: Run, attention: str) -> Frame:
    """Tabulate the trials that train W^V on one-hot embeddings with this attention: blocks, and distances.

    blocks is the share of the variance that topics explain; from_optimum is NaN where no optimum is known.
    """
    kept = with_weights(aligned(run).trials)
    chosen = (
        (kept["embedding"] == "one_hot") & (kept["value"] == "trained") & (kept["attention"] == attention)
    )
    read = lowest_seeds(kept[chosen.to_numpy()])
    rows = []
    for row in read.to_dict("records"):
        U = effective_model(run.restore(row["trial_id"]), row).U
        predicted = theorem2_matrix(*sizes_and_masking(row))
        off = ~np.eye(len(U), dtype=bool)
        off[0] = False  # [MASK] is never predicted
        off[:, 0] = row["key_visibility"] == "all"  # else its column has no effect
        words = int(row["words_per_topic"])
        _, same, other = pair_means(U, words)
        share = block_share(U, words)
        rows.append(
            dict(
                blocks=share if same > other else 0.0,
                from_theorem2=relative_error(U, predicted),
                off_diagonal=relative_error(U[off], predicted[off]),
                from_optimum=optimum_error(U, row) if attention == "uniform" else np.nan,
            )
        )
    columns = ["blocks", "from_theorem2", "off_diagonal", "from_optimum"]
    return read.reset_index(drop=True).join(pd.DataFrame(rows, columns=columns))


@once_per_run
def embedding_blocks(run: Run) -> Frame:
    """Tabulate the trials whose parts are all trained: how much of the variance of E topics explain."""
    kept = with_weights(run.trials)
    read = lowest_seeds(kept[trains_all(kept)])
    shares = []
    for row in read.to_dict("records"):
        matrix = effective_model(run.restore(row["trial_id"]), row).E
        words = int(row["words_per_topic"])
        _, same, other = pair_means(matrix, words) if matrix is not None else (0.0, 0.0, 0.0)
        shares.append(block_share(matrix, words) if matrix is not None and same > other else 0.0)
    return read.reset_index(drop=True).assign(blocks=shares)


def figure1(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that embeddings of fully trained models have a block per topic."""
    beside = (
        "A diagonal is not counted, though the paper calls it a special case: random embeddings have one."
    )
    return blocks_verdict(embedding_blocks(run), "dot products of embeddings", beside)


def figure2(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that W^V has a block per topic under uniform attention."""
    return blocks_verdict(value_rows(run, "uniform"), "entries of W^V")


def figure10(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that W^V has a block per topic when it is trained together with attention."""
    return blocks_verdict(value_rows(run, "trained"), "entries of W^V")


def blocks_verdict(rows: Frame, what: str, beside: str = "") -> Verdict:
    """Judge whether blocks are clear for both losses and both optimizers."""
    if rows.empty:
        return Verdict("undecided", f"No trial of this run shows {what}.", "a run that stores weights")
    cells = cells_of(rows, "blocks")
    kinds = cells.groupby(list(MAIN_SETTINGS), sort=True)
    clear = np.array([(own["middle"] >= CLEAR).all() for _, own in kinds])
    some = np.array([(own["middle"] >= CLEAR).any() for _, own in kinds])
    parts = [f"{', '.join(map(label, kind))} {span(100 * own['middle'], '{:z.0f}')} %" for kind, own in kinds]
    text = (
        f"Of the variance of the {what} between different words, sharing a topic explains: "
        f"{'; '.join(parts)} ({counted(len(cells), 'setting')}, medians over {seeds_in(rows)}, which differ "
        f"by at most {points((cells['high'] - cells['low']).max())})."
    )
    verdict = "holds" if clear.all() else "partly" if some.any() else "fails"
    change = f"the threshold: blocks are called clear from {CLEAR:.0%} on. {beside}".strip()
    return Verdict(verdict, text, change, clear=int(clear.sum()), combinations=len(clear))


def table3(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that words attend to words of their topic more than to words of other topics."""
    trials = run.trials
    trained = trials.loc[trains_both(trials) & (trials["status"] == "ok").to_numpy()]
    names = ("final_attn_same_topic", "final_attn_diff_topic")
    if trained.empty or not {*names} <= {*trained}:
        return Verdict("undecided", "No trial trains W^V and attention together.", "a run of joint")
    rows = trained.assign(ratio=np.divide(*(column(trained, name) for name in names))).reset_index(drop=True)
    cells = cells_of(rows, "ratio")
    more = (cells["middle"] > 1 + APART).to_numpy()
    none = cells[~more & (np.abs(cells["middle"] - 1) <= APART).to_numpy()]
    text = (
        f"Attention to the same topic is {span(cells['middle'])} times that to other topics; it is more in "
        f"{more.sum()} of {counted(len(cells), 'cell')} of this grid: "
        f"{first_of(cells['text'].tolist(), '; ')}."
    )
    if len(none):
        text += f" In {counted(len(none), 'cell')} attention has not left uniform by more than {APART:.0%}."
    change = f"more steps, where attention is still uniform; more is read as by at least {APART:.0%}."
    return Verdict(in_all(more), text, change, cells=len(cells), more=int(more.sum()))


def figure4(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that training is two-stage, by loss and by norms, for certain settings."""
    cells = both_parts(scores)
    if cells.empty:
        return Verdict("undecided", "No trial trains W^V and attention together.", "a run of two_stage")
    by_loss, by_norm = ((cells[name] == "two-stage").to_numpy() for name in ("class", "class_norm"))
    sure = by_loss & by_norm & (cells["agreement"] == 1).to_numpy()
    late = cells["class"].isin(BUDGET).to_numpy()
    total = counted(len(cells), "cell")
    if by_loss.any():
        text = (
            f"Two-stage by the loss in {by_loss.sum()} of {total} of this grid, with a median Θ of "
            f"{span(cells['theta'][by_loss], '{:.2f}')}: {where(cells, by_loss)}. In {sure.sum()} of them "
            f"the norms agree and so do all seeds."
        )
    else:
        kind, count = cells["class"].value_counts().index[0], cells["class"].value_counts().iloc[0]
        text = f"No cell of this grid is two-stage by the loss; most frequent is {kind} ({count} of {total})."
    if late.any():
        text += (
            f" In {late.sum()} the steps did not suffice to tell "
            f"({', '.join(sorted({*cells['class'][late]}))})."
        )
    verdict = "holds" if sure.any() else "partly" if by_loss.any() else "undecided" if late.all() else "fails"
    change = (
        "the grid, which is ours: the claim is that such settings exist, so their share says nothing. More "
        "steps may turn V-only and unfinished cells into two-stage ones."
    )
    return Verdict(verdict, text, change, cells=len(cells), by_loss=int(by_loss.sum()), sure=int(sure.sum()))


def norms(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that cells which are two-stage by the norms are so by the loss, with topical attention."""
    cells = both_parts(scores)
    cells = cells[(cells["class_norm"] == "two-stage").to_numpy()]
    if cells.empty:
        return Verdict("undecided", "No cell of this run is two-stage by the norms.", "a run of two_stage")
    same = (cells["class"] == "two-stage").to_numpy()
    topical = (cells["topical"] > cells["trials"] / 2).to_numpy()
    text = (
        f"Norms call {counted(len(cells), 'cell')} of this grid two-stage; by the loss {same.sum()} "
        "of them are"
    )
    if (~topical).any():
        text += f", and in {(~topical).sum()} attention never becomes topical: {where(cells, ~topical)}"
    change = (
        f"the definition of topical: scores of same-topic pairs at least {CUTS.topical:g} above those of "
        "other pairs."
    )
    return Verdict(in_all(same & topical), f"{text}.", change, cells=len(cells), same=int(same.sum()))


def rotates(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that W^V still turns in stage 2 while its norm is on a plateau."""
    rows = turns_in_stage2(run, scores)
    if rows.empty:
        why = "No two-stage trial has recorded the rotation of W^V in its stage 2."
        return Verdict("undecided", why, "a run of two_stage")
    flat = rows[(rows["width"] <= PLATEAU).to_numpy()]
    begin = (
        f"In stage 2 (from half of attention's gain on) |W^V| stays within {PLATEAU:.0%} in {len(flat)} of "
        f"{counted(len(rows), 'two-stage trial')}"
    )
    change = (
        f"a two-stage trial whose W^V turns by less than {LEAST_TURN:g} degrees in ten steps, or whose norm "
        f"changes by more than {RADIAL:.2f} of that, while |W^V| stays within {PLATEAU:.0%}."
    )
    if flat.empty:
        return Verdict("undecided", f"{begin}: there is no plateau.", change, plateaus=0, of=len(rows))
    turns = (flat["turn"] >= LEAST_TURN).to_numpy()
    held = turns & (flat["radial"] <= RADIAL * flat["turn"]).to_numpy()
    cells: Any = flat.groupby(cell_settings(flat), dropna=False)["turn"]
    text = (
        f"{begin}. There W^V still turns by {span(cells.median(), '{:.2g}')} degrees in ten steps (medians "
        f"over the seeds of {counted(len(cells), 'cell')}; single trials {span(flat['turn'], '{:.2g}')}); it "
        f"turns by {LEAST_TURN:g} degrees or more in {turns.sum()} of {counted(len(flat), 'trial')}, and at "
        f"nearly constant norm in {held.sum()}: from record to record the norm changes by "
        f"{span(flat['radial'] / flat['turn'], '{:.2g}')} of the turn."
    )
    numbers = dict(plateaus=len(flat), of=len(rows), turn=float(flat["turn"].median()), held=int(held.sum()))
    return Verdict(in_all(held), text, change, **numbers)


def turns_in_stage2(run: Run, scores: pd.DataFrame) -> Frame:
    """Tabulate how W^V turns in stage 2 of the two-stage trials, from the onset of attention to the end.

    width is the relative range of |W^V|, turn the median angle between W^V now and ten steps earlier, and
    radial the median relative change of |W^V| between records, both in degrees.
    """
    run = aligned(run)
    chosen: Frame = scores[(scores["class"] == "two-stage").to_numpy() & trains_both(scores)]
    chosen = chosen[chosen["trial_id"].isin(run.trials.loc[turning(run), "trial_id"]).to_numpy()]
    by_trial = run.trajectories.groupby("trial_id", sort=False)
    rows = []
    for row in chosen.to_dict("records"):
        own: Frame = by_trial.get_group(row["trial_id"])
        own = own[(own["step"] >= row["onset_attention"]).to_numpy()]
        if len(own) < LEAST_RECORDS:
            continue
        norm = column(own, "norm_v")
        angle = 2 * np.arcsin(np.sqrt(np.clip(column(own, "rotation_v"), 0, 1)))
        rows.append(
            {name: row[name] for name in settings_in(chosen)}
            | dict(width=np.ptp(norm) / np.median(norm), turn=np.degrees(np.nanmedian(angle)))
            | dict(radial=np.degrees(np.median(np.abs(np.diff(np.log(norm))))))
        )
    return pd.DataFrame(rows)


def defaults(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that training from a common default init is usually not two-stage."""
    cells = both_parts(scores)
    cells = cells[(cells["init"] == "default").to_numpy() & ~cells["class"].isin(BUDGET).to_numpy()]
    if cells.empty:
        why = "No cell that starts from the default init has learned both parts within its steps."
        return Verdict("undecided", why, "a run of init_law or paper_rates")
    by_norm, by_loss = ((cells[name] == "two-stage").to_numpy() for name in ("class_norm", "class"))
    text = (
        f"Of {counted(len(cells), 'cell')} from the default init that learned both parts, {by_norm.sum()} "
        f"are two-stage by the norms, which is what the figure shows, and {by_loss.sum()} by the loss"
    )
    if by_loss.any():
        text += f" ({where(cells, by_loss)})"
    share = by_norm.mean()
    verdict = "holds" if share < 0.5 and by_loss.mean() < 0.5 else "partly" if share < 0.5 else "fails"
    change = "other rates: 'usually' is read as more than half of the cells of this grid, by either view."
    return Verdict(
        verdict, f"{text}.", change, cells=len(cells), by_norm=int(by_norm.sum()), by_loss=int(by_loss.sum())
    )


def stated_rate(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that training converges at the learning rate that the paper states."""
    ends: Any = endings(run)
    ends = ends.assign(there=np.asarray(is_converged(ends)), held=np.asarray(ends["way"] >= CONVERGED))
    ends = ends[(ends["way"].notna() & (ends["learning_rate"] == 0.01)).to_numpy()]
    if ends.empty:
        return Verdict("undecided", "No trial has the learning rate 0.01.", "a run of paper_rates")
    kinds = ends.groupby(list(MAIN_SETTINGS), sort=True)
    parts = [
        f"{', '.join(map(label, kind))} "
        f"{span(100 * own.groupby(cell_settings(own))['way'].median(), '{:z.0f}')} %"
        for kind, own in kinds
    ]
    held = np.array([own["held"].mean() > 0.5 for _, own in kinds])
    seeds: Any = ends.groupby(cell_settings(ends), dropna=False)["way"]
    text = (
        "Share of the way from uniform predictions to the best loss of uniform attention: "
        f"{'; '.join(parts)} (medians over {seeds_in(ends)}, which differ by at most "
        f"{points((seeds.max() - seeds.min()).max())}; range over settings; above 100 %: attention or "
        f"copying adds to it)."
    )
    change = f"the init and the number of steps, which the paper does not state; converged: {CONVERGED:.0%}."
    return Verdict(in_all(held), text, change, converged=int(held.sum()), combinations=len(held))


def section52(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that W^V alone ends only slightly above joint training."""
    pairs: Frame = joint_gains(run)
    trials = aligned(run).trials
    words = dict(zip(trials["trial_id"], trials["line_uniform"], strict=True))  # loss of uniform words
    pairs = pairs.assign(words=pairs["trial_id"].map(words).astype(float))
    pairs = pairs[(pairs["share"].notna() & pairs["words"].notna()).to_numpy()].reset_index(drop=True)
    if pairs.empty:
        why = "No two trials of this run differ only in whether attention is trained."
        return Verdict("undecided", why, "a run of joint_loss")
    drop = (pairs["words"] - pairs["uniform"]).to_numpy(float)
    stage = (pairs["line_stage1"] - pairs["line_stage2"]).to_numpy(float)
    pairs = pairs.assign(more=100 * pairs["saved"] / drop, all_share=pairs["saved"] / stage).reset_index(
        drop=True
    )
    by_setting: Any = pairs.groupby(pair_settings(pairs), dropna=False)
    cells = by_setting[["more", "share", "all_share"]].median().reset_index()
    apart = (by_setting["more"].max() - by_setting["more"].min()).max() / 100
    held = (cells["more"].abs() <= 100 * SLIGHTLY).to_numpy() & (cells["more"] > -1).to_numpy()
    parts = [
        f"{', '.join(map(label, kind))} {span(own['more'], '{:z.1f}')} % ({span(own['share'], '{:z.1f}')} of "
        f"stage 1 - stage 2; {span(own['all_share'], '{:z.1f}')} by the lines of all documents)"
        for kind, own in cells.groupby(list(MAIN_SETTINGS), sort=True)
    ]
    text = (
        f"Joint training lowers the final loss further by, in % of what W^V alone gains over uniform words: "
        f"{'; '.join(parts)}. Medians over {seeds_in(pairs)}, which differ by at most {points(apart)} of "
        f"what W^V alone gains; range over {counted(len(cells), 'setting')}."
    )
    change = (
        f"the threshold: 'only slightly' is read as at most {SLIGHTLY:.0%}, and ending above W^V alone by "
        "more than 1 % as a failure; trials that still fall."
    )
    return Verdict(in_all(held), text, change, settings=len(cells), slightly=int(held.sum()))


def keys(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check whether the class depends on which positions are keys."""
    return alike(both_parts(scores), ("key_visibility",), "which positions are keys")


def initial_distribution(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check whether the class depends on the distribution of the initial weights."""
    return alike(both_parts(scores), ("init", "init_scale"), "the initial distribution")


def alike(cells: Frame, names: Sequence[str], what: str) -> Verdict:
    """Judge whether cells that differ only in these settings have the same class."""
    others = [name for name in cell_settings(cells) if name not in names]
    number, kinds = distinct(cells, others)
    several = [own for own in (cells[number == place] for place in range(len(kinds))) if len(own) > 1]
    if cells.empty or not several:
        return Verdict("undecided", f"No cells of this run differ only in {what}.", "a sweep that varies it")
    same = np.array([own["class"].nunique() == 1 for own in several])
    different = [own for own, is_same in zip(several, same, strict=True) if not is_same]
    told = varying(cells, others)
    parts = []
    for own in different:
        counts = [
            f"{' '.join(short_text(name, row[name]) for name in varying(own, names))}: {row['class']}"
            for row in own.to_dict("records")
        ]
        parts.append(
            f"{', '.join(short_text(name, own[name].iloc[0]) for name in told)} ({', '.join(counts)})"
        )
    text = f"The class does not depend on {what} in {same.sum()} of {counted(len(same), 'setting')}"
    text += f"; it does with {first_of(parts, '; ')}" if parts else ""
    change = f"{MORE_SEEDS}; classes of cells are by the majority of seeds, and more steps may change some."
    return Verdict(in_all(same), f"{text}.", change, settings=len(same), same=int(same.sum()))


def other_documents(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check where two-stage training survives when one property of the documents changes."""
    y, axes = axes_of(score_cells(scores))
    if len(axes) < 2:
        return Verdict("undecided", "No properties are varied one at a time.", "a run of robustness")
    found = []
    for axis in axes:
        holds = (axis.cells["class"] == "two-stage").to_numpy()
        others = [place for place, value in enumerate(axis.values) if value != axis.usual]
        found += [bool(holds[axis.place == place].any()) for place in others]
    text = (
        f"Two-stage at one {label(y)} at least for {sum(found)} of {counted(len(found), 'change')} of the "
        f"documents. {' '.join(survival(axes, y))}"
    )
    change = "other learning rates and more steps: a rate that is too small for the steps looks like a loss."
    return Verdict(in_all(found), text, change, changes=len(found), survived=sum(found))


def onset_sgd(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check the slope of the onset over ln(1 / init scale) under SGD."""
    fit = with_prediction(onset_fit(onset_times(run)))
    if fit.empty:
        why = "No trials with several init scales fulfil the assumptions of the predicted rate."
        return Verdict("undecided", why, "a run of onset")
    ratio = (fit["slope"] / fit["predicted_steps"]).to_numpy(float)
    error = (fit["slope_se"] / fit["predicted_steps"]).to_numpy(float)
    held = np.abs(ratio - 1) < SLOPE
    names = list(fit)[: list(fit).index("trials")]
    seeds = counted(int(column(fit, "seeds").max()), "seed")
    spread = f"standard errors over {seeds} at most {np.nanmax(error):.2g}, "
    text = (
        f"The slope of learning rate x onset step over ln(1 / init scale) is {span(ratio, '{:.4f}')} times "
        f"the predicted one: at most {100 * np.abs(ratio - 1).max():.2g} % off in "
        f"{counted(len(fit), 'setting')} ({spread if np.isfinite(error).any() else ''}{varied(fit, names)})."
    )
    change = f"a slope off by more than {SLOPE:.0%}: onsets are interpolated between records."
    return Verdict(in_all(held), text, change, worst=float(np.abs(ratio - 1).max()), settings=len(fit))


def onset_adam(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that the onset under Adam does not depend on the init scale."""
    fit: Frame = onset_fit(onset_times(run))
    fit = fit[(fit["optimizer"].isin(FLAT) & fit["slope"].notna() & (fit["onset_time"] > 0)).to_numpy()]
    if fit.empty:
        return Verdict(
            "undecided", "No trials with Adam became topical at several init scales.", "a run of onset"
        )
    change = 100 * np.log(10) * (fit["slope"] / fit["onset_time"]).to_numpy(float)
    names = varying(fit, list(fit)[: list(fit).index("trials")])
    parts = [
        f"{', '.join(short_text(name, row[name]) for name in names)} {value:+.1f} %"
        for row, value in zip(fit.to_dict("records"), change, strict=True)
    ]
    held = np.abs(change) < 100 * PER_DECADE
    text = (
        f"A ten times smaller init scale changes the onset by {span(change, '{:+z.1f}')} % "
        f"({first_of(parts, '; ')}; least squares over {counted(int(column(fit, 'seeds').max()), 'seed')})."
    )
    says = f"an init scale that is not small: a change below {PER_DECADE:.0%} per decade counts as none."
    return Verdict(in_all(held), text, says, largest=float(np.abs(change).max()), settings=len(fit))


def both_parts(scores: pd.DataFrame) -> Frame:
    """Summarise the cells that train both V and attention."""
    chosen = scores.loc[trains_both(scores)]
    return score_cells(chosen) if len(chosen) else chosen


def in_all(held: Any) -> str:
    """Judge a list of cases: holds in all, fails in all, partly otherwise; undecided without any."""
    found = np.asarray(held, bool)
    return "undecided" if not len(found) else "holds" if found.all() else "partly" if found.any() else "fails"


def cells_of(rows: Frame, name: str) -> Frame:
    """Summarise a column over the seeds of each cell: its settings, middle (median), low and high, and text.

    The text names the settings that tell the cells apart, and gives the median and the range over seeds.
    """
    names = telling_apart(rows)
    keys = list(dict.fromkeys([*MAIN_SETTINGS, *names]))
    found = rows.groupby(keys, dropna=False, sort=True)[name]
    cells: Frame = pd.DataFrame(dict(middle=found.median(), low=found.min(), high=found.max())).reset_index()
    texts = []
    for row in cells.to_dict("records"):
        settings = ", ".join(short_text(own, row[own]) for own in names)
        middle, low, high = (written(float(row[own])) for own in ("middle", "low", "high"))
        texts.append(f"{settings} {middle}".strip() + (f" ({low} to {high})" if low != high else ""))
    return cells.assign(text=texts)


def by_cell(rows: Frame, name: str) -> str:
    """Write a column for each cell: its settings, the median and the range over seeds."""
    return first_of(cells_of(rows, name)["text"].tolist())


def varied(rows: Frame, names: Sequence[str]) -> str:
    """Write the settings that vary: numbers as ranges, words as alternatives."""
    texts = []
    for name in varying(rows, names):
        values = sorted({*rows[name]}, key=str)
        is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        ends = span(values) if is_number else ""
        texts.append(setting_text(name, ends) if ends else " or ".join(short_text(name, v) for v in values))
    return ", ".join(texts)


def seeds_in(rows: Frame) -> str:
    """Write the number of seeds."""
    return counted(rows["seed"].nunique(), "seed")


def points(share: float) -> str:
    """Write a difference of shares in percentage points."""
    return f"{100 * share:.{1 if share < 0.1 else 0}f} points"


def span(values: Any, form: str = "") -> str:
    """Write the smallest and the largest number, or one if they look the same."""
    found = np.asarray(values, float)
    found = found[np.isfinite(found)]
    if not len(found):
        return "-"
    low, high = (form.format(end) if form else written(float(end)) for end in (found.min(), found.max()))
    return low if low == high else f"{low} to {high}"


def capital(text: str) -> str:
    """Begin a text with a capital letter, unless it is a symbol."""
    return text[:1].upper() + text[1:]


def claim(name: str, source: str, says: str, check: Callable[..., Verdict], shown_by: str) -> Claim:
    """Make a claim, in the order in which a reader asks."""
    return Claim(name, says, check, source, shown_by)


ABOUT_STAGES = frozenset(  # claims about classes of trials: the caveats of classes belong to them
    ("Figure 4", "Norms", "Section 8.1, defaults", "Keys", "Initial distribution", "Other documents")
)
OURS = "our prediction"
CLAIMS = (
    claim(
        "Lemma 1",
        "Appendix A.1",
        "Under uniform attention and squared loss the optimal W^V form a family given by linear equations; "
        "all its members have the same loss.",
        lemma1,
        "theorem1",
    ),
    claim(
        "Theorem 1",
        "section 4",
        "With uniform attention and W^V = I the optimal embeddings satisfy E = W_E^T W_E: sums over a topic "
        "are larger for its own words than for others by 1 / (1 - (1 - p_c) p_m).",
        theorem1,
        "theorem1",
    ),
    claim(
        "Section 4",
        "section 4, after Remark 3",
        "Embeddings have the pattern of Theorem 1 under both losses, trained alone or with all other parts, "
        "and alone they end only slightly worse.",
        section4,
        "embedding_cases",
    ),
    claim(
        "Theorem 2",
        "section 5.2",
        "Under uniform attention and mild L2 the optimal W^V has uniform blocks, one per topic, with known "
        "entries.",
        theorem2,
        "distances",
    ),
    claim(
        "Theorem 3",
        "section 5.3",
        "With W^V at Theorem 2's optimum the best attention has alpha' = ((v - 1) alpha + beta) / v between "
        "lambda_1 (tau - 1) and lambda_2 T.",
        theorem3,
        "attention_theory",
    ),
    claim(
        "Theorem 3, W^V trained",
        "section 6.1",
        "Theorem 3's conclusion holds not just when W^V is frozen but also when it is trained.",
        theorem3_trained,
        "attention_theory",
    ),
    claim(
        "Assumption 2",
        "section 5.3",
        "Among the optimal attention patterns is one that weighs the same word, the same topic and "
        "everything else, [MASK] too, by three numbers.",
        assumption2,
        "attention_theory",
    ),
    claim(
        "Remark 6",
        "section 5.3, Appendix D.4",
        "Without L2 the optimum of stage 1 is not unique, and the best attention depends on "
        "which one W^V is.",
        remark6,
        "attention_theory",
    ),
    claim(
        "Figure 1",
        "sections 2.1 and 6.1",
        f"With all parts trained W_E^T W_E has a block per topic, for {FOUR}.",
        figure1,
        "figure1",
    ),
    claim(
        "Figure 2",
        "sections 2.2 and 6.1",
        f"Under uniform attention W^V has a block per topic, for {FOUR}.",
        figure2,
        "figure2",
    ),
    claim(
        "Figure 10",
        "section 6.1, Appendix E.1",
        "W^V still has a block per topic when it is trained jointly with W^K and W^Q.",
        figure10,
        "figure2",
    ),
    claim(
        "Table 3",
        "section 6.1, Appendix E.2",
        "When all are trained, words on average attend to words of the same topic more than to words of "
        "different topics.",
        table3,
        "table3",
    ),
    claim(
        "Figure 4",
        "section 5.1",
        "With certain initial weights and learning rates W^V is learned first, with W^K and W^Q close to 0; "
        "these move only when W^V has reached its plateau.",
        figure4,
        "phase_map",
    ),
    claim(
        "Norms",
        "Figure 4, read by norms",
        "The norms of W^V, W^K and W^Q show the two stages.",
        norms,
        "views",
    ),
    claim(
        "Section 8.1, rotation",
        "section 8.1",
        "In stage 2, when the norm of W^V is on a plateau, W^V itself still changes: it locally rotates with "
        "an approximately constant norm.",
        rotates,
        "rotation",
    ),
    claim(
        "Section 8.1, defaults",
        "section 8.1",
        "Training is not usually visibly two-stage with common default hyperparameters.",
        defaults,
        "phase_map",
    ),
    claim(
        "Rate 0.01",
        "captions of Figures 1 and 2",
        "Both losses and both optimizers converge at learning rate 0.01.",
        stated_rate,
        "loss",
    ),
    claim(
        "Section 5.2",
        "section 5.2, Appendix E",
        "The loss of W^V alone under uniform attention is only slightly greater than that of joint training.",
        section52,
        "joint_loss",
    ),
    claim(
        "Keys",
        "eq. 5 against the released code",
        "Whether masked positions are keys does not matter for the stages.",
        keys,
        "phase_map",
    ),
    claim(
        "Initial distribution",
        "the released code's init",
        "Whether initial weights are normal, uniform or a common default does not matter for the stages.",
        initial_distribution,
        "phase_map",
    ),
    claim(
        "Other documents",
        "sections 2.3 and 3.1",
        "The two stages survive other documents: lengths, masking, numbers of topics, shared "
        "or uneven words.",
        other_documents,
        "robustness",
    ),
    claim(
        "Onset law, SGD",
        OURS,
        "Under SGD attention leaves the saddle W^K = W^Q = 0 so that learning rate x onset step grows with "
        "ln(1 / init scale) at the slope eta / ln(1 + eta gamma).",
        onset_sgd,
        "onset",
    ),
    claim(
        "Onset law, Adam",
        OURS,
        "Under Adam the onset does not depend on the init scale, as long as that is small.",
        onset_adam,
        "onset",
    ),
)

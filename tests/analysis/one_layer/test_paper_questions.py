"""Forced stages, first gradients, growing norms, the budget, many topics: numbers known by construction."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.synthetic_runs import STAGE1, STAGE2, STEP, TWO_STAGE, case, make_run, ramp, scored

from topicjax.analysis.one_layer import budget, forced, gradients, many_topics, unbounded
from topicjax.theory.documents import DataModel
from topicjax.theory.margins import margin_direction, norm

UNIT = STAGE1 - STAGE2
SCHEDULES = {
    "joint": dict(value_until=500, attention_until=500),
    "V, then joint from 100": dict(value_until=500, attention_from=100, attention_until=600),
    "V, then K/Q (V frozen)": dict(value_until=500, attention_from=500),
    "in turns": dict(alternate=100),
    "joint, twice the steps": {},
}


def scheduled(name: str, seed: int, gain: float, kept: float, **changed: Any) -> Any:
    """Make a trial that ends `gain` units below stage 1, with this loss of kept words."""
    settings = dict(training="by_part", steps=1000, seed=seed, **SCHEDULES[name]) | changed
    row, frame = case(ramp(0, 100), gain * ramp(400, 600), **settings)
    return row, frame.assign(eval_loss_mask=3.3, eval_loss_kept=kept, eval_loss_random=3.5)


def test_schedules_are_named_and_their_steps_counted() -> None:
    rows = [scheduled(name, 0, 1, 3)[0] for name in SCHEDULES]
    assert forced.schedules(pd.DataFrame(rows)) == list(SCHEDULES)
    steps = [forced.part_steps(row) for row in rows]
    assert steps == [(500, 500), (500, 500), (500, 500), (500, 500), (1000, 1000)]
    assert forced.schedule(case(*TWO_STAGE)[0]) == ""
    assert sorted(SCHEDULES, key=forced.in_order) == list(SCHEDULES)


def test_a_frozen_second_stage_that_never_copies_fails_the_claim_and_turns_hold() -> None:
    jitter = (0.0, 0.02, -0.02)
    cases = [scheduled("joint", seed, 2 + more, 1.0) for seed, more in enumerate(jitter)]
    cases += [scheduled("V, then K/Q (V frozen)", seed, 1.0, 2.5) for seed in range(3)]
    cases += [scheduled("in turns", seed, 2.05, 1.1) for seed in range(3)]
    run, scores = scored(*cases)
    assert forced.is_scheduled(run, scores)
    table = forced.schedule_table(run, scores).set_index("schedule")
    frozen = table.loc["V, then K/Q (V frozen)"]
    assert (frozen["difference"], frozen["apart"]) == pytest.approx((1.0, UNIT))
    assert frozen["difference_se"] == pytest.approx(0.02 / np.sqrt(3))
    assert table["copies"].tolist() == [3, 0, 3]  # ln 10 = 2.30: the topic alone gives no less
    verdict = forced.two_stages_suffice(run, scores)
    counts = dict(elsewhere=1, alike=0, undecided=0, open=0, copying=1)
    assert (verdict.verdict, verdict.numbers) == ("fails", counts)
    assert "keys all +1.00 +- 0.01 (loss 3.2000, joint 3.0000; by copying: 0 and 3 of 3" in verdict.sentence
    assert "account for 75 % of the difference" in verdict.sentence  # 0.1 x (2.5 - 1.0) / 0.2
    assert "a_topic -50 +- 1 %" in verdict.sentence and "v_block" not in verdict.sentence
    assert forced.turns_end_alike(run, scores).verdict == "holds"  # -0.05 +- 0.01
    forced.schedule_figure(run, scores).close()


def of_kind(name: str, gains: tuple[float, ...], kept: float = 2.5, **changed: Any) -> list[Any]:
    """Make a trial per seed, of one kind and schedule."""
    return [scheduled(name, seed, gain, kept, **changed) for seed, gain in enumerate(gains)]


SAME, NOISY, APART, EARLY = (1.0, 1.01, 0.99), (0.4, 1.9, 0.7), (1.5, 1.51, 1.49), (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("ends", "verdict", "counts"),  # counts: elsewhere, alike, undecided, without stage 2
    [
        ([SAME], "holds", (0, 1, 0, 0)),
        ([NOISY], "undecided", (0, 0, 1, 0)),  # -0.03 +- 0.46: large, if it is there
        ([SAME, NOISY], "undecided", (0, 1, 1, 0)),
        ([APART], "fails", (1, 0, 0, 0)),
        ([APART, SAME], "partly", (1, 1, 0, 0)),
        ([APART, NOISY], "partly", (1, 0, 1, 0)),
        ([SAME, EARLY], "holds", (0, 1, 0, 1)),
    ],
)
def test_a_kind_ends_alike_only_if_the_difference_is_known_to_be_small(ends, verdict, counts) -> None:
    """Joint training ends 1 unit below stage 1, without noise; differences are in these units."""
    cases = []
    for place, gains in enumerate(ends):
        kind = dict(
            zip(("objective", "key_visibility"), (("cross_entropy", "squared")[place], "all"), strict=True)
        )
        joint = (1.0,) * 3 if gains != EARLY else EARLY
        cases += of_kind("joint", joint, **kind) + of_kind("V, then K/Q (V frozen)", gains, **kind)
    found = forced.two_stages_suffice(*scored(*cases))
    assert found.verdict == verdict, found.sentence
    assert tuple(found.numbers[name] for name in ("elsewhere", "alike", "undecided", "open")) == counts
    assert found.numbers["copying"] == 0 and ("not by copying" in found.sentence) == (counts[0] > 0)


def test_a_single_seed_decides_nothing_unless_it_copies() -> None:
    cases = of_kind("joint", (1.0,)) + of_kind("V, then K/Q (V frozen)", (1.5,))
    assert forced.two_stages_suffice(*scored(*cases)).verdict == "undecided"
    copies = of_kind("V, then K/Q (V frozen)", (1.0,), kept=1.0)
    assert forced.two_stages_suffice(*scored(*cases[:1], *copies)).verdict == "fails"


def test_order_parameters_that_differ_are_said_also_where_the_losses_agree() -> None:
    cases = of_kind("joint", SAME)
    for row, frame in of_kind("in turns", SAME):
        cases.append((row, frame.assign(norm_v=1.5 * frame["norm_v"], norm_k=1.1 * frame["norm_k"])))
    found = forced.turns_end_alike(*scored(*cases))
    assert found.verdict == "holds" and "keys all +0.00 +- 0.00 (|W^V| +50 +- 0 %)." in found.sentence


def test_each_delay_is_compared_with_joint_training() -> None:
    cases = of_kind("joint", (1.0,) * 3) + of_kind("V, then joint from 100", SAME)
    assert forced.delays_end_alike(*scored(*cases)).verdict == "holds"
    later = dict(value_until=500, attention_from=400, attention_until=900)
    cases += of_kind("V, then joint from 100", APART, **later)
    found = forced.delays_end_alike(*scored(*cases))
    assert found.verdict == "partly" and "from step 400 -0.50 +- 0.01" in found.sentence
    assert "Alike: cross-entropy, Adam, keys all, from step 100 " in found.sentence


def test_schedules_without_stage_2_decide_nothing() -> None:
    cases = [
        scheduled(name, seed, 0.0, 3.0) for name in ("joint", "V, then K/Q (V frozen)") for seed in (0, 1)
    ]
    verdict = forced.two_stages_suffice(*scored(*cases))
    assert verdict.verdict == "undecided" and "no gain by attention yet" in verdict.sentence


def test_gradient_ratios_scale_as_they_were_made() -> None:
    cases = []
    for scale in (1e-4, 1e-3, 1e-2, 1.0, 10.0):
        row, frame = case(*TWO_STAGE, init_scale=scale)
        cases.append((row, frame.assign(grad_norm_v=2.0, grad_norm_k=scale**2, grad_norm_q=scale**2 / 2)))
    run, scores = scored(*cases, cases[0])
    fits = gradients.scaling(gradients.first_gradients(run))
    assert fits["power"].tolist() == pytest.approx([2, 2]) and fits["models"].tolist() == [3, 3]
    assert fits["constant"].tolist() == pytest.approx([2, 4])
    verdict = gradients.gradients_differ(run, scores)
    assert (verdict.verdict, verdict.numbers["smallest"]) == ("partly", pytest.approx(2e4))
    assert "explains one factor 1 / scale of it; the other comes from W^V near 0" in verdict.sentence
    assert "From a scale of 10 on the order is reversed" in verdict.sentence
    gradients.gradient_ratios(run, scores).close()


def test_a_small_start_with_a_larger_gradient_of_keys_breaks_the_claim() -> None:
    cases = []
    for scale, keys in ((1e-4, 1.0), (1e-3, 1e3), (1e-2, 1.0)):
        row, frame = case(*TWO_STAGE, init_scale=scale)
        cases.append((row, frame.assign(grad_norm_v=2.0, grad_norm_k=keys, grad_norm_q=1.0)))
    assert gradients.gradients_differ(*scored(*cases)).verdict == "partly"
    smaller = [(row, frame.assign(grad_norm_k=1e3)) for row, frame in cases]
    assert gradients.gradients_differ(*scored(*smaller)).verdict == "fails"


def test_the_papers_reason_is_enough_for_a_ratio_like_1_over_scale() -> None:
    cases = []
    for scale in (1e-4, 1e-3, 1e-2):
        row, frame = case(*TWO_STAGE, init_scale=scale)
        cases.append((row, frame.assign(grad_norm_v=2.0, grad_norm_k=scale, grad_norm_q=scale)))
    found = gradients.gradients_differ(*scored(*cases))
    assert found.verdict == "holds" and "gives p = 1 and explains it" in found.sentence
    large = [
        (row | dict(init_scale=scale), frame) for (row, frame), scale in zip(cases, (1e-4, 1, 2), strict=True)
    ]
    assert gradients.gradients_differ(*scored(*large)).verdict == "undecided", (
        "a power needs two small scales"
    )


def growing(norms: np.ndarray, **changed: Any) -> Any:
    """Make a trial of W^V alone on infinite documents with these norms."""
    known = dict(documents="tau", infinite_documents=True, attention="uniform", topics=3, words_per_topic=2)
    row, frame = case(1.0, 0.0, **known | changed)
    return row, frame.assign(norm_v=norms)


def test_norms_that_grow_like_the_logarithm_are_told_from_those_that_settle() -> None:
    data = DataModel(topics=3, words_per_topic=2, documents="tau", infinite_documents=True)
    rate = norm(data, margin_direction(data))
    free = growing(40 + rate * np.log(np.maximum(STEP, 1)))
    held = [growing(5 - np.exp(-STEP / 50), l2=1e-3), growing(np.full(len(STEP), 3.0), objective="squared")]
    run, scores = scored(free, *held)
    assert unbounded.has_penalties(run, scores)
    table = unbounded.growth(run)
    assert table["kind"].tolist() == ["grows", "settles", "settles"]
    assert table["per_efold"][0] == pytest.approx(table["predicted_rate"][0]) == pytest.approx(rate)
    verdict = unbounded.norms_have_no_bound(run, scores)
    assert verdict.verdict == "holds" and "is 1.000 to 1.000 of the predicted" in verdict.sentence
    unbounded.growth_figure(run, scores).close()
    bounded = growing(5 - np.exp(-STEP / 50))
    falling = growing(1 + 3 * np.exp(-STEP / 200))
    assert unbounded.growth(scored(falling, *held)[0])["kind"][0] == "in between"
    for other in (bounded, falling):
        assert unbounded.norms_have_no_bound(*scored(other, *held)).verdict == "fails"


def test_the_edge_is_a_budget_if_learning_rate_times_onset_is_constant() -> None:
    cases = []
    for rate, onset in ((1.0, 800), (2.0, 400), (4.0, 200)):
        attention = ramp(onset, onset + 100)
        cases.append(case(ramp(0, 50), attention, optimizer="sgd", learning_rate=rate, steps=1000))
    run, scores = scored(*cases)
    assert budget.has_edge(run, scores)
    (row,) = budget.edge_table(run, scores).to_dict("records")
    assert row["onset_time"] == pytest.approx(800, rel=0.05) and row["spread"] < 0.1
    verdict = budget.edge_is_a_budget(run, scores)
    assert (verdict.verdict, verdict.numbers["waiting"], verdict.numbers["turned"]) == ("holds", 1, 1)
    budget.edge_figure(run, scores).close()
    late = case(ramp(0, 50), ramp(800, 900), optimizer="sgd", learning_rate=4.0, steps=1000)
    assert budget.edge_is_a_budget(*scored(*cases[:2], late)).verdict == "partly"


def edge_case(rate: float, product: float, end: int = 1000, **changed: Any) -> Any:
    """Make an SGD trial whose attention becomes topical at about this learning rate x step."""
    attention = ramp(product / rate, 1.2 * product / rate)
    return case(ramp(0, 50), attention, optimizer="sgd", learning_rate=rate, steps=end, **changed)


@pytest.mark.parametrize(
    ("products", "verdict", "turned"),
    [
        ((800, 800, 800), "holds", 2),
        ((400, 400, 400), "undecided", 0),  # all are two-stage in the first half of the steps
        ((800, 1000, 800), "partly", 2),  # 20 % apart
        ((400, 500, 400), "fails", 0),
    ],
)
def test_the_edge_needs_a_constant_product_and_trials_that_cross_it(products, verdict, turned) -> None:
    cases = [edge_case(rate, own) for rate, own in zip((1.0, 1.4, 2.0), products, strict=True)]
    found = budget.edge_is_a_budget(*scored(*cases))
    assert (found.verdict, found.numbers["turned"]) == (verdict, turned), found.sentence
    assert ("The edge at fixed steps is a line" in found.sentence) == (verdict in ("holds", "undecided"))


def test_the_edge_says_how_far_seeds_differ() -> None:
    cases = [edge_case(rate, 800 + 80 * seed, seed=seed) for rate in (1.0, 2.0, 4.0) for seed in (0, 1)]
    (row,) = budget.edge_table(scored(*cases)[0], pd.DataFrame()).to_dict("records")
    assert row["over_seeds"] == pytest.approx(80 / 840, rel=0.1)
    assert (
        "medians over 2 seeds, which differ by at most 9" in budget.edge_is_a_budget(*scored(*cases)).sentence
    )


def test_many_topics_are_compared_with_the_exact_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ((10, 3), (20, 4), (40, 6))
    known = dict(
        documents="tau", infinite_documents=True, objective="squared", value="blocks", words_per_topic=6
    )
    rows = [
        case(*TWO_STAGE, topics=topics, topics_per_document=tau, seed=seed, **known)[0]
        | dict(trial_id=f"{topics}-{seed}", snapshot_steps=(100,))
        for topics, tau in sizes
        for seed in (0, 1)
    ]
    best = {10: 7.54, 20: 12.19, 40: 21.11}  # found by best_symmetric_attention
    monkeypatch.setattr(many_topics, "optimum", lambda data: (best[data.topics], best[data.topics] - 0.3))

    factor = dict.fromkeys(best, 1.0)

    def weights(trial_id: str) -> dict[str, np.ndarray]:
        """Make scores that give alpha = beta = the best times a factor and 1 +- 0.01."""
        topics, seed = map(int, trial_id.split("-"))
        topic = np.arange(6 * topics) // 6
        score = np.zeros((6 * topics + 1,) * 2)
        weight = factor[topics] * best[topics] * (1.01 - 0.02 * seed)
        score[1:, 1:] = np.log(weight) * (topic[:, None] == topic)
        width = len(score)
        return dict(W_K=np.eye(width), W_Q=score * width**0.5, W_V=score, b_pred=np.zeros(width))

    run = make_run(pd.DataFrame(rows))
    monkeypatch.setattr(type(run), "restore", lambda self, trial_id: weights(trial_id))
    assert many_topics.has_limit(run, pd.DataFrame())
    table = many_topics.limit_table(run, pd.DataFrame())
    assert table["trained"].tolist() == pytest.approx(list(best.values()))
    assert table["trained_max"].tolist() == pytest.approx([1.01 * each for each in best.values()])
    assert table["limit"].tolist() == pytest.approx([tau / 0.135 for _, tau in sizes])
    verdict = many_topics.limit_is_approached(run, pd.DataFrame())
    assert verdict.verdict == "holds" and verdict.numbers["far"] == pytest.approx(0.9926, abs=1e-3)
    many_topics.limit_figure(run, pd.DataFrame()).close()
    steps = np.arange(0, 101, 5)

    def verdict_of(pace: float, **factors: float) -> str:
        """Judge a run whose alpha' are these times the best, and which still move at this pace at the end."""
        factor.update({int(name[1:]): value for name, value in factors.items()})
        frames = [
            pd.DataFrame(dict(trial_id=row["trial_id"], step=steps, a_topic=pace * steps / 25))
            for row in rows
        ]
        again = make_run(pd.DataFrame(rows), pd.concat(frames, ignore_index=True))
        return many_topics.limit_is_approached(again, pd.DataFrame()).verdict

    assert verdict_of(0.0) == "holds"
    assert verdict_of(0.0, T40=0.8) == "partly"
    assert verdict_of(0.1, T40=0.8) == "undecided"  # ln 0.8 = -0.22: not far if it goes on
    assert verdict_of(0.01, T10=0.8, T20=0.8) == "fails"
    factor.update(dict.fromkeys(best, 1.0))
    monkeypatch.setattr(many_topics, "theorem3_interval", lambda data: (0.1, 0.9 * best[data.topics]))
    assert verdict_of(0.1) == "fails"  # at the best attention, but outside the interval


def test_claims_about_other_runs_are_undecided() -> None:
    run, scores = scored(case(*TWO_STAGE, snapshot_steps=()))
    checks = (forced.two_stages_suffice, gradients.gradients_differ, unbounded.norms_have_no_bound)
    for check in (*checks, many_topics.limit_is_approached, budget.edge_is_a_budget):
        assert check(run, scores).verdict == "undecided"

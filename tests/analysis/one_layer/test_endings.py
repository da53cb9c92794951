"""Where trainings end, and what is varied alone: numbers known by construction."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from support.synthetic_runs import INITIAL, STAGE1, STAGE2, STEP, TWO_STAGE, case, ramp, run_of, scored

from topicjax.analysis.one_layer.endings import COLOURS, endings, joint_gains, joint_losses
from topicjax.analysis.one_layer.page import has_pairs, varies_alone
from topicjax.analysis.one_layer.robustness import robustness
from topicjax.analysis.one_layer.single_axes import single_axes
from topicjax.analysis.one_layer.tables import HEADERS, convergence, final_losses, joint_against_uniform
from topicjax.analysis.tables import to_text
from topicjax.analysis.topic_model import CLASS_COLOURS
from topicjax.errors import UserError

UNIT = STAGE1 - STAGE2
LATE = 0.9 * STEP[-1] < STEP  # the last tenth of the steps
ONE = dict(line_uniform_se=0.0, line_bayes_se=0.0, line_bayes=2.9)


def pair(gain: float, seed: int, **changed: Any) -> list:
    """Return a joint trial that ends so many units below stage 1, and one of uniform attention there."""
    joint = case(ramp(0, 100), gain * ramp(400, 600), seed=seed, lines=ONE, **changed)
    return [joint, case(ramp(0, 100), 0.0, seed=seed, attention="uniform", lines=ONE, **changed)]


def test_the_loss_at_the_end_is_the_mean_over_the_last_tenth_and_falls_from_the_tenth_before() -> None:
    P = 1 - 0.5 * (STEP < 850) + 0.25 * LATE  # 0.5, then 1, then 1.25 of the way
    known = dict(line_uniform=4.8)
    short = case(np.full(2, 1.0), 0.0, STEP[:2], lines=known)
    ends = endings(run_of(case(P, 0.0, lines=known), case(P, 0.0, status="diverged"), short, case(P, 0.0)))
    before = P[(STEP > 800) & (STEP <= 900)].mean()  # the tenth before, by hand
    end = INITIAL - (INITIAL - STAGE1) * 1.25
    assert ends["loss"][0] == pytest.approx(end)
    assert ends["way"][0] == pytest.approx((4.8 - end) / (4.8 - STAGE1))
    assert ends["falls"][0] == pytest.approx((INITIAL - STAGE1) * (1.25 - before) / (4.8 - STAGE1))
    assert ends.loc[1, ["loss", "way", "falls", "gain"]].isna().all()
    assert ends["falls"][2] == 0  # two records: nothing was before
    start = INITIAL - (INITIAL - STAGE1) * 0.5  # without a uniform line, L(0)
    assert ends["way"][3] == pytest.approx((start - end) / (start - STAGE1))


def test_joint_training_is_compared_with_uniform_attention_of_the_same_seed_and_settings() -> None:
    cases = [*pair(0.5, 0), *pair(1.5, 1), *pair(2.0, 0, learning_rate=1.0)]
    cases.append(case(*TWO_STAGE, seed=9))  # no partner
    pairs = joint_gains(run_of(*cases)).sort_values(["learning_rate", "seed"])
    assert pairs["share"].tolist() == pytest.approx([0.5, 1.5, 2.0])
    assert pairs["saved"].tolist() == pytest.approx([0.5 * UNIT, 1.5 * UNIT, 2 * UNIT])
    assert pairs["uniform"].tolist() == pytest.approx([STAGE1] * 3)


def test_the_table_has_medians_and_quartiles_over_seeds() -> None:
    cases = [each for seed, gain in enumerate((0.0, 1.0, 4.0)) for each in pair(gain, seed)]
    run, scores = scored(*cases)
    assert has_pairs(run, scores)
    (row,) = joint_against_uniform(run, scores).to_dict("records")
    assert [row[f"share{end}"] for end in ("", "_q25", "_q75")] == pytest.approx([1.0, 0.5, 2.5])
    assert (row["n"], row["line_stage1"], row["line_bayes"]) == (3, STAGE1, 2.9)
    text = to_text(joint_against_uniform(run, scores), HEADERS).iloc[0]
    assert text["in units of stage 1 - stage 2"] == "1.0000 (0.5000 to 2.5000)"


def test_joint_losses_are_drawn_at_their_medians() -> None:
    run, scores = scored(*(each for seed, gain in enumerate((0.0, 1.0, 4.0)) for each in pair(gain, seed)))
    picture = joint_losses(run, scores)
    (ax,) = picture.figure.axes
    points = {to_hex(line.get_color()): line for line in ax.lines if line.get_marker() in ("o", "D")}
    found = {name: float(points[colour.lower()].get_xdata()[0]) for name, colour in COLOURS.items()}
    assert found == pytest.approx(dict(uniform=STAGE1, joint=STAGE1 - UNIT))
    assert (
        "lower by 0.2000, 1.00 of what topical attention can gain (quartiles 0.50 to 2.50); 3 pairs"
        in picture.caption
    )
    with pytest.raises(UserError, match="no two trials differ only in attention"):
        joint_losses(*scored(case(*TWO_STAGE)))


def test_final_losses_say_who_converged() -> None:
    slow = ramp(0, 4000)  # a quarter of the way, and going on
    run, scores = scored(
        *(case(P, 0.0, learning_rate=rate) for rate, P in ((1.0, ramp(0, 100)), (0.1, slow)))
    )
    table = final_losses(run, scores).set_index("learning_rate")
    assert table["converged"].to_dict() == {1.0: 1, 0.1: 0}
    assert table["way"].to_dict() == pytest.approx({1.0: 1.0, 0.1: slow[LATE].mean()})
    assert table["last_tenth"][0.1] == pytest.approx(0.025)
    assert table["class"].to_dict() == {1.0: "V-only", 0.1: "unfinished"}


def test_convergence_is_counted_by_objective_and_optimizer() -> None:
    fast, slow = ramp(0, 100), ramp(0, 4000)
    kinds = [(fast, "adam"), (fast, "adam"), (slow, "adam"), (slow, "sgd")]
    run = run_of(*(case(P, 0.0, optimizer=name, seed=seed) for seed, (P, name) in enumerate(kinds)))
    (sentence,) = convergence(run)
    assert "cross-entropy, Adam: 2 of 3 trials (median way 100 %)" in sentence
    assert "cross-entropy, SGD: 0 of 1 trial (median way 24 %)" in sentence


def cells_of(*rows: dict[str, Any]) -> pd.DataFrame:
    usual = dict(learning_rate=1.0, alpha=0.1, length_min=100, length_max=150, word_distribution="uniform")
    return pd.DataFrame([usual | row for row in rows])


def test_axes_are_found_around_the_most_frequent_values() -> None:
    alone = [
        dict(alpha=0.5),
        dict(alpha=0.01),
        dict(length_min=10, length_max=20),
        dict(word_distribution="zipf"),
    ]
    rows = [each | dict(learning_rate=rate) for each in ({}, *alone) for rate in (1.0, 2.0)]
    axes = {tuple(axis.settings): axis for axis in single_axes(cells_of(*rows), "learning_rate")}
    assert {name: axis.values for name, axis in axes.items()} == {
        ("alpha",): [(0.01,), (0.1,), (0.5,)],
        ("length_min", "length_max"): [(10, 20), (100, 150)],
        ("word_distribution",): [("uniform",), ("zipf",)],
    }
    assert axes["alpha",].usual == (0.1,)
    assert axes["alpha",].place.tolist() == [1, 1, 2, 2, 0, 0]
    assert len(axes["length_min", "length_max"].cells) == 4


def test_a_grid_is_one_axis_and_a_star_without_its_centre_none() -> None:
    grid = [dict(alpha=a, length_max=n) for a in (0.1, 0.2, 0.3) for n in (150, 200)]
    assert [axis.settings for axis in single_axes(cells_of(*grid), "learning_rate")] == [
        ["alpha", "length_max"]
    ]
    apart = [dict(alpha=0.5, length_max=n) for n in (1, 2)] + [dict(alpha=a, length_max=7) for a in (1, 2, 3)]
    assert not single_axes(cells_of(*apart), "learning_rate")


def test_robustness_draws_a_panel_per_axis_with_the_class_of_most_seeds() -> None:
    kinds = {"two": TWO_STAGE, "v": (ramp(0, 100), 0.0)}
    plan = [({}, "two two two"), (dict(alpha=0.05), "two v two"), (dict(overlap=0.3), "v v v")]
    cases = [
        case(*kinds[kind], seed=seed, learning_rate=rate, optimizer="sgd", **changed)
        for changed, found in plan
        for seed, kind in enumerate(found.split())
        for rate in (40.0, 80.0)
    ]
    run, scores = scored(*cases)
    assert varies_alone(run, scores)
    picture = robustness(run, scores)
    alpha, overlap = picture.figure.axes
    assert [ax.get_title() for ax in (alpha, overlap)] == ["alpha", "overlap"]
    assert [tick.get_text() for tick in overlap.get_xticklabels()] == ["0", "0.3"]
    weights = [[tick.get_fontweight() for tick in ax.get_xticklabels()] for ax in (alpha, overlap)]
    assert weights == [["normal", "bold"], ["bold", "normal"]]
    drawn = {
        tuple(np.round(path.vertices[:4].mean(axis=0)).tolist()): to_hex(colour)
        for collection in overlap.collections
        for path, colour in zip(collection.get_paths(), collection.get_facecolor(), strict=False)
    }
    blue, green = (CLASS_COLOURS[name].lower() for name in ("two-stage", "V-only"))
    assert drawn == {(0, 0): blue, (0, 1): blue, (1, 0): green, (1, 1): green}
    assert "two-stage at learning rate 40, 80. It survives at all of them with alpha 0.05." in picture.caption
    assert "At none with overlap 0.3." in picture.caption
    assert "trials disagree in 2 cells" in picture.caption

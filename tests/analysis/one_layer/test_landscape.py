"""The landscape against documents written out token by token; points, borders and captions by hand."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from support.synthetic_runs import make_run

from topicjax.analysis.one_layer import landscape
from topicjax.analysis.one_layer.attention_theory import theorem3
from topicjax.analysis.one_layer.landscape import axis_range, landscapes, points, stand_in
from topicjax.errors import UserError
from topicjax.experiments.one_layer.settings import DEFAULTS
from topicjax.store.reader import Run
from topicjax.theory.documents import DataModel

TAU = dict(documents="tau", infinite_documents=True, topics_per_document=2)


def settings(**changed: Any) -> dict[str, Any]:
    return DEFAULTS | changed


def placed(*rows: tuple[float, float, str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["weight_topic", "weight_self", "class", "objective"])


def written_out(data: DataModel, value: np.ndarray, alpha: float, beta: float) -> float:
    """Mean loss over topic pairs, kinds of query and targets, attention token by token."""
    total = 0.0
    subsets = list(itertools.combinations(range(data.topics), data.topics_per_document))
    for subset in subsets:
        words = np.zeros(data.num_words)
        for topic in subset:
            words[topic * data.words_per_topic : (topic + 1) * data.words_per_topic] = 1
        words /= words.sum()
        keys = data.shown_distribution(words) if data.key_visibility == "all" else np.r_[0, words]
        for query in range(data.num_words + 1):
            weight = np.ones(data.num_words + 1)
            if query:
                start = (query - 1) // data.words_per_topic * data.words_per_topic
                weight[1 + start : 1 + start + data.words_per_topic] = alpha
            weight[query] = beta
            attended = keys * weight / (keys * weight).sum()
            prediction = value @ attended
            error = ((prediction - np.eye(len(weight))) ** 2).sum(axis=1)[1:]  # by target word
            if query:
                chance = data.p_keep * words[query - 1] * np.eye(data.num_words)[query - 1]
                chance = chance + data.p_random / data.num_words * words
            else:
                chance = (1 - data.p_keep - data.p_random) * words
            total += (chance * error).sum()
    return total / len(subsets)


@pytest.mark.parametrize("visibility", ["all", "unmasked"])
def test_the_drawn_loss_is_that_of_written_out_documents(visibility: str):
    given = settings(topics=4, words_per_topic=3, key_visibility=visibility, **TAU)
    documents = stand_in(given)
    mask, other, same = documents.entries
    topic = np.arange(12) // 3
    value = np.zeros((13, 13))
    value[1:, 0] = mask
    value[1:, 1:] = np.where(topic[:, None] == topic[None, :], same, other)
    ax = landscape.Figure().subplots()
    drawn = {}

    def keep(alpha, beta, excess, *_, **__):
        drawn.update(alpha=alpha, beta=beta, excess=excess)

    ax.contourf = keep
    landscape.draw_loss(documents, ax, ((0.5, 20.0), (0.3, 30.0)), None)
    for row, column in ((0, 0), (50, 150), (200, 30)):
        loss = written_out(documents.data, value, drawn["alpha"][column], drawn["beta"][row])
        assert drawn["excess"][row, column] == pytest.approx(loss - documents.least, rel=1e-9)
    assert drawn["excess"].min() < 1e-4  # the minimum lies within
    row, column = np.unravel_index(drawn["excess"].argmin(), drawn["excess"].shape)
    assert (2 * drawn["alpha"][column] + drawn["beta"][row]) / 3 == pytest.approx(documents.average, rel=0.05)


def test_dirichlet_documents_get_the_tau_of_equal_collisions():
    assert stand_in(settings(alpha=0.1)).data.topics_per_document == 2  # 1.1 / 2 = 0.55
    assert stand_in(settings(alpha=0.5)).data.topics_per_document == 4  # 1.5 / 6 = 0.25
    assert stand_in(settings(alpha=0.001)).data.topics_per_document == 2  # nearly one topic
    assert "expected sum of squares 0.25, here 1/4" in stand_in(settings(alpha=0.5)).sentence
    exact = stand_in(settings(**TAU))
    assert exact.data.topics_per_document == 2
    assert exact.sentence.endswith(
        "of 2 topics and W^V frozen to the best for uniform attention, not the trials' own."
    )
    finite = stand_in(settings(**TAU | dict(infinite_documents=False)))
    assert "the trials' documents have 100 to 150 words" in finite.sentence


def test_unknown_landscapes_are_refused():
    for changed in (
        dict(word_distribution="zipf"),
        dict(overlap=0.2),
        dict(topics=1),
        dict(words_per_topic=1),
    ):
        with pytest.raises(UserError, match="two or more disjoint topics"):
            stand_in(settings(**changed))


def test_theorem3_is_drawn_only_under_its_conditions():
    data = DataModel(documents="tau", infinite_documents=True)
    assert theorem3(data) == pytest.approx((0.5773410, 58666.667), rel=1e-6)
    for changed in (
        dict(p_keep=0.2),
        dict(p_mask=0.6),
        dict(words_per_topic=5),
        dict(key_visibility="unmasked"),
    ):
        assert theorem3(landscape.replace(data, **changed)) == ()


def test_every_drawn_line_has_one_alpha_prime():
    documents = stand_in(settings(**TAU))
    ax = landscape.Figure().subplots()
    ax.set(xscale="log", yscale="log", xlim=(0.1, 100), ylim=(0.1, 100))
    landscape.draw_theory(documents, ax)
    lower, _, best, minimum, uniform = ax.lines
    for line, average in (
        (lower, 0.5773410),
        (best, documents.average),
        (minimum, documents.average),
        (uniform, 1),
    ):
        alpha, beta = (np.asarray(values, float) for values in line.get_data())
        assert len(alpha) > 0
        np.testing.assert_allclose((9 * alpha + beta) / 10, average, rtol=1e-6)
    assert minimum.get_ydata() == [1]
    assert ax.get_xlim() == (0.1, 100)


def test_ranges_hold_the_optimum_and_stay_bounded():
    assert axis_range(pd.Series([1.0, 1.0]), 6.0) == (0.2, 30.0)
    assert axis_range(pd.Series([], dtype=float), 6.0) == (0.2, 30.0)
    assert axis_range(pd.Series([50.0, 50.0]), 6.0) == pytest.approx((0.2, 100.0))
    assert axis_range(pd.Series([0.0, np.inf]), 6.0) == (1e-3, 1e5)


def test_captions_count_what_is_drawn_beyond_and_lost():
    rows = [(2.0, 2.0, "two-stage", "squared")] * 98
    rows += [(1.0, 1e9, "simultaneous", "cross_entropy"), (np.nan, np.nan, "diverged", "squared")]
    picture = landscape.landscape(settings(**TAU), placed(*rows))
    assert "Points: 99 trained models" in picture.caption
    assert "within 5 %" not in picture.caption
    assert "The landscape of cross-entropy is different." in picture.caption
    assert "1 point beyond the axes" in picture.caption
    assert "Left out: 1 diverged trial." in picture.caption
    assert len(picture.figure.axes) == 3  # two landscapes and the colour bar
    hidden = landscape.landscape(settings(**TAU | dict(key_visibility="unmasked")), placed(*rows[:3]))
    assert len(hidden.figure.axes) == 2
    still = placed(*[(1.0, 1.04, "V-only", "squared")] * 4, (1.0, 1.06, "V-only", "squared"))
    assert "4 of them lie within 5 %" in landscape.landscape(settings(**TAU), still).caption
    assert "beyond" not in hidden.caption and "diverged" not in hidden.caption


def scored(*rows: dict[str, Any]) -> tuple[Run, pd.DataFrame]:
    """Return a run of these trials, and scores that call all of them two-stage, in another order."""
    trials = pd.DataFrame(rows).assign(trial_id=[f"{number:02d}" for number in range(len(rows))])
    return make_run(trials), trials[["trial_id"]][::-1].assign(**{"class": "two-stage"})


def test_points_are_exponentials_of_score_differences():
    rows = [
        settings() | dict(status="ok", final_a_topic=np.log(3), final_a_self=np.log(5)),
        settings(attention="uniform") | dict(status="ok", final_a_topic=0.0, final_a_self=0.0),
        settings() | dict(status="diverged", final_a_topic=1.0, final_a_self=1.0),
    ]
    found = points(*scored(*rows))
    np.testing.assert_allclose(found["weight_topic"], [3, np.nan])
    np.testing.assert_allclose(found["weight_self"], [15, np.nan])
    assert found["alpha"].tolist() == [0.1, 0.1]  # the Dirichlet setting is another alpha


def test_one_landscape_for_each_data_setting():
    row = dict(status="ok", final_a_topic=0.1, final_a_self=0.0)
    rows = [settings(seed=0) | row, settings(seed=1) | row, settings(key_visibility="unmasked") | row]
    pictures = landscapes(*scored(*rows))
    assert [picture.title.split(" (")[1] for picture in pictures] == ["keys all)", "keys unmasked)"]
    assert "Points: 2 trained models" in pictures[0].caption
    lost = [settings() | row | dict(status="diverged")]
    with pytest.raises(UserError, match="none of 1 trial is finite and trains attention"):
        landscapes(*scored(*lost))
    with pytest.raises(UserError, match="two or more disjoint topics"):
        landscapes(*scored(settings(overlap=0.5) | row))


def test_of_many_data_settings_the_four_with_most_trials_are_drawn_and_the_rest_counted():
    row = dict(status="ok", final_a_topic=0.1, final_a_self=0.0)
    shares = [0.1, 0.15, 0.2, 0.2, 0.25, 0.3, 0.3, 0.3, 0.35]
    rows = [settings(p_keep=share, seed=seed) | row for seed, share in enumerate(shares)]
    pictures = landscapes(*scored(*rows))
    assert [picture.title.split("p keep ")[1] for picture in pictures] == ["0.3)", "0.2)", "0.1)", "0.15)"]
    assert [picture.caption.count("Not drawn: 2 landscapes") for picture in pictures] == [0, 0, 0, 1]


def test_points_have_the_class_of_their_own_trial():
    row = dict(status="ok", final_a_topic=0.1, final_a_self=0.0)
    run, scores = scored(settings() | row, settings(seed=1) | row)
    found = points(run, scores.assign(**{"class": ["V-only", "reversed"]}))
    assert found["class"].tolist() == ["reversed", "V-only"]


def test_of_very_many_models_some_are_drawn_and_all_are_counted():
    rows = [(2.0 + number, 2.0, "two-stage", "squared") for number in range(5000)]
    picture = landscape.landscape(settings(**TAU | dict(key_visibility="unmasked")), placed(*rows))
    drawn = [marks for marks in picture.figure.axes[0].collections if isinstance(marks, PathCollection)]
    assert sum(len(np.asarray(marks.get_offsets())) for marks in drawn) == landscape.MOST_POINTS
    assert "Points: 5,000 trained models" in picture.caption
    assert "Shown: 2,000 of these models, evenly spaced" in picture.caption

"""The sentences of a report are true to the numbers they are made from."""

import pandas as pd
import pytest

from topicjax.analysis.one_layer.findings import definitions, findings
from topicjax.analysis.one_layer.scores import SCORES, VIEWS, classify, suffixes


def scores(rows: list[dict]) -> pd.DataFrame:
    """Trials that learned, with Theta as given in every view unless named, classified for real."""
    base = dict(
        objective="squared", optimizer="sgd", learning_rate=1.0, init_scale=0.1, seed=0, key_visibility="all"
    )
    base |= dict(attention="trained", value="trained", embedding="one-hot", status="ok", flags="")
    base |= dict(excess=-1.0, is_finite=True, max_total=1.0, end_total=1.0, sure_attention=1.0)
    base |= dict(a_topic_end=1.0, max_a_topic=1.0, copies=False)
    for end in VIEWS.values():
        base |= {f"theta{end}": 0.95, f"theta_reversed{end}": 0.0, f"log_lag{end}": 1.0}
        base |= {f"max_v{end}": 1.0, f"max_attention{end}": 1.0}
    frame = pd.DataFrame([base | row for row in rows])
    frame = frame.assign(
        **{f"{name}_any{end}": frame[name + end] for name in SCORES for end in VIEWS.values()}
    )
    frame = frame.assign(**{"class" + end: classify(frame, view) for view, end in VIEWS.items()})
    return frame.assign(suffix=suffixes(frame))


def cells(*agreements: float, trials: int = 3) -> pd.DataFrame:
    return pd.DataFrame(dict(trials=trials, agreement=agreements))


def text(rows: list[dict], *agreements: float, missing=()) -> str:
    return " ".join(findings(scores(rows), cells(*agreements), missing))


def test_the_answer_counts_two_stage_trials_and_what_became_of_them():
    said = text([{}, {}, dict(a_topic_end=0.2), dict(theta=0.5)], 1.0)
    assert said.startswith(
        "2 of 4 trials (50 %) are two-stage in the loss view (median Θ 0.95): V first, then topical "
        "attention. In 1 more trial the second stage is not topical. "
    )
    later = text([{}, dict(end_total=0.3), dict(copies=True), dict(copies=True)], 1.0)
    assert "; of these 1 then lost more than half of it and 2 then turned to copying. By" in later


def test_it_names_where_it_holds_and_where_never():
    rows = [dict(optimizer="adam"), {}, {}, dict(objective="cross_entropy", theta=0.5)]
    said = text(rows, 1.0)
    assert "most often with squared, SGD (2 of 2); squared, Adam (1 of 1)" in said
    assert "never with cross-entropy, SGD." in said


def test_no_two_stage_trial_is_said_plainly():
    said = text([dict(theta=0.5), dict(theta=0.75), dict(theta=0.6)], 1.0)
    assert said.startswith(
        "No trial is two-stage in the loss view; most frequent is simultaneous (2 of 3 trials"
    )
    assert "The largest Θ is 0.75." in said


def test_frozen_attention_cannot_be_two_stage():
    said = text([dict(attention="uniform", theta=float("nan"), theta_norm=float("nan"))], 1.0)
    assert said.startswith("Attention is uniform by construction in every trial, so none can be two-stage")
    assert "norms" not in said


def test_trials_with_a_frozen_part_are_counted_apart():
    said = text([{}, dict(theta=0.5), dict(attention="uniform", theta=float("nan"))], 1.0)
    assert said.startswith("1 of 2 trials (50 %) are two-stage")
    assert "1 more trial with a frozen part: class by construction." in said


def test_views_that_disagree_are_counted():
    rows = [{}, dict(theta=0.5), dict(theta=0.5, a_topic_end=0.2), dict(theta=0.5, theta_norm=0.5)]
    said = text(rows, 1.0)
    assert "3 of 4 trials (75 %) would be two-stage, 2 of them not in the loss view" in said
    assert "1 of them never attend by topic" in said
    assert "Both views give 2 of 4 trials (50 %) the same class." in said


def test_the_budget_is_named():
    rows = [
        dict(max_total=0.5),
        dict(max_attention=0.0, sure_attention=0.0, max_a_topic=0.0),
        dict(flags="censored_attention"),
        dict(flags="attention_incomplete", theta=0.5),
    ]
    said = text(rows, 1.0)
    assert "1 unfinished; 1 V-only (attention has not moved yet); 1 two-stage or led by V with" in said
    assert "More steps" not in text([{}], 1.0)


@pytest.mark.parametrize(
    ("rates", "said"), [((300, 300), "a learning rate of 300"), ((30, 300), "30 to 300")]
)
def test_diverged_trials_are_counted_with_their_rates(rates, said):
    rows = [{}, *(dict(is_finite=False, learning_rate=rate) for rate in rates)]
    assert "2 of 3 trials (67 %) diverged (not finite), with" in text(rows, 1.0)
    assert said in text(rows, 1.0)
    rows = [{}, *(dict(max_total=0.5, excess=0.1, learning_rate=rate) for rate in rates)]
    assert "2 of 3 trials (67 %) collapsed (the loss ended higher), with" in text(rows, 1.0)


def test_all_diverged():
    rows = 2 * [dict(is_finite=False, theta=float("nan"))]
    said = text(rows, 1.0)
    assert said.startswith("No trial is two-stage in the loss view; most frequent is diverged (2 of 2 trials")
    assert "undefined" in said


def test_seeds():
    assert "disagree on the class in 1 of 3 cells (up to 3 seeds per cell)" in text([{}], 1.0, 2 / 3, 1.0)
    assert "Every cell has one seed" in " ".join(findings(scores([{}]), cells(1.0, trials=1)))


def test_cuts_are_a_convention():
    rows = [dict(theta=0.92), dict(theta=0.85), dict(theta=0.97), dict(theta=0.99)]
    assert "Θ ≥ 0.9 is a convention: at 0.8 25 % and at 0.95 25 % of the trials" in text(rows, 1.0)


def test_what_is_missing_ends_the_list():
    said = findings(scores([{}]), cells(1.0), ["3 of 4 trials are finished"])
    assert said[-1] == "Not complete: 3 of 4 trials are finished."


def test_words_are_explained_in_the_order_in_which_they_are_met():
    answer = ["3 of 9 trials are two-stage in the loss view (median Θ 0.95).", "2 V-only with keys all."]
    assert list(definitions(answer)) == [
        *("trial", "two-stage", "loss view", "Θ (Theta)", "V-only", "keys", "cell")
    ]
    assert "V" in definitions(["V first, then attention."])

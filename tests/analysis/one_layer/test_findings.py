"""The sentences of a report are true to the numbers they are made from."""

import re

import pandas as pd
import pytest
from support.synthetic_runs import STAGE1, STAGE2, TWO_STAGE, case, ramp, scored

from topicjax.analysis.one_layer.cells import score_cells
from topicjax.analysis.one_layer.findings import WORDS, documents, findings
from topicjax.analysis.one_layer.scores import CLASSES, SCORES, VIEWS, classify, suffixes
from topicjax.analysis.page import html


def scores(rows: list[dict]) -> pd.DataFrame:
    """Trials that learned, with Theta as given in every view unless named, classified for real."""
    base = dict(
        objective="squared", optimizer="sgd", learning_rate=1.0, init_scale=0.1, seed=0, key_visibility="all"
    )
    base |= dict(attention="trained", value="trained", embedding="one-hot", status="ok", flags="")
    base |= dict(excess=-1.0, is_finite=True, max_total=1.0, end_total=1.0, sure_attention=1.0)
    base |= dict(a_topic_end=1.0, max_a_topic=1.0, copies=False)
    base |= {f"onset_{name}{end}": 1.0 for name in ("v", "attention") for end in VIEWS.values()}
    for end in VIEWS.values():
        base |= {f"theta{end}": 0.95, f"theta_reversed{end}": 0.0, f"log_lag{end}": 1.0}
        base |= {f"max_v{end}": 1.0, f"max_attention{end}": 1.0}
    frame = pd.DataFrame([base | row for row in rows])
    frame = frame.assign(
        **{f"{name}_any{end}": frame[name + end] for name in SCORES for end in VIEWS.values()}
    )
    frame = frame.assign(**{"class" + end: classify(frame, view) for view, end in VIEWS.items()})
    return frame.assign(suffix=suffixes(frame))


def found(rows: list[dict], missing=(), claims=()) -> list[str]:
    """Write the findings of these trials, each of them a cell unless they differ only in the seed."""
    frame = scores(rows)
    return findings(frame, score_cells(frame), missing, claims)


def text(rows: list[dict], **more) -> str:
    return " ".join(found(rows, **more))


def apart(*rows: dict) -> list[dict]:
    """Give each trial its own learning rate."""
    return [dict(learning_rate=1.0 + number) | row for number, row in enumerate(rows)]


def test_the_answer_counts_two_stage_cells_and_what_became_of_them():
    said = text(apart({}, {}, dict(a_topic_end=0.2), dict(theta=0.5)))
    assert said.startswith(
        "Two-stage by the loss (V first, then topical attention) in 2 of 4 cells of this grid, with a "
        "median Θ of 0.95; in 1 more the second stage is not topical. It holds with η 1 to 2 (2 of 4 cells)."
    )
    later = text(apart({}, dict(end_total=0.3), dict(copies=True), dict(copies=True)))
    assert (
        "of 4 cells with two-stage trials: in 1 most trials lose more than half of it again, in 2 most"
        in later
    )


def test_it_names_where_it_holds_with_ranges():
    rows = [dict(optimizer="adam"), {}, dict(learning_rate=2.0), dict(objective="cross_entropy", theta=0.5)]
    said = text([*rows, dict(objective="cross_entropy", optimizer="adam", theta=0.5)])
    assert "It holds with squared, SGD, η 1 to 2 (2 of 2 cells); squared, Adam, η 1 (1 of 1 cell)." in said


def test_no_two_stage_cell_is_said_plainly():
    said = text(apart(dict(theta=0.5), dict(theta=0.75), dict(theta=0.6)))
    assert said.startswith("No cell is two-stage by the loss; most frequent is simultaneous (2 of 3 cells)")
    assert "The largest median Θ is 0.75." in said


def test_frozen_attention_cannot_be_two_stage():
    said = text([dict(attention="uniform", theta=float("nan"), theta_norm=float("nan"))])
    assert said.startswith("Attention is uniform by construction in every trial, so none can be two-stage")
    assert "norms" not in said


def test_cells_with_a_frozen_part_are_counted_apart():
    said = text(apart({}, dict(theta=0.5), dict(attention="uniform", theta=float("nan"))))
    assert said.startswith("Two-stage by the loss (V first, then topical attention) in 1 of 2 cells")
    assert "1 more cell with a frozen part: class by construction." in said


def test_norms_are_mentioned_only_where_they_differ():
    rows = apart({}, dict(theta=0.5), dict(theta=0.5, a_topic_end=0.2), dict(theta=0.5, theta_norm=0.5))
    said = text(rows)
    assert "3 of 4 cells would be two-stage, 2 of them not by the loss; 1 never attend by topic." in said
    assert "norms" not in text(apart({}, {}))


def test_the_budget_is_named():
    rows = apart(dict(max_total=0.5), dict(max_attention=0.0, sure_attention=0.0, max_a_topic=0.0), {})
    assert "More steps could change the class of 2 of 3 cells: 1 unfinished, 1 V-only." in text(rows)
    assert "More steps" not in text([{}])


def test_verdicts_replace_the_answer_and_its_caveats_if_they_are_not_about_stages():
    rows = apart(dict(max_total=0.5), {}, dict(is_finite=False))
    about = text(rows, claims=("Figure 4",))
    assert "More steps" in about and "seed" in about and "of this grid" not in about
    other = found(rows, missing=["3 of 4 trials are finished"], claims=("Theorem 3",))
    assert [sentence.split(" ")[0] for sentence in other] == ["1", "Not"], (
        "what diverged, and what is missing"
    )


def test_held_out_noise_is_told_by_the_lines_of_all_documents():
    """Against the line of all documents this trial is unfinished, against that of its own it is two-stage."""
    near = dict(held_out_stage1=STAGE1, held_out_stage2=STAGE2, line_stage1=2.0, line_stage2=1.8)
    run, scored_trials = scored(case(*TWO_STAGE, lines=near), case(*TWO_STAGE, learning_rate=2.0, lines=near))
    (sentence,) = documents(run, scored_trials)
    assert "2 of 2 cells would be in another class." in sentence
    assert "move by 0.538 in the median and by at most 0.538;" in sentence  # 1 - 1.2 / 2.6
    same = near | dict(line_stage1=STAGE1, line_stage2=STAGE2)
    (sentence,) = documents(*scored(case(*TWO_STAGE, lines=same)))
    assert "none of 1 cell would be in another class." in sentence and "at most 0.000;" in sentence
    partly = case(ramp(0, 400), ramp(200, 600), lines=same | dict(line_stage1=3.1, line_stage2=2.9))
    (sentence,) = documents(*scored(partly))
    assert "at most 0.083;" in sentence  # Θ is 3/4 by its own line and 2/3 by that of all documents
    assert not [*documents(*scored(case(*TWO_STAGE)))]


@pytest.mark.parametrize(
    ("rates", "said"), [((300, 300), "a learning rate of 300"), ((30, 300), "30 to 300")]
)
def test_diverged_trials_are_counted_with_their_rates(rates, said):
    lost = [dict(is_finite=False, learning_rate=rate, seed=seed) for seed, rate in enumerate(rates)]
    cells = 1 + len({*rates})
    assert f"2 trials in {cells - 1} of {cells} cells diverged (not finite), with" in text([{}, *lost])
    assert said in text([{}, *lost])
    lost = [dict(max_total=0.5, excess=0.1, learning_rate=rate, seed=seed) for seed, rate in enumerate(rates)]
    assert f"of {cells} cells collapsed (the loss ended higher), with" in text([{}, *lost])


def test_all_diverged():
    said = text(apart(*2 * [dict(is_finite=False, theta=float("nan"))]))
    assert said.startswith("No cell is two-stage by the loss; most frequent is diverged (2 of 2 cells)")
    assert "undefined" in said


def test_seeds():
    rows = [dict(seed=seed, theta=0.95 if seed else 0.5) for seed in range(3)]
    assert "disagree on the class in 1 of 1 cells (up to 3 seeds per cell)" in text(rows)
    assert "Every cell has one seed" in text([{}])


def test_the_cut_is_a_convention_told_in_cells():
    rows = apart(dict(theta=0.92), dict(theta=0.85), dict(theta=0.97), dict(theta=0.99))
    assert "a convention: 1 with 0.8 instead and 1 with 0.95 instead of 4 cells would be in" in text(rows)
    assert "with 0.8 or 0.95 every cell has the same class" in text(apart(dict(theta=0.97)))


def test_what_is_missing_ends_the_list():
    said = found([{}], missing=["3 of 4 trials are finished"])
    assert said[-1] == "Not complete: 3 of 4 trials are finished."


def test_every_class_and_the_words_of_the_answer_are_explained():
    words = html.Words(WORDS)
    assert all(words.anchor(name) for name in CLASSES if name != "unscored")
    answer = "3 of 9 trials are two-stage in the loss view (median Θ 0.95), 2 V-only with keys all, V first."
    linked = re.findall(r'href="#word-(.*?)"[^>]*>(.*?)<', words.linked(answer))
    assert [text for _, text in linked] == [
        *("trials", "two-stage", "loss view", "Θ", "V-only", "keys all", "V"),
    ]

"""Claims about syntax and topics: where each holds, fails, holds in part, and stays undecided."""

import numpy as np
import pytest
from support.syntax_runs import EARLY, LATE, LINES, NEVER, run_of, trial
from support.synthetic_runs import ramp

from topicjax.analysis.syntax.claims import CLAIMS
from topicjax.analysis.syntax.findings import findings
from topicjax.analysis.syntax.scores import score_syntax, syntax_cells

SYNTAX, TOPICS, TOGETHER, NEITHER = (EARLY, LATE), (LATE, EARLY), (EARLY, EARLY), (NEVER, NEVER)
FIRST = dict(v_class=EARLY, v_topic=EARLY, bias_left_1=LATE, bias_right_1=LATE, content_score=LATE)
AFTER = dict(v_class=LATE, v_topic=LATE, bias_left_1=EARLY, bias_right_1=EARLY, content_score=EARLY)
ALONE = dict.fromkeys(("bias_left_1", "bias_right_1", "content_score"), 0 * EARLY)
IN_STEPS = dict(bias_left_1=ramp(0, 200), bias_right_1=ramp(200, 400))
SLOW = (ramp(0, 1000), ramp(0, 1000))


def judged(name, *trials):
    check = {claim.name: claim.check for claim in CLAIMS}[name]
    run = run_of(*trials)
    return check(run, score_syntax(run))


def cells(*pairs, setting="alpha", heads=({},)):
    """Make trials that differ in one setting only."""
    return [trial(*pair, heads, **{setting: 0.1 * 2**n}) for n, pair in enumerate(pairs)]


@pytest.mark.parametrize(
    ("pairs", "verdicts"),
    [
        ([SYNTAX, (EARLY, NEVER)], ("holds", "fails")),
        ([TOPICS, TOPICS], ("fails", "holds")),
        ([SYNTAX, TOPICS], ("partly", "partly")),
        ([TOGETHER], ("fails", "fails")),
        ([SYNTAX, NEITHER], ("holds", "fails")),  # cells that learn nothing do not count
        ([NEITHER], ("undecided", "undecided")),
    ],
)
def test_which_is_first(pairs, verdicts):
    found = [judged(name, *cells(*pairs)) for name in ("Syntax first", "Topics first")]
    assert tuple(each.verdict for each in found) == verdicts


def test_the_sentence_says_by_how_much_and_how_sensitive_the_count_is():
    near = (ramp(0, 400), ramp(0, 720))  # a factor 1.8
    found = judged("Syntax first", *cells(SYNTAX, near, (EARLY, NEVER)))
    assert found.sentence.startswith("Syntax first in 3 of 3 cells (in 1 of them topics are never half way)")
    assert "3.9 (1.8 to 6) (median and range over 2 cells with both)" in found.sentence
    assert "Instead of the ratio 1.5: 3 at a ratio of 1.25, 2 at a ratio of 2." in found.sentence
    other = judged("Topics first", *cells(TOPICS, (NEVER, EARLY)))
    assert "(in 1 of them syntax is never half way)" in other.sentence


@pytest.mark.parametrize(
    ("name", "pairs", "verdict"),
    [
        ("In parallel", [TOGETHER], "holds"),
        ("In parallel", [SYNTAX], "fails"),
        ("In parallel", [SYNTAX, (ramp(0, 400), ramp(0, 1000))], "partly"),
        ("In parallel", [NEITHER], "undecided"),
        ("Unigram first", [SYNTAX], "holds"),
        ("Unigram first", [(LATE, ramp(0, 20))], "fails"),  # topics are at 10 % at step 2
        ("Unigram first", [SYNTAX, (LATE, ramp(0, 20))], "partly"),
        ("Unigram first", [(0 * EARLY, 0 * EARLY)], "undecided"),
        ("Sudden syntax", [(ramp(400, 600), EARLY)], "holds"),
        ("Sudden syntax", [SLOW], "fails"),
        ("Sudden syntax", [(ramp(400, 600), EARLY), SLOW], "partly"),
        ("Sudden syntax", [(NEVER, EARLY)], "undecided"),
        ("One neighbour", [(0.93 * EARLY, LATE)], "holds"),
        ("One neighbour", [SYNTAX], "fails"),
        ("One neighbour", [(0.93 * EARLY, LATE), SYNTAX], "partly"),
        ("One neighbour", [(0.8 * EARLY, LATE)], "undecided"),
        ("One neighbour", [(0.93 * EARLY, LATE)] + [(0.8 * EARLY, LATE)], "undecided"),  # not in most cells
        ("One neighbour", [(0.93 * EARLY, LATE)] * 2 + [(0.8 * EARLY, LATE)], "holds"),
        ("One neighbour", [SYNTAX] + [(0.8 * EARLY, LATE)], "partly"),
    ],
)
def test_claims_about_one_training_at_a_time(name, pairs, verdict):
    assert judged(name, *cells(*pairs)).verdict == verdict


WAITS = 1 - 0.3 * ramp(300, 400) - 0.2 * ramp(800, 900)
FALLS = 1 - 0.5 * ramp(100, 300)


@pytest.mark.parametrize(
    ("curves", "verdict"),
    [([WAITS], "holds"), ([FALLS], "fails"), ([WAITS, FALLS], "partly"), ([0 * EARLY + 1], "undecided")],
)
def test_level_by_level(curves, verdict):
    lines = LINES | dict(
        held_out_unigram=4.0, held_out_within_1=3.7, held_out_within_2=3.6, held_out_both=3.5
    )
    made = []
    for n, curve in enumerate(curves):
        row, records, details = trial(EARLY, EARLY, alpha=0.1 * 2**n)
        made.append((row, records.assign(eval_loss=4 - ramp(0, 100) + curve), details))
    run = run_of(*made, lines=lines)
    check = {claim.name: claim.check for claim in CLAIMS}["Level by level"]
    found = check(run, score_syntax(run))
    assert found.verdict == verdict
    if verdict == "holds":
        assert "at steps 100 and 400" in found.sentence and "in 1 (step 850)" in found.sentence


@pytest.mark.parametrize(
    ("uniform", "verdict"),
    [([0.5 * EARLY], "holds"), ([0 * EARLY], "fails"), ([0.5 * EARLY, 0 * EARLY], "partly")],
)
def test_v_before_attention(uniform, verdict):
    made = []
    for n, own in enumerate(uniform):
        row, records, details = trial(own + 0.5 * LATE, own + 0.5 * LATE, alpha=0.1 * 2**n)
        changed = dict(eval_topic_uniform=1.0 - 0.6 * own, eval_class_uniform=1.4 - own)
        made.append((row, records.assign(**changed), details))
    for part in ("syntax", "topics"):
        assert judged(f"V before attention, {part}", *made).verdict == verdict
        never = trial(NEVER, NEVER)
        assert judged(f"V before attention, {part}", never).verdict == "undecided"


@pytest.mark.parametrize(
    ("heads", "verdict"),
    [([FIRST], "holds"), ([AFTER], "fails"), ([ALONE], "undecided"), ([FIRST, AFTER], "partly")],
)
def test_v_before_scores(heads, verdict):
    made = [trial(EARLY, EARLY, [own], alpha=0.1 * 2**n) for n, own in enumerate(heads)]
    for part, known in (("syntax", "syntax is"), ("topics", "topics are")):
        found = judged(f"V before scores, {part}", *made)
        assert found.verdict == verdict and known in found.sentence
    unlearned = judged("V before scores, syntax", trial(NEVER, EARLY, heads))
    assert unlearned.verdict == "undecided" and "In no cell syntax is half way" in unlearned.sentence


@pytest.mark.parametrize(
    ("heads", "verdict"),
    [([IN_STEPS], "holds"), ([{}], "fails"), ([IN_STEPS, {}], "partly"), ([ALONE], "undecided")],
)
def test_syntax_in_steps(heads, verdict):
    made = [trial(EARLY, EARLY, [own], alpha=0.1 * 2**n) for n, own in enumerate(heads)]
    assert judged("Syntax in steps", *made).verdict == verdict


def groups(*rows, setting):
    """Make cells whose order changes along a setting, a row for each learning rate."""
    return [
        trial(*pair, learning_rate=0.1 * 2**at, **{setting: 1.0 + n})
        for at, row in enumerate(rows)
        for n, pair in enumerate(row)
    ]


@pytest.mark.parametrize(
    ("name", "setting"), [("Order and language", "alpha"), ("Order and model", "bias_gain")]
)
@pytest.mark.parametrize(
    ("rows", "verdict", "reversed_share"),
    [
        ([(TOPICS, SYNTAX)], "holds", 1.0),
        ([(TOPICS, TOGETHER, SYNTAX), (SYNTAX, SYNTAX, SYNTAX)], "partly", 0.5),
        ([(SYNTAX, TOGETHER)], "fails", 0.0),
        ([(SYNTAX, NEITHER)], "undecided", None),  # nothing to compare with
    ],
)
def test_the_order_depends_on_a_setting_if_it_reverses_with_all_others_equal(
    name, setting, rows, verdict, reversed_share
):
    found = judged(name, *groups(*rows, setting=setting))
    assert found.verdict == verdict
    assert found.numbers.get(f"reversed_by_{setting}") == reversed_share


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([(SYNTAX, SYNTAX), (TOPICS, TOPICS)], "holds"),
        ([(SYNTAX, TOGETHER)], "holds"),
        ([(SYNTAX, TOPICS)], "fails"),
        ([(SYNTAX, TOPICS), (TOPICS, TOPICS)], "partly"),
        ([(SYNTAX, NEITHER)], "undecided"),
    ],
)
def test_what_does_not_matter(rows, verdict):
    made = [
        trial(*pair, alpha=0.1 * 2**at, init_scale=0.1 * 2**n, init=("normal", "default")[n])
        for at, row in enumerate(rows)
        for n, pair in enumerate(row)
    ]
    found = judged("Order and training", *made)
    assert found.verdict == verdict
    if verdict != "undecided":
        assert found.numbers["groups"] == len(rows) and "Init: the order reverses in" in found.sentence


def test_findings_count_cells_by_class_by_setting_and_by_ratio():
    seeds = [
        trial(*SYNTAX, alpha=0.1, seed=0),
        trial(*TOPICS, alpha=0.1, seed=1),
        trial(*SYNTAX, alpha=0.1, seed=2),
    ]
    run = run_of(*seeds, trial(EARLY, NEVER, alpha=1.0), trial(*NEITHER, alpha=3.0))
    scores = score_syntax(run)
    said = " ".join(findings(run, scores, syntax_cells(run, scores), None))
    assert "Of 2 cells that learned: 1 syntax first, 1 syntax only." in said
    assert "2 syntax, 0 topics, 0 together at 1.25; 2 syntax, 0 topics, 0 together at 2." in said
    assert "Cells with syntax first / together / topics first: alpha 0.1 1/0/0, alpha 1 1/0/0." in said
    assert "Cells in which nothing is first: 1 neither." in said
    assert "In 1 cell only one of the two is half way by the last step." in said
    assert "The seeds agree in 0 of 1 cell." in said


def test_a_diverged_trial_decides_nothing():
    nan = np.full(len(EARLY), np.nan)
    assert judged("Syntax first", trial(nan, nan, status="diverged")).verdict == "undecided"

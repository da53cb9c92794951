"""When a trial may end: what is decided while it trains is what its full training would have said."""

import numpy as np
import pytest
from support.stage_cases import CASES
from support.synthetic_runs import STAGE1, STAGE2, STEP, TWO_STAGE, case, line_entry, ramp, run_of, score

from topicjax.analysis.one_layer.scores import score_trials
from topicjax.errors import UserError
from topicjax.experiments.one_layer import decided
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.experiments.one_layer.settings import DEFAULTS, make_trial

SETTINGS = {name: DEFAULTS[name] for name in DEFAULTS}
GROWING = np.exp(np.minimum(STEP, 900) / 60)  # of a saddle: e-folding 60 steps


def held_out_entry():
    """Return limit lines of the default documents and held-out documents."""
    return line_entry(eval_documents=DEFAULTS["eval_documents"])


def saddle(columns) -> np.ndarray:
    """Return scores that have grown exponentially by the time attention begins to change the loss."""
    with np.errstate(invalid="ignore"):
        gain = np.abs(columns["eval_loss_uniform"] - columns["eval_loss"])
    if not (gain > 1e-3).any():
        return np.zeros(len(gain))
    return 0.1 * np.exp((np.minimum(STEP, 900) - STEP[np.argmax(gain > 1e-3)]) / 40)


def stop_of(made, steps: int = 1000, lines=None) -> tuple[int, str]:
    """Return the step at which a synthetic trial ends, and why."""
    settings, frame = made
    own = {name: settings[name] for name in SETTINGS} | dict(steps=steps, record_every=10, until="decided")
    entry = held_out_entry() | dict(stage1=settings["line_stage1"], stage2=settings["line_stage2"])
    references = entry if lines is None else lines
    columns = {name: frame[name].to_numpy() for name in frame}
    columns = {"a_key": saddle(columns)} | columns
    columns = dict.fromkeys(decided.SCORES, np.zeros(len(frame))) | columns | {"loss": columns["eval_loss"]}
    for count in range(EXPERIMENT.decide_every, len(STEP), EXPERIMENT.decide_every):
        records = {name: values[:count] for name, values in columns.items()}
        if why := decided.decided(make_trial(own), records, references):
            return 10 * count, why
    return steps, "steps"


@pytest.mark.parametrize("name", CASES)
def test_no_adversary_is_ended_with_another_class(name):
    """Cut where it was decided, every synthetic trial has the class of its whole training."""
    expected, (settings, frame) = CASES[name]
    if settings["status"] == "diverged" or name in ("got far, ends above the start", "was above the start"):
        pytest.skip("its class is not that of its curves, or they jump")
    step, _ = stop_of((settings, frame))
    cut = run_of((settings, frame[frame["step"] <= step]))
    assert score_trials(cut).iloc[0]["class"] == expected


def test_attention_without_softmax_trains_for_all_steps():
    with pytest.raises(UserError, match="until is 'decided'; allowed: 'steps' when attention_weights is"):
        make_trial(dict(until="decided", attention_weights="scores_only"))


def test_two_stages_end_a_quarter_after_the_gain():
    """Q reaches 1 at step 600: decided at the first question from step 750 on."""
    assert stop_of(case(*TWO_STAGE)) == (800, decided.COMPLETE)


def test_a_gain_of_half_ends_half_as_long_again_after_it():
    """Q passes .5 at about step 500 and stays below 1."""
    made = case(ramp(0, 100), 0.9 * ramp(400, 580))
    assert stop_of(made) == (800, decided.COMPLETE)
    assert stop_of(case(ramp(0, 100), 0.9 * ramp(400, 580), a_topic=0.4))[1] == "steps"  # may become topical


def test_a_theta_near_a_cut_goes_on():
    early = [case(ramp(0, 300), 0.9 * ramp(begin, begin + 300)) for begin in (0, 120, 124)]
    found = score(*early)["theta"].to_numpy()
    assert found[0] < 0.65 and abs(found[1] - 0.7) < 0.02
    assert [stop_of(made)[1] for made in early[:2]] == [decided.COMPLETE, "steps"]


def test_a_plateau_decides_nothing_while_attention_grows():
    """The saddle: the loss is flat from step 100 on, the scores are tiny and grow fast enough to matter."""
    flat = case(ramp(0, 100), 0.0, a_topic=1e-9 * GROWING)
    assert stop_of(flat, steps=3000) == (3000, "steps")
    assert stop_of(flat, steps=1000)[1] == decided.TOO_SLOW  # but not before the end of a short training


def test_attention_that_stands_still_is_too_slow():
    still = case(ramp(0, 100), 0.0, a_topic=3e-3)
    assert stop_of(still, steps=100_000) == (300, decided.TOO_SLOW)
    loud = case(ramp(0, 100), 0.0, a_self=0.7)  # a large start is no growth
    assert stop_of(loud, steps=3000) == (300, decided.TOO_SLOW)


@pytest.mark.parametrize("name", decided.SCORES)
def test_whatever_grows_in_attention_counts(name):
    settings, frame = case(ramp(0, 100), 0.0)
    frame[name] = 1e-6 * GROWING
    assert stop_of((settings, frame), steps=3000) == (3000, "steps")


def test_an_unfinished_value_matrix_keeps_a_trial_going():
    assert stop_of(case(0.85 * ramp(0, 100), 0.0), steps=3000)[1] == "steps"


def test_collapse_is_believed_after_half_of_the_steps():
    made = case(np.where(STEP > 100, -0.2, 0.3), 0)
    assert stop_of(made, steps=3000) == (220, decided.LOST) or stop_of(made)[0] == 300
    back = case(np.where((STEP > 100) & (STEP < 180), -0.2, 0.3), 0)
    assert stop_of(back)[1] == "steps"


def test_what_is_not_finite_has_diverged():
    made = case(np.where(STEP > 500, np.nan, 0.5), 0)
    assert stop_of(made) == (600, decided.DIVERGED)
    assert stop_of(made, lines={}) == (600, decided.DIVERGED)


def test_without_lines_or_with_a_frozen_part_nothing_is_decided():
    assert stop_of(case(*TWO_STAGE), lines={}) == (1000, "steps")
    assert stop_of(case(*TWO_STAGE, attention="uniform")) == (1000, "steps")
    assert stop_of(case(*TWO_STAGE, value="blocks")) == (1000, "steps")


def test_lines_on_the_held_out_documents_come_first():
    """Against a lower stage-2 line the same attention gains half of it, 90 steps later, and never all."""
    entry = held_out_entry() | dict(
        stage1=STAGE1, stage2=STAGE2, held_out_stage1=STAGE1, held_out_stage2=STAGE1 - 1.9 * (STAGE1 - STAGE2)
    )
    assert stop_of(case(*TWO_STAGE), lines=entry) == (900, decided.COMPLETE)

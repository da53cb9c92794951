"""Theorems 1 and 3 and Remark 6 beside trained models: known attention and embeddings, and their figures."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.small_models import SMALL, TOKENS, one_hot_weights, trial
from support.synthetic_runs import make_run

from topicjax.analysis.one_layer import tables
from topicjax.analysis.one_layer.attention_theory import (
    attention_rows,
    attention_theory,
    has_uniform_blocks,
    measured_weights,
    value_text,
    with_exact_loss,
)
from topicjax.analysis.one_layer.embedding_theory import embedding_cases, embedding_rows, theorem1_equations
from topicjax.analysis.one_layer.landscape import stand_in
from topicjax.analysis.one_layer.page import has_attention_theory, has_both_cases, has_embeddings_alone
from topicjax.analysis.one_layer.seed_rows import row_text
from topicjax.analysis.topic_model import LINE_COLUMNS
from topicjax.errors import UserError
from topicjax.experiments.one_layer.settings import MEMBER_SETTINGS
from topicjax.store.reader import Run
from topicjax.theory.documents import DataModel
from topicjax.theory.stage2 import (
    AttentionWeights,
    best_symmetric_attention,
    optimal_attention,
    symmetric_weights,
)
from topicjax.theory.theorems import lemma1_member, theorem2_matrix

FROZEN = dict(
    objective="squared", documents="tau", infinite_documents=True, topics_per_document=2, value="blocks"
)
DATA = DataModel(**SMALL, documents="tau", infinite_documents=True, topics_per_document=2)
BLOCKS = theorem2_matrix(*DATA.sizes_and_masking)
SURVIVAL = 1 - 0.9 * 0.15
ALONE = dict(embedding="trained", value="identity", attention="uniform", objective="squared")
LINES = dict.fromkeys(LINE_COLUMNS, np.nan) | dict(line_uniform=1.0, line_stage1=0.6, line_bayes=0.2)


def attending(value: np.ndarray, weights: AttentionWeights, factor: Any = 1.0) -> dict[str, np.ndarray]:
    """Return one-hot weights whose attention is symmetric; a factor per query must not matter."""
    score_VxV = np.log(symmetric_weights(DATA, weights) * np.reshape(factor, (-1, 1)))  # query x key
    return one_hot_weights(value) | dict(W_K=score_VxV * TOKENS**0.5, W_Q=np.eye(TOKENS))  # S = W_K^T W_Q


def run_of(rows: list[dict[str, Any]], weights: dict[str, dict]) -> Run:
    return make_run(pd.DataFrame(rows), restore=weights.__getitem__)


def test_weights_are_relative_to_the_mean_word_of_another_topic():
    weight = symmetric_weights(DATA, AttentionWeights(3.0, 7.0, 1.5)) * np.arange(1.0, 14.0)[:, None]
    found = measured_weights(weight, 4)
    assert found == pytest.approx(
        dict(weight_average=4.0, weight_topic=3.0, weight_self=7.0, weight_mask=1.5), rel=1e-12
    )
    weight[1, 5:] = [6.0, 10.0, *[0.0] * 6]  # one word: others' mean 2, so all its weights are halved
    weight[1, :5] = [1.5, 7.0, 3.0, 3.0, 3.0]
    assert measured_weights(weight[:, :], 4)["weight_self"] == pytest.approx(7.0)  # a median over words
    assert measured_weights(np.vstack([weight[:1], np.tile(weight[1], (12, 1))]), 4)["weight_mask"] == 0.75


def test_a_model_at_the_best_attention_misses_nothing_and_uniform_attention_all():
    best, least = best_symmetric_attention(DATA, BLOCKS)
    weights = {
        "best": attending(BLOCKS, best, np.arange(1, 14)),
        "uniform": one_hot_weights(BLOCKS),
        "trained": one_hot_weights(BLOCKS),
    }
    rows = [trial(name, **FROZEN) for name in ("best", "uniform")]
    rows += [
        trial("trained", **FROZEN | dict(value="trained")),
        trial("entropy", **FROZEN | dict(objective="x")),
    ]
    found = attention_rows(run_of(rows, weights)).set_index("trial_id")
    assert found.index.tolist() == ["best", "uniform", "trained"]
    assert found["missed"].tolist()[:2] == pytest.approx([0, 1], abs=1e-9)
    assert found["exact_loss"].to_dict() == pytest.approx(
        dict(best=least, uniform=found["uniform_loss"]["uniform"], trained=found["exact_loss"]["uniform"])
    )
    assert found["weight_average"]["best"] == pytest.approx(best.average(4))
    average, assumed = optimal_attention(DATA)
    gain = found["uniform_loss"]["best"] - least
    assert found[["assumed", "assumed_missed"]].loc["best"].tolist() == pytest.approx(
        [average, (assumed - least) / gain]
    )
    assert found.loc["trained", ["missed", "best_average", "assumed"]].isna().all()
    assert found["lower"].isna().all()  # topics of four words are too small for Theorem 3


def test_members_have_their_own_optimum_and_random_ones_none():
    diagonal = lemma1_member(DATA, np.zeros(TOKENS), np.eye(TOKENS) / SURVIVAL)
    best, least = best_symmetric_attention(DATA, diagonal)
    rows = [
        trial("diagonal", **FROZEN, value_shift=1.0, value_own=1.0),
        trial("random", **FROZEN, value_random=0.5),
    ]
    run = run_of(rows, {row["trial_id"]: attending(diagonal, best) for row in rows})
    first, second = attention_rows(run).to_dict("records")
    assert (first["best_topic"], first["best_self"]) == pytest.approx(best[:2])
    assert (first["exact_loss"], first["best_loss"]) == pytest.approx((least, least))
    assert np.isnan([first["assumed"], second["best_average"], second["missed"]]).all()
    assert second["uniform_loss"] == pytest.approx(first["uniform_loss"])  # the same optimum of stage 1
    assert has_uniform_blocks(run.trials).tolist() == [False, False]
    with pytest.raises(UserError, match="known for a value matrix of uniform blocks"):
        stand_in(rows[0])
    shifted = stand_in(trial("", **FROZEN, value_shift=1.0))
    assert shifted.entries[1] == 0 and shifted.average != pytest.approx(stand_in(trial("", **FROZEN)).average)


def test_runs_of_older_versions_have_no_members():
    older = [{name: value for name, value in trial("a", **FROZEN).items() if name not in MEMBER_SETTINGS}]
    run = run_of(older, {"a": one_hot_weights(BLOCKS)})
    assert attention_rows(run)["missed"].tolist() == pytest.approx([1.0])
    assert has_uniform_blocks(run.trials).all()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (dict(), "W^V at Theorem 2"),
        (dict(value="trained"), "W^V trained"),
        (dict(value_shift=1.0, value_own=1.0), "diagonal, u = 0"),
        (dict(value_shift=2.0), "uniform blocks, u times -1"),
        (dict(value_own=0.1), "10% on the diagonal"),
        (dict(value_random=0.3), "blocks + random part 0.3"),
    ],
)
def test_members_are_named(changed: dict[str, Any], text: str):
    assert value_text(trial("", **FROZEN | changed)) == text


def test_labels_of_rows_break_between_settings_only():
    row = dict(documents="tau", infinite_documents=True, key_visibility="all", output_bias="theorem1")
    lines = row_text(row | dict(topics_per_document=2)).replace("\N{NO-BREAK SPACE}", " ").split("\n")
    assert lines == ["tau topics, infinite,", "Theorem 1's bias,", "2 topics"]


def test_the_figure_of_attention_has_a_dot_per_seed_and_says_what_is_missed():
    best, _ = best_symmetric_attention(DATA, BLOCKS)
    rows = [
        trial(f"{tau}{seed}", **FROZEN | dict(seed=seed, topics_per_document=tau))
        for tau in (2, 1)
        for seed in (0, 1)
    ]
    weights = {name: attending(BLOCKS, best) for name in ("10", "11", "20")} | {"21": one_hot_weights(BLOCKS)}
    run = run_of(rows, weights)
    picture = attention_theory(run, pd.DataFrame())
    panel = picture.figure.axes[0]
    assert [text.get_text().replace("\N{NO-BREAK SPACE}", " ") for text in panel.get_yticklabels()] == [
        "1 topic",
        "2 topics",
    ]
    drawn = np.asarray(panel.lines[0].get_xydata())
    averages = [best.average(4)] * 3 + [1.0]
    np.testing.assert_allclose(drawn[np.lexsort(drawn.T)][::-1], np.c_[averages, [0, 0, -1, -1]])
    assert "by at most 1e+02 % of the gain" in picture.caption
    assert has_attention_theory(run, run.trials) and not has_embeddings_alone(run, run.trials)
    table = tables.attention_theory(run, pd.DataFrame())
    assert table["missed"].tolist()[1] == pytest.approx(50) and table["best_average_se"].isna().all()


def embedding(matrix: np.ndarray, **changed: np.ndarray) -> dict[str, np.ndarray]:
    return one_hot_weights(np.eye(TOKENS)) | dict(W_E=matrix) | changed


def test_the_papers_own_example_has_no_residual_and_half_of_it_has_half():
    rows = [
        trial(
            name, **ALONE | LINES, seed=seed, output_bias="theorem1", final_eval_loss=loss, final_e_block=0.0
        )
        for seed, (name, loss) in enumerate({"whole": 0.6, "half": 0.8}.items())
    ]
    rows.append(rows[0] | dict(trial_id="hidden", key_visibility="unmasked"))
    rows.append(rows[0] | dict(trial_id="entropy", objective="cross_entropy"))
    root = np.eye(TOKENS) / SURVIVAL**0.5  # W^E of the end of the paper's appendix B ...
    root[0, 0] = 0  # ... but for [MASK]: with u_0 = 0 its equation (1a) says 0
    run = run_of(rows, {"whole": embedding(root), "half": embedding(root / 2**0.5)})
    found = embedding_rows(run).set_index("trial_id")
    assert found["residual"].to_dict() == pytest.approx(
        dict(whole=0.0, half=0.5, hidden=np.nan, entropy=np.nan), abs=1e-12, nan_ok=True
    )
    assert found["gain"].to_dict() == pytest.approx(dict(whole=1.0, half=0.5, hidden=1.0, entropy=1.0))
    assert found["bayes_gain"].tolist() == pytest.approx([2.0] * 4)
    assert has_embeddings_alone(run, run.trials)
    table = tables.theorem1(run, pd.DataFrame())
    assert sorted(table["residual"].dropna()) == pytest.approx([0.25])
    picture = theorem1_equations(run, pd.DataFrame())
    assert "Finite documents: 0 to 0.5 over 2 trials" in picture.caption.replace("2.2e-16", "0")
    assert f"{1 / SURVIVAL / 4:.3f} if all its words have the same share" in picture.caption


def test_both_cases_are_compared_on_the_same_documents():
    everything = ALONE | dict(value="trained", attention="trained", output_bias="trained", optimizer="sgd")
    rows = [
        trial(
            f"{kind}{seed}",
            **case | LINES,
            seed=seed,
            final_eval_loss=loss + 0.01 * seed,
            final_e_block=block,
        )
        for kind, case, loss, block in (("alone", ALONE, 0.7, 0.1), ("all", everything, 0.5, 0.2))
        for seed in (0, 1, 2)
    ]
    run = run_of(rows, {})
    assert has_both_cases(run, run.trials)
    picture = embedding_cases(run, pd.DataFrame())
    assert "squared 59 % (medians" in picture.caption  # (1 - .71) / (1 - .51)
    assert "The cases also differ in optimizer." in picture.caption
    assert "larger in every trial, by at least 0.1" in picture.caption
    alone = np.asarray(picture.figure.axes[0].lines[0].get_xydata())[:, 0]
    np.testing.assert_allclose(alone, [0.75, 0.725, 0.7])
    assert not has_both_cases(run_of(rows[:3], {}), run.trials)


def test_losses_over_very_many_documents_are_not_summed():
    rows = [trial("a", **FROZEN | dict(topics=30, topics_per_document=tau)) for tau in (2, 5)]
    assert len(with_exact_loss(pd.DataFrame(rows))) == 1

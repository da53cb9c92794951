"""Every column of a record against loops over tokens or over pairs of words."""

import functools
import itertools
from dataclasses import replace
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import reference
from support.one_trial import TINY, as_lane, only_lane

from topicjax.engine import programs as orders
from topicjax.experiments.one_layer import experiment, kernel, model, records
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.experiments.one_layer.settings import AttentionWeights, Hypers, Spec, traced
from topicjax.experiments.shared import bags, lda, threefry
from topicjax.experiments.shared.model import pair_difference, participation
from topicjax.theory.document_settings import Stream as AnyStream
from topicjax.theory.theorems import theorem2_matrix

SPEC = replace(
    TINY,
    shortest=6,
    longest=9,
    batch_size=3,
    eval_documents=5,
    embedding="trained",
    embedding_dim=4,
    attention_dim=3,
    attention_biases="trained",
    output_bias="trained",
    record_every=10,
)
Stream = functools.partial(AnyStream, length_min=6, length_max=9)
STREAM = traced(Stream(seed=4, p_mask=0.4, p_keep=0.3, p_random=0.2, key_visibility="unmasked"))
HYPERS = traced(Hypers(init_scale=0.7, init="normal", objective="squared"))


def record_of(spec: Spec, stream: AnyStream, hypers: Hypers, state: experiment.State) -> records.Record:
    """Return the record of a state before its first step."""

    @jax.jit
    def record(state):
        source, zero = experiment.make_source(spec, stream), jnp.int32(0)
        row = orders.RowState(zero, zero, source, jax.tree.map(lambda leaf: leaf[None], state))
        lane, one_step = as_lane(hypers), jnp.ones(1, jnp.int32)
        _, found = orders.lane_at_a_time(EXPERIMENT, spec, stream, lane, row, one_step, num_windows=1)
        return jax.tree.map(lambda column: column[0], only_lane(found))

    return record(state)


@pytest.fixture(scope="module")
def state() -> experiment.State:
    start = jax.jit(functools.partial(experiment.init, SPEC))(STREAM, HYPERS)
    rng = np.random.default_rng(0)
    params = {
        name: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32)
        for name, leaf in kernel.unpad(SPEC, start.params).items()
    }
    return start._replace(params=kernel.pad(params))


@pytest.fixture(scope="module")
def record(state) -> records.Record:
    return record_of(SPEC, STREAM, HYPERS, state)


@pytest.fixture(scope="module")
def params(state) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf) for name, leaf in kernel.unpad(SPEC, state.params).items()}


@functools.partial(jax.jit, static_argnums=1)
def draw(key: jax.Array, num_documents: int) -> lda.Documents:
    return lda.sample_documents(SPEC, STREAM, lda.topic_words(SPEC, STREAM), threefry.raw(key), num_documents)


def held_out() -> lda.Documents:
    return draw(jax.random.key(lda.EVAL_SEED), 5)


def kind_of_pair(first: int, second: int) -> str:
    if first == second:
        return "own"
    return "same" if (first - 1) // 2 == (second - 1) // 2 else "other"


def pair_mean(matrix: np.ndarray, wanted: str) -> float:
    pairs = itertools.product(range(1, 7), repeat=2)
    return float(np.mean([matrix[i, j] for i, j in pairs if kind_of_pair(i, j) == wanted]))


def scores(params) -> np.ndarray:
    """Query x key scores between token types."""
    K = params["W_K"] @ params["W_E"] + params["b_K"][:, None]
    Q = params["W_Q"] @ params["W_E"] + params["b_Q"][:, None]
    return Q.T @ K / 3**0.5


def test_loss_split_is_the_token_model_on_the_held_out_documents(record, params):
    loss = jax.jit(functools.partial(model.token_loss, SPEC, STREAM, HYPERS.objective))
    assert record.eval_loss == pytest.approx(float(loss(params, held_out())), rel=1e-5)
    uniform = params | {name: 0 * params[name] for name in ("W_K", "W_Q", "b_K", "b_Q")}
    assert record.eval_loss_uniform == pytest.approx(float(loss(uniform, held_out())), rel=1e-5)
    assert record.eval_loss != pytest.approx(float(record.eval_loss_uniform), rel=1e-3)


@pytest.mark.parametrize("kind", get_args(AttentionWeights))
def test_loss_if_every_query_had_the_scores_of_mask(kind, state, params):
    spec = replace(SPEC, attention_weights=kind, mask_query_loss=True)
    source, effective = held_out_bags(), kernel.effective(spec, state.params)
    found = records.mask_query_loss(spec, HYPERS, source, effective)
    given, losses = {name: np.asarray(leaf, np.float64) for name, leaf in params.items()}, []
    for word, shown, masked, present in zip(*map(np.asarray, held_out()), strict=True):
        keys = [n for n in range(len(word)) if present[n] and not masked[n]]
        asked = np.where(masked, 0, shown)  # masked positions are not keys: only their queries change
        outputs = {
            n: reference.predict(given, given["W_E"], asked, keys, n, kind) for n in np.flatnonzero(masked)
        }
        if outputs:
            losses.append(
                np.mean([reference.position_loss(out, word[n], True) for n, out in outputs.items()])
            )
    assert found == pytest.approx(np.mean(losses), rel=1e-4)
    assert np.isnan(records.mask_query_loss(replace(spec, mask_query_loss=False), HYPERS, source, effective))


def held_out_bags() -> records.HeldOut:
    make = functools.partial(bags.from_documents, SPEC, STREAM, held_out())
    return records.HeldOut(make(), make(uniform=True))


def by_kind(params, documents: lda.Documents, hidden_keys: bool, squared: bool) -> dict[str, float]:
    """Average the losses of masked positions by what they show, token by token, in float64."""
    found: dict[str, list[tuple[float, float]]] = {"mask": [], "kept": [], "random": []}
    given = {name: np.asarray(leaf, np.float64) for name, leaf in params.items()}
    for word, shown, masked, present in zip(*map(np.asarray, documents), strict=True):
        keys = [n for n in range(len(word)) if present[n] and not (hidden_keys and masked[n])]
        for query in np.flatnonzero(masked):
            output = reference.predict(given, given["W_E"], shown, keys, query)
            loss = reference.position_loss(output, word[query], squared)
            kind = "mask" if shown[query] == 0 else "kept" if shown[query] == word[query] else "random"
            found[kind].append((loss, 1 / masked.sum()))
    columns = {kind: np.array(losses).T for kind, losses in found.items()}
    return {kind: float(np.average(loss, weights=weight)) for kind, (loss, weight) in columns.items()}


def test_loss_is_split_by_what_a_masked_position_shows(record, params):
    expected = by_kind(params, held_out(), hidden_keys=True, squared=True)
    assert len({f"{loss:.3f}" for loss in expected.values()}) == 3
    for kind, loss in expected.items():
        assert getattr(record, f"eval_loss_{kind}") == pytest.approx(loss, rel=1e-4)


def test_loss_by_kind_of_infinite_documents_is_that_of_long_ones():
    """Assumption 1's queries, each with both kinds of targets, against the expectation written out."""
    spec, W = replace(SPEC, infinite_documents=True, documents="tau", embedding="one_hot"), 6
    rng = np.random.default_rng(1)
    P_BxW = rng.dirichlet(np.ones(W), size=3)
    stream = traced(Stream(p_mask=0.4, p_keep=0.3, p_random=0.2))
    bag = bags.from_distributions(spec, stream, jnp.asarray(P_BxW, jnp.float32))
    S, U = rng.normal(size=(2, 7, 7))
    padded = [jnp.asarray(np.pad(each, (0, 1)), jnp.float32) for each in (S, U)]
    effective = kernel.Effective(padded[0], padded[1], jnp.zeros(8))
    found = kernel.loss_by_kind(effective, bag, jnp.int32(0), jnp.arange(8) < 7)
    summed = {"mask": [0.0, 0.0], "kept": [0.0, 0.0], "random": [0.0, 0.0]}
    for P in P_BxW:
        count = np.r_[0.4 * 0.5, (1 - 0.7 * 0.4) * P + 0.4 * 0.2 / W]
        for query, target in itertools.product(range(7), range(1, 7)):
            weight = count * np.exp(S[query])
            output = weight / weight.sum() @ U
            loss = np.log(np.exp(output).sum()) - output[target]
            kind = "mask" if query == 0 else "kept" if query == target else "random"
            chance = 0.5 * P[target - 1] if query == 0 else 0.2 / W * P[target - 1]
            chance += 0.3 * P[target - 1] if query == target else 0
            summed[kind][0] += chance * loss
            summed[kind][1] += chance
    for kind, (loss, chance) in summed.items():
        assert getattr(found, kind) == pytest.approx(loss / chance, rel=1e-5)
    assert found.total == pytest.approx(sum(loss for loss, _ in summed.values()) / 3, rel=1e-5)


def test_loss_and_gradient_norms_are_those_of_the_next_batch(record, params):
    key = jax.random.fold_in(lda.stream_keys(4).documents, 0)
    batch = draw(key, 3)
    loss, gradient = jax.jit(
        jax.value_and_grad(lambda p: model.token_loss(SPEC, STREAM, HYPERS.objective, p, batch))
    )(params)
    assert record.loss == pytest.approx(float(loss), rel=1e-5)
    for column, name in (("k", "W_K"), ("q", "W_Q"), ("v", "W_V")):
        expected = float(np.linalg.norm(gradient[name]))
        assert getattr(record, f"grad_norm_{column}") == pytest.approx(expected, rel=1e-4)


def test_norms_and_participation_ratios(record, params):
    for column, name in (("k", "W_K"), ("q", "W_Q"), ("v", "W_V"), ("e", "W_E")):
        expected = np.linalg.norm(params[name])
        assert getattr(record, f"norm_{column}") == pytest.approx(expected, rel=1e-5)
        squares = np.linalg.svd(params[name].astype(float), compute_uv=False) ** 2
        expected = squares.sum() ** 2 / (squares**2).sum()
        assert getattr(record, f"rank_{column}") == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("scale", (1e-12, 1.0, 1e9))
def test_a_participation_ratio_counts_directions_whatever_the_scale(scale: float):
    column = np.random.default_rng(0).normal(size=(5, 1))
    ratios = {
        1: column @ column.T,
        3: np.eye(3, 7),
        2.25 / 1.125: np.diag([1, 1]),
        9 / 5: np.diag([2, 1]) ** 0.5,
    }
    for expected, matrix in ratios.items():
        assert participation(jnp.float32(scale * matrix)) == pytest.approx(expected, rel=1e-5)
    assert np.isnan(participation(jnp.zeros((2, 2))))


def loops_over_words(phi_TxW: np.ndarray, S: np.ndarray, J: int) -> dict[str, float]:
    """Score frequent against rare words, and topics by frequency: query by query and key by key, float64."""
    W, half = phi_TxW.shape[1], J // 2
    chance, topic = phi_TxW.mean(axis=0), np.arange(W) // J
    found: dict[str, list[tuple[float, float]]] = {
        "a_frequent": [],
        "a_frequent_other": [],
        "a_topic_weighted": [],
    }
    for query in range(W):
        kept: dict[str, list[tuple[float, float]]] = {}
        for key in set(range(W)) - {query}:
            own = sorted(range(W), key=lambda word: (topic[word] != topic[key], -phi_TxW[topic[key], word]))[
                :J
            ]
            where = "same" if topic[query] == topic[key] else "other"
            kind = "frequent" if key in own[:half] else "rare" if key in own[J - half :] else "middle"
            score = float(S[1 + query, 1 + key])
            kept.setdefault(f"{where} {kind}", []).append((score, 1.0))
            kept.setdefault(where, []).append((score, float(chance[key])))
        mean = {
            kind: np.average(*np.transpose(pairs)[:1], weights=np.transpose(pairs)[1])
            for kind, pairs in kept.items()
        }
        for name, (plus, minus) in {
            "a_frequent": ("same frequent", "same rare"),
            "a_frequent_other": ("other frequent", "other rare"),
            "a_topic_weighted": ("same", "other"),
        }.items():
            if plus in mean and minus in mean:
                weight = chance[query] if name == "a_topic_weighted" else 1.0
                found[name].append((mean[plus] - mean[minus], weight))
    return {
        name: float(np.average(*np.transpose(pairs)[:1], weights=np.transpose(pairs)[1])) if pairs else np.nan
        for name, pairs in found.items()
    }


@pytest.mark.parametrize(
    ("words", "kind", "overlap"),
    [(5, "dirichlet", 0.4), (2, "zipf", 0.0)],
)
def test_scores_by_frequency_are_means_over_pairs_of_words(words: int, kind: Any, overlap: float):
    spec = Spec(topics=3, words_per_topic=words, word_distribution=kind)
    phi_TxW = jax.jit(functools.partial(lda.topic_words, spec))(traced(AnyStream(seed=5, overlap=overlap)))
    V = bags.padded(spec.vocabulary)
    S = np.random.default_rng(words).normal(size=(V, V))
    model_ = kernel.Effective(jnp.float32(S), jnp.zeros((V, V)), jnp.zeros(V))
    measured = jax.jit(functools.partial(records.frequency_differences, spec))
    found = {name: float(value) for name, value in measured(phi_TxW, model_).items()}
    expected = loops_over_words(np.asarray(phi_TxW, float), S, words)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6, nan_ok=True)
    assert np.isnan(expected["a_frequent"]) == (words == 2)  # no two words are on one side
    shifted = model_._replace(score_VxV=model_.score_VxV + 3 * np.arange(V)[:, None])
    same = {name: float(value) for name, value in measured(phi_TxW, shifted).items()}
    assert same == pytest.approx(found, abs=1e-4, nan_ok=True)


def test_uniform_words_are_neither_frequent_nor_rare(record):
    assert np.isnan([record.a_frequent, record.a_frequent_other]).all()
    assert record.a_topic_weighted == pytest.approx(float(record.a_topic), rel=1e-4)


def test_order_parameters_are_means_over_word_pairs(record, params):
    U = params["W_E"].T @ params["W_V"] @ params["W_E"]
    S = scores(params)
    G = params["W_E"].T @ params["W_E"]
    for matrix, block, diagonal in ((U, "v_block", "v_diag"), (S, "a_topic", "a_self")):
        own, same, other = (pair_mean(matrix, wanted) for wanted in ("own", "same", "other"))
        assert getattr(record, block) == pytest.approx(same - other, rel=1e-4)
        assert getattr(record, diagonal) == pytest.approx(own - same, rel=1e-4)
    assert record.e_block == pytest.approx(pair_mean(G, "same") - pair_mean(G, "other"), rel=1e-4)
    assert record.a_mask == pytest.approx(S[0, 1:].mean() - S[0, 0], rel=1e-4)
    assert record.a_key == pytest.approx(S.mean(axis=0).std(), rel=1e-4)
    W = theorem2_matrix(3, 2, 0.4, 0.3, 0.2)
    distance = np.linalg.norm(U - W) / np.linalg.norm(W)
    assert record.theorem2_distance == pytest.approx(distance, rel=1e-4)


def test_attention_between_positions_by_kind_of_pair(record, params):
    """All ordered pairs of different positions that show words and are keys, one by one."""
    S, documents, found = scores(params), held_out(), {"own": [], "same": [], "other": []}
    visible = np.asarray(documents.present_BxN & ~documents.masked_BxN)
    for shown, is_key in zip(np.asarray(documents.shown_BxN), visible, strict=True):
        positions = [n for n in range(9) if is_key[n]]
        for query in positions:
            weights = np.exp([S[shown[query], shown[n]] for n in positions])
            for n, weight in zip(positions, weights / weights.sum(), strict=True):
                if n != query:
                    found[kind_of_pair(shown[query], shown[n])].append(weight)
    assert record.attn_same_word == pytest.approx(np.mean(found["own"]), rel=1e-4)
    assert record.attn_same_topic == pytest.approx(np.mean(found["same"]), rel=1e-4)
    assert record.attn_diff_topic == pytest.approx(np.mean(found["other"]), rel=1e-4)


@pytest.mark.parametrize("kind", get_args(AttentionWeights)[1:])
def test_attention_without_softmax_by_kind_of_pair(kind, state, params):
    """The same for weights that are linear in the scores: shares of S, 1 + S, or that minus the mean."""
    S, found = scores(params), {"own": [], "same": [], "other": []}
    visible = np.asarray(held_out().present_BxN & ~held_out().masked_BxN)
    for shown, is_key in zip(np.asarray(held_out().shown_BxN), visible, strict=True):
        positions = [n for n in range(9) if is_key[n]]
        for query in positions:
            weights = np.array([S[shown[query], shown[n]] for n in positions])
            weights = weights - weights.mean() if kind == "one_plus_centred" else weights
            weights = (weights + (kind != "scores_only")) / len(positions)
            for n, weight in zip(positions, weights, strict=True):
                if n != query:
                    found[kind_of_pair(shown[query], shown[n])].append(weight)
    effective = kernel.effective(replace(SPEC, attention_weights=kind), state.params)
    measured = records.attention_pairs(SPEC, effective, held_out_bags())
    expected = [np.mean(found[pair]) for pair in ("own", "same", "other")]
    assert measured[:3] == pytest.approx(expected, rel=1e-3)


def test_columns_without_meaning_are_nan(record):
    assert np.isnan(record.rotation_v)  # no step ten before step 0
    spec = Spec(topics=2, words_per_topic=1, shortest=9, longest=9, attention="uniform")
    stream, hypers = traced(AnyStream(alpha=9.0, length_min=9, length_max=9)), traced(Hypers())
    start = jax.jit(experiment.init, static_argnums=0)(spec, stream, hypers)
    uniform = record_of(spec, stream, hypers, start)
    empty = {name for name, value in uniform._asdict().items() if np.isnan(value)}
    frozen, one_hot = {"grad_norm_k", "grad_norm_q"}, {"norm_e", "e_block", "e_pair", "rank_e"}
    frozen |= {"rank_k", "rank_q"}  # of zero matrices
    one_word_topics = {"v_block", "v_diag", "v_pair", "attn_same_topic", "attn_partner", "a_topic_weighted"}
    one_word_topics |= {"a_frequent", "a_frequent_other"}  # and uniform words
    by_kind = {"eval_loss_mask", "eval_loss_kept", "eval_loss_random"}  # uniform attention: no word queries
    by_kind |= {"eval_loss_mask_query"}  # not asked for
    assert empty - {"rotation_v"} == frozen | one_hot | one_word_topics | by_kind
    assert uniform.eval_loss == uniform.eval_loss_uniform
    assert uniform.a_topic == uniform.a_key == 0


def test_partners_are_told_from_other_words_of_their_topic(record):
    """Topics of two words have no others, those of an odd number no partners."""
    spec = Spec(topics=2, words_per_topic=4)
    matrix = np.random.default_rng(0).normal(size=(16, 16))
    words = range(1, 9)
    same = [(i, j) for i in words for j in words if i != j and (i - 1) // 4 == (j - 1) // 4]
    partners = [(i, j) for i, j in same if (i - 1) // 2 == (j - 1) // 2]
    others = [pair for pair in same if pair not in partners]
    expected = np.mean([matrix[pair] for pair in partners]) - np.mean([matrix[pair] for pair in others])
    assert pair_difference(spec, jnp.array(matrix)) == pytest.approx(expected, rel=1e-5)
    assert np.isnan(pair_difference(replace(spec, topics=5, words_per_topic=3), jnp.array(matrix)))
    assert np.isnan([record.v_pair, record.a_pair, record.e_pair]).all()
    assert record.attn_partner == record.attn_same_topic


def test_attention_to_partners_is_averaged_over_pairs_of_positions():
    """Topics of four words, position by position."""
    spec, rng = Spec(topics=2, words_per_topic=4), np.random.default_rng(1)
    score_VxV = np.zeros((16, 16))
    score_VxV[:9, :9] = rng.normal(size=(9, 9))
    documents = [rng.integers(0, 9, size) for size in (7, 12, 20)]
    count_BxV = np.stack([np.bincount(document, minlength=16) for document in documents]).astype(float)
    paid = []
    for document in documents:
        for query in document:
            weight = np.exp(score_VxV[query, document])
            partners = (document != query) & ((document - 1) // 2 == (query - 1) // 2)
            paid += list((weight / weight.sum())[partners & (query > 0) & (document > 0)])
    bag = bags.Bag(jnp.array(count_BxV), None, None, None)
    model_ = kernel.Effective(jnp.array(score_VxV), jnp.zeros((16, 16)), jnp.zeros(16))
    *_, partner = records.attention_pairs(spec, model_, records.HeldOut(bag, bag))
    assert partner == pytest.approx(np.mean(paid), rel=1e-5)

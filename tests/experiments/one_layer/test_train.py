"""Training one trial: closed-form steps, frozen parts, lanes, records, and the one run on record."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.one_trial import TINY, Programs, programs

from topicjax.engine import plan
from topicjax.engine import programs as orders
from topicjax.engine.segments import check_room
from topicjax.experiments.one_layer import experiment, kernel, model, records
from topicjax.experiments.one_layer.experiment import EXPERIMENT
from topicjax.experiments.one_layer.settings import TRIALS, Hypers, Spec, traced
from topicjax.experiments.shared import lda, threefry
from topicjax.theory import limits
from topicjax.theory.document_settings import Stream as AnyStream
from topicjax.theory.documents import DataModel
from topicjax.theory.stage1 import uniform_attention_loss
from topicjax.theory.theorems import lemma1_member, lemma1_residual, theorem2_matrix

Stream = functools.partial(AnyStream, length_min=8, length_max=12)
PLAIN, USUAL = Stream(), Hypers()
initial = jax.jit(model.init, static_argnums=0)  # op by op it would be a hundred small programs
FAST = Hypers(learning_rate=0.5, init_scale=0.1)


def run(spec: Spec, stream: AnyStream = PLAIN, hypers: Hypers = USUAL, num_records: int = 3):
    """Return the state and records after num_records windows."""
    stream, hypers = traced(stream), traced(hypers)
    own = compiled(spec, num_records)
    return own.advance(stream, hypers, own.init(stream, hypers))


LANES = 17  # a number that no other axis has


def compiled(spec: Spec, num_records: int = 3, order: str = "lane") -> Programs:
    """Return the programs of a Spec: those of TINY have many lanes, which some tests need."""
    return programs(spec, num_records, order, LANES if spec == TINY else 1)


@jax.jit
def documents_of(stream: AnyStream, step: int) -> lda.Documents:
    keys = lda.stream_keys(stream.seed)
    key = jax.random.fold_in(keys.documents, step)
    phi_TxW = lda.topic_words(TINY, stream)
    return lda.sample_documents(TINY, stream, phi_TxW, threefry.raw(key), TINY.batch_size)


# as many kept and random words as these Streams usually have: a Stream with more of them has no room
ADAM = replace(TINY, optimizer="adam", word_query_probability=0.03)


@pytest.mark.parametrize(
    "optimizer",
    ("adam", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sgd", "momentum", "adamw"))),
)
def test_training_is_the_token_model_under_optax(optimizer):
    """Twelve steps of the model, and of the engine's program, against twelve of the token-space model."""
    spec = TINY if optimizer == "sgd" else replace(ADAM, optimizer=optimizer)
    stream = traced(Stream(seed=5, key_visibility="unmasked"))
    hypers = traced(Hypers(learning_rate=0.1, init_scale=0.3, l2=0.02, weight_decay=0.1, epsilon=1e-3))
    tx = {
        "sgd": optax.sgd(0.1),
        "momentum": optax.sgd(0.1, momentum=0.9),
        "adam": optax.adam(0.1, eps=1e-3),
        "adamw": optax.adamw(0.1, eps=1e-3, weight_decay=0.1),
    }[optimizer]
    params = initial(TINY, stream, hypers, lda.stream_keys(5).weights)
    trained = {name: params[name] for name in model.trained_names(spec)}
    opt_state = tx.init(trained)

    @jax.jit
    def token_step(trained, opt_state, documents):
        def objective(trained):
            loss = model.token_loss(spec, stream, hypers.objective, params | trained, documents)
            return loss + 0.02 * sum((leaf**2).sum() for leaf in trained.values())

        updates, opt_state = tx.update(jax.grad(objective)(trained), opt_state, trained)
        return optax.apply_updates(trained, updates), opt_state

    for step in range(12):
        trained, opt_state = token_step(trained, opt_state, documents_of(stream, step))
    if optimizer == "sgd":
        own = compiled(spec)
        state, records = own.advance(stream, hypers, own.init(stream, hypers))
        token_loss = jax.jit(model.token_loss, static_argnums=0)
        first = token_loss(spec, stream, hypers.objective, params, documents_of(stream, 0))
        np.testing.assert_allclose(records.loss[0], first, rtol=1e-5)  # it leaves the penalty out
    else:  # without records, which take longest to compile
        state = stepped(spec, stream, hypers, 12)
    for name, leaf in kernel.unpad(spec, state.params).items():
        np.testing.assert_allclose(leaf, (params | trained)[name], rtol=1e-3, atol=2e-5)


@functools.partial(jax.jit, static_argnums=(0, 3))
def stepped(spec: Spec, stream: AnyStream, hypers: Hypers, steps: int) -> experiment.State:
    """Train a trial by its own functions alone."""
    source = EXPERIMENT.make_source(spec, stream, ())

    def step(number, state):
        batch = EXPERIMENT.batch(spec, stream, source, number)
        return EXPERIMENT.update(spec, stream, hypers, state, batch, number)[0]

    return jax.lax.fori_loop(0, steps, step, EXPERIMENT.init(spec, stream, hypers))


def test_l2_adds_the_gradient_of_its_penalty():
    """Whether steps use it: test_training_is_the_token_model_under_optax, whose objective has the penalty."""
    params = {"W_V": jnp.array([[1.0, -2.0], [0.0, 3.0]]), "frozen": jnp.ones(2)}
    penalty = jax.grad(lambda W_V: 0.25 * (W_V**2).sum())(params["W_V"])
    found = experiment.add_l2(traced(Hypers(l2=0.25)), params, {"W_V": jnp.full((2, 2), 7.0)})
    assert list(found) == ["W_V"]
    np.testing.assert_allclose(found["W_V"], 7.0 + penalty, rtol=1e-6)


FROZEN = {
    "random-embeddings": (dict(embedding="random", embedding_dim=4), ["W_E"]),
    "uniform-attention": (dict(attention="uniform"), ["W_K", "W_Q"]),
    "identity-value": (dict(value="identity"), ["W_V"]),
    "blocks-value": (dict(value="blocks", output_bias="theorem1"), ["W_V", "b_pred"]),
}


def before_and_after(spec: Spec, hypers: Hypers, steps: int):
    """Return the parameters before and after some steps, without records: the smallest program."""

    @jax.jit
    def train(stream, hypers):
        first, source = experiment.init(spec, stream, hypers), experiment.make_source(spec, stream)

        def step(number, trial):
            batch = EXPERIMENT.batch(spec, stream, source, number)
            return EXPERIMENT.update(spec, stream, hypers, trial, batch, number)[0]

        return first.params, jax.lax.fori_loop(0, steps, step, first).params

    return train(traced(PLAIN), traced(hypers))


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("random-embeddings", "identity-value")))
        for name in FROZEN
    ],
)
def test_frozen_parts_are_bit_identical_after_training(variant):
    settings, frozen = FROZEN[variant]
    documents = dict(documents="tau", infinite_documents=True)  # nothing to draw: half as long to compile
    spec = replace(TINY, optimizer="adamw", **documents, **settings)
    hypers = Hypers(l2=0.1, weight_decay=0.1, init_scale=0.3)
    start, params = before_and_after(spec, hypers, steps=8)
    for name, leaf in params.items():
        same = (np.asarray(leaf) == np.asarray(start[name])).all()
        assert same == (name in frozen or name == "b_pred"), name


def test_frozen_constants_are_the_theorems():
    spec = replace(TINY, value="blocks", output_bias="theorem1")
    stream = traced(Stream(p_mask=0.3, p_keep=0.2, p_random=0.05))
    params = initial(spec, stream, traced(Hypers()), jax.random.key(0))
    np.testing.assert_allclose(params["W_V"], theorem2_matrix(3, 2, 0.3, 0.2, 0.05), rtol=1e-5, atol=1e-7)
    assert params["b_pred"][0] == 0
    np.testing.assert_allclose(params["b_pred"][1:], -0.3 * 0.05 / ((1 - 0.8 * 0.3) * 6), rtol=1e-5)


@pytest.mark.parametrize("member", [(1.0, 0.0, 0.0), (0.0, 0.7, 0.0), (1.0, 1.0, 0.0), (2.0, -0.5, 0.8)])
def test_frozen_values_are_members_of_lemma_1s_family(member):
    masking = dict(p_mask=0.3, p_keep=0.2, p_random=0.05)
    data = DataModel(3, 2, "tau", True, topics_per_document=2, **masking)
    hypers = Hypers(value_shift=member[0], value_own=member[1], value_random=member[2])
    params = initial(
        replace(TINY, value="blocks"), traced(Stream(**masking)), traced(hypers), jax.random.key(0)
    )
    found, theorem2 = np.asarray(params["W_V"], float), theorem2_matrix(3, 2, *masking.values())
    constants = np.r_[0.0, np.full(6, (1 - member[0]) * theorem2[1, -1])]
    given = lemma1_member(data, constants, member[1] / (1 - 0.8 * 0.3) * np.eye(7))
    drawn = found - given
    words = drawn[1:, 1:].reshape(6, 3, 2)
    np.testing.assert_allclose([drawn[0], drawn[:, 0]], 0, atol=1e-6)
    np.testing.assert_allclose(words.sum(axis=2), 0, atol=1e-6)
    assert (np.abs(words).max() > 0.05) == (member[2] > 0)
    assert lemma1_residual(data, found) < 1e-6
    best = uniform_attention_loss(data, theorem2)
    assert uniform_attention_loss(data, found) == pytest.approx(best, abs=1e-6)
    assert uniform_attention_loss(data, found + 0.1 * np.eye(7)) > best + 1e-4


def test_random_members_differ_by_seed_and_by_as_much_as_asked():
    direction = jax.jit(functools.partial(model.lemma1_direction, Spec()))
    given = traced(Stream()), traced(Hypers(value_random=0.5))
    one, other = (np.asarray(direction(*given, jax.random.key(seed))) for seed in (3, 4))
    height = 1 / (1 - 0.9 * 0.15) / 10
    for drawn in (one, other):  # making sums 0 takes one in v = 10 degrees of freedom
        assert drawn[1:, 1:].std() == pytest.approx(0.5 * height * 0.9**0.5, rel=0.03)
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.05


@pytest.mark.parametrize("init", ("normal", "uniform", "default"))
def test_initial_weights_follow_their_law(init):
    spec = replace(TINY, topics=10, words_per_topic=10, attention_biases="trained")
    hypers = traced(Hypers(init=init, init_scale=0.5))
    params = initial(spec, traced(Stream()), hypers, jax.random.key(0))
    W_K = np.asarray(params["W_K"])
    mean, deviation = {
        "normal": (0, 0.5),
        "uniform": (0.25, 0.5 / 12**0.5),
        "default": (0, 0.5 / (3 * 101) ** 0.5),
    }[init]
    assert W_K.mean() == pytest.approx(mean, abs=4 * deviation / 101)
    assert W_K.std() == pytest.approx(deviation, rel=0.03)
    assert (np.asarray(params["b_K"]) == 0).all() == (init != "default")
    assert not np.allclose(W_K, params["W_Q"])
    smaller = initial(
        spec, traced(Stream()), hypers._replace(init_scale=np.float32(0.005)), jax.random.key(0)
    )
    np.testing.assert_allclose(smaller["W_K"] * 100, W_K, rtol=1e-5)  # the same direction


def test_initial_weights_have_a_seed_of_their_own():
    """The same weights to the bit if it equals the seed; the same documents, drawn once, whatever it is."""
    spec = replace(TINY, embedding="random")
    start = jax.jit(lambda *given: experiment.init(spec, *given).params)
    draw = jax.jit(lambda stream: experiment.make_source(spec, stream).held_out)

    def drawn(**seeds: int) -> tuple[dict, Any]:
        trial = TRIALS.make_trial(dict(topics=3, words_per_topic=2, embedding="random", **seeds))
        stream, hypers = traced(trial.stream), traced(trial.hypers)
        return start(stream, hypers), draw(stream)

    seed4, same, other = drawn(seed=4), drawn(seed=4, init_seed=4), drawn(seed=4, init_seed=9)
    weights9 = drawn(seed=9)[0]
    for name in ("W_K", "W_Q", "W_V", "W_E"):
        np.testing.assert_array_equal(seed4[0][name], same[0][name])
        np.testing.assert_array_equal(other[0][name], weights9[name])
        assert not np.allclose(other[0][name], seed4[0][name])
    jax.tree.map(np.testing.assert_array_equal, seed4[1], other[1])
    grid = [dict(seed=seed, init_seed=weights) for seed in range(3) for weights in range(4)]
    trials = {str(number): TRIALS.make_trial(own) for number, own in enumerate(grid)}
    (group,) = plan.group_trials(EXPERIMENT, trials)
    assert group.stream_sizes == {4: 3}  # documents are drawn for a stream, once for its trials
    usual = TRIALS.make_trial({})
    assert TRIALS.trial_id(usual) == TRIALS.trial_id(TRIALS.make_trial(dict(init_seed=-1)))
    assert TRIALS.trial_id(usual) != TRIALS.trial_id(TRIALS.make_trial(dict(init_seed=0)))


def test_seeds_differ_in_documents_and_weights_and_only_they_do():
    first, records = run(TINY, Stream(seed=1), FAST)
    again, records_again = run(TINY, Stream(seed=1), FAST)
    other, records_other = run(TINY, Stream(seed=2), FAST)
    np.testing.assert_array_equal(records.loss, records_again.loss)
    assert (first.params["W_V"] == again.params["W_V"]).all()
    assert not np.allclose(first.params["W_K"], other.params["W_K"])
    assert not np.allclose(records.loss[1:], records_other.loss[1:], rtol=1e-3)
    for seed in (1, 2):
        batch, of_first = (documents_of(traced(Stream(seed=each)), 0).word_BxN for each in (seed, 1))
        assert np.array_equal(batch, of_first) == (seed == 1)


def stack(*hypers: Hypers) -> Hypers:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *map(traced, hypers))


@pytest.mark.parametrize("order", ["lane", pytest.param("together", marks=pytest.mark.slow)])
def test_new_numbers_do_not_recompile_and_nan_stays_in_its_lane(order):
    own, stream = compiled(TINY, order=order), traced(Stream())

    def result(rates, scale=0.1):
        rates = [*rates, *[0.1] * (LANES - len(rates))]
        hypers = stack(*(Hypers(learning_rate=rate, init_scale=scale) for rate in rates))
        steps = np.full(LANES, own.steps, np.int32)
        state, records = own.go_on(stream, hypers, own.start(stream, hypers), steps)
        return jax.device_get((state.trial_L, records))

    state, records = result([0.5, 0.2, 0.1])
    sick, sick_records = result([0.5, float("nan"), 0.1])
    result([0.7, 0.3, 0.2], scale=0.3)
    assert len(own.tracings) == 1 and own.go_on._cache_size() == 1
    assert not np.isfinite(sick.params["W_V"][1]).all() and np.isfinite(state.params["W_V"]).all()
    for lane in (0, 2):
        assert (sick.params["W_V"][lane] == state.params["W_V"][lane]).all()
        assert (sick_records["eval_loss"][lane] == records["eval_loss"][lane]).all()


@pytest.mark.parametrize("order", orders.ORDERS)
def test_documents_are_drawn_once_for_all_lanes(order):
    """No random number has a lane axis, and none is drawn for one lane at a time."""
    own, stream, hypers = compiled(TINY, order=order), traced(Stream()), traced(Hypers())
    hypers_L = stack(*[Hypers()] * LANES)
    row, steps = own.init(stream, hypers).row, np.full(LANES, own.steps, np.int32)
    text = own.go_on.lower(stream, hypers_L, row, steps).as_text()
    draws = [line for line in text.splitlines() if "stablehlo.shift_left" in line]
    assert draws and not any(f"tensor<{LANES}" in line for line in draws)


def every_step(number: int):
    """Train one step at a time; return the state before each step, and the records of all of them."""
    stream, hypers = traced(Stream(seed=3)), traced(FAST)
    own = compiled(replace(TINY, record_every=1), 1)
    state, states, found = own.init(stream, hypers), [], []
    for _ in range(number):
        states.append(state)
        state, record = own.advance(stream, hypers, state)
        found.append(record)
    return states, jax.tree.map(lambda *columns: np.concatenate(columns), *found)


@pytest.mark.parametrize("record_every", (TINY.record_every, 12))
@pytest.mark.slow  # deep linear networks are compared by default
def test_any_record_interval_trains_the_same(record_every):
    _, records = run(replace(TINY, record_every=record_every), Stream(seed=3), FAST)
    _, every = every_step(3 * record_every)
    for name in ("loss", "eval_loss", "norm_v", "grad_norm_k", "rotation_v"):
        np.testing.assert_allclose(
            getattr(records, name), getattr(every, name)[::record_every], rtol=1e-4, atol=1e-7
        )


def test_rotation_is_the_cosine_distance_to_ten_steps_before():
    states, records = every_step(14)
    values = [np.asarray(state.params["W_V"]).ravel() for state in states]
    assert np.isnan(records.rotation_v[:10]).all()
    for step in (10, 13):
        now, before = values[step], values[step - 10]
        cosine = now @ before / np.linalg.norm(now) / np.linalg.norm(before)
        assert records.rotation_v[step] == pytest.approx((1 - cosine) / 2, rel=1e-3)


def test_segments_continue_and_the_last_record_is_of_the_final_state():
    """Two segments of twelve steps against segments of one step."""
    stream, hypers, own = traced(Stream(seed=3)), traced(FAST), compiled(TINY)
    states, records = every_step(25)
    half, _ = run(TINY, Stream(seed=3), FAST)
    assert int(half.row.step) == 12
    now = own.record(stream, hypers, half)
    np.testing.assert_allclose(now.loss, records.loss[12], rtol=1e-6)
    np.testing.assert_allclose(now.norm_k, records.norm_k[12], rtol=1e-6)
    joined, _ = own.advance(stream, hypers, half)
    np.testing.assert_allclose(joined.params["W_V"], states[24].params["W_V"], rtol=1e-5)


@pytest.mark.slow
def test_too_few_queries_are_reported():
    state, _ = run(ADAM, Stream(p_mask=1.0, p_keep=1.0, p_random=0.0))  # every word is a query
    with pytest.raises(RuntimeError, match=r"the program lacks room for \d+ items of its data"):
        check_room(state.row)
    check_room(run(TINY)[0].row)


def test_record_columns_are_the_contract():
    assert " ".join(records.Record._fields) == (
        "loss eval_loss eval_loss_uniform eval_loss_mask eval_loss_kept eval_loss_random "
        "norm_k norm_q norm_v norm_e grad_norm_k grad_norm_q "
        "grad_norm_v rotation_v v_block v_diag v_pair e_block e_pair a_topic a_self a_pair a_mask a_key "
        "attn_same_word attn_same_topic attn_partner attn_diff_topic theorem2_distance "
        "rank_k rank_q rank_v rank_e a_frequent a_frequent_other a_topic_weighted "
        "eval_loss_mask_query"
    )


@pytest.mark.parametrize("topics_per_document", (2, 3))
def test_gradient_descent_reaches_theorem_2(topics_per_document):
    """Infinite documents, squared loss, uniform attention, from zero: no L2 is needed."""
    spec = Spec(
        topics=5,
        words_per_topic=4,
        documents="tau",
        infinite_documents=True,
        attention="uniform",
        optimizer="sgd",
        batch_size=32,
        steps=3000,
        record_every=100,
    )
    stream = Stream(topics_per_document=topics_per_document)
    hypers = Hypers(learning_rate=4.0, init_scale=0.0, objective="squared")
    state, _ = run(spec, stream, hypers, 30)
    W_V = kernel.unpad(spec, state.params)["W_V"]
    optimum = theorem2_matrix(5, 4, 0.15, 0.1, 0.1)
    assert np.linalg.norm(W_V - optimum) < 1e-3 * np.linalg.norm(optimum)


@pytest.mark.slow
def test_the_one_run_on_record_is_reproduced():
    """LDA, uniform attention, cross-entropy, Adam .01, batch 40, masked keys hidden: 3.395."""
    spec = Spec(attention="uniform", steps=1000, record_every=1000, eval_documents=2000)
    stream = AnyStream(key_visibility="unmasked")
    hypers = Hypers(learning_rate=0.01, objective="cross_entropy")
    state, first = run(spec, stream, hypers, 1)
    final = compiled(spec, 1).record(traced(stream), traced(hypers), state)
    assert first.eval_loss[0] == pytest.approx(np.log(101), abs=0.01)
    assert final.eval_loss == pytest.approx(3.395, abs=0.03)
    data = DataModel(key_visibility="unmasked")
    lines = limits.limit_lines(data, "cross_entropy")
    assert lines["bayes"] < lines["stage2"] < lines["stage1"] - 0.01 < final.eval_loss

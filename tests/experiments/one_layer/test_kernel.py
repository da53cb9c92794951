"""The type-space kernel equals the token-space model equals plain loops over tokens."""

import functools
import itertools
from dataclasses import replace
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from support import reference

from topicjax.experiments.one_layer import kernel, model
from topicjax.experiments.one_layer.settings import (
    AttentionWeights,
    Hypers,
    Spec,
    check,
    make_trial,
    traced,
    trial_id,
)
from topicjax.experiments.shared import bags, lda, threefry
from topicjax.experiments.shared.lda import Documents
from topicjax.theory.document_settings import Stream
from topicjax.trial import Trial

TINY = Spec(topics=2, words_per_topic=3, shortest=3, longest=7, word_query_probability=1.0)


def variants() -> list[Spec]:
    """All combinations of embedding, attention, value and biases that can exist."""
    specs = []
    for embedding, attention, value, output_bias, attention_biases in itertools.product(
        ("one_hot", "trained", "random"),
        ("trained", "uniform"),
        ("trained", "identity", "blocks"),
        ("trained", "zero", "theorem1"),
        ("trained", "absent"),
    ):
        if value == "blocks" and embedding != "one_hot":
            continue
        spec = replace(
            TINY,
            embedding=embedding,
            embedding_dim=0 if embedding == "one_hot" else 4,
            attention=attention,
            attention_dim=3,
            value=value,
            output_bias=output_bias,
            attention_biases=attention_biases,
        )
        check(Trial(spec, Stream(), Hypers()))
        specs.append(spec)
    return specs


BIASES = variants()[0]  # everything trained: with documents of `ragged_documents` compiled once for all tests
BIASES_EMBEDDED = replace(BIASES, embedding="trained", embedding_dim=4)


def name_of(spec: Spec) -> str:
    return "-".join((spec.embedding, spec.attention, spec.value, spec.output_bias, spec.attention_biases))


def ragged_documents() -> Documents:
    """Five documents of different lengths: one without masked positions, one fully masked."""
    rng = np.random.default_rng(0)
    length_B = np.array([7, 3, 5, 4, 6])
    present = np.arange(7)[None, :] < length_B[:, None]
    word = rng.integers(1, 7, (5, 7))
    masked = present & (rng.random((5, 7)) < 0.5)
    masked[0, :3] = True
    masked[1] = False
    masked[2] = present[2]
    replacement = np.where(rng.random((5, 7)) < 0.5, 0, rng.integers(1, 7, (5, 7)))
    replacement[0, :3] = [0, word[0, 1], 1 + word[0, 2] % 6]  # one [MASK], one kept, one random
    shown = np.where(masked, replacement, word)
    return Documents(*(jnp.asarray(x) for x in (word, shown, masked, present)))


@functools.cache
def frozen_params(spec: Spec, seed: int) -> dict[str, np.ndarray]:
    """Draw the parameters that this Spec freezes, compiled once: op by op it is hundreds of programs."""
    names = set(model.trained_names(spec))

    @jax.jit
    def draw(stream, hypers):
        params = model.init(spec, stream, hypers, jax.random.key(seed))
        return {name: leaf for name, leaf in params.items() if name not in names}

    return {name: np.asarray(leaf) for name, leaf in draw(traced(Stream()), traced(Hypers())).items()}


def large_params(spec: Spec, seed: int = 1) -> model.Params:
    """Parameters of order one everywhere that is trained, so that no term hides behind zeros."""
    draw = functools.partial(model.init, spec, traced(Stream()), traced(Hypers()))
    shapes = jax.eval_shape(draw, jax.random.key(seed))
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(size=shapes[name].shape) for name in sorted(shapes)}
    if spec.attention == "uniform":
        params |= {name: np.zeros_like(params[name]) for name in ("W_K", "W_Q")}
    drawn = frozen_params(replace(spec, attention="trained", attention_biases="absent"), seed)
    return {name: jnp.asarray(leaf, float) for name, leaf in (params | drawn).items()}


def kernel_loss(spec, stream, objective, params, documents):
    padded = kernel.pad(params)
    batch = bags.from_documents(spec, stream, documents, uniform=spec.attention == "uniform")
    return kernel.loss(kernel.effective(spec, padded), batch, objective, kernel.real_types(spec))


def token_loss(spec, stream, objective, params, documents):
    return model.token_loss(spec, stream, objective, params, documents)


bag_of = jax.jit(bags.from_documents, static_argnums=0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def value_and_gradient(loss, *case):
    """Return the loss and its gradient for all parameters, frozen or not."""
    return jax.value_and_grad(loss, argnums=3)(*case)


def as_computed(spec: Spec) -> Spec:
    """Return the Spec without what only says which parameters are frozen: one compilation for them all."""
    return replace(spec, value="trained", output_bias="trained")


def relative(left, right) -> float:
    left, right = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)]) for t in (left, right))
    return float(np.abs(left - right).max() / max(np.abs(right).max(), 1e-300))


def linear_variants() -> list:
    """Every attention without softmax, with everything trained and with neither embeddings nor biases."""
    plain = replace(TINY, attention_dim=3, output_bias="trained")
    cases = {"biases": BIASES_EMBEDDED, "one-hot": plain}
    return [
        pytest.param(
            replace(spec, attention_weights=kind),
            id=f"{kind}-{name}",
            marks=[pytest.mark.slow] * (name == "one-hot"),
        )
        for name, spec in cases.items()
        for kind in get_args(AttentionWeights)[1:]
    ]


@pytest.mark.parametrize("spec", linear_variants())
def test_attention_without_softmax_equals_loops(spec):
    compare_with_loops(spec)


@pytest.mark.parametrize("spec", variants(), ids=name_of)
def test_type_space_equals_token_space_equals_loops(spec):
    compare_with_loops(spec)


def compare_with_loops(spec):
    """Compare losses and gradients of the kernel, the token model and loops; keys visible or hidden."""
    with jax.enable_x64(True):
        documents, params = ragged_documents(), large_params(spec)
        for hidden, squared in itertools.product((0, 1), (0, 1)):
            stream = traced(Stream())._replace(key_visibility=np.int32(hidden))
            case = as_computed(spec), stream, np.int32(squared), params, documents
            (fast, fast_gradient), (slow, slow_gradient) = (
                value_and_gradient(loss, *case) for loss in (kernel_loss, token_loss)
            )
            plain = plain_loss(spec, params, documents, hidden, squared)
            assert fast == pytest.approx(plain, rel=1e-12)
            assert slow == pytest.approx(plain, rel=1e-12)
            if spec.attention == "uniform":  # the kernel has no scores there, the oracle has zeros
                slow_gradient |= {name: fast_gradient[name] for name in ("W_K", "W_Q")}
            assert relative(fast_gradient, slow_gradient) < 1e-10
            along, slope = complex_step(spec, params, documents, hidden, squared)
            measured = sum(np.vdot(fast_gradient[name], along[name]) for name in along)
            assert measured == pytest.approx(slope, rel=1e-10)


def plain_loss(spec, params, documents, hidden, squared):
    arrays = [np.asarray(x) for x in documents]
    params = {name: np.asarray(leaf) for name, leaf in params.items()}
    return reference.loss(
        params,
        *arrays,
        hidden_keys=bool(hidden),
        squared=bool(squared),
        one_hot=spec.embedding == "one_hot",
        kind=spec.attention_weights,
    )


def complex_step(spec, params, documents, hidden, squared):
    """Return a random direction and the derivative of the plain loops along it."""
    rng = np.random.default_rng(2)
    scores = ("W_K", "W_Q") if spec.attention == "uniform" else ()
    along = {name: rng.normal(size=leaf.shape) for name, leaf in params.items() if name not in scores}
    step = 1e-30
    moved = {name: np.asarray(leaf) + 1j * step * along.get(name, 0) for name, leaf in params.items()}
    return along, plain_loss(spec, moved, documents, hidden, squared).imag / step


@pytest.mark.parametrize("squared", (0, 1))
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, id=name_of(spec), marks=[pytest.mark.slow] * (place % 4 > 0))
        for place, spec in enumerate(variants()[::9])  # each is a program; in float64 all are compared above
    ],
)
def test_float32_agrees_to_single_precision(spec, squared):
    case = as_computed(spec), traced(Stream()), np.int32(squared), large_params(spec), ragged_documents()
    (fast, fast_gradient), (slow, slow_gradient) = (
        value_and_gradient(loss, *case) for loss in (kernel_loss, token_loss)
    )
    if spec.attention == "uniform":
        slow_gradient |= {name: fast_gradient[name] for name in ("W_K", "W_Q")}
    assert fast == pytest.approx(float(slow), rel=1e-5)
    assert relative(fast_gradient, slow_gradient) < 1e-5


def test_hand_written_gradient_against_finite_differences():
    with jax.enable_x64(True):
        params, stream = kernel.pad(large_params(BIASES)), traced(Stream())
        word_BxW = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(BIASES.num_words), 3))
        finite = bag_of(BIASES, stream, ragged_documents())
        infinite = bags.from_distributions(replace(BIASES, documents="tau"), stream, word_BxW)

        @jax.jit
        def loss(params, batch, objective):
            return kernel.loss(kernel.effective(BIASES, params), batch, objective, kernel.real_types(BIASES))

        for batch, objective in itertools.product((finite, infinite), (np.int32(0), np.int32(1))):
            own = functools.partial(loss, batch=batch, objective=objective)
            check_grads(own, (params,), order=1, modes=["rev"], rtol=1e-6)


def test_zero_queries_attend_uniformly():
    with jax.enable_x64(True):
        params = large_params(TINY)
        params["W_Q"] = jnp.zeros_like(params["W_Q"])
        documents = ragged_documents()
        is_key = lda.key_positions(traced(Stream()), documents)
        output = jax.jit(model.apply, static_argnums=0)(TINY, params, documents.shown_BxN, is_key)
        mean_row = np.asarray(params["W_V"])[:, np.asarray(documents.shown_BxN)[0, :7]].mean(axis=1)
        np.testing.assert_allclose(output[0, 0], mean_row, rtol=1e-12)

        @jax.jit
        def attention(params):
            bag = bags.from_documents(TINY, traced(Stream()), documents)
            queries = bag.count_BxV[bag.queries.document_R], bag.queries.type_R
            score_VxV = kernel.effective(TINY, kernel.pad(params)).score_VxV
            return kernel.query_attention(score_VxV, *queries), kernel.query_attention(None, *queries)

        np.testing.assert_allclose(*attention(params), rtol=1e-12)


def test_a_kind_of_attention_is_part_of_a_trial_only_where_it_acts():
    kinds = [dict(attention_weights=kind) for kind in get_args(AttentionWeights)]
    assert trial_id(make_trial(kinds[0])) == trial_id(make_trial({}))
    assert len({trial_id(make_trial(kind)) for kind in [*kinds, dict(mask_query_loss=True)]}) == 5
    uniform = [trial_id(make_trial(kind | dict(attention="uniform", mask_query_loss=True))) for kind in kinds]
    assert {*uniform} == {trial_id(make_trial(dict(attention="uniform")))}


def test_a_factor_may_move_between_scores_and_values_of_linear_attention():
    """The gauge U -> D^-1 U, S -> D S: the loss stays, but not that with attention forced uniform."""
    spec = replace(TINY, attention_dim=7, attention_weights="scores_only")

    @jax.jit
    def losses(params):
        batches = [bags.from_documents(spec, traced(Stream()), ragged_documents(), each) for each in (0, 1)]
        effective, real_V = kernel.effective(spec, kernel.pad(params)), kernel.real_types(spec)
        uniform = kernel.loss(effective._replace(score_VxV=None), batches[1], np.int32(0), real_V)
        own, by_mask = (kernel.loss(effective, batch, np.int32(0), real_V) for batch in batches)
        return jnp.stack([own, by_mask, uniform])

    with jax.enable_x64(True):
        params = {name: np.asarray(leaf) for name, leaf in large_params(spec).items()}
        factor = np.random.default_rng(4).uniform(0.5, 2, 7)
        moved = params | {"W_K": params["W_K"] * factor, "W_V": params["W_V"] / factor}
        before, after = (np.asarray(losses(each)) for each in (params, moved))
    assert after[:2] == pytest.approx(before[:2], rel=1e-12)
    assert after[2] != pytest.approx(before[2], rel=1e-2)


def test_order_of_tokens_does_not_matter():
    with jax.enable_x64(True):
        documents, params = ragged_documents(), large_params(BIASES)
        order = np.random.default_rng(3).permutation(7)
        shuffled = Documents(*(jnp.asarray(np.asarray(leaf)[:, order]) for leaf in documents))
        args = BIASES, traced(Stream()), np.int32(0), params
        loss = functools.partial(value_and_gradient, kernel_loss)
        assert loss(*args, shuffled)[0] == pytest.approx(float(loss(*args, documents)[0]), 1e-13)


def test_relabelling_topics_permutes_the_gradient():
    with jax.enable_x64(True):
        documents = ragged_documents()
        params = {name: np.asarray(leaf) for name, leaf in large_params(BIASES).items()}
        relabel = np.array([0, 4, 5, 6, 1, 2, 3])  # swap the two topics
        other = documents._replace(
            word_BxN=relabel[documents.word_BxN], shown_BxN=relabel[documents.shown_BxN]
        )
        swapped = params | {
            "W_K": params["W_K"][:, relabel],
            "W_Q": params["W_Q"][:, relabel],
            "W_V": params["W_V"][relabel][:, relabel],
            "b_V": params["b_V"][relabel],
            "b_pred": params["b_pred"][relabel],
        }
        args = BIASES, traced(Stream()), np.int32(0)
        loss = functools.partial(value_and_gradient, kernel_loss)
        _, gradient = loss(*args, params, documents)
        _, swapped_gradient = loss(*args, swapped, other)
        expected_V = np.asarray(gradient["W_V"])[relabel][:, relabel]
        expected_K = np.asarray(gradient["W_K"])[:, relabel]
        np.testing.assert_allclose(swapped_gradient["W_V"], expected_V, rtol=1e-10, atol=1e-15)
        np.testing.assert_allclose(swapped_gradient["W_K"], expected_K, rtol=1e-10, atol=1e-15)


def test_scores_too_large_for_exp_are_no_trouble():
    params = {name: 40 * np.asarray(leaf) for name, leaf in large_params(BIASES).items()}
    case = BIASES, traced(Stream()), np.int32(1), params, ragged_documents()
    value, gradient = value_and_gradient(kernel_loss, *case)
    assert value == pytest.approx(float(value_and_gradient(token_loss, *case)[0]), rel=1e-4)
    assert all(np.isfinite(leaf).all() for leaf in gradient.values())


def test_padding_is_removed_and_gets_no_gradient():
    params = {name: np.asarray(leaf) for name, leaf in large_params(BIASES).items()}

    @jax.jit
    def padded_and_gradient(params):
        batch = bags.from_documents(BIASES, traced(Stream()), ragged_documents())

        def loss(padded):
            return kernel.loss(
                kernel.effective(BIASES, padded), batch, np.int32(0), kernel.real_types(BIASES)
            )

        padded = kernel.pad(params)
        return kernel.unpad(BIASES, padded), jax.grad(loss)(padded)

    restored, gradient = jax.device_get(padded_and_gradient(params))
    assert all((restored[name] == leaf).all() for name, leaf in params.items())
    assert (gradient["W_K"][3:] == 0).all()
    assert (gradient["W_V"][7:] == 0).all() and (gradient["W_V"][:, 7:] == 0).all()


def test_infinite_documents_are_the_limit_of_long_ones():
    """Twenty thousand words of the first topic against their expectation, attending and uniform."""
    spec = replace(TINY, documents="tau", shortest=20_000, longest=20_000, word_query_probability=0.4)
    lengths = dict(length_min=20_000, length_max=20_000)
    stream = traced(Stream(topics_per_document=1, p_mask=0.5, p_keep=0.3, p_random=0.3, **lengths))
    params = large_params(TINY)

    @jax.jit
    def losses(hidden, objective):
        first_TxW = jnp.tile(lda.topic_words(spec, stream)[:1], (2, 1))
        case = stream._replace(key_visibility=hidden)
        documents = lda.sample_documents(spec, case, first_TxW, threefry.raw(jax.random.key(0)), 1)
        kernel_model, real_V = kernel.effective(spec, kernel.pad(params)), kernel.real_types(spec)
        uniform_model = kernel_model._replace(score_VxV=None)
        return [
            kernel.loss(kernel_model, bags.from_documents(spec, case, documents), objective, real_V),
            kernel.loss(kernel_model, bags.from_distributions(spec, case, first_TxW[:1]), objective, real_V),
            kernel.loss(uniform_model, bags.from_documents(spec, case, documents, True), objective, real_V),
            kernel.loss(
                uniform_model,
                bags.from_distributions(spec, case, first_TxW[:1], True),
                objective,
                real_V,
            ),
        ]

    for hidden, objective in itertools.product((0, 1), (0, 1)):
        finite, infinite, finite_uniform, infinite_uniform = losses(hidden, objective)
        assert finite == pytest.approx(float(infinite), rel=0.02)
        assert finite_uniform == pytest.approx(float(infinite_uniform), rel=0.02)


def test_capacity_is_rarely_needed_and_overflow_is_counted():
    spec = Spec(word_query_probability=0.03)
    capacity = bags.query_capacity(spec, 40)
    lengths = np.random.default_rng(0).integers(100, 151, (20_000, 40)).sum(axis=1)
    needed = np.random.default_rng(1).binomial(lengths, 0.03)
    assert needed.max() < capacity < 2 * needed.mean()
    documents = ragged_documents()
    none = replace(TINY, word_query_probability=0.0)
    found = int((np.asarray(documents.masked_BxN) & (np.asarray(documents.shown_BxN) != 0)).sum())
    assert bag_of(none, traced(Stream()), documents).queries_missing == found > 0
    assert bag_of(TINY, traced(Stream()), documents).queries_missing <= 0


def test_usual_queries_train_as_all_queries_do():
    spec = Spec(topics=3, words_per_topic=3)
    stream = traced(Stream())
    params = large_params(spec)

    @jax.jit
    def gradients(key):
        phi_TxW = lda.topic_words(spec, stream)
        documents = lda.sample_documents(spec, stream, phi_TxW, key, spec.batch_size)
        batch = bags.from_documents(spec, stream, documents)

        def gradient(bag):
            def loss(params):
                return kernel.loss(kernel.effective(spec, params), bag, np.int32(0), kernel.real_types(spec))

            return jax.grad(loss)(kernel.pad(params)), bag.queries.type_R.size

        return gradient(batch), bags.with_usual_queries(spec, gradient, batch, spec.batch_size)

    (whole, all_queries), (usual, usual_queries) = gradients(threefry.raw(jax.random.key(0)))
    assert usual_queries < 0.8 * all_queries
    assert relative(usual, whole) < 1e-5


def test_an_unusual_batch_gets_all_queries_and_so_do_those_beside_it():
    spec = Spec()
    size = spec.batch_size + bags.query_capacity(spec, spec.batch_size)
    empty = bags.Bag(jnp.zeros(()), jnp.zeros(()), bags.own_queries(size), jnp.zeros(()))

    def queries_taken(queries_missing):
        batch = empty._replace(queries_missing=queries_missing)
        return bags.with_usual_queries(spec, lambda bag: bag.queries.type_R.size, batch, spec.batch_size, 2)

    half, usual = (spec.batch_size + found for found in bags.usual_capacities(spec, spec.batch_size))
    assert half < usual < size
    assert queries_taken(jnp.int32(half - size)) == half
    assert queries_taken(jnp.int32(half - size + 1)) == usual
    assert queries_taken(jnp.int32(usual - size)) == usual
    assert queries_taken(jnp.int32(usual - size + 1)) == size
    together = jax.vmap(queries_taken, out_axes=None)  # one answer for both: no `select` of all branches
    assert together(jnp.array([usual - size, half - size])) == usual


def test_half_of_the_batches_and_nearly_all_are_usual():
    half, nearly_all = bags.usual_capacities(Spec(), 40)
    lengths = np.random.default_rng(0).integers(100, 151, (20_000, 40)).sum(axis=1)
    needed = np.random.default_rng(1).binomial(lengths, 0.03)
    assert 0.45 < (needed <= half).mean() < 0.75
    assert 0.95 < (needed <= nearly_all).mean() < 0.999

"""The encoder on syntax and topics: both of its paths, parts of losses and records against plain loops."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from support import encoder_reference

from topicjax.errors import UserError
from topicjax.experiments.shared import encoder
from topicjax.experiments.shared.layer_records import Made
from topicjax.experiments.shared.lda import Documents
from topicjax.experiments.shared.state import State
from topicjax.experiments.syntax import experiment, language, masked, model, records
from topicjax.experiments.syntax.experiment import EXPERIMENT
from topicjax.experiments.syntax.settings import Hypers, Spec, Stream, check, make_trial, traced

TINY = Spec(
    topics=2, words_per_topic=2, classes=3, words_per_class=2, width=4, heads=2, relative_reach=2,
    longest=7, mask_probability=1.0, eval_documents=5,
)  # fmt: skip
FULL = replace(TINY, mlp=5, output_projection=True, head="free")
DEEP = replace(FULL, layers=2, positions=7, head="tied")
KINDS = {
    "one layer": TINY,
    "full layer": FULL,
    "two layers": DEEP,
    "no relative bias": replace(TINY, relative_reach=0),
    "one layer with positions": replace(TINY, positions=7),
}
SPECS = pytest.mark.parametrize("spec", KINDS.values(), ids=KINDS)
BLOCKS = {
    "content": (range(1, 3), range(3, 5)),
    "function": (range(5, 7), range(7, 9)),
}  # words by topic, class
GAIN, STAY = 2.0, 0.3
P = np.array([[STAY, 1 - STAY, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])  # the cycle of three classes
PI = np.array([1.0, 1 - STAY, 1 - STAY]) / (3 - 2 * STAY)
CLASSES = {word: 0 if word < 5 else 1 + (word - 5) // 2 for word in range(1, 9)}


def ragged_documents() -> Documents:
    """Five documents of several lengths: one without masked positions, one fully masked, one of two words."""
    rng = np.random.default_rng(0)
    present = np.arange(7)[None, :] < np.array([7, 3, 5, 2, 6])[:, None]
    word = rng.integers(1, 9, (5, 7))  # what lies beyond the end of a document must not matter
    is_masked = present & (rng.random((5, 7)) < 0.5)
    is_masked[1], is_masked[2], is_masked[3] = False, present[2], [True] + [False] * 6
    return Documents(*map(jnp.asarray, (word, np.where(is_masked, 0, word), is_masked, present)))


DOCUMENTS = ragged_documents()


def random_params(spec: Spec, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of the size of 1: nothing is near a symmetric point."""
    rng = np.random.default_rng(seed)
    shapes = encoder.parameters(spec, Hypers(init=0))
    return {name: rng.normal(size=shape) for name, (_, shape) in shapes.items()}


def hypers(norm: str = "none", objective: str = "cross_entropy", **changed: Any) -> Any:
    return traced(Hypers(layer_norm=norm, objective=objective, **dict(bias_gain=GAIN) | changed))


@functools.cache
def compiled(spec: Spec):
    """Return masked positions, outputs, parts, loss and gradients, of (hypers, params), in float64."""

    def evaluate(hypers, params):
        own = masked.from_documents(spec, DOCUMENTS)
        output_PxV = model.outputs(spec, hypers, params, own)
        parts = model.parts(spec, hypers.objective, output_PxV, own.word_P)
        return own, output_PxV, parts, *model.loss_and_gradients(spec, hypers, params, {}, own)

    jitted = jax.jit(evaluate)

    def evaluated(*arguments):
        with jax.enable_x64(True):
            return jax.device_get(jitted(*arguments))

    return evaluated


def documents_as_arrays(documents: Documents = DOCUMENTS) -> list[np.ndarray]:
    return [np.asarray(part) for part in documents]


def reference_loss(spec: Spec, params: Any, squared: bool = False, **how: Any) -> Any:
    """Compute eq. (1) by loops over positions; complex for complex weights."""
    given = dict(heads=spec.heads, residual=True, norm="none", bias_gain=GAIN) | how
    arrays = documents_as_arrays()
    return encoder_reference.loss_of_documents(params, arrays, False, squared, **given).mean()


def slow_parts(output: np.ndarray, word: int, squared: bool) -> dict[str, float]:
    """Split the loss of one position by loops over blocks of words; every part from its own definition."""
    of_class = [[*BLOCKS["content"][0], *BLOCKS["content"][1]], *map(list, BLOCKS["function"])]
    blocks = [list(block) for block in (*BLOCKS["content"], *BLOCKS["function"])]
    own_class, own_block = (next(each for each in kind if word in each) for kind in (of_class, blocks))
    content = of_class[0]
    if squared:
        error = output - np.eye(len(output))[word]
        of_topics = [error[block].sum() - error[content].sum() / 2 for block in blocks[:2]]
        return {
            "loss": float(np.sum(error**2)),
            "class": sum(error[own].sum() ** 2 / len(own) for own in of_class),
            "topic": sum(total**2 / 2 for total in of_topics),
            "word": error[0] ** 2 + sum(np.sum((error[own] - error[own].mean()) ** 2) for own in blocks),
        }
    log_sum = scipy.special.logsumexp
    return {
        "loss": log_sum(output) - output[word],
        "class": log_sum(output) - log_sum(output[own_class]),
        "topic": log_sum(output[content]) - log_sum(output[own_block]) if word in content else 0.0,
        "word": log_sum(output[own_block]) - output[word],
    }


def slow_means(
    spec: Spec, params: Any, documents: Documents = DOCUMENTS, squared: bool = False, **how: Any
) -> dict[str, Any]:
    """Compute the means of all parts, the loss of each document, and the attention of each layer."""
    given = dict(heads=spec.heads, residual=True, norm="none", bias_gain=GAIN) | how
    means, attentions = [], []
    for word, shown, is_masked, present in zip(*documents_as_arrays(documents), strict=True):
        length = int(present.sum())
        outputs, attention = encoder_reference.encode(params, shown[:length], [*range(length)], **given)
        attentions.append(attention)
        own = [slow_parts(outputs[n], word[n], squared) for n in range(length) if is_masked[n]]
        if own:
            means.append({name: np.mean([parts[name] for parts in own]) for name in own[0]})
    found = {name: np.mean([own[name] for own in means]) for name in means[0]}
    return found | dict(documents=np.array([own["loss"] for own in means]), attention=attentions)


@SPECS
@pytest.mark.parametrize(
    ("norm", "residual"), [("none", True), ("pre", True), ("post", True), ("none", False), ("pre", False)]
)
def test_outputs_are_those_of_plain_loops_over_positions(spec, norm, residual):
    params = random_params(spec)
    own, output_PxV, *_ = compiled(spec)(hypers(norm, residual=residual), params)
    _, shown, is_masked, present = documents_as_arrays()
    expected = []
    for d in range(5):
        length = present[d].sum()
        how = dict(heads=2, residual=residual, norm=norm, bias_gain=GAIN)
        outputs, _ = encoder_reference.encode(params, shown[d, :length], [*range(length)], **how)
        expected += [outputs[n] for n in range(length) if is_masked[d, n]]
    number = int(own.number)
    assert number == len(expected) == is_masked.sum() and own.missing == number - 35
    np.testing.assert_allclose(output_PxV[:number], expected, rtol=1e-10, atol=1e-12)
    assert np.isfinite(output_PxV).all() and not own.weight_P[number:].any()


@SPECS
@pytest.mark.parametrize(
    ("norm", "objective", "residual"),
    [("pre", "cross_entropy", True), ("post", "squared", True), ("none", "cross_entropy", False)],
)
def test_losses_and_gradients_are_those_of_plain_loops_over_positions(spec, norm, objective, residual):
    """A complex step along a random direction of each parameter, exact to machine precision."""
    params, direction = random_params(spec), random_params(spec, 1)
    *_, loss, gradients = compiled(spec)(hypers(norm, objective, residual=residual), params)
    how = dict(squared=objective == "squared", norm=norm, residual=residual)
    assert loss == pytest.approx(reference_loss(spec, params, **how), rel=1e-12)
    assert gradients.keys() == params.keys() and ("R" in params) == (spec.relative_reach > 0)
    for name in params:
        stepped = params | {name: params[name] + 1e-30j * direction[name]}
        slope = reference_loss(spec, stepped, **how).imag / 1e-30
        assert np.sum(gradients[name] * direction[name]) == pytest.approx(slope, rel=1e-9, abs=1e-14), name


@pytest.mark.parametrize("objective", ["cross_entropy", "squared"])
def test_parts_of_the_loss_are_class_topic_and_word_and_add_up(objective):
    params = random_params(TINY)
    own, _, parts, loss, _ = compiled(TINY)(hypers(objective=objective), params)
    expected = slow_means(TINY, params, squared=objective == "squared")
    for name, values in parts.items():
        assert (own.weight_P * values).sum() == pytest.approx(expected[name], rel=1e-11), name
    sums = parts["class"] + parts["topic"] + parts["word"]
    np.testing.assert_allclose(sums, parts["loss"], rtol=1e-12)
    assert (own.weight_P * parts["loss"]).sum() == pytest.approx(loss, rel=1e-12)


def test_the_definition_in_flax_has_the_same_relative_bias():
    params = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in random_params(DEEP).items()}
    module = encoder.Encoder(DEEP, hypers("pre"))
    shown = DOCUMENTS.shown_BxN[0]
    found = jax.jit(module.apply)({"params": params}, shown, jnp.ones(7, bool))
    how = dict(heads=2, residual=True, norm="pre", bias_gain=GAIN)
    own, _ = encoder_reference.encode(random_params(DEEP), np.asarray(shown), [*range(7)], **how)
    np.testing.assert_allclose(found, np.stack(own), rtol=2e-4, atol=2e-5)


@functools.cache
def changed_documents() -> dict[str, Documents]:
    """Change the visible words of the documents as for held-out ones."""
    stream = traced(Stream(length_min=2, length_max=7))
    return jax.jit(lambda: language.changed_documents(TINY, stream, DOCUMENTS))()


@functools.cache
def measuring(spec: Spec):
    """Return the columns of a record, rare ones too, of (hypers, params)."""

    words = changed_documents()

    @jax.jit
    def measured(hypers, params):
        held_out = masked.from_documents(spec, DOCUMENTS)
        changed = {name: masked.from_documents(spec, each) for name, each in words.items()}
        state, made = State(params, None, jnp.zeros(())), Made(jnp.int32(0), jnp.float32(7.0), {})
        stream = traced(Stream(stay=STAY, sharpness=0.8))
        record = records.measure_model(spec, stream, hypers, held_out, state, made)
        rare = records.measure_interventions(spec, hypers, held_out, changed, params)
        return record._asdict() | rare._asdict()

    return measured


BOTH_PATHS = pytest.mark.parametrize("spec", [TINY, DEEP], ids=["one layer", "two layers"])


@BOTH_PATHS
def test_held_out_losses_and_their_parts(spec):
    params = random_params(spec)
    for objective in ("cross_entropy", "squared"):
        found = measuring(spec)(hypers(objective=objective), params)
        expected = slow_means(spec, params, squared=objective == "squared")
        for part in records.PARTS:
            assert float(found[f"eval_{part}"]) == pytest.approx(expected[part], rel=1e-4), part
        each = expected["documents"]
        assert len(each) == 4  # the document without masked positions does not count
        assert float(found["eval_loss_se"]) == pytest.approx(each.std(ddof=1) / 2, rel=1e-3)


@BOTH_PATHS
def test_interventions_are_those_of_weights_and_words_changed_by_hand(spec):
    params = random_params(spec)
    found, changed = measuring(spec)(hypers(), params), changed_documents()
    none = np.zeros(spec.layers)
    cases = {
        "uniform": slow_means(spec, params, scores=none),  # gates of scores and bias are closed
        "positional": slow_means(spec, params | dict(W_Q=0 * params["W_Q"])),
        "content": slow_means(spec, params, bias_gain=0.0),
        "shuffled": slow_means(spec, params, changed["shuffled"]),
        "redrawn": slow_means(spec, params, changed["redrawn"]),
    }
    assert {*cases} == {*records.ATTENTION, *records.INPUTS}
    for kind, expected in cases.items():
        for part in ("loss", "class", "topic"):
            assert float(found[f"eval_{part}_{kind}"]) == pytest.approx(expected[part], rel=1e-4), (
                kind,
                part,
            )
    losses = [float(found["eval_loss"]), *(float(found[f"eval_loss_{kind}"]) for kind in cases)]
    assert len({round(loss, 3) for loss in losses}) == 6  # each changes something


@BOTH_PATHS
def test_attention_to_near_positions_is_the_mean_over_masked_positions(spec):
    params = random_params(spec)
    found = measuring(spec)(hypers(), params)
    attention = slow_means(spec, params)["attention"]
    _, _, is_masked, present = documents_as_arrays()
    for name, offset in records.OFFSETS.items():
        for layer in range(spec.layers):
            seen = [
                [attention[d][layer][n][head][n + offset] for head in range(2)]
                for d, n in zip(*np.nonzero(is_masked), strict=True)
                if 0 <= n + offset < present[d].sum()
            ]
            expected = np.mean(seen, axis=0)
            np.testing.assert_allclose(found[f"attn_{name}"][layer], expected, rtol=1e-4, err_msg=name)


def slow_coefficients(U: np.ndarray) -> list[float]:
    """Fit the means of blocks of classes by a constant per row, one per column, and an ideal map."""
    mean = {}
    for c in range(3):
        for visible in range(3):
            pairs = [(i, j) for i in CLASSES for j in CLASSES if (CLASSES[i], CLASSES[j]) == (c, visible)]
            mean[c, visible] = np.mean([U[pair] for pair in pairs])
    found = []
    for ideal in (
        {(c, left): P[left, c] - PI[c] for c, left in mean},
        {(c, right): PI[c] * P[c, right] / PI[right] - PI[c] for c, right in mean},
    ):
        rows = [
            [float(c == k) for k in range(3)] + [float(own == k) for k in range(3)] + [ideal[c, own]]
            for c, own in mean
        ]
        found.append(np.linalg.lstsq(np.array(rows), np.array([*mean.values()]))[0][-1])
    return found


def test_v_class_is_the_coefficient_of_a_perfect_map_of_the_next_or_the_previous_class():
    """One head has 3 times the map of the next class, the other 2 times that of the previous one."""
    spec = replace(TINY, width=18, output_projection=True)
    shapes = encoder.parameters(spec, Hypers(init=0))
    params = {name: np.zeros(shape) for name, (_, shape) in shapes.items()}
    params["W_E"] = np.eye(18, 9)
    params["W_O"][0, :9] = np.eye(9, 18) + np.eye(9, 18, 9)
    frequent = np.random.default_rng(0).normal(size=9)
    for i, c in CLASSES.items():
        for j, own in CLASSES.items():
            params["W_V"][0, i, j] = 3 * (P[own, c] - PI[c]) + frequent[i]
            params["W_V"][0, 9 + i, j] = 2 * (PI[c] * P[c, own] / PI[own] - PI[c]) + frequent[j]
    found = measuring(spec)(hypers(), params)
    np.testing.assert_allclose(found["v_class"], [[3, 2]], rtol=1e-5)
    params["W_V"][0] = np.concatenate([np.broadcast_to(frequent, (9, 9)).T] * 2).repeat(2, axis=1)
    found = measuring(spec)(hypers(), params)  # frequencies alone
    np.testing.assert_allclose(found["v_class"], [[0, 0]], atol=1e-6)


@BOTH_PATHS
def test_columns_of_weights_are_those_of_loops_over_pairs_of_words(spec):
    params = random_params(spec)
    found = measuring(spec)(hypers(), params)
    topics = {word: (word - 1) // 2 for word in range(1, 5)}
    E = params["W_E"]
    for layer in range(spec.layers):
        from_heads = params["W_O"][layer] if spec.output_projection else np.eye(4)
        U = E.T @ from_heads @ params["W_V"][layer] @ E
        pairs = [(i, j) for i in topics for j in topics if i != j]
        same, other = (
            np.mean([U[i, j] for i, j in pairs if (topics[i] == topics[j]) is is_same])
            for is_same in (True, False)
        )
        assert float(found["v_topic"][layer]) == pytest.approx(same - other, rel=1e-4)
        for head in range(2):
            own = slice(2 * head, 2 * head + 2)
            U = E.T @ from_heads[:, own] @ params["W_V"][layer, own] @ E
            expected = max(slow_coefficients(U))
            assert float(found["v_class"][layer, head]) == pytest.approx(expected, rel=1e-4)
            q = params["W_Q"][layer, own] @ E[:, 0]
            score = np.array([(params["W_K"][layer, own] @ E[:, word]) @ q / 2**0.5 for word in range(9)])
            expected = score[1:5].mean() - score[5:].mean()
            assert float(found["content_score"][layer, head]) == pytest.approx(expected, rel=1e-4)
            biases = [float(found[name][layer, head]) for name in records.BIASES]
            assert biases == pytest.approx(GAIN * params["R"][layer, head], rel=1e-6)
        for letter in "kqv":
            norm = np.linalg.norm(params[f"W_{letter.upper()}"][layer])
            assert float(found[f"norm_{letter}"][layer]) == pytest.approx(norm, rel=1e-6)
        bias = np.linalg.norm(GAIN * params["R"][layer])
        assert float(found["norm_bias"][layer]) == pytest.approx(bias, rel=1e-6)
    assert float(found["norm_e"]) == pytest.approx(np.linalg.norm(E), rel=1e-6)


SIDES = np.array([[[1.0, -1.0, 0.5, -0.3], [-1.0, -0.5, 0.0, -0.7]]])
TO_THE_LEFT = np.array([[[1.0, 1.0, 0.0, 0.0]] * 2])  # a first position has no such neighbour


@pytest.mark.parametrize(
    ("bias", "score"),
    [(1e-3 * SIDES, 1), (60 * SIDES, 1), (60 * TO_THE_LEFT, 1), (300 * SIDES, 1), (60 * SIDES, 50)],
)
def test_nothing_cancels_in_float32_however_small_or_large_scores_and_bias(bias, score):
    """Keys of a position may lie far below the largest score of any type, and the largest bias."""
    params = random_params(TINY)
    params["W_Q"] = score * params["W_Q"]
    params["R"] = bias / GAIN
    found = measuring(TINY)(hypers(), params)
    expected = slow_means(TINY, params)
    for part in records.PARTS:
        assert float(found[f"eval_{part}"]) == pytest.approx(expected[part], rel=1e-3), part

    @jax.jit
    def gradients(hypers, params):
        own = masked.from_documents(TINY, DOCUMENTS)
        return model.loss_and_gradients(TINY, hypers, params, {}, own)[1]

    *_, exact = compiled(TINY)(hypers(), params)
    rounding = 1e-5 * max(abs(own).max() for own in exact.values())
    for name, own in gradients(hypers(), params).items():
        np.testing.assert_allclose(own, exact[name], rtol=1e-3, atol=rounding, err_msg=name)


def test_a_trial_is_the_same_beside_one_with_far_larger_scores():
    """Both ways to shift scores agree, and one trial of a program does not change another."""
    params = random_params(TINY)
    both = {name: np.stack([leaf, leaf]) for name, leaf in params.items()}
    both["W_Q"] = both["W_Q"] * np.array([1.0, 200.0])[:, None, None, None]

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def losses(hypers, params):
        return model.loss_and_gradients(TINY, hypers, params, {}, masked.from_documents(TINY, DOCUMENTS))

    together, alone = (losses(hypers(), own) for own in (both, {n: leaf[:1] for n, leaf in both.items()}))
    for found, expected in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)


@BOTH_PATHS
def test_uniform_attention_keeps_the_relative_bias_at_zero(spec):
    spec = replace(spec, attention="uniform")
    names = encoder.trained_names(spec)
    assert "W_V" in names and not {"W_K", "W_Q", "R"} & {*names}
    assert "R" in encoder.trained_names(replace(spec, attention="trained"))
    state = EXPERIMENT.init(spec, traced(Stream()), hypers())
    for name in ("W_K", "W_Q", "R"):
        assert not np.any(state.params[name])


def test_places_that_only_unusual_batches_need_change_nothing():
    """The usual number of places gives the same loss as all of them, and the last position matters."""
    spec, params = replace(TINY, mask_probability=0.02), random_params(TINY)
    most, usual = masked.room(spec, 5)
    fewer = DOCUMENTS._replace(masked_BxN=DOCUMENTS.masked_BxN.at[2].set(False))

    @functools.partial(jax.jit, static_argnums=0)
    def losses(spec, shift, documents):
        own = masked.from_documents(spec, documents)
        own = own._replace(number=own.number + shift)
        return own, masked.with_usual_number(
            spec, lambda each: records.held_out_parts(spec, hypers(), params, each), own
        )

    own, found = losses(spec, 0, fewer)
    assert 0 < int(own.number) <= usual
    for shift in (0, usual - int(own.number) + 1):  # within the usual number, and above it
        again = losses(spec, shift, fewer)[1]
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), again, found)
    own, every = losses(spec, 0, DOCUMENTS)
    assert usual < int(own.number) <= most
    _, dropped = losses(spec, usual - int(own.number), DOCUMENTS)  # says that there are no more than usual
    assert float(dropped["eval_loss"]) != pytest.approx(float(every["eval_loss"]), rel=1e-3)


def test_room_is_for_all_but_the_rarest_batches_and_overflow_is_noticed():
    most, usual = masked.room(replace(Spec(), longest=64, mask_probability=0.15), 16)
    drawn = np.random.default_rng(0).binomial(16 * 64, 0.15, 10**5)
    assert drawn.max() <= most < 1.8 * drawn.mean() and (drawn > usual).mean() < 1e-3
    small = replace(TINY, mask_probability=1e-3)
    most, _ = masked.room(small, 5)
    collect = jax.jit(masked.from_documents, static_argnums=0)
    own = collect(small, DOCUMENTS)
    number = int(np.asarray(DOCUMENTS.masked_BxN).sum())
    assert int(own.missing) == number - most > 0
    whole = collect(TINY, DOCUMENTS)
    source = experiment.Source(jnp.zeros(()), whole, {})
    assert int(experiment.positions_missing(source, whole)) <= 0
    assert int(experiment.positions_missing(source, own)) == number - most
    assert int(experiment.positions_missing(source._replace(held_out=own), whole)) == number - most


def test_a_program_has_room_for_the_longest_documents_and_the_most_masked_positions():
    streams = [Stream(length_max=90, p_mask=0.1), Stream(length_max=30, p_mask=0.4)]
    fitted = EXPERIMENT.fit(Spec(), streams)
    assert (fitted.longest, fitted.mask_probability) == (90, 0.4)


@functools.cache
def small_trial(**changed: Any):
    """Return a fitted Spec, a trial, and its reference losses."""
    given = dict(eval_documents=6, length_min=5, length_max=9, p_mask=0.3, topics=2, words_per_topic=2)
    trial = make_trial(given | changed)
    return EXPERIMENT.fit(trial.spec, [trial.stream]), trial, EXPERIMENT.references(trial)


@pytest.mark.parametrize("objective", ["cross_entropy", "squared"])
def test_reference_losses_are_of_the_documents_that_models_are_measured_on(objective):
    """A model that predicts by frequency alone has the unigram line, in all parts and in a larger program."""
    spec, trial, lines = small_trial(objective=objective, width=8)
    words = experiment.language_of(trial)
    own_C, sizes_C = words.class_of_word, words.class_sizes
    p_V = np.where(own_C < 0, 0.0, words.stationary[own_C] / sizes_C[own_C])
    larger = replace(spec, longest=12, mask_probability=1.0)
    shapes = encoder.parameters(spec, Hypers(init=0))
    params = {name: np.zeros(shape) for name, (_, shape) in shapes.items()}
    params["b_pred"] = p_V if objective == "squared" else np.log(np.maximum(p_V, 1e-30))

    @jax.jit
    def measured(stream, hypers, params):
        held_out = experiment.make_source(larger, stream).held_out
        return records.held_out_parts(larger, hypers, params, held_out)

    found = measured(traced(trial.stream), hypers(objective=objective), params)
    assert float(found["eval_loss"]) == pytest.approx(lines["held_out_unigram"], rel=1e-5)
    for part in ("class", "topic"):
        own = lines[f"held_out_{part}_unigram"]
        assert float(found[f"eval_{part}"]) == pytest.approx(own, rel=1e-5), part
        assert lines[f"held_out_{part}_best"] < own


def test_a_record_has_the_loss_of_the_batch_of_its_step_before_its_update():
    spec, trial, _ = small_trial(width=8)
    stream, given, step = traced(trial.stream), traced(trial.hypers), jnp.int32(3)

    @jax.jit
    def run():
        source = experiment.make_source(spec, stream)
        batch = experiment.draw_batch(spec, stream, source, step)
        state = EXPERIMENT.init(spec, stream, given)
        after, made = experiment.update(spec, stream, given, state, batch, step)
        record = experiment.measure(spec, stream, given, source, state, batch, made)
        losses = [
            records.held_out_parts(spec, given, own.params, batch)["eval_loss"] for own in (state, after)
        ]
        return record.loss, record.eval_loss, losses

    loss, eval_loss, (before, after) = run()
    assert float(loss) == pytest.approx(float(before), rel=1e-5)
    assert abs(float(loss) - float(after)) > 1e-4 and abs(float(loss) - float(eval_loss)) > 1e-4


def test_reference_losses_are_shared_by_what_does_not_change_them():
    _, trial, _ = small_trial()
    names = EXPERIMENT.reference_settings(trial)
    for name in ("topics", "alpha", "sharpness", "length_max", "p_mask", "eval_documents", "objective"):
        assert name in names
    for name in ("seed", "batch_size", "positions", "bias_gain", "learning_rate", "longest"):
        assert name not in names


def test_work_of_a_step_is_counted_on_both_paths():
    """Products over types for one layer; over pairs of positions for deeper models."""
    spec = Spec(heads=2, width=8)
    _, usual = masked.room(spec, 16)
    V, D = spec.vocabulary, 8
    by_position = D * V + 2 * V * (2 * 3) + 2 * V * (4 + 1)  # head; counts near; values and normaliser
    assert experiment.step_flops(spec) == pytest.approx(6 * (usual * by_position + 2 * V * D * D))
    deep = experiment.step_flops(replace(spec, layers=2))
    pairs = 2 * 16 * 64 * 64 * D  # scores and sums of a layer
    assert 6 * 2 * pairs < deep < 6 * 10 * pairs


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            dict(p_keep=0.1),
            "syntax has no setting p_keep: with masked positions that show a word, classes and",
        ),
        (dict(p_random=0.1), "syntax has no setting p_random: with masked positions that show a word"),
        (dict(overlap=0.5), "syntax has no setting overlap: the exact losses of the language are known for"),
        (dict(word_distribution="zipf"), "syntax has no setting word_distribution: the exact losses"),
        (dict(zipf_exponent=1.0), "syntax has no setting zipf_exponent: the exact losses"),
        (dict(length_min=65), "length_min is 65; allowed: at most length_max = 64"),
        (dict(length_max=5000), "length_max is 5000; allowed: at most 4096"),
        (dict(positions=63), "positions is 63; allowed: 0, or at least 64"),
        (dict(heads=3), "heads is 3; allowed: a divisor of the width, 32"),
        (dict(embedding="one_hot"), "width is 32; allowed: 0 when embedding is 'one_hot'"),
        (dict(classes=1), "classes is 1; allowed: "),
        (dict(stay=1.0), "stay is 1.0; allowed: "),
        (dict(alpha=0.0), "alpha is 0.0; allowed: "),
        (dict(sharpnes=0.5), "unknown setting 'sharpnes'; did you mean 'sharpness'"),
    ],
)
def test_settings_that_are_refused_are_one_sentence(settings, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        make_trial(settings)
    assert "\n" not in str(caught.value)


def test_an_added_objective_is_refused():
    new = make_trial({})
    new = new._replace(hypers=new.hypers._replace(objective="brier"))
    with pytest.raises(UserError, match="objective is 'brier'; allowed: cross_entropy, squared: what"):
        check(new)

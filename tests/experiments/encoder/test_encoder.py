"""The encoder over rows equals its definition equals plain loops over positions; so do its records."""

import functools
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import encoder_reference

import topicjax
from topicjax.errors import UserError
from topicjax.experiments.encoder import experiment, records, rows
from topicjax.experiments.encoder import losses as row_losses
from topicjax.experiments.encoder.experiment import EXPERIMENT
from topicjax.experiments.encoder.settings import Spec, code, make_trial, traced
from topicjax.experiments.one_layer import kernel
from topicjax.experiments.one_layer import model as one_layer_model
from topicjax.experiments.one_layer.settings import Spec as OneLayerSpec
from topicjax.experiments.shared import bags, encoder, layer_records, layers
from topicjax.experiments.shared.lda import Documents, key_positions
from topicjax.experiments.shared.settings import LayerHypers as Hypers
from topicjax.experiments.shared.state import split
from topicjax.sweep import product
from topicjax.theory.document_settings import Stream

TINY = Spec(
    topics=2, words_per_topic=3, shortest=3, longest=7, word_query_probability=1.0, width=4, heads=2, layers=2
)
FULL = replace(TINY, mlp=5, output_projection=True, head="free", output_bias="trained")
PLACED = replace(TINY, positions=7, layers=1)
DEEP = replace(FULL, layers=3)  # a loop: see `deep_layers_are_a_loop`
NORMS = ("none", "pre", "post")


@pytest.fixture(autouse=True, scope="module")
def deep_layers_are_a_loop():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "LOOPED", DEEP.layers)
        yield


def ragged_documents() -> Documents:
    """Five documents of different lengths: one without masked positions, one fully masked."""
    rng = np.random.default_rng(0)
    present = np.arange(7)[None, :] < np.array([7, 3, 5, 4, 6])[:, None]
    word = rng.integers(1, 7, (5, 7))
    masked = present & (rng.random((5, 7)) < 0.5)
    masked[1], masked[2] = False, present[2]
    kind = rng.random((5, 7))
    shown = np.where(
        masked & (kind < 0.5), 0, np.where(masked & (kind < 0.7), rng.integers(1, 7, (5, 7)), word)
    )
    return Documents(*map(jnp.asarray, (word, shown, masked, present)))


DOCUMENTS = ragged_documents()


def random_params(spec: Spec, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of the size of 1: nothing is near a symmetric point."""
    rng = np.random.default_rng(seed)
    shapes = encoder.parameters(spec, Hypers(init=0))
    return {name: rng.normal(size=shape) for name, (_, shape) in shapes.items()}


def hypers(residual=True, norm="none", objective="cross_entropy", **changed):
    return traced(Hypers(residual=residual, layer_norm=norm, objective=objective, **changed))


def stream(keys: str):
    return traced(Stream(key_visibility=keys, length_min=3, length_max=7))


@functools.cache
def compiled(spec: Spec):
    """Return the losses of documents, of (hypers, params, stream, gates), and the gradients of eq. (1)."""

    def losses(hypers, params, stream, gate_BxL=None, documents=DOCUMENTS):
        own = rows.from_documents(spec, stream, documents)
        output = row_losses.outputs(spec, hypers, params, own, gate_BxL)
        return row_losses.loss_of_documents(hypers.objective, output, own.target_BxQxV)

    def gradients(hypers, params, stream):
        own = rows.from_documents(spec, stream, DOCUMENTS)
        return row_losses.loss_and_gradients(spec, hypers, params, {}, own)[1]

    return jax.jit(losses), jax.jit(gradients)


def reference_losses(spec, params, hidden, squared=False, **how):
    documents = [np.asarray(part) for part in DOCUMENTS]
    return encoder_reference.loss_of_documents(params, documents, hidden, squared, heads=spec.heads, **how)


@pytest.mark.parametrize("spec", [TINY, FULL, PLACED, DEEP], ids=["plain", "full", "positions", "deep"])
def test_losses_are_those_of_plain_loops_over_positions(spec):
    params, (losses, _) = random_params(spec), compiled(spec)
    for residual, norm, keys in itertools.product((True, False), NORMS, ("all", "unmasked")):
        found = np.asarray(losses(hypers(residual, norm), params, stream(keys)))
        own = reference_losses(spec, params, keys == "unmasked", residual=residual, norm=norm)
        np.testing.assert_allclose(found[found > 0] * len(own), own, rtol=2e-5)


@pytest.mark.parametrize("spec", [TINY, FULL, PLACED, DEEP], ids=["plain", "full", "positions", "deep"])
def test_gradients_are_those_of_plain_loops_over_positions(spec):
    """A complex step along a random direction of all parameters, exact to machine precision."""
    params, direction, (_, gradients) = random_params(spec), random_params(spec, 1), compiled(spec)
    for residual, norm, objective in (
        (True, "pre", "squared"),
        (False, "none", "cross_entropy"),
        (True, "post", "squared"),
    ):
        found = gradients(hypers(residual, norm, objective), params, stream("all"))
        slope = sum(float(np.sum(np.asarray(found[name], float) * direction[name])) for name in params)
        stepped = {name: params[name] + 1e-30j * direction[name] for name in params}
        how = dict(squared=objective == "squared", residual=residual, norm=norm)
        expected = reference_losses(spec, stepped, False, **how).mean().imag / 1e-30
        assert slope == pytest.approx(expected, rel=5e-5)


@pytest.mark.parametrize("spec", [TINY, FULL, PLACED], ids=["plain", "full", "positions"])
def test_the_definition_in_flax_is_the_same_model(spec):
    params = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in random_params(spec).items()}
    shown, keys = DOCUMENTS.shown_BxN[0], list(range(7))
    for residual, norm in itertools.product((True, False), NORMS):
        module = encoder.Encoder(spec, hypers(residual, norm))
        found = module.apply({"params": params}, shown, jnp.ones(7, bool))
        own, _ = encoder_reference.encode(
            random_params(spec), np.asarray(shown), keys, heads=spec.heads, residual=residual, norm=norm
        )
        np.testing.assert_allclose(np.asarray(found), np.stack(own), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("embedding", ["trained", "one_hot"])
def test_one_layer_with_everything_off_is_the_one_layer_model(embedding):
    width = 4 if embedding == "trained" else 0
    spec = replace(TINY, layers=1, heads=1, width=width, embedding=embedding)
    params = random_params(spec)
    found = compiled(spec)[0](hypers(residual=False), params, stream("unmasked"))
    plain = OneLayerSpec(topics=2, words_per_topic=3, embedding=embedding, embedding_dim=width)
    weights = {name: params[name][0] for name in ("W_K", "W_Q", "W_V")} | {"b_pred": params["b_pred"]}
    weights |= {"W_E": params["W_E"]} if "W_E" in params else {}
    weights = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in weights.items()}
    loss = one_layer_model.token_loss(plain, stream("unmasked"), np.int32(0), weights, DOCUMENTS)
    assert float(found.sum()) == pytest.approx(float(loss), rel=1e-5)


def test_infinite_documents_are_those_of_the_one_layer_model():
    spec = replace(TINY, layers=1, heads=1, infinite_documents=True)
    plain = OneLayerSpec(
        topics=2, words_per_topic=3, embedding="trained", embedding_dim=4, infinite_documents=True
    )
    own_stream, P_BxW = traced(Stream(p_keep=0.2)), jax.random.dirichlet(jax.random.key(0), jnp.ones(6), (3,))
    params = random_params(spec)
    weights = {name: params[name][0] for name in ("W_K", "W_Q", "W_V")}
    weights |= {name: params[name] for name in ("b_pred", "W_E")}

    @jax.jit
    def both(params, weights):
        own = rows.from_distributions(spec, own_stream, P_BxW)
        output = row_losses.outputs(spec, hypers(residual=False), params, own)
        found = row_losses.loss_of_documents(jnp.int32(1), output, own.target_BxQxV).sum()
        bag = bags.from_distributions(plain, own_stream, P_BxW)
        effective = kernel.effective(plain, kernel.pad(weights))
        return found, kernel.loss(effective, bag, jnp.int32(1), kernel.real_types(plain)), own.shown_BxU

    found, expected, shown_BxU = both(params, weights)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(shown_BxU.sum(axis=1), 1.0, rtol=1e-6)


def test_the_order_of_positions_does_not_matter_and_relabelled_words_are_the_same_model():
    params, (losses, _) = random_params(TINY), compiled(TINY)
    before = losses(hypers(), params, stream("all"))
    order = np.random.default_rng(1).permutation(7)
    turned = Documents(*(part[:, order] for part in DOCUMENTS))
    np.testing.assert_allclose(losses(hypers(), params, stream("all"), None, turned), before, rtol=1e-5)
    label = np.array([0, 4, 5, 6, 1, 2, 3])  # the two topics change places
    relabelled = DOCUMENTS._replace(
        word_BxN=jnp.asarray(label[DOCUMENTS.word_BxN]), shown_BxN=jnp.asarray(label[DOCUMENTS.shown_BxN])
    )
    moved = params | {"W_E": params["W_E"][:, label], "b_pred": params["b_pred"][label]}
    np.testing.assert_allclose(losses(hypers(), moved, stream("all"), None, relabelled), before, rtol=1e-5)


def test_gates_on_scores_are_of_a_document_and_layer():
    spec, params, losses = TINY, random_params(TINY), compiled(TINY)[0]
    for layer in range(2):
        closed = np.ones(2)
        closed[layer] = 0.3
        gates = np.ones((5, 2))
        gates[3] = closed
        found = np.asarray(losses(hypers(norm="pre"), params, stream("all"), gates))
        own = reference_losses(spec, params, False, residual=True, norm="pre")
        gated = reference_losses(spec, params, False, residual=True, norm="pre", scores=closed)
        expected = np.where(np.arange(5)[found > 0] == 3, gated, own)
        np.testing.assert_allclose(found[found > 0] * len(own), expected, rtol=2e-5)


def brute_force_means(spec, params, keys_of, layer):
    """Return mean attention by kind of pair and the mean entropy deficit, by loops over positions."""
    sums, counts, deficits = np.zeros(5), np.zeros(5), []
    masked_D = np.asarray(DOCUMENTS.masked_BxN.sum(axis=1))
    for d in range(5):
        length = int(DOCUMENTS.present_BxN[d].sum())
        shown = np.asarray(DOCUMENTS.shown_BxN[d, :length])
        keys = [n for n in range(length) if keys_of[d, n]]
        _, attention = encoder_reference.encode(
            params, shown, keys, heads=spec.heads, residual=True, norm="none"
        )
        for query in range(length):
            weights = np.mean(attention[layer][query], axis=0)
            if keys:
                deficits += [
                    np.mean([np.log(len(keys)) + (a * np.log(a)).sum() for a in attention[layer][query]])
                ]
            if DOCUMENTS.masked_BxN[d, query] and shown[query] == 0:
                for place, key in enumerate(keys):
                    if shown[key]:
                        word = int(DOCUMENTS.word_BxN[d, query])
                        kind = 3 if (word - 1) // 3 == (shown[key] - 1) // 3 else 4
                        sums[kind] += weights[place] / masked_D[d]  # a position counts as in the loss
                        counts[kind] += 1 / masked_D[d]
            for place, key in enumerate(keys):
                if query == key or not keys_of[d, query] or 0 in (shown[query], shown[key]):
                    continue
                is_same_topic = (shown[query] - 1) // 3 == (shown[key] - 1) // 3
                kind = 0 if shown[query] == shown[key] else 1 if is_same_topic else 2
                sums[kind] += weights[place]
                counts[kind] += 1
    return [*(sums / counts), np.mean(deficits)]


@pytest.mark.parametrize(
    ("spec", "keys"),
    [(TINY, "all"), (TINY, "unmasked"), (PLACED, "all"), (replace(TINY, layers=3), "unmasked")],
)
def test_attention_means_are_those_of_loops_over_pairs_of_positions(spec, keys):
    params, own_stream = random_params(spec), stream(keys)

    @jax.jit
    def means(params, stream):
        held_out = rows.from_documents(spec, stream, DOCUMENTS)
        found = records.held_out_columns(spec, hypers(), held_out, params)
        return [found[name] for name in records.PairMeans._fields]

    found = means(params, own_stream)
    keys_of = np.asarray(key_positions(own_stream, DOCUMENTS))
    for layer in range(spec.layers):
        expected = brute_force_means(spec, params, keys_of, layer)
        np.testing.assert_allclose([column[layer] for column in found], expected, rtol=1e-4)


@functools.cache
def measuring(spec: Spec):
    """Return the held-out columns, gains of layers included, of (hypers, params)."""

    @jax.jit
    def measured(hypers, params):
        held_out = rows.from_documents(spec, stream("all"), DOCUMENTS)
        gains = records.measure_gains(spec, hypers, held_out, params)._asdict()
        return records.held_out_columns(spec, hypers, held_out, params) | gains

    return measured


@pytest.mark.parametrize("norm", NORMS)
def test_losses_of_the_whole_model_and_their_errors(norm):
    """Silenced attention leaves layer norms the scales of uniform attention."""
    spec, params, none = FULL, random_params(FULL), np.zeros(2)
    found = measuring(spec)(hypers(norm=norm), params)
    how = dict(residual=True, norm=norm)
    on = reference_losses(spec, params, False, **how)
    uniform = reference_losses(spec, params, False, scores=none, **how)
    silent = reference_losses(spec, params, False, scores=none, outputs=none, scales_of=none, **how)
    np.testing.assert_allclose(found["eval_loss"], on.mean(), rtol=2e-5)
    np.testing.assert_allclose(found["eval_loss_uniform"], uniform.mean(), rtol=2e-5)
    np.testing.assert_allclose(found["eval_loss_silent"], silent.mean(), rtol=2e-5)
    np.testing.assert_allclose(found["eval_loss_se"], error_of(on), rtol=1e-4)
    np.testing.assert_allclose(found["eval_gain_se"], error_of(uniform - on), rtol=1e-3)
    np.testing.assert_allclose(found["eval_value_se"], error_of(silent - uniform), rtol=1e-3)
    plain = reference_losses(spec, params, False, scores=none, outputs=none, **how)
    assert np.allclose(plain, silent) == (norm == "none")


@pytest.mark.parametrize(
    ("spec", "norm"),
    [(FULL, "none"), (FULL, "pre"), (FULL, "post"), (DEEP, "pre")],
    ids=[*NORMS, "deep"],
)
def test_gains_of_layers_are_those_of_complex_steps_along_the_path(spec, norm):
    params, L, none = random_params(spec), spec.layers, np.zeros(spec.layers)
    found, how = measuring(spec)(hypers(norm=norm), params), dict(residual=True, norm=norm)

    def by_scores(gate):
        return reference_losses(spec, params, False, scores=gate, **how)

    def by_outputs(gate):
        return reference_losses(spec, params, False, scores=none, outputs=gate, scales_of=none, **how)

    for name, loss in (("attention_gain", by_scores), ("value_gain", by_outputs)):
        own = encoder_reference.path_shares(loss, L, layer_records.POINTS)
        np.testing.assert_allclose(found[name], own.mean(axis=0), rtol=2e-3, atol=1e-4)
        errors = [error_of(own[:, layer]) for layer in range(L)]
        np.testing.assert_allclose(found[f"{name}_se"], errors, rtol=2e-3, atol=1e-4)


def test_programs_of_deep_models_grow_only_until_layers_are_a_loop():
    def products(number):
        spec = replace(FULL, layers=number)
        return str(jax.make_jaxpr(measuring(spec))(hypers(), random_params(spec))).count("dot_general")

    assert products(1) < products(2) < products(4) == products(8)


@pytest.mark.parametrize("norm", NORMS)
def test_gains_of_layers_add_up_to_those_of_the_whole_model(norm):
    spec = FULL
    params = {name: 0.6 * leaf for name, leaf in random_params(spec).items()}
    found = measuring(spec)(hypers(norm=norm), params)
    P = float(found["eval_loss_silent"] - found["eval_loss_uniform"])
    Q = float(found["eval_loss_uniform"] - found["eval_loss"])
    for whole, gains in ((P, found["value_gain"]), (Q, found["attention_gain"])):
        moved = float(np.abs(gains).sum())
        assert moved > 0.004
        assert float(gains.sum()) == pytest.approx(whole, abs=0.02 * moved)


def test_a_layer_without_values_gains_nothing_and_a_single_layer_everything():
    params = random_params(FULL)
    params["W_V"][1] = 0
    found = measuring(FULL)(hypers(norm="pre"), params)
    assert float(found["value_gain"][1]) == 0 == float(found["value_gain_se"][1])
    assert float(found["value_gain"][0]) != 0
    one = replace(FULL, layers=1)
    found = measuring(one)(hypers(norm="pre"), random_params(one))
    P = found["eval_loss_silent"] - found["eval_loss_uniform"]
    Q = found["eval_loss_uniform"] - found["eval_loss"]
    np.testing.assert_allclose(found["value_gain"], [P], rtol=1e-4)
    np.testing.assert_allclose(found["attention_gain"], [Q], rtol=1e-4)
    np.testing.assert_allclose(found["value_gain_se"], [found["eval_value_se"]], rtol=1e-3)


def error_of(values):
    return values.std(ddof=1) / len(values) ** 0.5


def test_norms_of_heads_add_up_to_those_of_layers():
    spec, params = TINY, random_params(TINY)
    found = layer_records.head_norms(spec, {"k": params["W_K"]})
    np.testing.assert_allclose(found["norm_k_head2"][1], np.linalg.norm(params["W_K"][1, 2:]), rtol=1e-6)
    total = np.hypot(found["norm_k_head1"], found["norm_k_head2"])
    np.testing.assert_allclose(total, np.linalg.norm(params["W_K"], axis=(1, 2)), rtol=1e-6)
    assert np.isnan(found["norm_k_head3"]).all()


SMALL = dict(
    topics=6, words_per_topic=8, length_min=20, length_max=40, batch_size=3, eval_documents=4, width=8,
    steps=20, record_every=10, layers=2, heads=2, learning_rate=0.01,
)  # fmt: skip


class Small(NamedTuple):
    """A small trial with its first state and its first batch."""

    spec: Spec
    stream: Any
    hypers: Any
    source: experiment.Source
    state: Any
    batch: rows.Rows


@functools.partial(jax.jit, static_argnums=0)
def begin(spec, stream, hypers):
    source = experiment.make_source(spec, stream)
    batch = experiment.draw_batch(spec, stream, source, jnp.int32(0))
    return source, experiment.init(spec, stream, hypers), batch


@functools.cache
def small_trial(**changed) -> Small:
    trial = make_trial(SMALL | changed)
    given = EXPERIMENT.fit(trial.spec, [trial.stream]), traced(trial.stream), traced(trial.hypers)
    return Small(*given, *begin(*given))


@pytest.mark.slow
def test_rows_that_only_unusual_documents_need_change_nothing():
    spec, _, own_hypers, source, state, batch = small_trial()
    U, Q = rows.usual_room(spec)
    assert (U, Q) < rows.room(spec) == (batch.token_BxU.shape[1], batch.target_BxQxV.shape[1])
    assert int(batch.most) <= U and int(batch.most_predicted) <= Q
    measure = jax.jit(records.held_out_columns, static_argnums=0)
    few = measure(spec, own_hypers, source.held_out, state.params)
    many = measure(spec, own_hypers, source.held_out._replace(most=jnp.int32(99)), state.params)
    for name, values in few.items():
        np.testing.assert_allclose(values, many[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_rows_without_room_are_noticed():
    _, _, _, source, _, batch = small_trial()
    assert int(experiment.rows_missing(source, batch)) <= 0
    cut = batch._replace(target_BxQxV=batch.target_BxQxV[:, :1])
    most = int(batch.most_predicted)
    assert most > 1 and int(experiment.rows_missing(source, cut)) == most - 1


def test_a_step_is_sgd_on_trained_parts_and_frozen_parts_stay():
    spec, own_stream, own_hypers, _, state, batch = small_trial(
        optimizer="sgd", embedding="random", attention="uniform", layers=1, heads=1, l2=0.5
    )

    @jax.jit
    def step(state, batch):
        trained, frozen = split(state.params, encoder.trained_names(spec))
        _, bare = row_losses.loss_and_gradients(spec, own_hypers, trained, frozen, batch)
        return *experiment.update(spec, own_stream, own_hypers, state, batch, jnp.int32(0)), bare

    stepped, (_, loss, gradients), bare = step(state, batch)
    assert 0 < float(loss) < 10
    assert set(gradients) == set(state.params) - {"W_E", "W_K", "W_Q", "b_pred"}
    assert not np.asarray(state.params["W_K"]).any()
    for name, leaf in state.params.items():
        change = own_hypers.learning_rate * gradients[name] if name in gradients else 0.0
        np.testing.assert_allclose(stepped.params[name], leaf - change, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(gradients["W_V"] - bare["W_V"], state.params["W_V"], atol=1e-6)  # 2 l2 W


def test_layer_norms_that_are_off_stay_as_they_were():
    spec, own_stream, own_hypers, _, state, batch = small_trial()
    stepped, _ = jax.jit(experiment.update, static_argnums=0)(
        spec, own_stream, own_hypers, state, batch, jnp.int32(0)
    )
    for name in ("gain_attention", "bias_attention", "gain_last"):
        np.testing.assert_array_equal(stepped.params[name], state.params[name])
    assert not np.array_equal(stepped.params["W_E"], state.params["W_E"])


def test_other_seeds_have_other_weights_and_other_layers_too():
    first, second = (small_trial(seed=seed).state.params for seed in (0, 1))
    assert not np.array_equal(first["W_K"], second["W_K"]) and not np.array_equal(
        first["W_K"][0], first["W_K"][1]
    )
    assert np.std(first["W_V"]) == pytest.approx(1e-3, rel=0.2)


def test_settings_that_do_not_go_together_are_refused():
    with pytest.raises(UserError, match="heads is 3; allowed: a divisor of the width, 64"):
        make_trial(dict(heads=3))
    with pytest.raises(UserError, match="width is 64; allowed: 0 when embedding is 'one_hot'"):
        make_trial(dict(embedding="one_hot"))
    with pytest.raises(UserError, match="positions is 100; allowed: 0, or at least 150"):
        make_trial(dict(positions=100))
    with pytest.raises(UserError, match="positions is 200; allowed: 0 for infinite documents"):
        make_trial(dict(positions=200, infinite_documents=True))
    assert code("layer_norm", "post") == 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> topicjax.Run:
    return train_sweep(tmp_path_factory.mktemp("encoders") / "lane", "lane")


def train_sweep(folder: Path, order: str) -> topicjax.Run:
    base = SMALL | dict(optimizer="sgd", learning_rate=0.1, init="default", init_scale=1.0)
    own = replace(EXPERIMENT, references=None)
    axes = product(seed=(0, 1), residual=(True, False), layer_norm=("none", "pre"))
    return topicjax.sweep(own, axes, folder, base, devices=jax.devices()[:1], order=order)


@pytest.mark.slow
def test_both_orders_agree(trained, tmp_path):
    keys = ["trial_id", "step", "layer"]
    runs = (trained, train_sweep(tmp_path / "together", "together"))
    mine, others = (run.details.set_index(keys).sort_index() for run in runs)
    for name in ("norm_v", "attn_same_topic", "value_gain", "norm_k_head2"):
        np.testing.assert_allclose(mine[name], others[name].reindex(mine.index), rtol=1e-3, err_msg=name)


@pytest.mark.slow
def test_a_sweep_of_encoders_has_its_layers_in_a_table(trained):
    one = trained
    assert one.details.groupby("layer").size().tolist() == [24, 24]  # 8 trials, 3 records
    mine = one.details.set_index(["trial_id", "step", "layer"]).sort_index()
    rows = one.trajectories.set_index(["trial_id", "step"]).sort_index()
    assert (
        rows["eval_loss"].groupby("trial_id").last() < rows["eval_loss"].groupby("trial_id").first()
    ).all()
    weights = one.restore(one.trials["trial_id"][0])
    norms = np.linalg.norm(weights["W_V"], axis=(1, 2))
    np.testing.assert_allclose(mine.loc[(one.trials["trial_id"][0], 20), "norm_v"], norms, rtol=1e-5)

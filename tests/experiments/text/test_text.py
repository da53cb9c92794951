"""The encoder on text: windows, masks, rows and losses against plain loops; its sweeps through the engine."""

import functools
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import encoder_reference
from support.small_corpus import write_corpora

import topicjax
from topicjax.corpora.corpus import load_corpus
from topicjax.errors import UserError
from topicjax.experiments.shared import encoder, layer_records
from topicjax.experiments.shared.lda import Documents
from topicjax.experiments.shared.settings import LayerHypers as Hypers
from topicjax.experiments.text import experiment, losses, records, rows, windows
from topicjax.experiments.text.experiment import EXPERIMENT
from topicjax.experiments.text.settings import TRIALS, Spec, Stream, check, make_trial, traced
from topicjax.sweep import expand, product
from topicjax.sweep.files import load_sweep
from topicjax.sweep.overrides import override

TINY = Spec(vocabulary_size=7, context=7, positions=False, width=4, heads=2, layers=2, mask_probability=1.0)
TINY = replace(TINY, word_query_probability=1.0, eval_windows=5, mlp=5, output_bias="trained")
PLACED = replace(TINY, positions=True, output_projection=True, layers=1)


def ragged_windows() -> Documents:
    """Five windows of different lengths: one without masked positions, one fully masked."""
    rng = np.random.default_rng(0)
    present = np.arange(7)[None, :] < np.array([7, 3, 5, 4, 6])[:, None]
    word = np.where(present, rng.integers(2, 7, (5, 7)), 0)
    masked = present & (rng.random((5, 7)) < 0.5)
    masked[1], masked[2] = False, present[2]
    kind = rng.random((5, 7))
    other = np.where(kind < 0.7, rng.integers(2, 7, (5, 7)), word)
    return Documents(
        *map(jnp.asarray, (word, np.where(masked, np.where(kind < 0.5, 0, other), word), masked, present))
    )


WINDOWS = ragged_windows()


def random_params(spec: Spec, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=shape) for name, (_, shape) in encoder.parameters(spec, Hypers(init=0)).items()
    }


def hypers(norm: str = "none", objective: str = "cross_entropy", **changed: Any) -> Any:
    return TRIALS.traced(Hypers(layer_norm=norm, objective=objective, **changed))


def stream(keys: str = "all") -> Any:
    return traced(Stream(key_visibility=keys))


@functools.cache
def compiled(spec: Spec):
    """Return the losses of windows of (hypers, params, stream, gates), and the gradients of eq. (1)."""
    room = rows.room(spec, 5)

    def made(stream):
        return rows.from_documents(spec, stream, WINDOWS, WINDOWS.masked_BxN, room)

    def loss(hypers, params, stream, gate_BxL=None):
        own = made(stream)
        X_FxD = losses.last_states(spec, hypers, params, own, room, gate_BxL)
        return losses.losses_of_windows(spec, hypers, params, X_FxD, own), own.missing

    def gradients(hypers, params, stream):
        return losses.loss_and_gradients(spec, hypers, params, {}, made(stream), room)

    return jax.jit(loss), jax.jit(gradients)


def reference_losses(spec, params, hidden=False, squared=False, **how):
    documents = [np.asarray(part) for part in WINDOWS]
    return encoder_reference.loss_of_documents(
        params, documents, hidden, squared, heads=spec.heads, residual=True, **how
    )


@pytest.mark.parametrize("spec", [TINY, PLACED], ids=["rows by type", "rows by position"])
def test_losses_are_those_of_plain_loops_over_positions(spec):
    params, (loss, _) = random_params(spec), compiled(spec)
    for norm, keys, objective in itertools.product(
        ("none", "pre"), ("all", "unmasked"), ("cross_entropy", "squared")
    ):
        found, missing = loss(hypers(norm, objective), params, stream(keys))
        own = reference_losses(spec, params, keys == "unmasked", objective == "squared", norm=norm)
        found = np.asarray(found)
        assert int(missing) <= 0
        np.testing.assert_allclose(found[found > 0] * len(own), own, rtol=3e-5)


@pytest.mark.parametrize("spec", [TINY, PLACED], ids=["rows by type", "rows by position"])
def test_gradients_are_those_of_plain_loops_over_positions(spec):
    """A complex step along a random direction of all parameters, exact to machine precision."""
    params, direction, (_, gradients) = random_params(spec), random_params(spec, 1), compiled(spec)
    for norm, objective in (("pre", "cross_entropy"), ("post", "squared")):
        loss, found = gradients(hypers(norm, objective), params, stream())
        slope = sum(float(np.sum(np.asarray(found[name], float) * direction[name])) for name in params)
        stepped = {name: params[name] + 1e-30j * direction[name] for name in params}
        expected = reference_losses(spec, stepped, squared=objective == "squared", norm=norm).mean()
        assert slope == pytest.approx(expected.imag / 1e-30, rel=1e-4)
        assert float(loss) == pytest.approx(expected.real, rel=1e-5)


def test_rows_by_type_equal_rows_by_position():
    """Equal positions merged, against every position for itself, without position embeddings."""
    apart = replace(PLACED, layers=2, output_projection=False)
    params = random_params(TINY)
    merged, _ = compiled(TINY)[0](hypers("pre"), params, stream())
    still = params | {"W_P": np.zeros((4, 7))}
    each, _ = compiled(apart)[0](hypers("pre"), still, stream())
    np.testing.assert_allclose(merged, each, rtol=2e-5)
    own = rows.from_documents(TINY, stream(), WINDOWS, WINDOWS.masked_BxN, rows.room(TINY, 5))
    for number in range(5):
        shown = np.asarray(WINDOWS.shown_BxN)[number][np.asarray(WINDOWS.present_BxN)[number]]
        found = {
            int(t): int(n) for t, n in zip(own.token_BxU[number], own.shown_BxU[number], strict=True) if n
        }
        assert found == {int(token): int((shown == token).sum()) for token in set(shown)}


def test_gates_on_scores_are_of_a_window_and_layer():
    spec, params, loss = TINY, random_params(TINY), compiled(TINY)[0]
    closed, gates = np.array([1.0, 0.3]), np.ones((5, 2))
    gates[3] = closed
    found = np.asarray(loss(hypers(), params, stream(), gates)[0])
    own, gated = (reference_losses(spec, params, norm="none", scores=scores) for scores in (None, closed))
    expected = np.where(np.arange(5)[found > 0] == 3, gated, own)
    np.testing.assert_allclose(found[found > 0] * len(own), expected, rtol=3e-5)


def test_rows_that_only_unusual_batches_need_change_nothing():
    """The head of the usual number of rows gives the same loss and gradients as the head of all rows."""
    spec, params = replace(PLACED, head="free"), random_params(replace(PLACED, head="free"))
    room = rows.room(spec, 5)
    own = rows.from_documents(spec, stream(), WINDOWS, WINDOWS.masked_BxN, room)
    number = int(own.number)
    assert number == int(np.asarray(WINDOWS.masked_BxN).sum()) < room.F

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(usual, own):
        fitted = room._replace(usual=usual)
        return losses.loss_and_gradients(spec, hypers("pre"), params, {}, own, fitted)

    every = gradients(room.F, own)
    for usual in (number, number - 1):  # within the usual room, and one row beyond it
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), gradients(usual, own), every
        )
    dropped = gradients(number - 1, own._replace(number=number - 1))
    assert float(dropped[0]) != pytest.approx(float(every[0]), rel=1e-3)  # the last row does matter


def test_a_batch_rarely_has_more_rows_than_usual():
    spec = replace(Spec(), mask_probability=0.15)
    room = rows.room(spec, 16)
    drawn = np.random.default_rng(0).binomial(16 * 64, 0.15, 10**5)
    assert (drawn > room.usual).mean() < 5e-4 and drawn.mean() < room.usual < room.F
    assert room.usual < 1.35 * drawn.mean()


def test_room_is_for_all_but_the_rarest_batches_and_overflow_is_noticed():
    tail = rows.OVERFLOW
    assert rows.binomial_capacity(64, 0.0, tail) == 0 and rows.binomial_capacity(64, 1.0, tail) == 64
    drawn = np.random.default_rng(0).binomial(64, 0.15, 10**5)
    assert drawn.max() <= rows.binomial_capacity(64, 0.15, tail) < 50
    assert rows.room(replace(TINY, word_query_probability=0.0), 5) == (1, 8, 8)  # [MASK] of each window
    small = rows.Room(2, 8, 8)
    own = rows.from_documents(PLACED, stream(), WINDOWS, WINDOWS.masked_BxN, small)
    masked = np.asarray(WINDOWS.masked_BxN)
    assert int(own.missing) == max(masked.sum(axis=1).max() - 2, masked.sum() - 8) > 0


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The fixture's corpora as the data folder of all tests of this module."""
    folder = write_corpora(tmp_path_factory.mktemp("text"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPICJAX_DATA", str(folder))
        yield folder
    windows.load.cache_clear()


SMALL = dict(
    corpus="own", vocabulary_size=24, context=8, batch_size=4, eval_windows=6, layers=2, heads=2, width=8,
    steps=20, record_every=10, rare_every=2, learning_rate=0.01, output_bias="trained",
)  # fmt: skip


def own_trial(**changed: Any):
    trial = make_trial(SMALL | changed)
    return EXPERIMENT.fit(trial.spec, [trial.stream]), trial


def test_windows_are_consecutive_words_of_one_document(data):
    found = load_corpus("own")
    lengths = np.diff(found.ends, prepend=0)
    cut = windows.cut_documents(lengths, 8)
    assert cut.length.max() <= 8 and cut.length.sum() == len(found.ids)
    np.testing.assert_array_equal(cut.start[1:], (cut.start + cut.length)[:-1])
    document = np.searchsorted(found.ends, cut.start, side="right")
    assert (cut.start + cut.length <= found.ends[document]).all()
    counts = np.bincount(document)
    np.testing.assert_array_equal(counts, -(-lengths // 8))  # as few as there can be ...
    spread = [np.ptp(cut.length[document == d]) for d in range(len(lengths))]
    assert max(spread) <= 1  # ... and of equal length


def test_held_out_documents_are_never_trained_on(data):
    spec, _ = own_trial()
    own, found = windows.data(spec).load(), load_corpus("own")
    number = int(own.number)
    document = np.searchsorted(found.ends, own.start_W[:number], side="right")
    assert number > 0 and not set(document) & {9, 19, 29} and set(document) == set(range(30)) - {9, 19, 29}
    text = np.where(found.ids < spec.vocabulary, found.ids, 1)
    for words, length in zip(own.held_out_BxN, own.held_out_B, strict=True):
        places = [
            start
            for d in (9, 19, 29)
            for start in range(found.ends[d - 1], found.ends[d] - length + 1)
            if (text[start : start + length] == words[:length]).all()
        ]
        assert places and not words[length:].any()


def test_rare_words_are_unknown_or_left_out(data):
    found = load_corpus("own")
    shown, lengths = windows.known_words(found, 10, "shown")
    kept, fewer = windows.known_words(found, 10, "left_out")
    assert shown.max() == 9 and (shown == 1).sum() == (found.ids >= 10).sum() > 0
    np.testing.assert_array_equal(kept, shown[shown > 1])
    assert fewer.sum() == len(kept) and lengths.sum() == len(shown) and len(fewer) == len(lengths)


def test_shapes_are_known_before_the_corpus_is_read(data):
    for unknown in ("shown", "left_out"):
        spec, _ = own_trial(unknown=unknown)
        own = windows.data(spec)
        loaded = own.load()
        for name, shape, array in zip(windows.Windows._fields, own.shapes, loaded, strict=True):
            assert (shape.shape, shape.dtype) == (array.shape, array.dtype), name


@functools.cache
def drawing(spec: Spec):
    return jax.jit(functools.partial(experiment.draw_windows, spec)), jax.jit(
        functools.partial(experiment.make_source, spec)
    )


def test_batches_depend_on_seed_and_step_alone_and_masks_are_as_asked(data):
    spec, trial = own_trial(batch_size=64, p_mask=0.3, p_keep=0.2, p_random=0.3)
    draw, source_of = drawing(spec)
    own = traced(trial.stream)
    source = source_of(own, windows.data(spec).load())
    first, again, later = (draw(own, source, step) for step in (3, 3, 4))
    np.testing.assert_array_equal(first.shown_BxN, again.shown_BxN)
    assert not np.array_equal(first.word_BxN, later.word_BxN)
    other = draw(own, source_of(own._replace(seed=np.int32(1)), windows.data(spec).load()), 3)
    assert not np.array_equal(first.word_BxN, other.word_BxN)
    drawn = [draw(own, source, step) for step in range(20)]
    word, shown, masked, present = (np.stack([np.asarray(d[i]) for d in drawn]) for i in range(4))
    known = present & (word > 1)
    assert not masked[~known].any()  # [UNK] is never predicted
    np.testing.assert_array_equal(shown[~masked], word[~masked])
    within = 4 * np.sqrt(0.25 / known.sum())
    assert masked.sum() / known.sum() == pytest.approx(0.3, abs=within)
    assert (shown[masked] == 0).mean() == pytest.approx(0.5, abs=2 * within)
    assert (shown == word)[masked].mean() == pytest.approx(0.2 + 0.3 / 22, abs=2 * within)
    assert shown[masked].max() < 24 and 1 not in shown[masked]


def test_the_unigram_line_is_that_of_counting(data):
    spec, trial = own_trial(p_mask=0.5)
    found = load_corpus("own")
    own = windows.data(spec).load()
    counts = np.ones(24)
    for document, (start, end) in enumerate(zip([0, *found.ends], found.ends, strict=False)):
        if document % 10 != 9:
            for word in found.ids[start:end]:
                counts[word if word < 24 else 1] += 1
    counts[:2] = 0
    documents = experiment.held_out_documents(spec, traced(trial.stream), own)
    word, shown, masked, _ = map(np.asarray, documents)
    means = [
        np.mean([-np.log(counts[w] / counts.sum()) for w, s, m in zip(*row, strict=True) if m and s == 0])
        for row in zip(word, shown, masked, strict=True)
        if (row[2] & (row[1] == 0)).any()
    ]
    source = experiment.make_source(spec, traced(trial.stream), own)
    parts = np.asarray(source.unigram_KxB)
    assert parts[0].sum() == pytest.approx(np.mean(means))
    assert sorted(parts[0][parts[0] > 0] * len(means)) == pytest.approx(sorted(means), rel=1e-5)
    p = counts / counts.sum()
    squares = [
        np.mean([np.sum((np.eye(24)[w] - p) ** 2) for w, s, m in zip(*row, strict=True) if m and s == 0])
        for row in zip(word, shown, masked, strict=True)
        if (row[2] & (row[1] == 0)).any()
    ]
    assert parts[1].sum() == pytest.approx(np.mean(squares), rel=1e-5)


def test_held_out_losses_are_of_positions_that_show_mask(data):
    spec, trial = own_trial(p_mask=0.5, p_keep=0.3, p_random=0.3, layer_norm="pre")
    own = traced(trial.stream)
    source = drawing(spec)[1](own, windows.data(spec).load())
    params = random_params(spec)
    found = jax.jit(records.held_out_columns, static_argnums=0)(
        spec, hypers("pre"), source.held_out, source.unigram_KxB, params
    )
    documents = experiment.held_out_documents(spec, own, windows.data(spec).load())
    word, shown, masked, present = map(np.asarray, documents)
    shows_mask = masked & (shown == 0)
    assert (masked & ~shows_mask).any()
    how = dict(heads=2, residual=True, norm="pre")
    expected = encoder_reference.loss_of_documents(
        params, (word, shown, shows_mask, present), False, False, **how
    )
    assert float(found["eval_loss"]) == pytest.approx(expected.mean(), rel=2e-5)
    assert float(found["eval_loss_se"]) == pytest.approx(
        expected.std(ddof=1) / len(expected) ** 0.5, rel=1e-3
    )
    unigram = np.asarray(source.unigram_KxB)[0]
    apart = len(expected) * unigram[shows_mask.any(axis=1)] - expected
    assert float(found["eval_context_se"]) == pytest.approx(
        apart.std(ddof=1) / len(expected) ** 0.5, rel=1e-3
    )
    flat = encoder_reference.loss_of_documents(
        params, (word, shown, shows_mask, present), False, False, scores=np.zeros(2), **how
    )
    assert float(found["eval_loss_uniform"]) == pytest.approx(flat.mean(), rel=2e-5)


@pytest.mark.parametrize("positions", [True, False])
def test_gains_of_layers_are_of_the_first_windows(data, positions):
    spec, trial = own_trial(p_mask=0.5, layer_norm="pre", gain_windows=4, positions=positions, mlp=5)
    own, words = traced(trial.stream), windows.data(spec).load()
    source = drawing(spec)[1](own, words)
    params = random_params(spec)
    found = jax.jit(records.held_out_gains, static_argnums=0)(spec, hypers("pre"), source.held_out, params)
    word, shown, masked, present = (
        np.asarray(part)[:4] for part in experiment.held_out_documents(spec, own, words)
    )
    documents, none = (word, shown, masked & (shown == 0), present), np.zeros(2)
    how = dict(heads=2, residual=True, norm="pre", hidden_keys=False, squared=False)
    by_scores = functools.partial(encoder_reference.loss_of_documents, params, documents, **how)
    for name, loss in (
        ("attention_gain", lambda gate: by_scores(scores=gate)),
        ("value_gain", lambda gate: by_scores(scores=none, outputs=gate, scales_of=none)),
    ):
        shares = encoder_reference.path_shares(loss, 2, layer_records.POINTS)
        np.testing.assert_allclose(found[name], shares.mean(axis=0), rtol=3e-3, atol=2e-4)
        errors = shares.std(axis=0, ddof=1) / len(shares) ** 0.5
        np.testing.assert_allclose(found[f"{name}_se"], errors, rtol=3e-3, atol=2e-4)


def train_sweep(folder: Path, order: str) -> topicjax.Run:
    base = SMALL | dict(optimizer="sgd", learning_rate=0.1, init="default", init_scale=1.0, p_mask=0.5)
    axes = product(seed=(0, 1, 2), layer_norm=("none", "pre"))
    return topicjax.sweep("text", axes, folder, base, devices=jax.devices()[:1], order=order)


@pytest.mark.slow
def test_both_orders_agree(data, tmp_path):
    keys = ["trial_id", "step", "layer"]
    runs = (train_sweep(tmp_path / order, order) for order in ("lane", "together"))
    mine, others = (run.details.set_index(keys).sort_index() for run in runs)
    for name in ("norm_v", "entropy_deficit", "value_gain", "attention_gain"):
        np.testing.assert_allclose(mine[name], others[name].reindex(mine.index), rtol=2e-3, err_msg=name)


def test_a_sweep_on_text(data, tmp_path):
    one = train_sweep(tmp_path / "lane", "lane")
    assert set(one.trials["corpus"]) == {load_corpus("own").about["hash"]}
    losses_ = one.trajectories.set_index(["trial_id", "step"]).sort_index()["eval_loss"]
    assert losses_.isna().groupby("step").all().tolist() == [False, True, False]  # every second record
    losses_ = losses_.dropna().groupby("trial_id")
    assert losses_.last().mean() < losses_.first().mean()
    line = one.trajectories["eval_loss_unigram"].dropna()
    assert line.nunique() == 1 and 1 < line.iloc[0] < np.log(24)
    assert not {"e_block", "attn_same_topic"} & {*one.trajectories, *one.details}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wikipedia", "wikipedia_content"])
def test_shipped_sweeps_run_on_any_corpus(name, data, tmp_path):
    named, changes = (
        load_sweep(name),
        "steps=2 record_every=1 rare_every=1 batch_size=4 eval_windows=4 context=8 width=8",
    )
    small, _ = override(named, [], [f"corpus={name.replace('wikipedia', 'own')}", "mlp=8", *changes.split()])
    small, _ = override(small, [], ["vocabulary_size=20", "seed=0", "learning_rate=0.01"])
    trials = expand(small.settings, small.base, small.sweep)
    assert len({trial.spec for trial in trials}) == 1
    run = topicjax.sweep("text", small.sweep, tmp_path / "run", small.base, devices=jax.devices()[:1])
    assert np.isfinite(run.trials["final_eval_loss"]).all() and len(run.trials) == len(trials)


def test_bad_settings_are_one_sentence(data):
    with pytest.raises(UserError, match="corpus is 'nothing'; allowed: the hash of a corpus, or its name"):
        make_trial(dict(corpus="nothing"))
    with pytest.raises(UserError, match=r"p_keep \+ p_random is 0.5 \+ 0.5; allowed: a sum below 1"):
        make_trial(dict(p_keep=0.5, p_random=0.5))
    with pytest.raises(UserError, match="heads is 3; allowed: a divisor of the width, 64"):
        make_trial(dict(heads=3))
    new = make_trial({})._replace(hypers=Hypers(objective="brier"))  # as if added to OBJECTIVES
    with pytest.raises(UserError, match="objective is 'brier'; allowed: cross_entropy, squared: the loss"):
        check(new)
    size = len(load_corpus("own").vocabulary)
    with pytest.raises(UserError, match=f"vocabulary_size is 99; allowed: at most {size}, the words of the"):
        windows.data(own_trial(vocabulary_size=99)[0]).load()
    with pytest.raises(
        UserError, match=r"eval_windows is 500; allowed: at most [0-9]+, the windows in every"
    ):
        windows.data(own_trial(eval_windows=500)[0]).load()


def test_a_missing_corpus_is_named_before_anything_is_written(data, tmp_path):
    with pytest.raises(UserError, match=r"the corpus wikipedia is not in .*; to make it: .*topicjax corpus"):
        topicjax.sweep("text", product(seed=(0,)), tmp_path / "run", dict(corpus="wikipedia"))
    assert not (tmp_path / "run").exists()

"""docs/markov.py: in-context Markov chains on the public contract, against plain loops and enumeration."""

import itertools
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from support.command_line import ROOT
from support.synthetic_runs import make_run, ramp

from topicjax import cli
from topicjax.store.reader import Run

FILE = ROOT / "docs" / "markov.py"
OWN = SimpleNamespace(**runpy.run_path(str(FILE)))
SPEC = OWN.Spec(states=3, length=7, width=8, batch_size=4)
TINY = "--set states=2 --set length=6 --set width=4 --set batch_size=2 --set steps=40 --set until=steps"
predict = jax.jit(OWN.predict)


def weights_of(seed: int, spec: Any = SPEC, scale: float = 2.0) -> Any:
    """Draw weights large enough for sharp attention, biases included."""
    rng = np.random.default_rng(seed)
    shapes = OWN.init(spec, OWN.Stream(seed), OWN.Hypers()).weights
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, scale / 2, leaf.shape), jnp.float32), shapes)


def chains(spec: Any, number: int, seed: int = 0) -> np.ndarray:
    return np.asarray(OWN.draw_chains(spec, jax.random.key(seed), number))


def all_sequences(states: int, length: int) -> np.ndarray:
    """List every sequence, after the start token."""
    every = np.array(list(itertools.product(range(states), repeat=length)))
    return np.concatenate([np.full((len(every), 1), states), every], axis=1)


def test_the_model_is_that_of_plain_loops():
    """One position, head and key at a time, in float64; and the loss is the mean over all states."""
    weights, tokens = weights_of(1), chains(SPEC, 3)
    w = SimpleNamespace(**{name: np.asarray(leaf, float) for name, leaf in weights._asdict().items()})
    total, length = 0.0, SPEC.length
    found, attention = (np.asarray(part) for part in predict(weights, tokens))
    for b, sequence in enumerate(tokens):
        x = [w.embed[token] for token in sequence[:-1]]
        for layer in range(2):
            new = []
            for q in range(length):
                scores = []
                for k in range(q + 1):
                    content = (x[q] @ w.query[layer]) @ (x[k] @ w.key[layer]) / np.sqrt(SPEC.width)
                    scores.append(content + w.bias[layer, q - k])
                share = np.exp(np.array(scores) - max(scores))
                share /= share.sum()
                np.testing.assert_allclose(attention[layer, b, q, : q + 1], share, rtol=1e-3, atol=1e-5)
                new.append(x[q] + sum(p * x[k] @ w.value[layer] for k, p in enumerate(share)))
            x = new
        for q in range(length):
            logits = x[q] @ w.output
            logs = logits - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()
            np.testing.assert_allclose(found[b, q], logs, rtol=1e-3, atol=1e-3)
            total -= logs[sequence[q + 1]]
    loss = jax.jit(OWN.loss)(weights, tokens)
    assert float(loss) == pytest.approx(total / tokens[:, 1:].size, rel=1e-4)


def test_nothing_looks_ahead():
    """With other states from position 4 on, predictions of the states up to there are the same."""
    weights, tokens = weights_of(2), chains(SPEC, 3)
    other = tokens.copy()
    other[:, 4:] = (tokens[:, 4:] + 1) % SPEC.states
    (first, attention), (second, _) = predict(weights, tokens), predict(weights, other)
    np.testing.assert_array_equal(first[:, :4], second[:, :4])
    assert np.abs(np.asarray(first[:, 4:] - second[:, 4:])).max() > 1e-2
    assert not np.triu(np.asarray(attention), 1).any()


def posterior_of(moves: np.ndarray) -> float:
    """Integrate the likelihood of moves between two states over rows that are uniform on the simplex."""
    nodes, weights = np.polynomial.legendre.leggauss(12)  # exact for polynomials up to degree 23
    p = (nodes + 1) / 2
    return float(np.prod([np.sum(weights / 2 * p ** row[0] * (1 - p) ** row[1]) for row in moves]))


def test_the_bigram_rule_is_bayes():
    """The product of its predictions is the probability of a sequence, integrated over all chains."""
    spec = OWN.Spec(states=2, length=6)
    tokens = all_sequences(2, 6)
    _, rule = (np.asarray(each, float) for each in OWN.strategies(spec, jnp.asarray(tokens)))
    found = np.prod(np.take_along_axis(rule, tokens[:, 1:, None], axis=2)[..., 0], axis=1)
    exact = []
    for sequence in tokens[:, 1:]:
        moves = np.zeros((2, 2))
        for before, after in itertools.pairwise(sequence):
            moves[before, after] += 1
        exact.append(posterior_of(moves) / 2)
    np.testing.assert_allclose(found, exact, rtol=1e-5)
    assert sum(exact) == pytest.approx(1)
    drawn = chains(spec, 20_000)  # of which the mean loss is the entropy of sequences
    _, rule = OWN.strategies(spec, jnp.asarray(drawn))
    lost = -np.log(np.take_along_axis(np.asarray(rule), drawn[:, 1:, None], axis=2)).mean(axis=(1, 2))
    entropy = -np.dot(exact, np.log(exact)) / 6
    assert abs(lost.mean() - entropy) < 4 * lost.std() / np.sqrt(len(lost))


def test_the_unigram_rule_counts():
    tokens = chains(SPEC, 4, seed=5)
    rule, _ = OWN.strategies(SPEC, jnp.asarray(tokens))
    for b, sequence in enumerate(tokens[:, 1:]):
        for t in range(SPEC.length):
            counts = np.array([np.count_nonzero(sequence[:t] == state) for state in range(3)])
            np.testing.assert_allclose(rule[b, t], (counts + 3) / (t + 9), rtol=1e-5)


def test_references_and_both_stages_are_of_the_held_out_sequences():
    """Mixtures of the rules have the coefficients that they are made of, whatever is added per position."""
    trial = OWN.EXPERIMENT.settings.make_trial(dict(states=3, length=7, seed=4))
    source = OWN.source(SPEC, OWN.Stream(4))
    held = np.asarray(source.tokens)
    rules = [np.log(np.asarray(rule, float)) for rule in OWN.strategies(SPEC, source.tokens)]
    losses = [-np.take_along_axis(rule, held[:, 1:, None], axis=2).mean() for rule in rules]
    expected = dict(uniform=np.log(3), unigram=losses[0], bigram=losses[1])
    assert OWN.references(trial) == pytest.approx(expected, rel=1e-5)
    added = np.random.default_rng(0).normal(size=(*held[:, 1:].shape, 1))
    made = 0.3 * rules[0] + 0.6 * rules[1] + added
    assert float(jnp.sum(made * source.reads_unigram)) == pytest.approx(0.3, abs=1e-3)
    assert float(jnp.sum(made * source.reads_bigram)) == pytest.approx(0.6, abs=1e-3)
    assert not np.array_equal(held, np.asarray(OWN.source(SPEC, OWN.Stream(5)).tokens))


def test_columns_of_attention_are_those_of_loops():
    """Averages over the queries that have such a position, on random attention."""
    tokens = chains(SPEC, 5, seed=3)
    rng, length = np.random.default_rng(1), SPEC.length
    attention = np.tril(rng.random((2, 5, length, length)))
    paid: dict[str, list[np.ndarray]] = dict(previous=[], followers=[])
    for b, q in itertools.product(range(5), range(length)):
        shown = tokens[b, :-1]
        if q > 0:
            paid["previous"].append(attention[:, b, q, q - 1])
        after = [k for k in range(1, q + 1) if shown[k - 1] == shown[q]]
        if after:
            paid["followers"].append(attention[:, b, q, after].sum(axis=-1))
    for name, own in paid.items():
        found = OWN.attention_to(jnp.asarray(attention), getattr(OWN, name)(jnp.asarray(tokens)))
        np.testing.assert_allclose(found, np.mean(own, axis=0), rtol=1e-5)


def test_a_hand_made_induction_head_has_its_columns_and_counts_pairs():
    """Layer 1 copies the state before; layer 2 asks for the own state there, and predicts what it sees."""
    spec = OWN.Spec(states=3, length=24, width=12)
    zero, read = np.zeros((12, 12)), np.zeros((12, 3))
    copy, look, show = zero.copy(), zero.copy(), zero.copy()
    copy[:4, 4:8] = look[4:8, :4] = show[:4, 8:] = np.eye(4)  # to the second four, from there, to the last
    ask = np.diag([200.0] * 3 + [0] * 9)  # not of the start token
    bias = np.zeros((2, 24))
    bias[0, 1] = 50.0
    read[8:11] = 2 * np.eye(3)
    parts = (np.eye(4, 12), [zero, look], [zero, ask], [copy, show], bias, read)
    weights = OWN.Weights(*(jnp.asarray(part, jnp.float32) for part in parts))
    source = OWN.source(spec, OWN.Stream(1))
    hypers, state = OWN.Hypers(), OWN.State(weights, ())
    found = jax.jit(OWN.measure, static_argnums=0)(spec, OWN.Stream(1), hypers, source, state, (), 0.0)
    assert found["previous"][0] == pytest.approx(1, abs=1e-4) and found["previous"][1] < 0.3
    assert found["induction"][1] == pytest.approx(1, abs=1e-3) and found["induction"][0] < 0.6
    assert found["uses_pairs"] > 0.5 and abs(found["uses_context"] - found["uses_pairs"]) < 0.25
    assert found["eval_loss"] < source.unigram
    np.testing.assert_allclose(found["norm_value"], 2, rtol=1e-5)
    np.testing.assert_allclose(found["norm_query"], [0, 200 * 3**0.5], rtol=1e-5)


STEPS = np.arange(0, 1001, 20)
CURVES = {  # class: use of context, use of pairs
    "two stages": (ramp(0, 100, STEPS), ramp(400, 600, STEPS)),
    "overlapping": (ramp(0, 400, STEPS), ramp(250, 850, STEPS)),
    "straight to bigrams": (ramp(100, 500, STEPS), ramp(100, 500, STEPS)),
    "unigrams only": (ramp(0, 300, STEPS), 0.2 * ramp(0, 900, STEPS)),
    "no learning": (0.1 * ramp(0, 900, STEPS), 0 * STEPS),
    "diverged": (STEPS * np.nan, STEPS * np.nan),
}


def run_of(*kinds: str, head_first: int = 1) -> Run:
    """Make a run with a trial per class named; the head of one layer forms before the other's."""
    rows, frames, details, lines = [], [], [], []
    for number, kind in enumerate(kinds):
        trial_id, (context, pairs) = f"{number:012x}", CURVES[kind]
        rows.append(
            dict(trial_id=trial_id, status="diverged" if kind == "diverged" else "ok", states=2 + number % 2)
            | dict(learning_rate=0.01, init_scale=0.1, seed=number // 2)
        )
        own = dict(trial_id=trial_id, step=STEPS)
        lines.append(lines_of(number))
        uniform, unigram, bigram = lines[-1].values()
        eval_loss = uniform - (uniform - unigram) * (context - pairs) - (uniform - bigram) * pairs
        frames.append(pd.DataFrame(own | dict(eval_loss=eval_loss, uses_context=context, uses_pairs=pairs)))
        for layer, forms in ((1, 300), (2, 300)):
            when = forms + 200 * (layer != head_first)
            rise = 0.1 + 0.5 * ramp(when, when + 100, STEPS)
            details.append(pd.DataFrame(own | dict(layer=layer, previous=rise, induction=rise)))
    run = make_run(pd.DataFrame(rows), pd.concat(frames, ignore_index=True), details=pd.concat(details))
    return PAGE.prepare(run).replace(references=pd.DataFrame(lines))


def lines_of(number: int) -> dict[str, float]:
    """Make the reference losses of a trial: no two trials have the same."""
    return dict(uniform=1.1 + 0.2 * number, unigram=1.0 - 0.05 * number, bigram=0.5)


PAGE = OWN.report()
CLAIMS = {claim.name: claim.check for claim in PAGE.claims}


def test_classes_of_synthetic_curves():
    run = run_of(*CURVES)
    scores = PAGE.score(run)
    assert scores["class"].tolist() == list(CURVES) and set(CURVES) <= set(PAGE.classes)
    staged = scores.iloc[0]
    assert staged["previous_half"] == 350 and staged["induction_half"] == 550


def test_the_loss_between_is_compared_with_the_lines_of_its_own_trial():
    """At the unigram line in all, whatever the lines, and in whatever order the trials have their records."""
    run = run_of(*["two stages"] * 4)
    assert PAGE.score(run)["above_unigram"].to_numpy() == pytest.approx(np.zeros(4), abs=1e-6)
    turned = run.replace(trials=run.trials.iloc[::-1], references=run.references.iloc[::-1])
    assert PAGE.score(turned)["above_unigram"].to_numpy() == pytest.approx(np.zeros(4), abs=1e-6)


def test_claims_hold_fail_and_are_undecided():
    def verdicts(*kinds: str, **changed: Any) -> list[str]:
        run = run_of(*kinds, **changed)
        return [check(run, PAGE.score(run)).verdict for check in CLAIMS.values()]

    assert verdicts(*["two stages"] * 6) == ["holds", "holds", "undecided"]
    assert verdicts(*["straight to bigrams"] * 6, head_first=2) == ["fails", "fails", "undecided"]
    assert verdicts(*["two stages", "overlapping"] * 5) == ["partly", "holds", "holds"]
    assert verdicts(*["overlapping", "two stages"] * 5)[2] == "fails"  # fewer states are later
    assert verdicts(*["no learning"] * 6) == ["undecided"] * 3


def test_it_is_decided_near_the_bigram_line():
    lines = dict(uniform=1.1, unigram=1.0, bigram=0.8)
    near, far = 0.83, 0.85

    def said(steps: list[int], losses: list[float]) -> str:
        return OWN.decided(None, dict(step=np.array(steps), eval_loss=np.array(losses)), lines)

    assert said([0, 20, 40], [near] * 3) == "bigrams learned"
    assert said([0, 5, 10], [near] * 3) == ""  # not for 40 steps
    assert said([100, 105, 110, 150], [far, near, near, near]) == "bigrams learned"
    assert said([100, 105, 110, 150], [near, near, far, near]) == ""
    assert said([100, 120, 125, 140], [far, near, near, near]) == ""
    assert said([900, 1000, 1100], [far, near, near]) == ""  # nor at three records
    assert said([900, 1000, 1100], [near] * 3) == "bigrams learned"


@pytest.mark.usefixtures("undrawn")
def test_it_trains_and_its_page_opens_with_its_claims(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("topicjax.engine.resources.use_all_cores", lambda *_: None)  # jax has started already
    axes = "--axis seed=0,1 --axis learning_rate=0.003,0.1 --axis init_scale=1.0 --order together".split()
    assert cli.main(["run", str(FILE), *TINY.split(), *axes]) == 0
    assert cli.main(["report", "results/markov"]) == 0
    text = Path("results/markov/report.html").read_text()
    assert "defect" not in text and "Not drawn" not in text and "Not scored" not in text
    judged = re.findall(r'<li class="(\w+)">\s*(?:<[^>]+>)*([\w ]+):', text)
    assert [name for _, name in judged][:3] == list(CLAIMS)
    run = Run(Path("results/markov"))
    fast = run.trials.query("learning_rate == 0.1")["final_loss"]
    assert len(run.trials) == 4 and np.isfinite(fast).all()

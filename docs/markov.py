"""When does a small transformer learn to count pairs of states in its context?  An experiment in one file.

Command:  .venv/bin/topicjax run docs/markov.py
Size:     180 trials, 3 programs, 3 minutes on 2 cores
Data:     sequences of Markov chains with k states.  The rows of each chain are drawn from Dirichlet(1), so
          that what comes next can only be learned from the sequence itself (Edelman et al. 2024, arXiv
          2402.11004).
Model:    causal, two layers of attention with one head each, and nothing else.
Scored:   log-probabilities are fitted by a x those of the unigram rule + b x those of the bigram rule (see
          `strategies`).  Stage 1 is a + b, how far the model predicts from its context at all; stage 2 is b,
          how far it counts pairs.  Both go from 0 to 1, and a model that skips unigrams has a + b = b
          throughout.  (Two gains in one loss cannot overlap: a falling loss passes one line after another.)
Predicted before this sweep, having seen one seed of another (48 trials, with 8 states too):
          1. every trial learns bigrams, later with more states and with a smaller rate;
          2. two stages (Theta above .9) at the rate .001 with 2 and 3 states; stages overlap at .03 and with
             5 states; no trial goes straight to bigrams (Theta below .7);
          3. where there are two stages, the loss between them is at the unigram line: within a tenth of the
             fall from the uniform line;
          4. the previous-token head of layer 1 begins to form first, yet the induction head of layer 2 is
             the first to be half formed; small init scales make no difference, as always with Adam.
Seen:     1. Nearly: 176 of 180 learn bigrams; four with 5 states at .001 end with unigrams.  Later with more
             states: half of stage 2 takes 128, 177 and 303 steps (medians) with 2, 3 and 5 states; and later
             with a smaller rate: 81, 157, 436 and 1,187 steps from .03 to .001.
          2. In part: with 2 and 3 states at .001 there are two stages in 22 of 30.  Stages overlap more at
             higher rates and with 5 states, as predicted: median Theta .90, .89, .87 and .83 at the four
             rates, .90, .89 and .82 with 2, 3 and 5 states.  That none goes straight to bigrams fails: 3
             trials do.  56 of all have two stages.
          3. Holds in the median: .07 of that fall above the unigram line (.18 at .03).
          4. The previous-token head begins first with 3 and 5 states, not with 2: a tenth of its rise takes
             the induction head .88, 1.13 and 1.43 times as many steps with 2, 3 and 5 states.  The induction
             head is half formed first, as predicted: after .46, .56 and .83 times as many steps, but not with
             5 states at .001 (1.09).  Small init scales make little difference.
Changed after a first look, with a record every 20 steps: records every 5 steps at first, then 40 per decade,
          because at large rates 20 steps are more than a tenth of a head's rise takes.  A trial ends once it
          has been near the Bayes line for 40 steps, as before, and for three records.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from topicjax import Experiment, Real, TrialSettings, Whole, analysis
from topicjax.settings import RecordsPerDecade
from topicjax.sweep import product

LAYERS = 2
HELD_OUT = 128  # sequences that a trial is measured on
ENOUGH, FIRST = 5, 1.25  # of claims: trials to judge by; ratio of steps that counts as earlier
NEAR = 0.2  # share of the way from unigrams to bigrams that may be left when a trial is decided
LEAST, SETTLED = 3, 40  # records that must be near, and steps for which

# Letters of shapes: B sequences, L positions, K states, D width.


@dataclass(frozen=True)
class Spec:
    """Static settings: each distinct Spec is a program."""

    states: Annotated[int, Whole(2, 16), "number of states of a chain"] = 3
    length: Annotated[int, Whole(2), "states per sequence"] = 64
    width: Annotated[int, Whole(2), "size of embeddings, keys, queries and values"] = 16
    batch_size: Annotated[int, Whole(1), "sequences per step"] = 16
    steps: Annotated[int, Whole(1), "training steps"] = 2000
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 20
    records_per_decade: RecordsPerDecade = 0
    until: Literal["steps", "decided"] = "steps"


class Stream(NamedTuple):
    """Traced numbers that fix the data: equal Streams see the same sequences."""

    seed: Annotated[Any, Whole(0), "of the chains and the initial weights"] = 0


class Hypers(NamedTuple):
    """Traced numbers that act on a trial."""

    learning_rate: Annotated[Any, Real(low=0), "of Adam"] = 0.003
    init_scale: Annotated[Any, Real(low=0), "of keys, queries, values and outputs; 1 is usual"] = 0.1


class Weights(NamedTuple):
    """The model: two layers of one head each, with a bias per distance, and no MLPs or norms."""

    embed: jax.Array  # (K + 1) x D: the states, and the token that every sequence starts with
    key: jax.Array  # layers x D x D, as query and value
    query: jax.Array
    value: jax.Array
    bias: jax.Array  # layers x L: added to the score of a key at distance 0, 1, ...
    output: jax.Array  # D x K


class State(NamedTuple):
    """What a training step changes."""

    weights: Weights
    moments: Any  # of Adam


class Source(NamedTuple):
    """Held-out sequences, reference losses on them, and what reads the two rules off predictions."""

    tokens: jax.Array  # B x (L + 1)
    uniform: jax.Array
    unigram: jax.Array
    bigram: jax.Array
    reads_unigram: jax.Array  # B x L x K: its inner product with log-probabilities is the coefficient a
    reads_bigram: jax.Array  # ... and b


def draw_chains(spec: Spec, key: jax.Array, number: int) -> jax.Array:
    """Draw sequences, each of a chain of its own: a start token (K), then L states, the first uniform."""
    keys = jax.random.split(key, 3)
    rows = jax.random.exponential(keys[0], (number, spec.states, spec.states))  # normalised: Dirichlet(1)
    edges = jnp.cumsum(rows / rows.sum(axis=-1, keepdims=True), axis=-1)[..., :-1]
    first = jax.random.randint(keys[1], (number,), 0, spec.states)

    def move(state: jax.Array, uniform: jax.Array) -> tuple[jax.Array, jax.Array]:
        to = jnp.sum(uniform[:, None] > edges[jnp.arange(number), state], axis=1)
        return to, to

    _, later = jax.lax.scan(move, first, jax.random.uniform(keys[2], (spec.length - 1, number)))
    start = jnp.full((1, number), spec.states, first.dtype)
    return jnp.concatenate([start, first[None], later]).T


def batch(spec: Spec, stream: Stream, source: Source, step: jax.Array) -> jax.Array:
    """Draw the sequences of a step, each of a new chain."""
    return draw_chains(spec, jax.random.fold_in(jax.random.key(stream.seed), step), spec.batch_size)


def strategies(spec: Spec, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Predict each state from the ones before it by in-context unigrams and bigrams, both B x L x K.

    With n_j states j among t so far, the unigram rule is (n_j + K) / (t + K^2): a stationary distribution is
    about the mean of the K rows, so it varies as Dirichlet(K) does.  With n_ij moves from i to j among n_i
    from i, the bigram rule (n_ij + 1) / (n_i + K) is the exact posterior mean for rows that are Dirichlet(1).
    """
    after = jax.nn.one_hot(tokens[:, 1:], spec.states)
    before = jax.nn.one_hot(tokens[:, :-1], spec.states)  # zero for the start token
    count = jnp.cumsum(after, axis=1) - after
    moves = before[..., :, None] * after[..., None, :]
    moves = jnp.einsum("bli,blij->blj", before, jnp.cumsum(moves, axis=1) - moves)
    return smooth(count, spec.states), smooth(moves, 1)


def smooth(count: jax.Array, prior: int) -> jax.Array:
    """Turn counts into probabilities, with a prior count for each state."""
    count = count + prior
    return count / count.sum(axis=-1, keepdims=True)


def cross_entropy(logs: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return the mean over all states of minus their log-probability."""
    return -jnp.mean(jnp.sum(logs * jax.nn.one_hot(tokens[:, 1:], logs.shape[-1]), axis=-1))


def source(spec: Spec, stream: Stream) -> Source:
    """Draw the held-out sequences of a seed, and what is known about them."""
    tokens = draw_chains(spec, jax.random.fold_in(jax.random.key(stream.seed), 2**31 - 1), HELD_OUT)
    unigram, bigram = (jnp.log(rule) for rule in strategies(spec, tokens))
    losses = [cross_entropy(logs, tokens) for logs in (unigram, bigram)]
    reads = [reader(unigram, bigram), reader(bigram, unigram)]
    return Source(tokens, jnp.log(float(spec.states)), *losses, *reads)


def reader(logs: jax.Array, other: jax.Array) -> jax.Array:
    """Return the array whose inner product with a x logs + b x other + a constant per position is a."""
    logs, other = (each - each.mean(axis=-1, keepdims=True) for each in (logs, other))
    rest = logs - other * jnp.sum(logs * other) / jnp.sum(other**2)
    return rest / jnp.sum(rest**2)


def init(spec: Spec, stream: Stream, hypers: Hypers) -> State:
    """Draw the weights; biases start at zero, so that attention is nearly uniform at a small scale."""
    keys = iter(jax.random.split(jax.random.key(stream.seed), 5))
    square = (LAYERS, spec.width, spec.width)

    def normal(shape: tuple[int, ...]) -> jax.Array:
        return jax.random.normal(next(keys), shape) / jnp.sqrt(spec.width)

    weights = Weights(
        embed=normal((spec.states + 1, spec.width)),
        key=hypers.init_scale * normal(square),
        query=hypers.init_scale * normal(square),
        value=hypers.init_scale * normal(square),
        bias=jnp.zeros((LAYERS, spec.length)),
        output=hypers.init_scale * normal((spec.width, spec.states)),
    )
    return State(weights, optax.adam(hypers.learning_rate).init(weights))


def predict(weights: Weights, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log-probabilities of the next states, B x L x K, and attention, layers x B x L x L."""
    x = jax.nn.one_hot(tokens[:, :-1], len(weights.embed)) @ weights.embed
    places = jnp.arange(x.shape[1])
    distance = places[:, None] - places[None]
    by_distance = jax.nn.one_hot(jnp.maximum(distance, 0), x.shape[1])
    attention = []
    for layer in range(LAYERS):
        query, key = x @ weights.query[layer], x @ weights.key[layer]
        score = jnp.einsum("bqd,bkd->bqk", query, key) / jnp.sqrt(x.shape[2])
        score = score + (by_distance @ weights.bias[layer])[None]
        score = jnp.where((distance >= 0)[None], score, -jnp.inf)
        attention.append(jax.nn.softmax(score))
        x = x + attention[layer] @ x @ weights.value[layer]
    return jax.nn.log_softmax(x @ weights.output), jnp.stack(attention)


def loss(weights: Weights, tokens: jax.Array) -> jax.Array:
    """Return the cross-entropy of the next state, over all positions."""
    return cross_entropy(predict(weights, tokens)[0], tokens)


def update(
    spec: Spec, stream: Stream, hypers: Hypers, state: State, tokens: jax.Array, step: jax.Array
) -> tuple[State, jax.Array]:
    """Take a step of Adam; keep the loss for the record."""
    value, gradients = jax.value_and_grad(loss)(state.weights, tokens)
    changes, moments = optax.adam(hypers.learning_rate).update(gradients, state.moments)
    return State(optax.apply_updates(state.weights, changes), moments), value


def attention_to(attention: jax.Array, target: jax.Array) -> jax.Array:
    """Average each layer's attention to the target positions (B x L x L) over the queries that have one."""
    has_target = target.any(axis=-1)
    paid = jnp.sum(attention * target[None], axis=-1)
    return jnp.sum(paid, axis=(1, 2)) / jnp.maximum(has_target.sum(), 1)


def previous(tokens: jax.Array) -> jax.Array:
    """Mark for each state the position before it, B x L x L; the start token has none."""
    length = tokens.shape[1] - 1
    return jnp.broadcast_to(jnp.eye(length, k=-1, dtype=bool), (len(tokens), length, length))


def followers(tokens: jax.Array) -> jax.Array:
    """Mark for each state the positions after earlier occurrences of it, B x L x L."""
    shown = tokens[:, :-1]
    is_same = shown[:, :, None] == jnp.roll(shown, 1, axis=1)[:, None, :]
    return jnp.tril(is_same).at[:, :, 0].set(False)  # the first position follows nothing


def measure(
    spec: Spec,
    stream: Stream,
    hypers: Hypers,
    source: Source,
    state: State,
    tokens: jax.Array,
    train_loss: jax.Array,
) -> dict[str, jax.Array]:
    """Measure losses and both stages on held-out sequences, and attention and norms of each layer."""
    weights = state.weights
    logs, attention = predict(weights, source.tokens)
    unigram, bigram = jnp.sum(logs * source.reads_unigram), jnp.sum(logs * source.reads_bigram)
    matrices = dict(norm_key=weights.key, norm_query=weights.query, norm_value=weights.value)
    return dict(
        loss=train_loss,
        eval_loss=cross_entropy(logs, source.tokens),
        uses_context=unigram + bigram,
        uses_pairs=bigram,
        previous=attention_to(attention, previous(source.tokens)),
        induction=attention_to(attention, followers(source.tokens)),
        **{name: jnp.sqrt(jnp.sum(matrix**2, axis=(1, 2))) for name, matrix in matrices.items()},
    )


def references(trial: Any) -> dict[str, float]:
    """Return the loss of uniform predictions, exact, and of both rules on the trial's held-out sequences."""
    known = jax.jit(source, static_argnums=0)(trial.spec, trial.stream)
    return {name: float(getattr(known, name)) for name in ("uniform", "unigram", "bigram")}


def decided(trial: Any, records: Any, references: Any) -> str:
    """Say why the answer can no longer change, or nothing."""
    step, above = records["step"], records["eval_loss"] - references["bigram"]
    count = max(LEAST, np.sum(step >= step[-1] - SETTLED))
    is_near = len(step) >= count and step[-1] >= SETTLED
    is_near = is_near and max(above[-count:]) < NEAR * (references["unigram"] - references["bigram"])
    return "bigrams learned" if is_near else ""


def score_trials(run: Any) -> Any:
    """Score each trial: are unigrams learned before bigrams, which head forms first, and the loss between."""
    scores = analysis.stages(run, first="uses_context", second="uses_pairs")
    for name, level in (("begun", 0.1), ("half", 0.5)):
        own = analysis.stages(run, "previous_1", "induction_2", unit="own maximum", level=level)
        scores[f"previous_{name}"], scores[f"induction_{name}"] = own["onset_first"], own["onset_second"]
    records = run.trajectories.dropna()
    most = (records["uses_context"] - records["uses_pairs"]).groupby(records["trial_id"]).idxmax()
    between = scores["trial_id"].map(records.loc[most].set_index("trial_id")["eval_loss"]).to_numpy()
    lines = run.references.set_axis(run.trials["trial_id"]).loc[scores["trial_id"]].reset_index(drop=True)
    scores["above_unigram"] = (between - lines["unigram"]) / (lines["uniform"] - lines["unigram"])
    kinds = {
        "diverged": scores["theta"].isna(),
        "no learning": scores["max_first"] < 0.5,
        "unigrams only": scores["max_second"] < 0.5,
        "two stages": scores["theta"] >= 0.9,
        "straight to bigrams": scores["theta"] < 0.7,
    }
    return scores.assign(**{"class": np.select(list(kinds.values()), list(kinds), "overlapping")})


def plateau(run: Any, scores: Any) -> Any:
    """Count the trials with two stages; look at the loss when they are most like the unigram rule."""
    learned = scores[scores["max_second"] >= 0.5]
    if len(learned) < ENOUGH:
        return analysis.Verdict("undecided", f"{len(learned)} trials learn bigrams", "more steps")
    staged = learned[learned["class"] == "two stages"]
    share, above = len(staged) / len(learned), float(staged["above_unigram"].median())
    is_straight = (learned["class"] == "straight to bigrams").mean() >= 0.5
    verdict = "holds" if share >= 0.8 else "fails" if is_straight else "partly"
    by_rate = learned.groupby("learning_rate")["theta"].median()
    thetas = ", ".join(f"{theta:.2f} at rate {rate:g}" for rate, theta in by_rate.items())
    sentence = (
        f"{len(staged)} of {len(learned)} trials that learn bigrams have two stages (median Theta {thetas}); "
        f"between them the loss is above the unigram line by {above:.2f} of its fall from the uniform one"
    )
    return analysis.Verdict(verdict, sentence, "a smaller rate", share=share, above=above)


def order(run: Any, scores: Any) -> Any:
    """Compare the steps at which the two heads have made a tenth, and half, of their rise."""
    learned = scores[scores["max_second"] >= 0.5]
    if len(learned) < ENOUGH:
        return analysis.Verdict("undecided", f"{len(learned)} trials learn bigrams", "more steps")
    begun = float((learned["induction_begun"] / learned["previous_begun"]).median())
    half = float((learned["induction_half"] / learned["previous_half"]).median())
    is_first = [ratio > FIRST for ratio in (begun, half)]
    sentence = (
        f"the induction head takes {begun:.2f} times as many steps as the previous-token head to the first "
        f"tenth of its rise, and {half:.2f} times as many to half of it"
    )
    verdict = "holds" if all(is_first) else "partly" if any(is_first) else "fails"
    return analysis.Verdict(verdict, sentence, begun=begun, half=half)


def longer(run: Any, scores: Any) -> Any:
    """Compare the steps to half of stage 2 between numbers of states, all else equal."""
    steps = scores.pivot_table("onset_second", ["learning_rate", "init_scale", "seed"], "states").dropna()
    if len(steps) < ENOUGH or len(steps.columns) < 2:
        return analysis.Verdict("undecided", "too few cases where all learn bigrams", "more steps")
    share = float((steps.diff(axis=1).iloc[:, 1:] > 0).all(axis=1).mean())
    waits = ", ".join(f"{wait:.0f} with {states}" for states, wait in steps.median().items())
    sentence = f"in {share:.0%} of {len(steps)} cases; median steps {waits} states"
    verdict = "holds" if share >= 0.8 else "fails" if share <= 0.2 else "partly"
    return analysis.Verdict(verdict, sentence, share=share)


def draw(run: Any, columns: list[str], title: str) -> Any:
    """Draw columns over the steps of the slowest training from the smallest start, a panel per k."""
    slowest = {name: run.trials[name].min() for name in ("learning_rate", "init_scale")}
    drawn = analysis.curves_by(run, columns, panel="states", where=slowest)
    return analysis.Figure(drawn, title, "Smallest rate and init scale; medians and quartiles over seeds.")


def both_stages(run: Any, scores: Any) -> Any:
    """Draw both stages."""
    return draw(run, ["uses_context", "uses_pairs"], "How far predictions use the context, and pairs in it")


def heads(run: Any, scores: Any) -> Any:
    """Draw attention to the previous state, and to states after the same state, in both layers."""
    columns = ["previous_1", "induction_2", "previous_2", "induction_1"]
    return draw(run, columns, "Attention to the previous state, and to what followed the same state")


def report() -> Any:
    """Describe the page.  Only `topicjax report` calls this, so training never imports matplotlib."""
    paper = "Edelman et al. 2024"
    waits = "The loss waits at in-context unigrams, then drops to bigrams."
    first = "The previous-token head of layer 1 forms before the induction head of layer 2."
    return analysis.Page(
        prepare=lambda run: run.with_details("previous", "induction"),
        score=score_trials,
        classes={
            "two stages": "#0072B2",
            "overlapping": "#56B4E9",
            "straight to bigrams": "#E69F00",
            "unigrams only": "#009E73",
            "no learning": "#999999",
            "diverged": "#000000",
        },
        staged=[
            analysis.Staged(
                "rules in predictions",
                ["two stages"],
                not_judged=["unigrams only", "no learning"],
                words="how far log-probabilities follow the unigram and the bigram rule",
                by="order parameters",
            )
        ],
        claims=[
            analysis.Claim("Plateau", waits, plateau, paper, "both_stages"),
            analysis.Claim("Layer 1 first", first, order, "the usual story", "heads"),
            analysis.Claim("Longer", "With more states bigrams are learned later.", longer, "our prediction"),
        ],
        figures=[both_stages, heads],
    )


EXPERIMENT = Experiment(
    settings=TrialSettings("markov", Spec, Stream, Hypers),
    source=source,
    batch=batch,
    init=init,
    update=update,
    measure=measure,
    weights=lambda spec, state: state.weights,
    loss=lambda spec, stream, hypers, weights, tokens: loss(weights, tokens),  # for `topicjax measure`
    details=("layer",),
    references=references,
    decided=decided,
    decide_every=20,  # times record_every: every 100 steps in the sweep below
    report=report,
)
BASE = dict(steps=2000, record_every=5, records_per_decade=40, until="decided")
SWEEP = product(
    states=(2, 3, 5),
    learning_rate=(0.001, 0.003, 0.01, 0.03),
    init_scale=(0.01, 0.1, 1.0),
    seed=range(5),
)

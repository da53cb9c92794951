"""Is the two-stage curve the first of several cycles of focus and dilution?  Long trainings on Zipf words.

Command:  topicjax run dilution
Size:     36 trials, 4 programs, 5 minutes on 2 cores
Expect:   (written before the first run of this sweep, from one seed of a prototype: SGD at a rate of 30,
          16,000 steps, Zipf exponent 1) one cycle: the score of frequent minus rare words rises from 0.09
          at step 100 to 1.7 near step 2,750 and falls to 0.4 by step 16,000; a_topic goes from 0.58 down to
          -0.13 and back to 0.11; the participation ratio of W^K grows from 1 to 6.4 and falls to 4.5.
          Hints of a second cycle in the prototype are expected to be noise: at most one cycle in most seeds,
          so the claim that the cycle repeats fails.  With exponent 0.5 the same, smaller and later; with
          exponent 0, where all words are equally likely and their ranks mean nothing, no cycle.  Adam: no
          prediction.
          (added after a look at 4,000 steps of SGD, six topics, seeds 0 and 1, which are not in this sweep)
          the score for keys of other topics has a hump of 0.2 at step 300, before attention is topical; with
          exponent 0, scores of words that are equally likely drift apart by 0.3 to 0.6 after step 3,000, so a
          swing counts only beyond that of this control.
Seen:     SGD: one cycle in every seed of all four settings, as expected; but with six topics and exponent 1
          the score rises to 1.1 at step 3,870, lower and later than the prototype's, and falls to 0.3.
          The cycle does not repeat under SGD, as expected.  Adam (no prediction): with six topics and
          exponent 1 a second cycle in two of three seeds, larger than the first; one cycle elsewhere.
          Another rise has begun at the end of 6 curves.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Focus and dilution",)
BASE = dict(
    objective="cross_entropy",
    key_visibility="unmasked",
    word_distribution="zipf",
    init_scale=1e-3,
    steps=20_000,
    record_every=10,
    records_per_decade=80,
)
SIZES = chain(product(topics=6, words_per_topic=6), product(topics=10, words_per_topic=10))
OPTIMIZERS = chain(
    product(optimizer="sgd", learning_rate=30.0), product(optimizer="adam", learning_rate=3e-3)
)
SWEEP = product(zipf_exponent=(1.0, 0.5, 0.0), seed=range(2, 5)) * SIZES * OPTIMIZERS

"""Does the onset of stage 2 vary from seed to seed because of the documents or of the initial weights?

Command:  topicjax run seed_causes
Size:     384 trials, 2 programs, under a minute on 2 cores
Expect:   (written before the first run of this sweep, from a prototype with 5 x 5 seeds of its own) eight
          seeds of the documents, each with eight seeds of the weights.  SGD: documents cause 80 to 86 % of
          the variance of the onset of stage 2 at all init scales, a standard deviation of 4.6 steps in
          onsets from 144 steps (init scale 0.1) to 577 (1e-5), and the onset comes 107 to 109 steps later
          per decade of init scale.  An estimate from 5 x 5 seeds has a standard error of 16 points, and
          all init scales share the seeds, so shares of 50 to 100 % are consistent with that.  No
          prediction for Theta, which is near 1 everywhere, nor for Adam.
          (added after a look at 3 x 3 seeds) the prototype did not say at which level an onset is.  The
          level matters: its onsets lie between those of a_topic = 0.1 and of half of the gain by attention,
          so both are judged.
Seen:     Shares with SGD, up to scale 0.01: documents 87 to 97 %, as expected or a little more; their
          combination with the weights has nearly all of the rest. At 0.1 it fails for a_topic = 0.1, of
          whose variance weights cause 54 +- 17 %.
          Standard deviations from documents are 4.6 to 8.4 steps for a_topic = 0.1 in onsets of 196 to 511
          steps, and 25 to 56 for half of the gain: the predicted 4.6 is their lower end. The onset comes 106
          to 111 steps later per decade, about as expected.
          Theta (no prediction): documents 98 % and more up to 0.01, 81 % at 0.1. Adam: 44 +- 26 % for
          a_topic = 0.1, 76 +- 12 % for half of the gain.
"""

from topicjax.sweep import chain, logspace, product

EXPERIMENT = "one_layer"
CLAIMS = ("Cause of the spread",)
BASE = dict(
    topics=6,
    words_per_topic=6,
    objective="cross_entropy",
    key_visibility="unmasked",
    steps=1000,
    record_every=10,
    records_per_decade=60,
)
SWEEP = product(seed=range(8), init_seed=range(8)) * chain(
    product(optimizer="sgd", learning_rate=100.0, init_scale=logspace(1e-5, 1e-1, 5)),
    product(optimizer="adam", learning_rate=3e-3, init_scale=1e-3),
)

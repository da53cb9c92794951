"""Topics or co-occurrence?  Words of a topic in pairs that co-occur beyond the topic model (section 8.2)

Command:  topicjax run pairs
Size:     120 trials, 4 programs
Expect:   (written before the first run of this sweep, except for what was found) partners stand apart
          from the other words of their topic by more than their co-occurrence, in W^V, in W_E^T W_E and in
          attention: models follow neither topic nor counts, but what predicts a word best.  The pair's
          share of the structure (0: only topics, 1: only pairs) is 0.09, 0.27 and 0.60 in the covariance of
          words at strengths 0.03, 0.1 and 0.3, and 0.04, 0.11 and 0.29 in their log PMI, but 0.87, 0.96 and
          0.99 in the best W^V under uniform attention.  SGD begins at the share of the covariance and ends
          between it and the best; Adam with squared loss ends near the best.  Topics come first: their modes
          grow 21, 8.1 and 2.9 times as fast as those of pairs.  Without ties (0) all columns of partners are
          0 to their spread over seeds; at 10/11 = 1/(1 + alpha) documents are those of 18 topics of two
          words: the topic's part is 0.  Found: so in 49 of 54 cells.  But with cross-entropy W^V keeps its
          topics (share 0.5 at strength 0.3, between the two counts), and SGD with squared loss ends at the
          best.  Under Adam attention turns from topics to pairs.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Section 8.2",)
BASE = dict(
    topics=6, words_per_topic=6, key_visibility="unmasked", steps=3000, record_every=1, records_per_decade=40
)
VANISHED = 10 / 11  # 1 / (1 + alpha): other words of a topic co-occur like words of different topics
ONE_HOT = chain(
    product(optimizer="sgd", objective="cross_entropy", learning_rate=30.0),  # 100 does not settle
    product(optimizer="sgd", objective="squared", learning_rate=20.0),
    product(optimizer="adam", objective=("cross_entropy", "squared"), learning_rate=3e-3),
)
EMBEDDED = product(
    embedding="trained", output_bias="trained", attention_biases="trained", init_scale=0.02
) * chain(
    product(optimizer="sgd", objective="cross_entropy", learning_rate=1.0),
    product(optimizer="sgd", objective="squared", learning_rate=0.3),
    product(optimizer="adam", objective=("cross_entropy", "squared"), learning_rate=3e-3),
)
SWEEP = product(seed=range(3), pair_strength=(0.0, 0.03, 0.1, 0.3, VANISHED)) * chain(ONE_HOT, EMBEDDED)

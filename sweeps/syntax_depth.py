"""Do more layers and heads change which of syntax and topics is learned first?

Command:  topicjax run syntax_depth
Size:     54 trials, 9 programs, about 8 minutes on 2 cores
Expect:   (written before the run; an independent program gave one layer with one head 0.6 of syntax and 0.8
          of topics, two layers with two heads 0.94 and 0.88) the order does not reverse with layers or heads
          at a bias gain, and differs between gains as in one layer: topics first or together at 2, syntax
          first at 8.  One head of one layer cannot look at both neighbours apart and ends near 0.6 of syntax;
          two layers reach what ±1 tells with any number of heads, and pass it by a little, since a
          second layer can carry a class from farther away.  More layers learn both sooner.
Seen:     more layers learn topics sooner and syntax no later or earlier, so the order moves towards topics:
          at gain 2 topics take 0.7 of the steps of syntax in one layer, 0.4 in two, 0.33 in three; at gain 8
          2.5, 1.2 and 1.0.  It reverses with layers in one of six groups, against the prediction, and not
          with heads.  One head of one layer ends at 0.61 to 0.66 of syntax and 0.76 of topics; two layers
          do better than the two neighbours allow with two heads or more.
"""

from topicjax.sweep import product

EXPERIMENT = "syntax"
CLAIMS = ("Order and model", "Syntax first", "Topics first", "V before scores, topics", "One neighbour")
BASE = dict(steps=3000, record_every=10, records_per_decade=60, alpha=0.1, optimizer="adam")
SWEEP = product(layers=(1, 2, 3), heads=(1, 2, 4), bias_gain=(2.0, 8.0), seed=range(3))

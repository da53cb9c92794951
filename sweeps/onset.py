"""When does attention leave the saddle W^K = W^Q = 0?  Four topics, infinite documents, squared loss.

Command:  topicjax run onset
Size:     250 trials, 4 programs, about 2 minutes on 2 cores
Expect:   with SGD, learning rate x onset step grows with ln(1 / init scale) at the slope predicted by
          onset_rate: within 2 %, and within 0.1 % if the finite step size is taken into account.  The
          slope halves when p_keep doubles, hardly depends on p_random, and is the same whether W^V is frozen
          at Theorem 2's optimum or learns from the same init.  With Adam the onset does not depend on the
          init scale, except that it is 20 to 40 % late at the largest one if W^V learns too.
"""

from topicjax.sweep import chain, logspace, product

EXPERIMENT = "one_layer"
CLAIMS = ("Onset law, SGD", "Onset law, Adam")
BASE = dict(
    topics=4,
    words_per_topic=3,
    documents="tau",
    infinite_documents=True,
    objective="squared",
    p_keep=0.3,
    eval_documents=12,
    record_every=10,
)
SGD = product(optimizer="sgd", steps=2000)
ADAM = product(optimizer="adam", steps=1000, learning_rate=(3e-4, 1e-3))
FROZEN = product(value="blocks") * chain(
    SGD * product(learning_rate=10.0, p_keep=(0.15, 0.3, 0.6)),
    SGD * product(learning_rate=10.0, p_random=0.3),
    SGD * product(learning_rate=20.0),
    ADAM,
)
TRAINED = product(value="trained") * chain(SGD * product(learning_rate=5.0), ADAM)
SWEEP = product(seed=range(5), init_scale=logspace(1e-6, 1e-2, 5)) * chain(FROZEN, TRAINED)

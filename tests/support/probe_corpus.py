"""Shared by tests: small_corpus ..."""

import numpy as np

from topicjax.corpora.corpus import Corpus


def small_corpus(documents, vocabulary):
    words = ("[MASK]", "[UNK]", *vocabulary)
    ids = [words.index(word) for document in documents for word in document]
    ends = np.cumsum([len(document) for document in documents])
    return Corpus("small", np.array(ids), ends, words, {"hash": "0123456789ab"})

"""BERT and MPNet against plain NumPy in float64; word pieces against the longest match, letter by letter."""

import math
import random
import string
import sys
import unicodedata

import numpy as np
import pytest
from scipy.special import erf
from support import checkpoints
from support.checkpoints import CONFIG, PIECES, random_weights

from topicjax.errors import UserError
from topicjax.probe import bert
from topicjax.probe.models import read_checkpoint

MPNET = CONFIG | {"model_type": "mpnet", "layer_norm_eps": 1e-5}


def norm(x, w, name, epsilon):
    x = (x - x.mean()) / math.sqrt(((x - x.mean()) ** 2).mean() + epsilon)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def bucket(distance):
    """As MPNet groups distances of keys after and before the query, written out."""
    offset, size = (16 if distance > 0 else 0), abs(distance)
    if size < 8:
        return offset + size
    return offset + min(15, 8 + int(math.log(size / 8) / math.log(128 / 8) * 8))


def reference(config, weights, ids):
    """Return the last states and the attention of one window without padding, position by position."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    epsilon, H, N = config["layer_norm_eps"], config["num_attention_heads"], len(ids)
    first = 2 if config["model_type"] == "mpnet" else 0
    X = (
        w["embeddings.word_embeddings.weight"][ids]
        + w["embeddings.position_embeddings.weight"][first : first + N]
    )
    if first == 0:
        X = X + w["embeddings.token_type_embeddings.weight"][0]
    X = np.array([norm(x, w, "embeddings.LayerNorm", epsilon) for x in X])
    kept = []
    for layer in range(config["num_hidden_layers"]):
        own = {n.removeprefix(f"encoder.layer.{layer}."): v for n, v in w.items()}
        Q, K, V = (
            np.array(
                [own[f"attention.self.{part}.weight"] @ x + own[f"attention.self.{part}.bias"] for x in X]
            )
            for part in ("query", "key", "value")
        )
        size = X.shape[1] // H
        A, joined = np.zeros((H, N, N)), np.zeros_like(X)
        for head in range(H):
            cut = slice(head * size, (head + 1) * size)
            for q in range(N):
                score = np.array([Q[q, cut] @ K[k, cut] / math.sqrt(size) for k in range(N)])
                if first:
                    table = w["encoder.relative_attention_bias.weight"]
                    score += [table[bucket(k - q), head] for k in range(N)]
                A[head, q] = np.exp(score - score.max()) / np.exp(score - score.max()).sum()
                joined[q, cut] = A[head, q] @ V[:, cut]
        kept.append(A)
        for n in range(N):
            added = own["attention.output.dense.weight"] @ joined[n] + own["attention.output.dense.bias"]
            x = norm(X[n] + added, own, "attention.output.LayerNorm", epsilon)
            h = own["intermediate.dense.weight"] @ x + own["intermediate.dense.bias"]
            h = h * (1 + erf(h / math.sqrt(2))) / 2
            added = own["output.dense.weight"] @ h + own["output.dense.bias"]
            X[n] = norm(x + added, own, "output.LayerNorm", epsilon)
    return X, np.array(kept)


@pytest.mark.parametrize("config", [CONFIG, MPNET], ids=["bert", "mpnet"])
def test_states_and_attention_are_those_of_plain_numpy(config):
    weights = random_weights(config)
    checkpoint = read_checkpoint(checkpoints.files(config, weights).__getitem__, "here")
    windows = [[2, 5, 7, 8, 9, 3], [2, 6, 5, 10, 11, 7, 12, 13, 9, 8, 5, 6, 7, 8, 9, 5, 5, 6, 7, 3]]
    ids, is_piece = np.zeros((2, 22), np.int32), np.zeros((2, 22), bool)
    for place, window in enumerate(windows):
        ids[place, : len(window)], is_piece[place, : len(window)] = window, True
    states, attention = bert.forward(checkpoint.shape, checkpoint.weights, ids, is_piece)
    for place, window in enumerate(windows):
        X, A = reference(config, weights, window)
        N = len(window)
        np.testing.assert_allclose(states[place, :N], X, atol=5e-6)
        np.testing.assert_allclose(attention[:, place, :, :N, :N], A, atol=5e-6)
        assert float(attention[:, place, :, :N, N:].max()) < 1e-12 if N < 22 else True


def test_buckets_of_distances():
    found = np.asarray(bert.buckets(200))
    assert [[int(found[q, k]) for k in range(0, 200, 13)] for q in (0, 77, 199)] == [
        [bucket(k - q) for k in range(0, 200, 13)] for q in (0, 77, 199)
    ]


def test_attention_between_words_is_the_mean_over_pieces_and_heads_in_units_of_uniform():
    checkpoint = read_checkpoint(checkpoints.files().__getitem__, "here")
    spelt = [[5], [7, 8], [7, 9, 11]]  # frog, al ##gebra, al ##ge ##l
    words = np.array([[0, 1, 2, 0]])
    windows = bert.in_pieces(words, spelt, 2, 3, 24)
    window = [2, 5, 7, 8, 7, 9, 11, 5, 3]
    assert windows.ids_BxN[0, :9].tolist() == window and windows.is_piece_BxN.sum() == 9
    found = bert.word_attention(checkpoint.shape, checkpoint.weights, *windows)
    _, A = reference(CONFIG, random_weights(), window)
    own = [[1], [2, 3], [4, 5, 6], [7]]
    for layer in range(2):
        for q in range(4):
            for k in range(4):
                mean = np.mean([A[layer, h, i, j] for h in range(3) for i in own[q] for j in own[k]])
                assert found[0, layer, q, k] == pytest.approx(9 * mean, abs=1e-4)


LETTERS = "abcdefghijklmnopqrstuvwxyzß日本語かδлк'-!。٣"
VOCABULARY = (*PIECES[:5], *LETTERS, *(f"##{letter}" for letter in LETTERS), "frog", "##bra", "alge", "日本")
SPELT = {  # hand-checked: case, accents, punctuation, scripts without spaces, control characters, length
    "[MASK]": "[MASK]",
    "[UNK]": "[UNK]",
    "frog": "frog",
    "FROG": "frog",
    "algebra": "alge ##bra",
    "Álgebra": "alge ##bra",
    "a\u0301lgebra": "alge ##bra",
    "naïve": "n ##a ##i ##v ##e",
    "straße": "s ##t ##r ##a ##ß ##e",
    "STRASSE": "s ##t ##r ##a ##s ##s ##e",
    "\u0130c": "i ##c",
    "\ufb01x": "[UNK]",
    "лй": "[UNK]",
    "лк": "л ##к",
    "frog's": "frog ' s",
    "frog-s": "frog - s",
    "'frog'": "' frog '",
    "!!": "! !",
    "日本語": "日本 ##語",
    "日本frog": "日本 ##f ##r ##o ##g",
    "日 本": "日 本",
    "。日": "。 日",
    "か\u3099か": "か ##か",
    "かが": "か ##か",
    "٣٤": "[UNK]",
    "frog😀": "[UNK]",
    "a\tb": "a b",
    "a\xa0b": "a b",
    "a\x00b": "[UNK]",
    "a\x07b": "[UNK]",
    "a\xadb": "[UNK]",
    "a\u200bb": "[UNK]",
    "\u0301": "[UNK]",
    "": "[UNK]",
    "   ": "[UNK]",
    "x" * 100: "x" + 99 * " ##x",
    "x" * 101: "[UNK]",
}


@pytest.mark.parametrize(("word", "expected"), SPELT.items(), ids=map(ascii, SPELT))
def test_words_are_spelt_by_the_longest_pieces(word, expected):
    (found,) = bert.spell([word], VOCABULARY)
    assert " ".join(VOCABULARY[piece] for piece in found) == expected


def longest_match(word, ids, unknown):
    """Spell a word as WordPiece is published: the longest piece that fits, then the longest of the rest."""
    word = unicodedata.normalize("NFD", word.lower())
    word = "".join(letter for letter in word if unicodedata.category(letter) != "Mn")
    signs = (letter in string.punctuation or unicodedata.category(letter)[0] == "P" for letter in word)
    spaced = (f" {letter} " if is_sign else letter for letter, is_sign in zip(word, signs, strict=True))
    found = []
    for part in "".join(spaced).split():
        spelt, start = [], 0
        while start < len(part) and spelt is not None:
            ends = range(len(part), start, -1)
            pieces = (("##" if start else "") + part[start:end] for end in ends)
            piece, end = next(((p, e) for p, e in zip(pieces, ends, strict=True) if p in ids), (None, 0))
            spelt, start = (None, 0) if piece is None else ([*spelt, ids[piece]], end)
        found += [unknown] if spelt is None or len(part) > 100 else spelt
    return found or [unknown]


def test_random_words_are_spelt_as_by_trying_every_piece():
    draw = random.Random(0)
    alphabet = "aAbBcdeEéÈçñößøÅłžşğİδΔλωлЛйёאבעب日本語字かガ한글अहिไทย'-_.!?·。"
    pieces = {"".join(draw.choices(alphabet, k=draw.randint(1, 3))).lower() for _ in range(150)}
    pieces = {unicodedata.normalize("NFD", piece) for piece in pieces} | set(alphabet.lower()) - {"ğ", "字"}
    pieces = (*PIECES[:5], *sorted(pieces), *(f"##{piece}" for piece in sorted(pieces)))
    ids = {piece: number for number, piece in enumerate(pieces)}
    words = ["".join(draw.choices(alphabet, k=draw.randint(1, 9))).lower() for _ in range(3000)]
    expected = [longest_match(word, ids, ids["[UNK]"]) for word in words]
    assert bert.spell(words, pieces) == expected
    known = sum(ids["[UNK]"] not in spelt for spelt in expected)
    assert 500 < known < 2900


def test_without_the_extra_a_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match="the probe needs tokenizers, which is not installed: "):
        bert.spell(["frog"], PIECES)


def test_special_pieces_under_the_names_of_mpnet():
    pieces = ("<s>", "<pad>", "</s>", "<unk>", "frog", "<mask>")
    assert bert.spell(("[MASK]", "[UNK]", "frog", "toad"), pieces) == [[5], [3], [4], [3]]


def test_the_embedding_of_a_split_word_is_the_mean_of_its_pieces():
    embedding = np.arange(28.0).reshape(14, 2)
    np.testing.assert_allclose(bert.mean_embeddings([[5], [7, 8]], embedding), [[10, 11], [15, 16]])


def test_a_window_of_too_many_pieces_is_refused():
    with pytest.raises(UserError, match="4 words are 6 pieces; the model reads 5; allowed: fewer --words"):
        bert.in_pieces(np.zeros((1, 4), int), [[5]], 2, 3, 5)

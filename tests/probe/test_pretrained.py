"""Every layout against plain NumPy in float64; word pieces against the longest match, letter by letter."""

import math
import random
import string
import sys
import unicodedata
from functools import partial

import jax
import numpy as np
import pytest
import tokenizers
from scipy.special import erf
from support import checkpoints
from support.checkpoints import CONFIG, CONFIGS, PIECES, random_weights
from support.small_corpus import small_corpus

from topicjax.errors import UserError
from topicjax.probe import pieces, pretrained
from topicjax.probe.models import read_folder


def norm(x, w, name, epsilon):
    x = (x - x.mean()) / math.sqrt(((x - x.mean()) ** 2).mean() + epsilon)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def bucket(distance):
    """As MPNet groups distances of keys after and before the query, written out."""
    offset, size = (16 if distance > 0 else 0), abs(distance)
    if size < 8:
        return offset + size
    return offset + min(15, 8 + int(math.log(size / 8) / math.log(128 / 8) * 8))


FIRST = {"mpnet": 2, "roberta": 2, "bart": 2}  # row of the first position
FIXED = {"distilbert": 1e-12, "bart": 1e-5}  # epsilon, where config.json has none
TABLES = {  # of words, of positions, norm of their sum, segments, projection
    "bart": ("encoder.embed_tokens", "encoder.embed_positions", "encoder.layernorm_embedding"),
    "bert": ("embeddings.word_embeddings", "embeddings.position_embeddings", "embeddings.LayerNorm"),
}
SEGMENTS = "embeddings.token_type_embeddings.weight"
PROJECTIONS = {"electra": "embeddings_project", "albert": "encoder.embedding_hidden_mapping_in"}


def gelu(h, name):
    if name == "gelu_new":
        return h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))) / 2
    return h * (1 + erf(h / math.sqrt(2))) / 2


def reference(config, weights, ids):
    """Return the last states and the attention of one window without padding, position by position."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    kind, N, H = config["model_type"], len(ids), 3
    first, epsilon = FIRST.get(kind, 0), FIXED.get(kind) or config["layer_norm_eps"]
    of_words, of_positions, norm_of_sum = TABLES.get(kind, TABLES["bert"])

    def apply(name, x):
        return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

    X = []
    for n, piece in enumerate(ids):
        x = w[f"{of_words}.weight"][piece] + w[f"{of_positions}.weight"][first + n]
        x = norm(x + w[SEGMENTS][0] if SEGMENTS in w else x, w, norm_of_sum, epsilon)
        X.append(apply(PROJECTIONS[kind], x) if kind in PROJECTIONS else x)
    X, kept = np.array(X), []
    layers = next(config[n] for n in ("n_layers", "encoder_layers", "num_hidden_layers") if n in config)
    act = next(
        config[n] for n in ("activation", "activation_function", "hidden_act", "model_type") if n in config
    )
    for layer in range(layers):
        own = int(layer / (layers / config["num_hidden_groups"])) if kind == "albert" else layer
        query, key, value, output, norm_1, mlp_1, mlp_2, norm_2 = checkpoints.in_layer(kind, own)
        Q, K, V = (np.array([apply(name, x) for x in X]) for name in (query, key, value))
        size = X.shape[1] // H
        A, joined = np.zeros((H, N, N)), np.zeros_like(X)
        for head in range(H):
            cut = slice(head * size, (head + 1) * size)
            for q in range(N):
                score = np.array([Q[q, cut] @ K[k, cut] / math.sqrt(size) for k in range(N)])
                if kind == "mpnet":
                    table = w["encoder.relative_attention_bias.weight"]
                    score += [table[bucket(k - q), head] for k in range(N)]
                A[head, q] = np.exp(score - score.max()) / np.exp(score - score.max()).sum()
                joined[q, cut] = A[head, q] @ V[:, cut]
        kept.append(A)
        for n in range(N):
            x = norm(X[n] + apply(output, joined[n]), w, norm_1, epsilon)
            X[n] = norm(x + apply(mlp_2, gelu(apply(mlp_1, x), act)), w, norm_2, epsilon)
    return X, np.array(kept)


CASES = CONFIGS | {"albert, two groups": CONFIGS["albert"] | {"num_hidden_layers": 4, "num_hidden_groups": 2}}


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_states_and_attention_are_those_of_plain_numpy(config):
    weights = random_weights(config)
    checkpoint = checkpoints.read(config, checkpoints.with_head(config, weights))
    windows = [[2, 5, 7, 8, 9, 3], [2, 6, 5, 10, 11, 7, 12, 13, 9, 8, 5, 6, 7, 8, 9, 5, 5, 6, 7, 3]]
    ids, is_piece = np.zeros((2, 22), np.int32), np.zeros((2, 22), bool)
    for place, window in enumerate(windows):
        ids[place, : len(window)], is_piece[place, : len(window)] = window, True
    program = jax.jit(partial(pretrained.forward, checkpoint.shape))
    states, attention = map(np.asarray, program(checkpoint.weights, ids, is_piece))
    for place, window in enumerate(windows):
        X, A = reference(config, weights, window)
        N = len(window)
        np.testing.assert_allclose(states[place, :N], X, atol=1e-5)
        np.testing.assert_allclose(attention[:, place, :, :N, :N], A, atol=5e-6)
        assert float(attention[:, place, :, :N, N:].max()) < 1e-12 if N < 22 else True


def test_buckets_of_distances():
    found = np.asarray(pretrained.buckets(200))
    assert [[int(found[q, k]) for k in range(0, 200, 13)] for q in (0, 77, 199)] == [
        [bucket(k - q) for k in range(0, 200, 13)] for q in (0, 77, 199)
    ]


def test_attention_between_words_is_the_mean_over_pieces_and_heads_in_units_of_uniform():
    checkpoint = checkpoints.read()
    spelt = [[5], [7, 8], [7, 9, 11]]  # frog, al ##gebra, al ##ge ##l
    words = np.array([[0, 1, 2, 0]])
    windows = pretrained.in_pieces(words, spelt, 2, 3, 24)
    window = [2, 5, 7, 8, 7, 9, 11, 5, 3]
    assert windows.ids_BxN[0, :9].tolist() == window and windows.is_piece_BxN.sum() == 9
    found = pretrained.word_attention(checkpoint.shape, checkpoint.weights, *windows)
    _, A = reference(CONFIG, random_weights(), window)
    own = [[1], [2, 3], [4, 5, 6], [7]]
    for layer in range(2):
        for q in range(4):
            for k in range(4):
                mean = np.mean([A[layer, h, i, j] for h in range(3) for i in own[q] for j in own[k]])
                assert found[0, layer, q, k] == pytest.approx(9 * mean, abs=1e-4)


def test_a_model_of_another_layout_reads_the_words_of_a_corpus_in_its_pieces():
    config = CONFIGS["roberta"]
    weights, checkpoint = random_weights(config), checkpoints.read(config)
    corpus = small_corpus([["frog", "al", "fog", "frog"], ["é"]], ["frog", "al", "fog", "é"])
    trained, control = pretrained.with_control("tiny", "random", checkpoint, corpus, 0)
    spelt = pieces.spell(corpus.vocabulary, checkpoint.tokenizer)
    assert [len(own) for own in spelt[2:5]] == [1, 2, 3]
    assert trained.is_known_V.tolist() == [False, False, True, True, True, False]
    assert trained.is_split_V.tolist()[2:5] == [False, True, True]
    table = weights["embeddings.word_embeddings.weight"]
    np.testing.assert_allclose(trained.embedding_VxD[4], table[spelt[4]].mean(axis=0), rtol=1e-6)
    _, A = reference(config, weights, [0, *spelt[2], *spelt[3], *spelt[4], 2])  # <s> words </s>
    found = trained.attend(np.array([[2, 3, 4]]))
    expected = A.mean(axis=1)[:, 1, 4:7].mean(axis=1) * 8  # from frog to the three pieces of fog
    np.testing.assert_allclose(found[0, :, 0, 2], expected, atol=1e-4)
    assert control.embedding_VxD.shape == trained.embedding_VxD.shape and not control.is_trained
    assert np.abs(control.attend(np.array([[2, 3, 4]])) - 1).max() < 0.1  # nearly uniform


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


def spell(words, vocabulary):
    return pieces.spell(words, pieces.word_pieces("".join(f"{piece}\n" for piece in vocabulary), "here"))


@pytest.mark.parametrize(("word", "expected"), SPELT.items(), ids=map(ascii, SPELT))
def test_words_are_spelt_by_the_longest_pieces(word, expected):
    (found,) = spell([word], VOCABULARY)
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
    known = {"".join(draw.choices(alphabet, k=draw.randint(1, 3))).lower() for _ in range(150)}
    known = {unicodedata.normalize("NFD", piece) for piece in known} | set(alphabet.lower()) - {"ğ", "字"}
    known = (*PIECES[:5], *sorted(known), *(f"##{piece}" for piece in sorted(known)))
    ids = {piece: number for number, piece in enumerate(known)}
    words = ["".join(draw.choices(alphabet, k=draw.randint(1, 9))).lower() for _ in range(3000)]
    expected = [longest_match(word, ids, ids["[UNK]"]) for word in words]
    assert spell(words, known) == expected
    count = sum(ids["[UNK]"] not in spelt for spelt in expected)
    assert 500 < count < 2900


def test_without_the_extra_a_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match="the probe needs tokenizers, which is not installed: "):
        spell(["frog"], PIECES)


def test_special_pieces_under_the_names_of_mpnet():
    known = ("<s>", "<pad>", "</s>", "<unk>", "frog", "<mask>")
    assert spell(("[MASK]", "[UNK]", "frog", "toad"), known) == [[5], [3], [4], [3]]


def test_bytes_are_joined_in_the_order_of_merges_after_a_space():
    tokenizer = checkpoints.read(CONFIGS["roberta"]).tokenizer
    words = ("[MASK]", "[UNK]", "frog", "fog", "algebra", "Frog", "é")
    names = [[tokenizer.id_to_token(i) for i in spelt] for spelt in pieces.spell(words, tokenizer)]
    assert names[:4] == [["<mask>"], ["<unk>"], ["\u0120frog"], ["\u0120", "f", "og"]]
    assert names[4] == ["\u0120", "al", *"gebra"]
    assert "<unk>" in names[5] and "<unk>" in names[6]  # these bytes are not in the tiny vocabulary


def test_a_saved_tokenizer_does_for_byte_pairs_and_unigrams(tmp_path):
    folder = checkpoints.write_folder(tmp_path / "roberta", config=CONFIGS["roberta"])
    words = ("[MASK]", "[UNK]", "frog", "fog", "algebra")
    expected = pieces.spell(words, read_folder(folder).tokenizer)
    saved = read_folder(folder).tokenizer
    saved.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)  # as published
    saved.enable_truncation(1)
    saved.enable_padding(length=9)
    (folder / "tokenizer.json").write_text(saved.to_str())
    (folder / "vocab.json").unlink()
    assert pieces.spell(words, read_folder(folder).tokenizer) == expected
    tokenizer = checkpoints.read(CONFIGS["albert"]).tokenizer
    names = [[tokenizer.id_to_token(i) for i in spelt] for spelt in pieces.spell(words, tokenizer)]
    assert names[:3] == [["[MASK]"], ["<unk>"], ["\u2581frog"]] and names[4] == ["\u2581", "al", *"gebra"]


def test_the_embedding_of_a_split_word_is_the_mean_of_its_pieces():
    embedding = np.arange(28.0).reshape(14, 2)
    np.testing.assert_allclose(pieces.mean_embeddings([[5], [7, 8]], embedding), [[10, 11], [15, 16]])


def test_a_window_of_too_many_pieces_is_refused():
    with pytest.raises(UserError, match="4 words are 6 pieces; the model reads 5; allowed: fewer --words"):
        pretrained.in_pieces(np.zeros((1, 4), int), [[5]], 2, 3, 5)

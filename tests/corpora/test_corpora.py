"""Corpora: words out of markup and text, their numbers, downloads that are whole or not at all, bad input."""

import contextlib
import hashlib
import http.server
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.small_corpus import lines, write_corpora, write_text

from topicjax.cli import main
from topicjax.corpora import corpus, download, make, package_index, wikipedia, words
from topicjax.errors import UserError

MARKUP = (
    "'''Roses''' {{box|{{inner}}|x}} are [[flower|flowers]]<ref>no</ref> of [[Asia]]. "
    "[[Image:rose.jpg|thumb|a [[red]] one]] See [http://example.org the site] {| class=x\n| cell\n|} "
    "&amp;nbsp;1906 it's &lt;math&gt;x&lt;/math&gt;[[de:Rose]] [[Category:Plants]]"
)
DUMP = f"""<mediawiki><page><title>Rose</title><revision>
<text xml:space="preserve">{MARKUP} {"soil " * 50}</text>
</revision></page><page><title>Roses</title><text>#REDIRECT [[Rose]]</text></page>
<page><title>Template:Box</title><text>{"box " * 60}</text></page>
<page><title>Stub</title><text>too short</text></page></mediawiki>"""


def test_words_of_an_article_are_its_running_text():
    (found,) = wikipedia.articles(DUMP)
    assert found[:11] == "roses are flowers of asia see the site it's soil soil".split()
    assert found.count("soil") == 50 and len(found) == 59


def test_words_are_runs_of_letters_with_inner_apostrophes():
    assert words.words_of("Don\u2019t  e-mail 12 Žižek's 'own' x_y") == "don't e mail žižek's own x y".split()


def test_numbers_follow_frequency_then_the_alphabet_and_rare_words_are_unknown():
    numbered = words.number_words([["b", "a", "b", "c"], ["a", "b", "d"]])
    ids, vocabulary = words.rank(numbered, 4)
    assert vocabulary == ("[MASK]", "[UNK]", "b", "a")
    assert ids.tolist() == [2, 3, 2, 1, 3, 2, 1] and numbered.ends.tolist() == [4, 7]
    ids, vocabulary = words.rank(numbered, 100)
    assert vocabulary[2:] == ("b", "a", "c", "d") and ids.dtype == np.uint16


def test_content_words_leave_no_function_words_and_no_empty_documents():
    numbered = words.number_words([["the", "rose", "is"], ["of", "it"], ["didn't", "ox", "soil"]])
    content = words.content_only(numbered)
    assert [content.words[number] for number in content.ids] == ["rose", "soil"]
    assert content.ends.tolist() == [1, 2]


def test_a_corpus_reads_back_as_the_words_of_its_text(tmp_path):
    folder = write_corpora(tmp_path)
    found = corpus.load_corpus("own", folder)
    text = [found.vocabulary[number] for number in found.ids]
    ends = found.ends.tolist()
    documents = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert documents == [words.words_of(line) for line in lines()]
    assert corpus.load_corpus(found.about["hash"], folder).name == "own"
    content = corpus.load_corpus("own_content", folder)
    assert {"the", "and", "in"} & {*found.vocabulary} and not {"the", "and", "in"} & {*content.vocabulary}
    assert content.about["words_are"] == words.CONTENT_RULE and content.about["licence"] == "that of the text"


def test_the_hash_depends_on_words_and_documents_alone(tmp_path):
    first = corpus.load_corpus("own", write_corpora(tmp_path / "a"))
    again = corpus.load_corpus("own", write_corpora(tmp_path / "b"))
    assert first.about["hash"] == again.about["hash"]
    ids, ends = np.array(first.ids), np.array(first.ends)
    ids[0] += 1
    other = corpus.content_hash(ids, ends, first.vocabulary)
    ends[0] += 1
    assert len({first.about["hash"], other, corpus.content_hash(first.ids, ends, first.vocabulary)}) == 3


def test_a_damaged_or_missing_corpus_is_one_sentence(tmp_path):
    folder = write_corpora(tmp_path)
    ids = np.load(folder / "own" / "ids.npy")
    np.save(folder / "own" / "ids.npy", ids[::-1])
    with pytest.raises(UserError, match=r"is not as it was written; to make it again: .* --text"):
        corpus.load_corpus("own", folder)
    (folder / "own" / "vocabulary.txt").unlink()
    with pytest.raises(
        UserError,
        match=r"vocabulary.txt cannot be used: No such file.*; to make it again: .* --text",
    ):
        corpus.load_corpus("own", folder)
    with pytest.raises(UserError, match=r"the corpus wikipedia is not in .*; to make it: .*topicjax corpus$"):
        corpus.load_corpus(corpus.STANDARD["wikipedia"].hash, folder)
    with pytest.raises(UserError, match=r"the corpus 0123456789ab is not in .*topicjax corpus --text my.txt"):
        corpus.load_corpus("0123456789ab", folder)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def saved(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    """Damage an array, with a hash that fits it: the hash alone does not show it."""

    def damage(path: Path) -> None:
        np.save(path, change(np.load(path)))
        about = json.loads((path.parent / "corpus.json").read_text())
        arrays = (np.load(path.parent / f"{name}.npy") for name in ("ids", "ends"))
        with contextlib.suppress(Exception):  # no hash fits
            words = (path.parent / "vocabulary.txt").read_text().splitlines()
            about["hash"] = corpus.content_hash(*arrays, words)
        (path.parent / "corpus.json").write_text(json.dumps(about))

    return damage


LIE = b"\x93NUMPY\x01\x00v\x00{'descr': '<u2', 'fortran_order': False, 'shape': (%d,), }"
DAMAGE = {
    "missing": (Path.unlink, "No such file or directory"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "it is not an ordinary file"),
    "a pipe": (pipe, "it is not an ordinary file"),
    "empty": (lambda path: path.write_bytes(b""), "No data left in file"),
    "cut off": (lambda path: os.truncate(path, 140), ""),
    "not an array": (lambda path: path.write_text("words"), ""),
    "endless": (lambda path: path.write_bytes((LIE % 10**30).ljust(127) + b"\n"), ""),
    "fractions": (saved(lambda array: array + 0.5), "it is not a list of whole numbers"),
    "two axes": (saved(lambda array: np.stack([array, array])), "it is not a list of whole numbers"),
    "no number": (saved(lambda array: array[:0]), ""),
    "negative": (saved(lambda array: array.astype(np.int64) - 3), "its numbers do not fit the other files"),
    "too large": (
        saved(lambda array: array.astype(np.int64) + 1000),
        "its numbers do not fit the other files",
    ),
}


@pytest.mark.parametrize("name", ["ids.npy", "ends.npy"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_an_unusable_array_is_named_and_made_again(tmp_path, kind, name):
    folder = write_corpora(tmp_path)
    damage, why = DAMAGE[kind]
    damage(folder / "own" / name)
    sentence = rf"^{folder}/own/(ids|ends).npy cannot be used: {why}[^\n]*; to make it again: .* --text"
    with pytest.raises(UserError, match=sentence):
        corpus.load_corpus("own", folder)
    if (folder / "own" / name).is_file():
        write_corpora(tmp_path)
        assert len(corpus.load_corpus("own", folder).ends) == 30


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "{}", '{"hash": 3}', '{"hash": "x", "words": "many"}', "[" * 100_000, "\udcff"]
)
def test_an_unusable_description_is_named_and_made_again(tmp_path, text):
    folder = write_corpora(tmp_path)
    (folder / "own" / "corpus.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(
        UserError, match=r"own/corpus.json cannot be used: [^\n]*; to make it again: .*topicjax corpus"
    ):
        corpus.load_corpus("own_content", folder)
    write_corpora(tmp_path)
    assert corpus.load_corpus("own", folder)


CONTENT = bytes(range(256)) * 9000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAME = "thing-1.0.tar.gz"


class Index(http.server.BaseHTTPRequestHandler):
    """A package index with one file, which serves ranges and may break off."""

    asked: list[str]
    breaks_off = False

    def do_GET(self):
        if self.path == "/simple/thing/":
            page = f'<a href="../../files/{NAME}#sha256=x">{NAME}</a>'.encode()
            self.answer(200, page, len(page))
        elif self.path == f"/files/{NAME}":
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
            type(self).asked.append(self.headers.get("Range") or "")
            if start >= len(CONTENT):
                self.send_error(416)
                return
            body = CONTENT[start:]
            sent = body[: len(body) // 2] if self.breaks_off else body
            self.answer(206 if start else 200, sent, len(body))
        else:
            self.send_error(404)

    def answer(self, status: int, body: bytes, length: int):
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def index(monkeypatch):
    """Serve the index on this machine and make it pip's."""
    handler = type("Own", (Index,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}/simple"
    monkeypatch.setattr(package_index, "pip_options", lambda: {"index-url": address})
    yield handler
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(folder: Path, name: str = NAME, sha256: str = SHA256) -> Path:
    return download.fetch("thing", name, sha256, folder, lambda text: None)


def test_a_file_of_the_index_is_downloaded_once(tmp_path, index):
    path = fetch(tmp_path / "new")
    assert path.read_bytes() == CONTENT
    assert fetch(tmp_path / "new") == path and index.asked == [""]
    assert [each.name for each in (tmp_path / "new").iterdir()] == [NAME]


def test_a_download_that_broke_off_goes_on(tmp_path, index):
    index.breaks_off = True
    with pytest.raises(UserError, match=f"the download of {NAME} broke off.*the same command, which goes on"):
        fetch(tmp_path)
    assert not (tmp_path / NAME).exists() and (tmp_path / f"{NAME}.part").stat().st_size == len(CONTENT) // 2
    index.breaks_off = False
    assert fetch(tmp_path).read_bytes() == CONTENT
    assert index.asked == ["", f"bytes={len(CONTENT) // 2}-"]


def test_a_part_that_is_whole_already_is_taken(tmp_path, index):
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT)
    assert fetch(tmp_path).read_bytes() == CONTENT


def test_a_wrong_hash_is_refused_and_nothing_is_left(tmp_path, index):
    with pytest.raises(UserError, match=f"{NAME} has the hash {SHA256[:12]}... instead of 000000000000..."):
        fetch(tmp_path, sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_what_the_index_does_not_have_is_one_sentence(tmp_path, index):
    with pytest.raises(UserError, match=r"the package index has no other.whl of thing"):
        fetch(tmp_path, "other.whl")
    with pytest.raises(UserError, match="does not give nothing: it answers 404"):
        download.fetch("nothing", NAME, SHA256, tmp_path, print)


def test_no_network_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(package_index, "pip_options", lambda: {"index-url": "http://127.0.0.1:9/simple"})
    with pytest.raises(UserError, match=r"does not give thing: .*; allowed: a network connection"):
        fetch(tmp_path)


def test_a_full_disk_is_one_sentence_before_anything_is_written(tmp_path, index, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 10**6))
    with pytest.raises(UserError, match="has 1 MB free; allowed: 52 MB or more"):
        fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_indexes_are_those_of_pip(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.org/simple")
    package_index.pip_options.cache_clear()
    assert package_index.pip_options()["index-url"] == "https://example.org/simple"
    package_index.pip_options.cache_clear()


def run(tmp_path, monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOPICJAX_DATA", raising=False)
    code = main(["corpus", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command_makes_both_corpora_and_says_when_they_are_there(tmp_path, monkeypatch, capsys):
    write_text(tmp_path)
    code, out, _ = run(tmp_path, monkeypatch, capsys, "--text", "own.txt")
    assert code == 0 and out.startswith("Done:") and "data/own_content" in out
    assert sorted(path.name for path in (tmp_path / "data" / "own").iterdir()) == [
        *("corpus.json", "ends.npy", "ids.npy", "vocabulary.txt")
    ]
    code, out, err = run(tmp_path, monkeypatch, capsys, "--text", "own.txt")
    assert code == 0 and out.startswith("All there already:") and err == ""
    (tmp_path / "own.txt").write_text("other words here\n")
    code, out, _ = run(tmp_path, monkeypatch, capsys, "--text", "own.txt")
    about = json.loads((tmp_path / "data" / "own" / "corpus.json").read_text())
    assert out.startswith("Done:") and about["words"] == 3 and about["hash"] in out


@pytest.mark.parametrize(
    ("content", "arguments", "sentence"),
    [
        (b"", (), "own.txt has no words; allowed: UTF-8 text, one document per line"),
        (b"12 34\n\n", (), "own.txt has no words"),
        (b"a \xff b", (), "own.txt is not UTF-8 at byte 2; allowed: UTF-8 text"),
        (b"a \x00 b", (), "own.txt is binary; allowed: UTF-8 text"),
        (b"of the it\n", (), "own.txt has no content words"),
        (b"rose soil\n", ("--vocabulary", "5"), "--vocabulary is 5; allowed: at most 4, the different words"),
        (b"rose soil\n", ("--vocabulary", "2"), "--vocabulary is 2; allowed: 3 or more"),
        (b"rose soil\n", ("--name", "A b"), "the name of the corpus is 'A b'; allowed: --name with a to z"),
        (b"rose soil\n", ("--name", "wikipedia"), "and none of downloads, wikipedia"),
        (None, (), "cannot read own.txt: No such file or directory"),
    ],
)
def test_bad_text_is_one_sentence_and_nothing_is_written(
    tmp_path, monkeypatch, capsys, content, arguments, sentence
):
    if content is not None:
        (tmp_path / "own.txt").write_bytes(content)
    code, out, err = run(tmp_path, monkeypatch, capsys, "--text", "own.txt", *arguments)
    assert code == 2 and out == "" and sentence in err and err.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_name_needs_a_text(tmp_path, monkeypatch, capsys):
    assert run(tmp_path, monkeypatch, capsys, "--name", "x")[0] == 2


def test_an_archive_without_enwik8_is_one_sentence(tmp_path, monkeypatch):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(b"no archive")
    monkeypatch.setattr(wikipedia, "fetch", lambda *args: path)
    with pytest.raises(UserError, match=r"cannot be read: .*; allowed: remove it and try again"):
        wikipedia.read_enwik8(tmp_path, print)


def test_wikipedia_keeps_its_licence_and_has_its_own_name_by_vocabulary(tmp_path, monkeypatch):
    monkeypatch.setattr(wikipedia, "read_enwik8", lambda folder, say: DUMP)
    text = make.wikipedia_text(tmp_path, 5, print)
    made, is_new = make.make_corpora(text, 5, tmp_path, lambda text: None)
    assert is_new and [path.name for path in made] == ["wikipedia_5", "wikipedia_5_content"]
    assert (
        "GFDL" in (made[0] / "LICENCE.txt").read_text()
        and "CC BY-SA" in (made[1] / "LICENCE.txt").read_text()
    )

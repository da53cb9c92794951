"""Write the page of probed models (Figure 3, Tables 1 and 2) and the files it links to."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from topicjax.store.files import plain

from ..frames import Frame
from ..outputs import write_file
from ..page import html as page
from ..pictures import Picture
from ..tables import markdown_table, to_csv
from . import tables as probe_tables
from .findings import findings
from .word_pairs import attention_layers, embedding_differences, nine_words

TITLE = "Topics in the embeddings and attention of language models"
TOP_WORDS = 10


def write(
    measured: Any, fits: Sequence[Any], about: Mapping[str, Any], folder: Path, say: Callable[[str], object]
) -> Path:
    """Write tables, figures and the page with both; return the path of the page."""
    say("drawing")
    shown = middle(measured.embeddings["threshold"])
    pictures = {
        "nine_words": nine_words(measured.nine),
        "embeddings": embedding_differences(measured.embeddings),
        "attention": attention_layers(measured.attention, shown),
    }
    tables = all_tables(measured, fits)
    drawn = {name: draw(picture, folder, name) for name, picture in pictures.items()}
    kept = {name: keep(*table, folder, name) for name, table in tables.items()}
    sentences = findings(measured.embeddings, measured.attention, shown)
    write_file(folder / "about.json", json.dumps(plain(dict(about)), indent=2) + "\n")
    sections = [
        ("Embeddings", drawn["nine_words"] + drawn["embeddings"] + kept["table1_embeddings"]),
        ("Attention", drawn["attention"] + kept["table1_attention"] + kept["table1_attention_layers"]),
        ("Co-occurrence", kept["table2"]),
        ("Topic fits", kept["fits"]),
        ("The paper", kept["paper_table1"]),
        ("How it was done", page.items(choices(about)) + kept["topics"]),
    ]
    subtitle = (
        f"{len(set(measured.embeddings['model']))} models, words of {about['corpus'].get('source', 'a text')}"
    )
    text = page.page(TITLE, subtitle, page.items(sentences, "answer"), sections)
    return write_file(folder / "tables.html", text)


def middle(thresholds: Frame) -> float:
    """Return the middle threshold, which figures use."""
    values = sorted(set(thresholds))
    return values[len(values) // 2]


def all_tables(measured: Any, fits: Sequence[Any]) -> dict[str, tuple[Frame, str]]:
    """Make each table with its caption."""
    errors = f"means over {len(fits)} topic fits ± standard error, which includes their spread"
    return {
        "table1_embeddings": (
            probe_tables.embedding_table(measured.embeddings),
            f"Table 1, embeddings: averages over pairs of different words, {errors} (and that over topics); "
            "a ratio stands only where its denominator is four standard errors or more from zero",
        ),
        "table1_attention": (
            probe_tables.attention_table(measured.attention, is_by_layer=False),
            "Table 1, attention over all layers and heads (uniform: 1), pairs of different words of one "
            f"window; {errors} (and that over windows)",
        ),
        "table1_attention_layers": (
            probe_tables.attention_table(measured.attention, is_by_layer=True),
            "The same by layer",
        ),
        "table2": (
            probe_tables.cooccurrence_table(measured.embeddings, measured.attention, measured.pairs),
            "Table 2: same-topic words compared with the pairs that share the most windows of the corpus (as "
            "many as a topic has pairs), other pairs of content words, and random pairs; one topic per word",
        ),
        "fits": (
            probe_tables.fits_table(measured.fits),
            "Each topic fit alone: cosine, dot product and attention over all layers ± standard error within "
            "the fit (over topics or windows)",
        ),
        "paper_table1": (
            probe_tables.paper_table(),
            "Table 1 of the paper: ratios same topic / different topics of checkpoints that the registry "
            "does not have",
        ),
        "topics": (
            pd.concat([fitted_topics(fit, topics) for fit, topics in enumerate(fits)], ignore_index=True),
            f"Topics of each fit: their {TOP_WORDS} most likely words and NPMI over documents",
        ),
    }


def fitted_topics(fit: int, topics: Any) -> Frame:
    """Tabulate the topics of a fit."""
    order = np.argsort(-topics.probability_TxV, axis=1, kind="stable")[:, :TOP_WORDS]
    words = [[topics.words[word] for word in row] for row in order]
    return probe_tables.topic_table(fit, words, topics.npmi_T)


def draw(picture: Picture, folder: Path, name: str) -> str:
    """Write a picture to files; return its HTML."""
    return page.figure(picture, picture.save(folder / "figures" / name), folder)


def keep(table: Frame, caption: str, folder: Path, name: str) -> str:
    """Write a table as CSV and Markdown; return its HTML."""
    read = probe_tables.readable(table)
    files = [
        to_csv(table, folder / f"{name}.csv"),
        write_file(folder / f"{name}.md", f"{caption}.\n\n{markdown_table(read)}"),
    ]
    return page.table(read, caption, page.links(files, folder))


def choices(about: Mapping[str, Any]) -> list[str]:
    """List the choices made where the paper leaves them open."""
    fits, chosen, corpus = about["topics"], about["choices"], about["corpus"]
    fit, seeds = fits[0], ", ".join(str(each["seed"]) for each in fits)
    npmi = ", ".join(f"{each['npmi']:.3f}" for each in fits)
    return [
        f"Topics: {len(fits)} fits of LDA with {fit['topics']} topics (tomotopy {fit['tomotopy']}, "
        f"{fit['iterations']} Gibbs iterations, alpha {fit['alpha']:g}, eta {fit['eta']:g}, seeds {seeds}) "
        f"on {fit['tokens']:,} content words of {fit['documents']:,} documents; one model of words for all "
        f"rows, not of each tokenizer's pieces. Mean NPMI {npmi}.",
        "Errors: the squared standard error is the mean over fits of that within a fit (over topics or "
        "windows), plus the variance over fits divided by their number.",
        "One topic per word: each word belongs to the topic that gives it the highest probability, and each "
        "topic keeps its most likely words: threshold x vocabulary of them, the same number for every topic, "
        "as in the paper's Table 2.",
        "One or several topics per word: each topic keeps as many of its most likely words, whatever other "
        "topics have them too; two words are of the same topic if they share one, and a pair counts once. "
        "The paper's definition is in its appendix E.3, which we do not have.",
        f"Attention: {chosen['windows']:,} windows of {chosen['words']} words, one per document, without "
        "punctuation and numbers, in lower case; words outside the vocabulary are [UNK]. Weights are "
        "averaged over heads and over the pieces of both words, and multiplied by the number of keys: this "
        "replaces the paper's normalisation, described in the same appendix.",
        "At equal distance: the average over different-topic pairs at each distance in words, weighted by "
        "the distances of the same-topic pairs. Identical words never form a pair.",
        "Co-occurrence: the number of windows of the corpus' content words that contain both words; the "
        "table takes as many pairs as one topic has.",
        f"Corpus {corpus.get('hash', '')}: {corpus.get('source', '')}; licence {corpus.get('licence', '')}.",
    ]

"""The command that probes language models for topics: Figure 3, Tables 1 and 2 of the paper."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicjax.cli.folder_commands import analysis
from topicjax.cli.terminal import say, show
from topicjax.errors import UserError, printable

if TYPE_CHECKING:
    from topicjax.corpora.corpus import Corpus
    from topicjax.probe.models import Model

NAMES = ("minilm", "mpnet", "encoder")
RUN, TABLES = Path("results/wikipedia"), Path("results/tables")


def add_probe_options(parser: argparse.ArgumentParser, path: Callable[[str], Path]) -> None:
    """Add the options of probe."""
    add = parser.add_argument
    add(
        "models",
        nargs="*",
        metavar="MODEL",
        help=f"any of {', '.join(NAMES)}; each is compared with itself at random weights (default: minilm, "
        f"and encoder if {RUN} is there)",
    )
    add(
        "--weights",
        type=path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="an ALBERT, BART, BERT, DistilBERT, ELECTRA, MPNet or RoBERTa on disk, as Hugging Face lays it "
        "out: config.json, model.safetensors, vocabulary; repeatable",
    )
    add("--folder", type=path, help=f"run folder of encoders trained on text (default: {RUN})")
    add("--trial", metavar="TRIAL_ID", help="which encoder of it (default: that of least held-out loss)")
    add("--corpus", default="wikipedia", help="whose words are probed (default: wikipedia)")
    add("--topics", type=int, default=100, help="topics that are fitted to them (default: 100)")
    add(
        "--fits",
        type=int,
        default=5,
        help="topic fits, one per seed; errors include their spread, and each is kept (default: 5)",
    )
    add("--words", type=int, default=64, help="words of a window (default: 64)")
    add("--windows", type=int, default=2000, help="windows, one per document (default: 2000)")
    add("--out", type=path, default=TABLES, help=f"folder of the tables (default: {TABLES})")


def probe_models(options: argparse.Namespace) -> int:
    """Measure how models see topics, and write tables, figures and a page."""
    from topicjax.corpora.corpus import data_folder, load_corpus
    from topicjax.probe.measure import Choices, make_lists, measure
    from topicjax.probe.models import read_folder
    from topicjax.probe.topics import Fit, check_fits, load_fits

    names = chosen_names(options)
    choices = Choices(words=options.words, windows=options.windows)
    fit = Fit(topics=options.topics)
    choices.check()
    fit.check()
    check_fits(options.fits)
    checkpoints = {folder: read_folder(folder) for folder in options.weights}
    corpus, content = load_corpus(options.corpus), load_corpus(f"{options.corpus}_content")
    fits = load_fits(content, fit, options.fits, data_folder(), say)
    lists = make_lists(fits, content, choices)
    models = chosen_models(names, checkpoints, corpus, options, choices.seed)
    measured = measure(models, lists, content.vocabulary[2:], choices, say)
    about = {"choices": asdict(choices), "topics": [topics.about for topics in fits], "corpus": corpus.about}
    page = analysis("probe.page").write(measured, fits, about, options.out, say)
    show(f"{page}: open it in a browser")
    return 0


def chosen_names(options: argparse.Namespace) -> list[str]:
    """List the requested models, or the default ones, or raise a UserError."""
    for name in options.models:
        if name not in NAMES:
            raise UserError(f"unknown model {name!r}; allowed: {', '.join(NAMES)}, or --weights FOLDER")
    wants_run = options.folder is not None or options.trial is not None
    if options.models or options.weights or wants_run:
        return list(dict.fromkeys([*options.models, *(["encoder"] if wants_run else [])]))
    return ["minilm", *(["encoder"] if RUN.is_dir() else [])]


def chosen_models(
    names: list[str], checkpoints: dict[Path, Any], corpus: "Corpus", options: argparse.Namespace, seed: int
) -> Iterator["Model"]:
    """Yield models one by one, so that only one is in memory."""
    from topicjax.corpora.corpus import data_folder
    from topicjax.probe.models import SOURCES, read_source
    from topicjax.probe.pretrained import with_control

    for folder, checkpoint in checkpoints.items():
        name = printable(folder.resolve().name)  # tables hold no bytes that are not text
        yield from with_control(name, f"checkpoint in the folder {name}", checkpoint, corpus, seed)
    for name in names:
        if name == "encoder":
            from topicjax.probe.trained import trained_encoder

            yield from trained_encoder(options.folder or RUN, options.trial)
        else:
            source = SOURCES[name]
            checkpoint = read_source(source, data_folder() / "downloads", say)
            yield from with_control(source.title, source.what, checkpoint, corpus, seed)

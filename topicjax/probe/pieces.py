"""Pieces of words: read the vocabulary of a checkpoint, and split the words of a corpus into its pieces.

A corpus's words are runs of lower-case letters: control characters need no cleaning, and runs of Chinese
characters stay words instead of becoming one word per character.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from topicjax.errors import UserError, shown
from topicjax.probe import import_extra

LONGEST = 100  # characters of a word; BERT treats a longer one as unknown
SPECIALS = {  # special pieces, under the names that layouts use
    "[UNK]": ("[UNK]", "<unk>"),
    "[CLS]": ("[CLS]", "<s>"),
    "[SEP]": ("[SEP]", "</s>"),
    "[MASK]": ("[MASK]", "<mask>"),
}


def read_tokenizer(read: Callable[[str], bytes], files: tuple[str, ...], most: int, source: str) -> Any:
    """Read the tokenizer in these files of a checkpoint, and check it: at most `most` pieces."""
    makers = {"vocab.txt": word_pieces, "vocab.json": byte_pairs, "tokenizer.json": saved}
    tokenizer = makers[files[0]](*(read(name).decode("utf-8", "replace") for name in files), source=source)
    ids = tokenizer.get_vocab()
    for name, others in SPECIALS.items():
        if not set(others) & ids.keys():
            raise UserError(
                f"{files[0]} of {source} has no {name}; allowed: the pieces of a masked language model, "
                f"{' or '.join(others)} among them"
            )
    if max(ids.values()) >= most:
        raise UserError(
            f"{files[0]} of {source} has {max(ids.values()) + 1:,} pieces; config.json allows {most:,}"
        )
    return tokenizer


def word_pieces(text: str, source: str) -> Any:
    """Make the tokenizer of uncased BERT: the longest piece that fits, then the longest of the rest."""
    tokenizers = import_extra("tokenizers")
    ids = {line.rstrip("\r"): number for number, line in enumerate(text.rstrip("\n").split("\n"))}
    unknown = next((name for name in SPECIALS["[UNK]"] if name in ids), "[UNK]")
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=LONGEST)
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=True
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer


def byte_pairs(text: str, merges: str, source: str) -> Any:
    """Make the tokenizer of RoBERTa and BART: pairs of bytes are joined, the space before a word included."""
    tokenizers = import_extra("tokenizers")
    try:
        ids = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"vocab.json of {source} is not JSON: {error}") from error
    numbers = list(ids.values()) if isinstance(ids, dict) else []
    if not numbers or not all(type(number) is int for number in numbers):
        raise UserError(
            f"vocab.json of {source} holds {shown(ids)}; allowed: an object of pieces and their ids"
        )
    if min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise UserError(
            f"vocab.json of {source} gives two pieces one id, or a negative one; allowed: an id each"
        )
    lines = [line for line in merges.splitlines() if line and not line.startswith("#version")]
    pairs = [tuple(line.split(" ")) for line in lines]
    if odd := [line for line, pair in zip(lines, pairs, strict=True) if len(pair) != 2]:
        raise UserError(f"merges.txt of {source} has the line {shown(odd[0])}; allowed: two pieces each")
    try:
        model = tokenizers.models.BPE(ids, pairs, unk_token="<unk>")
    except Exception as error:  # the package raises Exception itself
        raise UserError(f"merges.txt of {source} does not fit its vocab.json: {error}") from error
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def saved(text: str, source: str) -> Any:
    """Read a tokenizer as the package tokenizers saves it."""
    tokenizers = import_extra("tokenizers")
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the package raises Exception itself
        raise UserError(f"tokenizer.json of {source} is not a tokenizer: {error}") from error
    if not tokenizer.get_vocab_size():
        raise UserError(f"tokenizer.json of {source} has no pieces")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def special(name: str, ids: Mapping[str, int]) -> int:
    """Look up the id of a special piece under the name that the vocabulary uses."""
    return next(ids[other] for other in SPECIALS[name] if other in ids)


def spell(words: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Split each word, as it stands after a space, into the ids of its pieces; unknown words are [UNK]."""
    ids = tokenizer.get_vocab()
    unknown = special("[UNK]", ids)
    return [
        [special(word, ids)]
        if word in SPECIALS
        else (tokenizer.encode(f" {word}", add_special_tokens=False).ids or [unknown])
        for word in words
    ]


def mean_embeddings(words: Sequence[Sequence[int]], embedding: np.ndarray) -> np.ndarray:
    """Average the embeddings of the pieces of each word."""
    return np.stack([embedding[list(pieces)].mean(axis=0) for pieces in words])

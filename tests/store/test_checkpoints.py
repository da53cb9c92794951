"""Weights are any tree of arrays: what is restored is the tree that was saved, one trial at a time."""

import json
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.damage import flip
from support.store_runs import EMPTY, FIRST, ONE, tables

import topicjax
from topicjax.cli import main
from topicjax.errors import UserError
from topicjax.store import checkpoints
from topicjax.store.checkpoints import describe_tree, flatten, unflatten
from topicjax.store.files import StoreError
from topicjax.store.verify import verify
from topicjax.store.writer import Writer


class Layer(NamedTuple):
    W: Any
    b: Any = None


class Other(NamedTuple):
    W: Any
    b: Any = None


def numbers(*shape: int, dtype: Any = "float32") -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return (10 * rng.normal(size=(3, *shape))).astype(dtype)


TREES: dict[str, tuple[Any, list[str]]] = {
    "a flat dict": ({"W_V": numbers(2, 3), "W_K": numbers(4)}, ["W_V", "W_K"]),
    "a bare array": (numbers(2), ["weights"]),
    "a number per trial": ({"scale": numbers()}, ["scale"]),
    "a list of layers": ({"layers": [numbers(2), numbers(3)]}, ["layers.0", "layers.1"]),
    "a tuple": ((numbers(2), (numbers(3),)), ["0", "1.0"]),
    "named tuples": ([Layer(numbers(2)), Layer(numbers(2), numbers(3))], ["0.W", "1.W", "1.b"]),
    "all of them": (
        {"a": Layer({"x": [numbers(1, dtype="int32")], "none": None}, ()), "b": (None, [numbers(2, 2)])},
        ["a.W.x.0", "b.1.0"],
    ),
    "keys of any kind": ({"linear/~/w": numbers(2), "größe [1]*": numbers(3), "": numbers(4)}, None),
    "types": ({name: numbers(3, dtype=name) for name in ("bool", "uint8", "float64", "complex64")}, None),
    "bfloat16": ([numbers(4, dtype=jnp.bfloat16)], ["0"]),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for number, (name, (tree, _)) in enumerate(TREES.items()):
        made[name] = tmp_path_factory.mktemp("trees") / str(number)
        with Writer(made[name], "demo") as writer:
            writer.write_manifest(EMPTY)
            writer.save_snapshot(ONE, 4, jax.tree.map(jnp.asarray, tree) if number % 2 else tree)
            writer.commit(ONE, *tables(FIRST, ONE, [4]))
    return made


def check_same(found: Any, given: Any, row: int) -> None:
    """Compare without the functions under test: kinds of nodes, names, numbers to the bit."""
    if given is None:
        assert found is None
    elif isinstance(given, dict):
        assert type(found) is dict and found.keys() == given.keys()
        for key, item in given.items():
            check_same(found[key], item, row)
    elif isinstance(given, list | tuple):
        assert isinstance(found, type(given).__mro__[-2]) and len(found) == len(given)
        assert getattr(found, "_fields", None) == getattr(given, "_fields", None)
        assert type(found).__name__ == type(given).__name__
        for mine, its in zip(found, given, strict=True):
            check_same(mine, its, row)
    else:
        assert isinstance(found, np.ndarray) and found.dtype == given.dtype
        assert found.shape == given.shape[1:] and found.tobytes() == given[row].tobytes()


@pytest.mark.parametrize("name", TREES)
def test_the_tree_comes_back_for_each_trial(folders: dict[str, Path], name: str):
    tree, names = TREES[name]
    run = topicjax.load(folders[name])
    for row, trial_id in enumerate(FIRST):
        check_same(run.restore(trial_id), tree, row)
    if names is not None:
        assert list(flatten(tree)[0]) == names
    assert verify(folders[name]).problems == []


def test_restored_trees_are_of_one_class_and_jax_takes_them(folders: dict[str, Path]):
    run = topicjax.load(folders["named tuples"])
    one, two = (run.restore(trial_id) for trial_id in FIRST[:2])
    assert type(one[0]) is type(one[1]) is type(two[0])
    both = jax.tree.map(lambda *own: np.stack(own), one, two)
    np.testing.assert_array_equal(both[1].b, TREES["named tuples"][0][1].b[:2])


def test_orbax_opens_every_tree_as_a_flat_dict(folders: dict[str, Path]):
    import orbax.checkpoint as ocp

    for name in ("a flat dict", "a bare array", "all of them", "keys of any kind"):
        with ocp.StandardCheckpointer() as checkpointer:
            found = checkpointer.restore(folders[name] / "checkpoints" / ONE / "4")
        expected = flatten(TREES[name][0])[0]
        assert found.keys() == expected.keys()
        for path, array in expected.items():
            np.testing.assert_array_equal(found[path], array)


@pytest.mark.parametrize("name", TREES)
def test_a_structure_is_json_and_needs_no_arrays(name: str):
    tree, _ = TREES[name]
    leaves, structure = flatten(tree)
    assert json.loads(json.dumps(structure)) == structure
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)
    assert describe_tree(shapes) == describe_tree(jax.tree.map(lambda leaf: leaf, tree))
    assert flatten(unflatten(structure, leaves)) == (leaves, structure)


class Custom:
    """What a user may register as a node of trees."""


REFUSED: dict[str, tuple[Any, str]] = {
    "a class": ({"layer": [Custom()]}, "'layer.0' of the weights is of type Custom, which cannot be kept"),
    "an ordered dict": (OrderedDict(W=numbers(2)), "what weights returns is of type OrderedDict"),
    "a number": (
        {"scale": 3.0},
        "'scale' of the weights is of type float, which cannot be kept; allow",
    ),
    "a set": ({"a": {1}}, "'a' of the weights is of type set"),
    "a key that is not a string": (
        {"a": {0: numbers(2)}},
        "the key 0 of 'a' of the weights is not a string",
    ),
    "two of one name": ({"a.b": numbers(2), "a": {"b": numbers(2)}}, "two arrays named 'a.b'"),
    "no array": ({"a": [None, ()]}, "the weights have no array; allowed: a tree with at least one"),
    "none at all": (None, "the weights have no array"),
    "an empty array": ({"a": numbers(0)}, r"'a' of the weights has shape \(3, 0\); allowed: arrays with at"),
    "objects": ({"a": np.array([{}])}, "'a' of the weights has dtype object; allowed: arrays of numbers"),
    "random keys": (
        {"a": jax.eval_shape(lambda: jax.random.key(0))},
        "'a' of the weights has dtype key",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_kept_is_refused_before_anything_is_written(tmp_path: Path, case: str):
    tree, sentence = REFUSED[case]
    with pytest.raises(UserError, match=sentence):
        describe_tree(tree)
    with Writer(tmp_path, "demo") as writer, pytest.raises(UserError, match=sentence):
        writer.save_snapshot(ONE, 4, tree)
    assert not any((tmp_path / "checkpoints").iterdir()) and not (tmp_path / "journal.log").exists()


def test_every_flipped_bit_of_a_structure_is_noticed(folders: dict[str, Path]):
    """Verify sees each; restore gives the tree that was saved, or a sentence."""
    folder = folders["named tuples"]
    path = folder / "checkpoints" / ONE / "4" / checkpoints.STRUCTURE
    run = topicjax.load(folder)
    for place in range(path.stat().st_size):
        flip(path, place, place % 8)
        with pytest.raises(StoreError, match=r"is damaged: |is missing"):
            check_same(run.restore(FIRST[0]), TREES["named tuples"][0], 0)
        assert checkpoints.tree_checksum(path.parent) != run._journal.commits[ONE].snapshots[4]
        flip(path, place, place % 8)
    check_same(run.restore(FIRST[0]), TREES["named tuples"][0], 0)


def test_the_command_line_writes_leaves_under_their_paths(folders: dict[str, Path], tmp_path: Path, capsys):
    for name in ("a list of layers", "a bare array", "all of them", "keys of any kind"):
        out = tmp_path / "weights.npz"
        assert main(["restore", str(folders[name]), FIRST[1], "--out", str(out), "--force"]) == 0
        with np.load(out) as found:
            assert {key: found[key].tolist() for key in found.files} == {
                path: leaf[1].tolist() for path, leaf in flatten(TREES[name][0])[0].items()
            }
    assert "layers.0 2, layers.1 3" in capsys.readouterr().out


def test_reading_needs_neither_jax_nor_orbax(folders: dict[str, Path]):
    code = f"import sys, topicjax; topicjax.load({str(folders['named tuples'])!r}).restore({FIRST[0]!r}); "
    code += "sys.exit(bool({'jax', 'orbax'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

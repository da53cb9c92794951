"""Sweep files: the shipped ones, whose trials never change their identity, and a user's own."""

from pathlib import Path

import pytest

from topicjax import sweep_files
from topicjax.sweep import product, trials
from topicjax.sweep_files import load_sweep, sweep_names
from topicjax.trial import trial_id

IDS = {  # how many trials, and the first, middle and last: a change would make old run folders useless
    "embeddings": (8, "cc1780e29019", "546f38a4fbf2", "1ca8d438df6f"),
    "init_law": (60, "85e82674b440", "8c6603a85672", "951d5c5ebd6d"),
    "joint": (24, "ab322afdff91", "25ae585a93b1", "b67615fdcdee"),
    "key_visibility": (48, "8938cb8cf612", "5df7de382991", "922a93702062"),
    "onset": (200, "0950140337c3", "1cc878ff895f", "58739e3aaf6b"),
    "smoke": (16, "a1fa3433a89a", "5d6a90f012f8", "bdff514f098c"),
    "two_stage": (384, "b09a5dae075d", "94bd6a7a99df", "625650dd9f99"),
    "two_stage_map": (12_480, "cb1b52217f05", "5e8c5ba12720", "cea51c9cb2e6"),
    "value_matrix": (16, "bf2c40be7d27", "b49ae20fe2f0", "46284f513b29"),
}


@pytest.mark.parametrize("name", sweep_names())
def test_trials_of_shipped_sweeps_keep_their_identity(name: str) -> None:
    found = load_sweep(name)
    ids = [trial_id(trial) for trial in trials(found.base, found.sweep)]
    assert (len(ids), ids[0], ids[len(ids) // 2], ids[-1]) == IDS[name]


FILE = '''"""Two optimizers.

    make sweep SWEEP=mine
"""
from topicjax.sweep import product
BASE = dict(steps=40)
SWEEP = product(optimizer=["sgd", "adam"], seed=range(2))
'''


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sweeps in the place of the shipped one."""
    monkeypatch.setattr(sweep_files, "shipped_folder", lambda: tmp_path)
    for name in ("two_stage", "joint", "_common", "__init__"):
        (tmp_path / f"{name}.py").write_text(FILE)
    (tmp_path / "notes.txt").write_text("not a sweep")
    return tmp_path


def test_shipped_sweeps_are_listed_and_loaded_by_name(shipped: Path) -> None:
    assert sweep_names() == ["joint", "two_stage"]
    found = load_sweep("two_stage")
    assert (found.name, found.base) == ("two_stage", dict(steps=40))
    assert found.description == "Two optimizers.\n\nmake sweep SWEEP=mine"
    assert found.sweep == product(optimizer=["sgd", "adam"], seed=range(2))


def test_the_shipped_folder_of_a_checkout_lies_beside_the_package() -> None:
    assert Path(sweep_files.__file__).parents[1] / "sweeps" == sweep_files.shipped_folder()


def test_a_users_own_file_is_loaded_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from topicjax.sweep import product\nSWEEP = product(seed=[5])\n")
    found = load_sweep(str(path))
    assert (found.name, found.description, found.base) == ("mine", "", {})
    assert list(found.sweep) == [dict(seed=5)]


@pytest.mark.parametrize("name", ["two_stag", "two_stag.py"])
def test_unknown_sweeps_name_the_nearest(shipped: Path, name: str) -> None:
    sentence = f"unknown sweep '{name}'; did you mean 'two_stage'[?] allowed: joint, two_stage, or"
    with pytest.raises(ValueError, match=sentence):
        load_sweep(name)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("BASE = {}", r"has no SWEEP; allowed: SWEEP = product\(...\)"),
        ("SWEEP = [1]", "has no SWEEP"),
        ("SWEEP = (", "fails: SyntaxError: .* line 1"),
        ("import no_such_module", "fails: ModuleNotFoundError: No module named 'no_such_module'"),
        (FILE.replace("seed", "sede"), "fails: unknown setting 'sede'; did you mean"),
        (FILE.replace("steps", "stepz"), "fails: unknown setting 'stepz'"),
        (
            FILE.replace("dict(steps=40)", "40"),
            "fails: the base is 40; allowed: a dict",
        ),
    ],
)
def test_broken_sweep_files_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"sweep file {path} {sentence}") as caught:
        load_sweep(str(path))
    assert "\n" not in str(caught.value)

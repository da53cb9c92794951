"""Sweep files: the shipped ones, whose trials never change their identity, and a user's own."""

from pathlib import Path

import pytest

from topicjax.errors import UserError
from topicjax.sweep import expand, product
from topicjax.sweep import files as sweep_files
from topicjax.sweep.files import load_sweep, sweep_names

SIZES = {  # trials, programs, first, middle and last id: other ids would make old run folders useless
    "budget": (60, 1, "cd0f95e118e4", "18113f7a34d9", "53452c5dbb74"),
    "depth": (270, 9, "1474fd67a417", "b60da744ae74", "55178d66c9a6"),
    "dilution": (36, 4, "76f52e8dc9de", "7bb9ceeda747", "5efcaceef660"),
    "embeddings": (20, 2, "cc1780e29019", "139f11f68fd3", "1213d7eef65f"),
    "forced_stages": (240, 2, "fec64aa777c2", "ec355b53c367", "dc6275977b16"),
    "gradients": (280, 1, "1067f6f9cb74", "3d67fd38cc3c", "d222fffffff5"),
    "init_law": (100, 2, "85e82674b440", "52b04b771bbe", "cb1e8a86412f"),
    "joint": (40, 2, "ab322afdff91", "25ae585a93b1", "9d30e04770dd"),
    "joint_loss": (150, 8, "f311d941da3a", "92bb1e78c2be", "0ec63e2b1e26"),
    "key_visibility": (80, 2, "8938cb8cf612", "5df7de382991", "db049367bf5e"),
    "learning_coefficient": (6, 2, "d761456cc064", "6d57b37e0c62", "a018eb59eefe"),
    "onset": (250, 4, "0950140337c3", "6bc0a2773be2", "e43223061437"),
    "pairs": (120, 4, "5198e0ea0d60", "467634d2671e", "9b1a6b285a03"),
    "paper_rates": (100, 6, "0030b1d98859", "0885539b78b5", "f4e2e80ef52e"),
    "robustness": (130, 5, "605f0871ef1c", "706b06a5416a", "b8da08439a1a"),
    "remark1": (50, 2, "4492528d7f11", "b3d5721cba39", "2be6e48b74ee"),
    "remark6": (40, 1, "392a9a1aced2", "6e30f7c17f0a", "9410479f1e1c"),
    "seed_causes": (384, 2, "57ce2b5c19b8", "694a874dab7c", "1e05f354a8b9"),
    "smoke": (16, 2, "a1fa3433a89a", "5d6a90f012f8", "bdff514f098c"),
    "syntax": (228, 2, "33f0c994a3f3", "83e6e660a5a6", "ce5d75b59c9c"),
    "syntax_depth": (54, 9, "220615fff0b8", "b62c10ef2c93", "eb4c48c3ac35"),
    "softmax_control": (380, 10, "276c52a190de", "19d9323bc6d8", "d4a6620cb485"),
    "theorem1": (120, 5, "005b3903e6fc", "bce9e14b4f7a", "1619ddcbb713"),
    "theorem3": (30, 2, "7e458d11a52d", "88c0089039a3", "4201ac98d501"),
    "theorem3_limit": (11, 4, "6304f09b481b", "d46b4a41842d", "def214f129a5"),
    "two_stage": (480, 2, "3fd60bab3262", "cb561123d342", "7bf6f0f84e81"),
    "two_stage_map": (800, 2, "4bc78c5908ce", "937629af0d06", "f5f376b16e60"),
    "wikipedia": (24, 2, "81c824946a3b", "9785ebd557c0", "8cc6d508ce98"),
    "wikipedia_content": (18, 1, "c55dd012f934", "d378a269162a", "17405865970d"),
    "value_matrix": (64, 4, "bf2c40be7d27", "b0defa8ea1b5", "cebc1aa164a4"),
}


@pytest.mark.parametrize("name", sweep_names())
def test_trials_of_shipped_sweeps_keep_their_identity(name: str) -> None:
    found = load_sweep(name)
    every = expand(found.settings, found.base, found.sweep)
    ids, programs = list(map(found.settings.trial_id, every)), len({trial.spec for trial in every})
    assert (len(ids), programs, ids[0], ids[len(ids) // 2], ids[-1]) == SIZES[name]


@pytest.mark.parametrize("name", sweep_names())
def test_shipped_sweeps_say_how_large_they_are_and_how_to_run_them(name: str) -> None:
    count, programs, *_ = SIZES[name]
    text = load_sweep(name).description
    assert f"Size:     {count:,} trials, {programs} program" in text
    assert f"topicjax run {name}\n" in text and "make " not in text.split("Size:")[0]


NAMED = 'from topicjax.sweep import product\nEXPERIMENT = "one_layer"\n'
FILE = '''"""Two optimizers.

    topicjax run mine
"""
from topicjax.sweep import expand, product
EXPERIMENT = "one_layer"
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
    assert found.description == "Two optimizers.\n\ntopicjax run mine"
    assert found.sweep == product(optimizer=["sgd", "adam"], seed=range(2))


def test_the_shipped_folder_of_a_checkout_lies_beside_the_package() -> None:
    assert Path(sweep_files.__file__).parents[2] / "sweeps" == sweep_files.shipped_folder()


def test_a_users_own_file_is_loaded_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{NAMED}SWEEP = product(seed=[5])\n")
    found = load_sweep(str(path))
    assert (found.name, found.description, found.base) == ("mine", "", {})
    assert list(found.sweep) == [dict(seed=5)]


@pytest.mark.parametrize(
    ("name", "sentence"),
    {
        "two_stag": "unknown sweep 'two_stag'; did you mean 'two_stage'[?] allowed: joint, two_stage, or",
        "two_stag.py": "there is no file 'two_stag.py'; allowed: a sweep file, or one of joint, two_stage",
    }.items(),
)
def test_unknown_sweeps_name_those_there_are(shipped: Path, name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_sweep(name)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("BASE = {}", r"fails: it has no SWEEP; allowed: SWEEP = product\(...\)"),
        ("SWEEP = [1]", "fails: it has no SWEEP"),
        ("", "fails: it has no SWEEP"),
        ("SWEEP = (", "fails: SyntaxError: .* line [12]"),
        ("import no_such_module", "fails: ModuleNotFoundError: No module named 'no_such_module'"),
        (FILE.replace("seed", "sede"), "fails: unknown setting 'sede'; did you mean"),
        (FILE.replace("steps", "stepz"), "fails: unknown setting 'stepz'"),
        (
            FILE.replace("dict(steps=40)", "40"),
            "fails: the base is 40; allowed: a dict",
        ),
        ("import sys\nsys.exit()", "fails: it calls sys.exit; allowed: definitions only"),
        ("raise SystemExit('bye\\nbye')", "fails: it calls sys.exit"),
        ("raise BaseException('stop')", "fails: BaseException: stop"),
        ("raise GeneratorExit", "fails: GeneratorExit"),
        ("raise ValueError('first\\nsecond')", r"fails: ValueError: first \(.*, line 1\)$"),
        (FILE.replace("range(2)", "[[1], {2: 3}]"), r"fails: seed is \[1\]; allowed: a whole number"),
        (FILE.replace("range(2)", "{1: 2}"), r"fails: seed is \{1: 2\}; allowed: a whole number"),
        (FILE.replace("range(2)", "iter([1])"), "fails: seed is <list_iterator .*; allowed: a whole number"),
        (FILE.replace("dict(steps=40)", "{5: 1}"), "fails: unknown setting 5; allowed"),
        (
            FILE.replace("dict(steps=40)", "dict(steps=[4])"),
            r"fails: steps is \[4\]; allowed: a whole number",
        ),
        (FILE.replace("dict(steps=40)", "None"), "fails: the base is None; allowed: a dict"),
        (FILE + "SWEEP = product", "fails: it has no SWEEP"),
        (FILE + "SNAPSHOTS = 5", "fails: its SNAPSHOTS is 5; allowed: a text"),
        (FILE + "from topicjax.sweep import Sweep\nSWEEP = Sweep(({'seed': [1]},))", "fails: seed is"),
        (FILE + "from topicjax.sweep import Sweep\nSWEEP = Sweep(5)", "fails: TypeError: "),
        (FILE + "__doc__ = 5", "fails: its docstring is 5; allowed: a text"),
        (FILE + "__doc__ = '\\udc80'", "fails: its docstring is not valid Unicode"),
        (FILE + "def f(): f()\nf()", "fails: RecursionError: maximum recursion"),
        (FILE + "\0", "fails: SyntaxError: source code .* null bytes|fails: ValueError: source code"),
    ],
)
def test_broken_sweep_files_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(
        text if "EXPERIMENT" in text else text.replace("SWEEP =", 'EXPERIMENT = "one_layer"\nSWEEP =', 1)
    )
    with pytest.raises(ValueError, match=f"sweep file {path} {sentence}") as caught:
        load_sweep(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("first_line", ["5", "f'{1}'", "b'bytes'", "x = 1", "''"])
def test_a_file_without_a_docstring_has_an_empty_description(tmp_path: Path, first_line: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{first_line}\n{NAMED}SWEEP = product(seed=[5])\n")
    assert load_sweep(str(path)).description == ""


@pytest.mark.parametrize("content", [b"\x7fELF\0\1\2", b"x = '\xff\xfe'", bytes(range(256)) * 40])
def test_files_that_are_not_python_are_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "binary.py"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"sweep file {path} fails: (SyntaxError|ValueError): ") as caught:
        load_sweep(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".py", "a\0b", "a\0b.py", "", ".py", "/", "a\nb"])
def test_names_that_no_file_can_have_are_unknown(name: str) -> None:
    with pytest.raises(UserError, match=r"^unknown sweep .* file that ends in \.py$|^there is no file '"):
        load_sweep(name)


def test_a_folder_and_a_file_that_cannot_be_read_are_one_sentence(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(UserError, match=r"^there is no file"):
        load_sweep(str(tmp_path / "folder.py"))

    def refused(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    (tmp_path / "mine.py").write_text(FILE)
    monkeypatch.setattr(sweep_files.runpy, "run_path", refused)
    with pytest.raises(UserError, match=r"mine.py fails: PermissionError: .* Permission denied"):
        load_sweep(str(tmp_path / "mine.py"))


def test_ctrl_c_stops_a_file_that_never_ends(tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    path.write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: time.sleep(1)")
    with pytest.raises(KeyboardInterrupt):
        load_sweep(str(path))

"""A setting declared once has its conversion, its rule, its default and its help from that one line."""

import math
import sys
from dataclasses import dataclass, make_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pytest

from topicjax.errors import UserError, shown, unknown_name
from topicjax.settings import Choice, Flag, Real, Role, Setting, Whole, declared


class Colours(NamedTuple):
    """A throwaway class of settings."""

    count: Annotated[Any, Whole(1, 9), "how many", Role.DOCUMENTS] = 3
    share: Annotated[Any, Real(low=0, below=1), "how much"] = 0.5
    hue: Annotated[Literal["red", "blue"], "which"] = "red"
    bright: Annotated[bool, "whether"] = True


SETTINGS = declared(Colours)


def test_fields_become_settings():
    assert {
        "count": Setting("count", Whole(1, 9), 3, "how many", Role.DOCUMENTS),
        "share": Setting("share", Real(low=0, below=1), 0.5, "how much", None),
        "hue": Setting("hue", Choice(("red", "blue")), "red", "which", None),
        "bright": Setting("bright", Flag(), True, "whether", None),
    } == SETTINGS


def test_dataclasses_declare_settings_too():
    @dataclass(frozen=True)
    class Sizes:
        width: Annotated[int, Whole(1), "in words"] = 4

    assert declared(Sizes) == {"width": Setting("width", Whole(1), 4, "in words", None)}


@pytest.mark.parametrize(
    "hint",
    [
        int,
        Annotated[int, "help without a kind"],
        Annotated[int, Whole(1), Real(), "two kinds"],
        Annotated[int, Whole(1), "two", "texts"],
        Annotated[bool, "two roles", Role.DOCUMENTS, Role.EXECUTION],
    ],
)
def test_incomplete_declarations_are_refused(hint: Any):
    with pytest.raises(UserError, match=r"setting width is declared by .*; allowed: Annotated"):
        declared(make_dataclass("Wrong", [("width", hint, 1)]))


@pytest.mark.parametrize(
    ("name", "given", "converted"),
    [
        ("count", 2.0, 2),
        ("count", np.int64(2), 2),
        ("share", 1, 1.0),
        ("share", -0.0, 0.0),
        ("share", np.float32(0.25), 0.25),
        ("hue", np.str_("blue"), "blue"),
        ("bright", np.False_, False),
    ],
)
def test_values_are_converted_to_the_type_of_their_setting(name: str, given: Any, converted: Any):
    found = SETTINGS[name].convert(given)
    assert (found, type(found)) == (converted, type(converted))
    assert not isinstance(found, float) or math.copysign(1, found) == 1


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("count", 2.5, "count is 2.5; allowed: a whole number"),
        ("count", True, "count is True; allowed: a whole number"),
        ("count", math.nan, "count is nan; allowed: a whole number"),
        ("count", 2**64, "count is 18446744073709551616; allowed: a whole number"),
        ("share", "much", "share is 'much'; allowed: a number"),
        ("share", None, "share is None; allowed: a number"),
        ("hue", "green", "hue is 'green'; allowed: red, blue"),
        ("hue", 0, "hue is 0; allowed: red, blue"),
        ("bright", 1, "bright is 1; allowed: true or false"),
    ],
)
def test_values_of_another_type_are_refused(name: str, given: Any, sentence: str):
    with pytest.raises(UserError, match=f"^{sentence}$"):
        SETTINGS[name].convert(given)


@pytest.mark.parametrize(
    ("kind", "inside", "outside", "allowed"),
    [
        (Whole(1), [1, 2**31 - 1], [0, -1, 2**31], "1 or more"),
        (Whole(1, 9), [1, 9], [0, 10], "1 to 9"),
        (Real(low=0, high=1), [0.0, 1.0], [-1e-9, 1.1, math.nan], "0 to 1"),
        (Real(above=0), [1.2e-38, 3.4e38], [0.0, 1e-300, 1e-40, 3.5e38, 1e300, math.inf], "above 0"),
        (Real(above=0, smallest=1e-30), [1e-30], [1e-31], "above 0"),
        (Real(above=0, high=1), [1.0], [0.0, 1.1], "above 0, at most 1"),
        (Real(low=0, below=1), [0.0, 0.9999999], [1.0, -1.0, 1 - 1e-9], "0 or more, below 1"),
        (Real(), [-3e38], [-1e300, math.inf, math.nan], "finite"),
        (Choice(("red", "blue")), ["red"], ["green"], "red, blue"),
        (Flag(), [True, False], [], "true or false"),
    ],
)
def test_kinds_say_what_they_allow(kind: Any, inside: list, outside: list, allowed: str):
    assert kind.allowed == allowed
    assert all(kind.holds(value) for value in inside)
    assert not any(kind.holds(value) for value in outside)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("share", 1.5, "share is 1.5; allowed: 0 or more, below 1"),
        (
            "share",
            1e-300,
            "share is 1e-300; allowed: 0 or more, below 1, as float32: 0 or 1.18e-38 to 3.4e+38 in size",
        ),
        ("share", 0.999999999, "share is 0.999999999; allowed: 0 or more, below 1, as float32: this is 1"),
        ("many", 10**12, "many is 1000000000000; allowed: 1 or more, at most 2147483647"),
        ("many", 0, "many is 0; allowed: 1 or more"),
        ("some", 1e-31, "some is 1e-31; allowed: above 0, as float32: 1e-30 to 3.4e+38 in size"),
    ],
)
def test_values_out_of_range_are_one_sentence(name: str, value: Any, sentence: str):
    """Ranges are those of the numbers that compiled programs have: int32 and float32."""
    kinds = {"many": Whole(1), "some": Real(above=0, smallest=1e-30)}
    settings = SETTINGS | {kind: Setting(kind, kinds[kind], 1, "", None) for kind in kinds}
    with pytest.raises(UserError) as caught:
        settings[name].check(value)
    assert str(caught.value) == sentence


def test_values_are_shown_on_one_short_line():
    class Broken:
        def __repr__(self) -> str:
            raise KeyError

    assert shown(np.arange(4).reshape(2, 2)) == "array([[0, 1], [2, 3]])"
    assert len(shown("x" * 10**6)) == 80 and shown("x" * 10**6).endswith("x ...")
    assert shown(Broken()) == "an object of type Broken"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("count", "2e0", 2.0), ("count", "two", "two"), ("hue", "blue", "blue"), ("bright", "TRUE", True)],
)
def test_texts_are_read_as_values(name: str, text: str, value: Any):
    assert SETTINGS[name].kind.read(text) == value


def test_programs_take_numbers():
    found = [SETTINGS[name].kind.traced(value) for name, value in Colours(hue="blue")._asdict().items()]
    assert [(value, value.dtype.name) for value in found] == [
        (3, "int32"),
        (0.5, "float32"),
        (1, "int32"),
        (True, "bool"),
    ]


def executed(name: str, monkeypatch: pytest.MonkeyPatch, before: str = "", insert: str = "") -> Any:
    """Return a module executed anew, with a line inserted; it takes the place of the module during a test."""
    source = Path(str(import_module(name).__file__)).read_text()
    assert not before or source.count(before) == 1
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(source.replace(before, insert + before) if before else source, name, "exec"), vars(module))
    return module


def test_one_declaration_is_enough(monkeypatch: pytest.MonkeyPatch):
    """A new setting of the documents is known to tables, conversion, rules and theory by its field alone."""
    field = '    p_swap: Annotated[Probability, "p_s: two words change places", DOCUMENTS] = 0.25\n'
    declared = executed(
        "topicjax.theory.document_settings", monkeypatch, "    key_visibility: Annotated[", field
    )
    trial = executed("topicjax.experiments.one_layer.settings", monkeypatch)
    made = trial.make_trial({"p_swap": 1})
    assert trial.settings_of(made)["p_swap"] == 1.0
    assert trial.DEFAULTS["p_swap"] == 0.25 and "p_swap" in declared.DATA_SETTINGS
    assert trial.SETTINGS["p_swap"].help == "p_s: two words change places"
    assert trial.traced(made.stream).p_swap == np.float32(1)
    assert trial.trial_id(made) != trial.trial_id(trial.make_trial({}))
    with pytest.raises(UserError, match=r"p_swap is 1\.5; allowed: 0 to 1"):
        trial.make_trial({"p_swap": 1.5})

    documents = executed("topicjax.theory.documents", monkeypatch)
    assert documents.DataModel.of(trial.settings_of(made)).p_swap == 1.0
    assert documents.DataModel().p_swap == 0.25
    with pytest.raises(UserError, match="p_swap is -1; allowed: 0 to 1"):
        documents.DataModel(p_swap=-1)


def test_unknown_names_suggest_the_nearest():
    names = ["learning_rate", "init_scale", "seed"]
    every = "allowed: learning_rate, init_scale, seed"
    assert (
        unknown_name("setting", "lr", names) == f"unknown setting 'lr'; did you mean 'learning_rate'? {every}"
    )
    assert unknown_name("axis", "sed", names) == f"unknown axis 'sed'; did you mean 'seed'? {every}"
    assert unknown_name("axis", "xyz", iter(names)) == f"unknown axis 'xyz'; {every}"
    assert unknown_name("axis", 3, names) == f"unknown axis 3; {every}"

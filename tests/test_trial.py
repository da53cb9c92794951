"""Trials: defaults, impossible settings, identity, and every setting declared with what it needs."""

import hashlib
import json
import random
from dataclasses import replace

import pytest

from topicjax.errors import UserError
from topicjax.experiments import SHIPPED, trial_settings
from topicjax.experiments.one_layer.settings import (
    DEFAULTS,
    SETTINGS,
    Hypers,
    Spec,
    Trial,
    code,
    convert,
    make_trial,
    settings_of,
    traced,
    trial_id,
)
from topicjax.pace import PER_DECADE
from topicjax.settings import Choice, Flag, Key, Real, Role
from topicjax.theory.document_settings import DATA_SETTINGS, DOCUMENT_SETTINGS, Stream


def test_defaults_are_the_papers():
    spec, stream, _ = make_trial({})
    assert (spec.topics, spec.words_per_topic, spec.vocabulary, spec.batch_size) == (10, 10, 101, 40)
    assert (stream.alpha, stream.p_mask, stream.p_keep, stream.p_random) == (0.1, 0.15, 0.1, 0.1)


def test_identity_depends_on_every_setting_and_on_nothing_else():
    changed = {
        "topics": 9,
        "documents": "tau",
        "infinite_documents": True,
        "seed": 1,
        "key_visibility": "unmasked",
        "learning_rate": 0.02,
        "objective": "squared",
        "record_every": 10,
    }
    ids = {trial_id(make_trial({name: value})) for name, value in changed.items()}
    assert len(ids | {trial_id(make_trial({}))}) == len(changed) + 1
    trial = make_trial({"learning_rate": 1})
    assert trial_id(trial) == trial_id(make_trial(settings_of(make_trial({"learning_rate": 1.0}))))
    other_capacity = trial._replace(spec=replace(trial.spec, word_query_probability=0.5))
    assert trial_id(other_capacity) == trial_id(trial)


def test_identity_is_stable_across_releases():
    assert trial_id(Trial(Spec(), Stream(), Hypers())) == trial_id(make_trial({}))
    assert trial_id(make_trial({})) == "023aea1b0430"
    assert trial_id(make_trial({"optimizer": "sgd", "seed": 7, "l2": 0.5})) == "f0783626b55c"


@pytest.mark.parametrize("name", SHIPPED)
def test_identity_is_the_hash_of_the_settings_as_json(name):
    """Ids are made of remembered pieces; here of whole dicts, for settings drawn at random."""
    known, draw = trial_settings(name), random.Random(name)
    (_, *_, prefix, in_spec, unless) = known._given
    spec, stream, hypers = map(set, known.names)
    parts = (spec | {*in_spec}, stream - {*in_spec}, hypers)

    def drawn(setting):
        kind = setting.kind
        if isinstance(kind, Choice):
            return draw.choice(kind.names)
        numbers = [1, 0.5, 10 ** draw.uniform(-8, 0), 0.1 + 0.2] if isinstance(kind, Real) else [1, 2, 3]
        return draw.choice([setting.default, *(() if isinstance(kind, Flag | Key) else numbers)])

    made = 0
    while made < 100:
        names = draw.sample(list(known.settings), 5)
        try:
            trial = known.make_trial({name: drawn(known.settings[name]) for name in names})
        except UserError:
            continue  # some contradict each other
        every = {
            name: value
            for name, value in sorted(known.settings_of(trial).items())
            if name not in (*unless, PER_DECADE) or value != known.defaults[name]
        }
        texts = [json.dumps({name: value for name, value in every.items() if name in own}) for own in parts]
        text = (f"{name}\n" if prefix is None else prefix) + "\n".join(texts)
        assert known.trial_id(trial) == hashlib.sha256(text.encode()).hexdigest()[:12]
        made += 1


def test_every_setting_is_known_everywhere():
    every = settings_of(make_trial({}))
    assert every == DEFAULTS and list(every) == list(SETTINGS)
    assert "word_query_probability" not in SETTINGS  # how a program is laid out, not what a trial is
    for name, setting in SETTINGS.items():
        assert convert(name, setting.default) == setting.default, name
        setting.check(setting.default)
        assert setting.help and setting.kind.allowed, name


def test_limit_lines_depend_on_the_data_settings_alone():
    assert " ".join(DATA_SETTINGS) == (
        "topics words_per_topic documents infinite_documents word_distribution alpha topics_per_document "
        "length_min length_max overlap zipf_exponent word_concentration pair_strength p_mask p_keep p_random "
        "key_visibility"
    )
    words = {name for name in DATA_SETTINGS if SETTINGS[name].role is Role.TOPIC_WORDS}
    assert set(DOCUMENT_SETTINGS) == set(DATA_SETTINGS) - words
    assert words == {"word_distribution", "overlap", "zipf_exponent", "word_concentration"}


IMPOSSIBLE = [
    (
        {"p_keep": 0.6, "p_random": 0.5},
        r"p_keep \+ p_random is 0.6 \+ 0.5; allowed: a sum of at most 1",
    ),
    ({"length_min": 9, "length_max": 5}, "length_min is 9; allowed: at most length_max = 5"),
    ({"alpha": 0}, "alpha is 0.0; allowed: above 0"),
    (
        {"documents": "tau", "topics_per_document": 11},
        "topics_per_document is 11; allowed: at most",
    ),
    ({"pair_strength": 1}, "pair_strength is 1.0; allowed: 0 or more, below 1"),
    (
        {"pair_strength": 0.1, "words_per_topic": 5},
        "words_per_topic is 5; allowed: an even number with pair_strength > 0",
    ),
    (
        {"pair_strength": 0.1, "word_distribution": "zipf"},
        "word_distribution is 'zipf'; allowed: 'uniform' with pair_strength > 0",
    ),
    ({"pair_strength": 0.1, "overlap": 0.2}, "overlap is 0.2; allowed: 0 with pair_strength > 0"),
    (
        {"pair_strength": 0.1, "documents": "tau", "infinite_documents": True},
        "infinite_documents is True; allowed: False with pair_strength > 0 and tau documents",
    ),
    ({"topics_per_document": 0}, "topics_per_document is 0; allowed: 1 or more"),
    ({"p_mask": 0}, "p_mask is 0.0; allowed: above 0, at most 1"),
    ({"p_mask": 1.1}, "p_mask is 1.1; allowed: above 0, at most 1"),
    ({"overlap": 1.5}, "overlap is 1.5; allowed: 0 to 1"),
    ({"overlap": 0.5, "topics": 1}, "overlap is 0.5; allowed: 0 when there is one topic"),
    ({"zipf_exponent": -1}, "zipf_exponent is -1.0; allowed: 0 or more"),
    ({"word_concentration": 0}, "word_concentration is 0.0; allowed: above 0"),
    ({"learning_rate": float("nan")}, "learning_rate is nan; allowed: 0 or more"),
    ({"learning_rate": float("inf")}, "learning_rate is inf; allowed: 0 or more"),
    ({"alpha": 1e-300}, r"alpha is 1e-300; allowed: above 0, as float32: 1e-30 to 3.4e\+38 in size"),
    ({"learning_rate": 1e39}, r"is 1e\+39; allowed: 0 or more, as float32: 0 or 1.18e-38 to 3.4e\+38"),
    ({"topics_per_document": 1e12}, "is 1000000000000; allowed: 1 or more, at most 2147483647"),
    ({"steps": 1e12}, "steps is 1000000000000; allowed: 1 or more, at most 2147483647"),
    ({"attention_dim": 1e12}, "attention_dim is 1000000000000; allowed: 0 or more, at most 2147483647"),
    ({"beta2": 1}, "beta2 is 1.0; allowed: 0 or more, below 1"),
    ({"seed": -1}, "seed is -1; allowed: 0 to 2147483647"),
    ({"topics": 0}, "topics is 0; allowed: 1 or more"),
    ({"embedding_dim": -1, "embedding": "trained"}, "embedding_dim is -1; allowed: 0"),
    ({"embedding_dim": 5}, "embedding_dim is 5; allowed: 0 when embedding is 'one_hot'"),
    ({"steps": 30, "record_every": 20}, "steps is 30; allowed: a multiple of record_every = 20"),
    ({"value": "blocks", "embedding": "random"}, "value is 'blocks'; allowed: only when embedding"),
    ({"value": "blocks", "p_keep": 0.5, "p_random": 0.5}, "value is 'blocks'; allowed: only with"),
    ({"training": "by_part", "until": "decided"}, "until is 'decided'; allowed: 'steps' when training is"),
    (
        {"training": "by_part", "value_from": 5, "value_until": 5},
        "value_until is 5; allowed: 0, or more than value_from = 5",
    ),
    ({"objective": "hinge"}, "objective is 'hinge'; allowed: cross_entropy, squared"),
    ({5: 1}, "unknown setting 5; allowed: topics"),
    ({"lerning_rate": 1}, "unknown setting 'lerning_rate'; did you mean 'learning_rate'"),
    ({"steps": 1.5}, "steps is 1.5; allowed: a whole number"),
    ({"steps": True}, "steps is True; allowed: a whole number"),
    ({"alpha": "big"}, "alpha is 'big'; allowed: a number"),
    ({"infinite_documents": 1}, "infinite_documents is 1; allowed: true or false"),
]


@pytest.mark.parametrize(("settings", "sentence"), IMPOSSIBLE, ids=lambda x: str(x)[:40])
def test_impossible_settings_are_one_sentence(settings, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        make_trial(settings)
    assert "\n" not in str(error.value)


def test_choices_become_numbers():
    assert traced(Stream(key_visibility="unmasked")).key_visibility == 1 == code("key_visibility", "unmasked")
    assert traced(Hypers(objective="squared", init="default"))[1:3] == (1, 2)
    for name, setting in SETTINGS.items():
        if isinstance(setting.kind, Choice):
            assert [code(name, value) for value in setting.kind.names] == list(range(len(setting.kind.names)))
    with pytest.raises(TypeError, match="alpha is not a choice of names"):
        code("alpha", "large")


def test_programs_take_32_bit_numbers():
    kinds = {name: value.dtype.name for name, value in traced(Stream())._asdict().items()}
    whole = {"seed", "topics_per_document", "length_min", "length_max", "key_visibility"}
    assert kinds == {name: "int32" if name in whole else "float32" for name in Stream._fields}


@pytest.mark.parametrize(
    ("settings", "inert"),
    [
        (dict(optimizer="adam"), dict(momentum=0.3)),
        (dict(optimizer="sgd"), dict(beta1=0.5, beta2=0.5, epsilon=1.0, weight_decay=0.1, momentum=0.2)),
        (dict(documents="tau"), dict(alpha=3.0)),
        (dict(), dict(topics_per_document=5, zipf_exponent=2.0, word_concentration=9.0, embedding_scale=2.0)),
        (dict(infinite_documents=True), dict(length_min=3, length_max=9)),
    ],
)
def test_settings_that_do_not_act_make_no_other_trial(settings, inert):
    plain, other = make_trial(settings), make_trial(settings | inert)
    assert plain == other and trial_id(plain) == trial_id(other)
    assert {name: settings_of(other)[name] for name in inert} == {name: DEFAULTS[name] for name in inert}


def test_settings_that_act_make_another_trial():
    for settings, change in ((dict(optimizer="momentum"), dict(momentum=0.3)), ({}, dict(alpha=3.0))):
        assert trial_id(make_trial(settings)) != trial_id(make_trial(settings | change))

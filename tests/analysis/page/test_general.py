"""The table of `topicjax general`: counts, pairs against loops, ties, and the page of several runs."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.json_fields import check_fields
from support.synthetic_runs import TWO_STAGE, case, line_entry, make_run, ramp, write_run

from topicjax import cli
from topicjax.analysis.page.claims_table import Scored
from topicjax.analysis.page.contract import Page, Staged
from topicjax.analysis.page.general import (
    ANOTHER,
    NO_ANSWER,
    General,
    answers,
    compare_settings,
    draw,
    make_general,
    measure_of,
    removal,
    removers,
    row_of,
    rows_of,
    summary_of,
)
from topicjax.analysis.page.lookup import Found, page_of
from topicjax.experiments import SHIPPED

TOGETHER = (ramp(0, 300), ramp(0, 300))
BY_TYPE = Staged("type", ["yes"], ["late"], words="its type")
STATES = {"yes": 2, "no": 1, "late": 0}
SIZES = dict(depth=(1, 2, 3), rate=(0.1, 0.2), kind=("a", "b"))


def scored(rows: list[dict], *views: Staged, **page) -> Scored:
    """Make a scored run of trials that are their own scores."""
    frame = pd.DataFrame(rows).assign(trial_id=[f"{n:012x}" for n in range(len(rows))], status="ok")
    results = ("class", "theta", "layer")
    trials = frame[[name for name in frame if name not in results]]
    scores = frame[[name for name in frame if name in ("trial_id", *results)]]
    found = Found(Page(staged=views or (BY_TYPE,), **page))
    return Scored(
        Path("run"), make_run(trials).replace(manifest=dict(runs=[dict(sweep="own")])), found, scores
    )


def row(rows: list[dict], view: Staged = BY_TYPE, **page):
    """Make the row of a view of these trials."""
    found = row_of(scored(rows, view, **page), view)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(3))
def test_pairs_are_those_of_loops_over_all_cells(seed: int) -> None:
    """Random answers in a grid with holes; the number of steps differs between cells but separates none."""
    rng = np.random.default_rng(seed)
    cells = pd.DataFrame([dict(zip(SIZES, own, strict=True)) for own in product(*SIZES.values())])
    cells = cells.assign(steps=rng.integers(1, 4, len(cells)))[rng.random(len(cells)) < 0.9]
    state = rng.integers(0, 3, len(cells))
    rows, compared = cells.to_dict("records"), compare_settings(cells, state, [*cells])
    assert [setting.name for setting in compared] == [*SIZES]  # the steps are fixed by the others
    for setting in compared:
        others = [name for name in SIZES if name != setting.name]
        for value in setting.values:
            counts = dict(kept=0, removed=0, unanswered=0)
            here, there, total = 0, 0, 0
            for one, mine in zip(rows, state, strict=True):
                for other, theirs in zip(rows, state, strict=True):
                    if one[setting.name] != value.value or other[setting.name] == value.value:
                        continue
                    if any(one[name] != other[name] for name in others):
                        continue
                    if theirs == 2:
                        counts[["unanswered", "removed", "kept"][mine]] += 1
                    if min(mine, theirs) > 0:
                        total, here, there = total + 1, here + (mine == 2), there + (theirs == 2)
            assert {name: getattr(value, name) for name in counts} == counts
            assert value.fall == pytest.approx((there - here) / total if total else np.nan, nan_ok=True)
            own = state[cells[setting.name] == value.value]
            assert (value.cells, value.judged, value.two_stage) == (len(own), sum(own > 0), sum(own == 2))


def test_steps_are_compared_where_they_vary_in_their_own_right() -> None:
    cells = pd.DataFrame([dict(kind=k, steps=s) for k, s in product("ab", (10, 20))])
    kind, steps = compare_settings(cells, np.array([2, 1, 1, 1]), ["kind", "steps"])
    assert [value.removed for value in kind.values] == [0, 1]  # a and b with 10 steps, not a with 20
    assert [value.removed for value in steps.values] == [0, 1]


def test_pairs_say_what_they_have_in_common() -> None:
    """The kind removes the stages at depth 1; at depth 2 both have other rates, so nothing is compared."""
    rows = [
        dict(depth=1, rate=r, kind=k, **{"class": c})
        for r in (1, 2, 3)
        for k, c in (("a", "yes"), ("b", "no"))
    ]
    rows += [dict(depth=2, rate=r, kind=k, **{"class": "yes"}) for r, k in ((4, "a"), (5, "b"))]
    found = row(rows)
    assert found.removes.startswith("kind b (3 of 3 pairs, all with depth 1).")
    assert [value.words for value in removers(found.settings)] == ["kind b"]
    assert removers(found.settings, least=4) == []
    assert "Never varied alone: depth 1 3 of 6, depth 2 2 of 2" in found.removes


def test_a_row_counts_cells_their_theta_and_how_far_seeds_agree() -> None:
    kinds = dict(a=("yes", "yes", "no"), b=("no", "no", "no"), c=("late", "late", "yes"), d=("yes",) * 3)
    thetas = dict(a=(0.9, 1.0, 0.2), b=(0.1, 0.3, np.nan), c=(1.0, 1.0, 1.0), d=(0.98,) * 3)
    rows = [
        dict(kind=kind, seed=seed, theta=thetas[kind][seed], **{"class": own})
        for kind, classes in kinds.items()
        for seed, own in enumerate(classes)
    ]
    found = row(rows)
    assert (found.cells, found.judged, found.two_stage) == (4, 3, 2)
    assert found.others == {"no": 1} and found.not_judged == {"late": 1}
    assert (found.theta, found.theta_lowest, found.theta_highest) == pytest.approx((0.9, 0.2, 0.98))
    assert found.agreement == pytest.approx(8 / 9) and (found.trials, found.most_trials) == (12, 3)
    assert sorted(found.dots) == [(0.2, False), (0.9, True), (0.98, True)]
    assert np.isnan(row(rows[::3]).agreement)  # of single trials


def test_a_tie_goes_to_the_first_class_of_the_page_else_to_one_that_counts() -> None:
    trials = pd.DataFrame({"class": ["late", "no", "no", "yes", None, "late"], "kind": list("aabbcc")})
    _, state, theta = answers(trials, ["kind"], BY_TYPE, [])
    assert state.tolist() == [ANOTHER, STATES["yes"], NO_ANSWER] and np.isnan(theta).all()
    cells, state, _ = answers(trials, ["kind"], BY_TYPE, ["late", "no", "yes"])
    assert state.tolist() == [NO_ANSWER, ANOTHER, NO_ANSWER]
    assert cells["agreement"].tolist() == [0.5] * 3


def test_rows_of_a_trial_are_cells_of_their_own() -> None:
    """Two layers, of which the second is not two-stage; the whole model, layer 0, is left out."""
    rows = [
        dict(layer=layer, rate=rate, **{"class": "no" if layer == 2 else "yes"})
        for rate, layer in product((0.1, 0.2, 0.3), range(3))
    ]
    view = Staged("layers", ["yes"], rows=lambda scores: scores[scores["layer"] > 0], unit="layer")
    found = row(rows, view)
    assert (found.judged, found.two_stage, found.removes) == (6, 3, "layer 2 (3 of 3 pairs).")
    whole = row(rows, BY_TYPE, of_trials=lambda scores: scores[scores["layer"] == 0])
    assert (whole.judged, whole.two_stage) == (3, 3)


def test_nothing_judged_nothing_two_stage_and_nothing_that_removes_it() -> None:
    late = row([dict(rate=r, **{"class": "late"}) for r in (1, 2)])
    assert (late.judged, late.removes) == (0, "No cell is judged.") and np.isnan(late.theta)
    assert General([late], [], "").answer == ["No answer: no cell of these runs is judged."]
    never = row([dict(rate=r, **{"class": "no"}) for r in (1, 2)])
    assert never.removes == "No judged cell is two-stage."
    assert General([never], [], "").answer[0].startswith("No: by the first view of each run")
    always = row([dict(rate=r, **{"class": "yes"}) for r in (1, 2)])
    assert always.removes == "Nothing that varies, in 1 pair of cells."
    assert General([always], [], "").answer == [
        "Yes: by the first view of each run training is two-stage in 2 of 2 judged cells of own (type)."
    ]
    single = row([{"class": "yes"}])
    assert single.removes == "Not known: no two judged cells differ in one setting only."
    lost = row(
        [dict(rate=r, kind=k, **{"class": c}) for r in (1, 2, 3) for k, c in (("a", "yes"), ("b", "late"))]
    )
    assert lost.removes == "Nothing that varies, in 3 pairs of cells. Not judged with kind b (3 of 3)."
    assert removal([], 0, 0) == "No cell is judged."
    picture = draw([late, never, always])  # without any Theta
    picture.close()


def test_an_unknown_class_is_a_remark_and_a_missing_column_no_row() -> None:
    own = scored(
        [{"class": "yes"}],
        Staged("typo", ["yse"]),
        Staged("other", ["yes"], column="x"),
        classes={"yes": "r"},
    )
    rows, remarks = rows_of(own)
    assert not rows and remarks == [
        "run, typo: it names the class 'yse', which the page does not have; allowed: yes."
    ]


def test_the_first_table_has_a_column_per_measure() -> None:
    """Several views of one measure, one whose cells are not judged, one without columns, and none."""
    rows = [dict(rate=r, theta=0.9 + r / 100, **{"class": "yes"}) for r in (1, 2, 3)]
    whole, single = Staged("whole model, loss", ["yes"]), Staged("pairs", ["no"], by="loss")
    never, other = Staged("norms", ["no"], ["yes"]), Staged("order parameters", ["yes"], column="x")
    own = scored(rows, whole, single, never)
    found = summary_of(own, rows_of(own)[0])
    assert found.run == "own" and found.answers == {
        "loss": "whole model: 3 of 3 (Θ 0.92); pairs: 0 of 3 (Θ 0.92)",
        "order parameters": "not defined",
        "norms": "no cell judged",
    }
    own = scored(rows, other)
    assert summary_of(own, rows_of(own)[0]).answers == {
        "loss": "not defined",
        "order parameters": "not recorded",
        "norms": "not defined",
    }
    own = scored(rows, Staged("odd", ["yes"], by="shape"))  # pyright: ignore[reportArgumentType]
    assert rows_of(own)[1] == ["run, odd: it is by 'shape'; allowed: loss, order parameters, norms."]


def test_every_shipped_view_is_in_the_first_table() -> None:
    for name in SHIPPED:
        assert all(measure_of(view) for view in page_of(name).staged), name


def test_shipped_pages_name_classes_that_they_have() -> None:
    pages = {name: page_of(name) for name in SHIPPED}
    assert {name for name, page in pages.items() if page.staged} == {"one_layer", "encoder", "syntax", "text"}
    for name, page in pages.items():
        named = {kind for view in page.staged for kind in (*view.two_stage, *view.not_judged)}
        assert not page.classes or named <= {*page.classes}, name


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """Three rates, two seeds, two-stage if only unmasked positions are keys; and a run without views."""
    kinds = dict(unmasked=TWO_STAGE, all=TOGETHER)
    cells = [*product(kinds, (1.0, 2.0, 3.0), range(2))]
    cases = [
        case(*kinds[keys], key_visibility=keys, learning_rate=rate, seed=seed) for keys, rate, seed in cells
    ]
    trials = [
        {name: value for name, value in own.items() if not name.startswith("line_")} | dict(trial_id=f"{n}")
        for n, (own, _) in enumerate(cases)
    ]
    records = [frame.assign(trial_id=f"{n}") for n, (_, frame) in enumerate(cases)]
    lines = [
        line_entry(cases[0][0]["objective"], dict(stage1=3.4, stage2=3.2), key_visibility=keys)
        for keys in kinds
    ]
    first = write_run(tmp_path / "a", trials, records, references=lines, sweep="two_stage")
    (first / "report.html").write_text("made before")
    plain = write_run(tmp_path / "b", trials[:1], records[:1], experiment="elsewhere", sweep="plain")
    return [str(first), str(plain)]


def test_the_command_writes_a_page_markdown_and_a_figure_or_json(folders, tmp_path, capsys) -> None:
    out = tmp_path / "made" / "general.html"
    assert cli.main(["general", *folders, "--json", "--out", str(out)]) == 0
    read = json.loads(capsys.readouterr().out)
    check_fields("general", read)
    assert not out.exists()
    loss, order, norms = read["rows"]
    assert [own["view"] for own in (loss, order, norms)] == ["loss", "order parameters", "norms"]
    assert (loss["cells"], loss["judged"], loss["two_stage"], loss["agreement"]) == (6, 6, 3, 1)
    assert loss["removes"] == "keys all (3 of 3 pairs)." and loss["theta_highest"] == pytest.approx(1)
    assert read["answer"] == [
        "In part: by the first view of each run training is two-stage in 3 of 6 judged cells of two_stage "
        "(loss).",
        "What removes it, all else equal: keys all (3 of 3 pairs) in two_stage.",
    ]
    (first,) = read["summary"]
    assert first["run"] == "two_stage" and first["answers"] == {
        own["view"]: f"3 of 6 (Θ {own['theta']:.2f})" for own in (loss, order, norms)
    }
    assert read["remarks"] == [f"Pages without a view of two stages: {folders[1]}."]
    assert cli.main(["general", *folders, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert all(out.with_suffix(end).is_file() for end in (".html", ".md", ".svg", ".png"))
    assert read["answer"][0] in said and read["remarks"][0] in said
    page, text = out.read_text(), out.with_suffix(".md").read_text()
    assert '<a href="../a/report.html">two_stage</a></b>: loss' in page and "data-packed" in page
    assert "keys all (3 of 3 pairs)." in page and "pairs removed" in page
    assert "| run | loss | order parameters | norms |" in text and "| two_stage | 3 of 6 (Θ" in text
    assert "Two-stage cells by what is looked at." in page
    assert "| [two_stage](../a/report.html): loss | 3 of 6 (3 simultaneous) | " in text
    assert "| two_stage | loss | keys | all | 0 of 3 | 0 | 0 | 3 | 0 |" in text
    for typed in ([folders[0], "--out", str(tmp_path / "x.md")], [str(tmp_path / "none")]):
        assert cli.main(["general", *typed]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_runs_without_a_view_have_no_figure(folders, tmp_path) -> None:
    table = make_general(folders[1:])
    assert not table.rows and table.answer[0].startswith("No answer")
    assert cli.main(["general", folders[1], "--out", str(tmp_path / "x.html")]) == 0
    assert not (tmp_path / "x.svg").exists() and "No answer" in (tmp_path / "x.md").read_text()

"""Claims of sweeps: named in files, kept by manifests, first on a page, in one table for several runs."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.json_fields import check_fields
from support.synthetic_runs import TWO_STAGE, case, line_entry, ramp, write_run

from topicjax import cli
from topicjax.analysis.page import report
from topicjax.analysis.page.claims import claims_named
from topicjax.analysis.page.claims_table import (
    PROBED,
    make_table,
    of_the_paper,
    sweeps_by_claim,
    to_markdown,
    write_table,
)
from topicjax.analysis.page.lookup import Found, page_of
from topicjax.errors import UserError
from topicjax.experiments import SHIPPED
from topicjax.sweep.files import load_sweep, sweep_names

OWN = '''"""Mine."""
from topicjax.sweep import product
EXPERIMENT = "one_layer"
CLAIMS = ("Theorem 9",)
SWEEP = product(seed=range(2))
'''


def folder_of(path: Path, *kinds, **manifest) -> Path:
    """Write a run folder with a trial of each kind, at its own learning rate."""
    cases = [case(*kind, learning_rate=1.0 + number) for number, kind in enumerate(kinds)]
    trials, frames = [], []
    for number, (row, frame) in enumerate(cases):
        settings = {name: value for name, value in row.items() if not name.startswith("line_")}
        trials.append(settings | dict(trial_id=f"{number}"))
        frames.append(frame.assign(trial_id=f"{number}"))
    lines = line_entry(cases[0][0]["objective"], dict(stage1=3.4, stage2=3.2))
    return write_run(path, trials, frames, references=[lines], **manifest)


@pytest.mark.parametrize("name", sweep_names())
def test_claims_of_shipped_sweeps_are_known_to_their_page(name: str) -> None:
    named = load_sweep(name)
    assert isinstance(named.experiment, str)
    assert len(claims_named(named.claims, page_of(named.experiment), named.experiment)) == len(named.claims)


def test_the_paper_itself_comes_first() -> None:
    first = next(iter(sweeps_by_claim()))
    assert first == page_of("one_layer").claims[0].name


def test_only_claims_of_the_paper_are_missing_from_its_page() -> None:
    of_it = {claim.name for name in SHIPPED for claim in page_of(name).claims if of_the_paper(claim.source)}
    assert {"Lemma 1", "Remark 1", "Figure 5", "Rate 0.01", "Section 8.2", "Every layer", "Keys"} <= of_it
    ours = ("Onset law, SGD", "Focus and dilution", "Softmax control, norms", "Learning coefficient")
    assert of_it.isdisjoint((*ours, "Syntax first", "Topics first", "V before scores, topics", "Layer norm"))
    missing = make_table([]).missing
    assert {each.claim for each in missing} == of_it | {*PROBED}
    assert {way for each in missing for way in each.ways} >= {"topicjax run theorem3", "topicjax probe"}


def test_the_papers_claims_come_before_ours_and_foreign_ones_last(tmp_path) -> None:
    claims = ["Onset law, SGD", "Section 8.1, gradients", "Theorem 1"]
    rows = make_table([folder_of(tmp_path / "a", TWO_STAGE, claims=claims)]).rows
    assert [row.claim for row in rows] == ["Theorem 1", "Section 8.1, gradients", "Onset law, SGD"]


def test_probed_models_are_a_row_until_their_tables_are_there(tmp_path) -> None:
    folder = folder_of(tmp_path / "a", TWO_STAGE, claims=["Norms"])
    table = make_table([folder])
    text = to_markdown(table, tmp_path, "T")
    assert "| Table 1 (section 6.2) |" in text and "`topicjax probe` | not run |" in text
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "tables.html").write_text("page")
    table = make_table([folder])
    assert not {each.claim for each in table.missing} & {*PROBED}
    page = tmp_path / "tables" / "tables.html"
    assert f"Figure 3, Table 1, Table 2: {page} has their numbers." in table.remarks


def test_every_claim_has_a_sweep_and_make_paper_runs_the_synthetic_ones() -> None:
    assert all(sweeps_by_claim().values())
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    listed = re.findall(r"^(?:PAPER|GENERAL) \?= ((?:.*\\\n)*.*)$", makefile, re.M)
    assert len(listed) == 2
    synthetic = [
        name for name in sweep_names() if (own := load_sweep(name)).claims and own.experiment != "text"
    ]
    named = " ".join(listed).replace("\\\n", " ").split()
    assert sorted(named) == sorted({*synthetic} - {"two_stage_map"})  # the same as two_stage, finer


def test_make_paper_prints_the_expected_time_of_each_sweep_and_their_sum(tmp_path) -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    code = makefile.split("define SUM_OF_PLANS\n")[1].split("\nendef")[0]
    numbers = (("a", 1200, 1000, 50.0, 15.0), ("b", 5, 0, 0.0, None))
    for name, *values in numbers:
        plan = dict(zip(("trials", "left", "seconds", "compile_seconds"), values, strict=True))
        (tmp_path / f"{name}.json").write_text(json.dumps(plan | dict(sweep=name)))
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    said = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [
        "  a: 1,200 trials, 1,000 left: training 50 s, compiling 15 s",
        "  b: 5 trials, 0 left: training 0 s, compiling 0 s",
        "  all 2 sweeps: 1,205 trials, 1,000 left: training 50 s, compiling 15 s; pages on top",
    ]


def test_every_target_hands_its_arguments_on() -> None:
    """`make report ARGS=...` once dropped them."""
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    recipes = re.findall(r"^([a-z-]+):.*  ## .*\n((?:\t.*\n)+)", makefile, re.M)
    with_arguments = {name for name, recipe in recipes if "$(ARGS)" in recipe}
    assert with_arguments == {*("corpus", "tables", "sweep", "paper", "general", "report", "plan", "bench")}
    assert "report $(FOLDER) $(ARGS)" in dict(recipes)["report"]


def test_a_wrong_name_in_a_users_file_is_one_sentence_before_anything_is_trained(
    tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("topicjax.engine.resources.use_all_cores", lambda count=0: None)
    file = tmp_path / "mine.py"
    for claims, said in (
        ('("Theorem 9",)', "CLAIMS names 'Theorem 9', which one_layer does not have; allowed: 'Lemma 1', "),
        ('"Theorem 3"', "its CLAIMS is 'Theorem 3'; allowed: names of claims"),
        ('("Lemma 1", "Lemma 1")', "its CLAIMS is ('Lemma 1', 'Lemma 1'); allowed"),
    ):
        file.write_text(OWN.replace('("Theorem 9",)', claims))
        assert cli.main(["plan", str(file), "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_table_has_a_row_per_verdict_and_names_what_is_missing(tmp_path) -> None:
    first = folder_of(
        tmp_path / "a",
        TWO_STAGE,
        TWO_STAGE,
        sweep="two_stage",
        claims=["Figure 4", "Norms"],
        git_commit="abc",
    )
    second = folder_of(
        tmp_path / "b", (ramp(0, 300), ramp(0, 300)), sweep="key_visibility", claims=["Figure 4"], planned=3
    )
    (first / report.REPORT).write_text("page")
    (first / "figures").mkdir()
    (first / "figures" / "phase_map.svg").write_text("figure")
    table = make_table([second, first], "fed")
    assert [(row.claim, row.run, row.verdict) for row in table.rows] == [
        ("Figure 4", "key_visibility", "fails"),
        ("Figure 4", "two_stage", "holds"),
        ("Norms", "two_stage", "holds"),
    ]
    assert table.rows[1].commit == "abc" and table.rows[1].numbers["by_loss"] == 2
    missing = {each.claim: each.sweeps for each in table.missing}
    assert missing["Theorem 3"] == ("theorem3",) and "Figure 4" not in missing
    assert any("1 of 3 trials" in text for text in table.remarks), table.remarks
    assert any(text.startswith(f"{second} has no page yet: topicjax report ") for text in table.remarks)
    page, text = (path.read_text() for path in write_table(table, tmp_path / "paper.html"))
    assert 'href="a/report.html">two_stage</a>' in page and 'href="a/figures/phase_map.svg"' in page
    assert "<code>topicjax run theorem3</code>" in page and "commit fed" in page
    assert "[two_stage](a/report.html), [figure](a/figures/phase_map.svg)" in text and "commit fed" in text
    assert "| Theorem 3 (section 5.3) |" in text and "`topicjax run theorem3` | not run |" in text
    assert (
        len({line.count("|") for line in to_markdown(table, tmp_path, "T").split("\n") if line[:1] == "|"})
        == 1
    )


def test_the_command_prints_json_or_writes_both_files(tmp_path, capsys) -> None:
    folder = folder_of(tmp_path / "a", TWO_STAGE, sweep="two_stage", claims=["Norms"])
    out = tmp_path / "table.html"
    assert cli.main(["claims", str(folder), "--json", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    read = json.loads(captured.out)
    check_fields("claims", read)
    assert read["rows"][0]["claim"] == "Norms" and read["rows"][0]["verdict"] == "holds"
    assert captured.err == f"{folder} ...\n" and not out.exists()
    assert cli.main(["claims", str(folder), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert out.is_file() and out.with_suffix(".md").is_file()
    assert "1 verdict from 1 run: 1 holds." in said and "not run: Theorem 3 (" in said
    for typed in ([str(folder), "--out", str(tmp_path / "x.md")], [str(tmp_path / "none")]):
        assert cli.main(["claims", *typed]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_run_whose_sweep_names_no_claims_or_unknown_ones_says_so(tmp_path, capsys) -> None:
    plain = folder_of(tmp_path / "plain", TWO_STAGE, sweep="tiny")
    table = make_table([plain])
    assert not table.rows and table.remarks[0] == f"{plain}: its sweep tiny names no claims."
    wrong = folder_of(tmp_path / "wrong", TWO_STAGE, claims=["Theorem 9"])
    with pytest.raises(UserError, match="CLAIMS names 'Theorem 9', which one_layer does not have"):
        make_table([wrong])
    found = report.Report(
        report.load(wrong), report.find_page(report.load(wrong)), report.any_page(page_of("one_layer"))
    )
    found.score()
    assert "Not shown (claims): CLAIMS names &#39;Theorem 9&#39;" in found.part("claims", found.judged_claims)
    assert found.shown_first() == (None, "")


def test_the_page_opens_with_the_verdicts_and_what_shows_the_first(tmp_path, monkeypatch) -> None:
    folder = folder_of(tmp_path / "a", TWO_STAGE, (ramp(0, 300), ramp(0, 300)), claims=["Figure 4", "Norms"])
    short = Found(replace(page_of("one_layer"), figures={}, tables=[]))
    monkeypatch.setattr(report, "find_page", lambda run: short)
    text = report.write(folder).read_text()
    order = (
        *("<b>Figure 4: holds.</b>", ">Norms: holds</a>", 'id="explorer"', "What would change the verdict:"),
        *("<b>Norms: holds.</b>", "so this run cannot say how much", '<figure id="figure-phase_map">'),
    )
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert text.count('id="figure-phase_map"') == 1 and 'href="#figure-phase_map">figure</a>' in text
    assert "It holds with" not in text, "the verdict replaces the answer"

"""Report and page of a trial of a real run, in files and in a browser; sensible output for poor runs."""

import json
import logging
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.browsers import start_browser, wait_for_pictures
from support.calls import count_calls
from support.synthetic_runs import TWO_STAGE, case, make_run, random_search, run_of, scored

import topicjax
from topicjax import cli
from topicjax.analysis.one_layer import page, trial_page
from topicjax.analysis.one_layer.cells import score_cells
from topicjax.analysis.one_layer.findings import findings
from topicjax.analysis.one_layer.page import FIGURES, LEAD, TABLES
from topicjax.analysis.one_layer.scores import score_trials
from topicjax.analysis.page import provenance, report
from topicjax.analysis.page.contract import Entry, Page
from topicjax.analysis.page.lookup import Found
from topicjax.analysis.topic_model import prepared
from topicjax.errors import UserError
from topicjax.store import reader
from topicjax.store.files import StoreError
from topicjax.store.manifest import arithmetic_in_words, write_manifest
from topicjax.store.reader import PlanStatus, Status
from topicjax.theory.theorems import theorem2_matrix

PHONE = 400  # pixels
CALLS_PER_TRIAL = 20  # of functions, for each figure and table: strings are still looked up one by one
CALLS_OF_FITS = 6 * 25  # of scores: scipy makes one curve monotone at a time, and a trial has six


@pytest.fixture(scope="module")
def made(smoke, tmp_path_factory) -> tuple[Path, list[str]]:
    """The smoke run with its report, and what was said while it was made."""
    folder, said = tmp_path_factory.mktemp("report") / "smoke", []
    shutil.copytree(smoke[0], folder)
    report.write(folder, said.append)
    return folder, said


@pytest.fixture
def reported(made) -> Path:
    return made[0]


def test_the_answer_comes_first_and_is_that_of_the_scores(reported):
    text = (reported / "report.html").read_text()
    scores = score_trials(topicjax.load(reported))
    two_stage = int((score_cells(scores)["class"] == "two-stage").sum())
    first = re.search(r'<div class="answer "><div>(.*?)</div>', text)
    assert first is not None
    said = re.sub(r"<.*?>", "", first[1])
    assert said.startswith("Two-stage by the loss" if two_stage else "No cell is two-stage by the loss")
    places = [text.index(part) for part in (first[1], 'id="explorer"', "<h2>", "<figure id=", "<dfn>")]
    assert places == sorted(places)


def test_every_figure_is_inside_and_in_two_files(reported):
    text = (reported / "report.html").read_text()
    figures = sorted(path.stem for path in (reported / "figures").glob("*.png"))
    assert {"phase_map", "theta", "log_lag", "views", "figure4", "loss", "figure2"} <= set(figures)
    assert figures == sorted(path.stem for path in (reported / "figures").glob("*.svg"))
    assert text.count("<img data-packed=") == len(figures)
    assert "Not drawn" not in text and "No table" not in text


def test_links_lead_to_files_and_nothing_is_fetched(reported):
    text = (reported / "report.html").read_text()
    links = set(re.findall(r'(?:href|src)="([^"#][^"]*)"', text))
    local = {link for link in links if not link.startswith("data:")}
    assert local and all((reported / link).exists() for link in local)
    assert "http" not in re.sub(r'src="data:[^"]*"', "", text)


def test_stages_and_cells_are_written(reported):
    scores = pd.read_parquet(reported / "stages.parquet")
    cells = pd.read_parquet(reported / "cells.parquet")
    assert scores["trial_id"].nunique() == 16 and cells["trials"].sum() == 16
    counts = pd.read_csv(reported / "tables" / "classes.csv").set_index("class")
    assert (
        counts["loss"].to_dict() == scores["class"].value_counts().reindex(counts.index).fillna(0).to_dict()
    )


def test_a_folder_with_a_report_is_still_a_run(reported, monkeypatch, capsys):
    monkeypatch.setattr("topicjax.engine.resources.use_all_cores", lambda: None)
    assert cli.main(["run", "smoke", "--lanes", "2", "--out", str(reported)]) == 0
    assert "Nothing left to train" in capsys.readouterr().out


def test_in_a_browser_nothing_is_missing_and_nothing_scrolls_sideways(reported):
    """Console, pictures, width of a phone, requests."""
    browser = start_browser(PHONE)
    try:
        browser.get((reported / "report.html").as_uri())
        wait_for_pictures(browser)
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        pictures = browser.execute_script("return [...document.images].map(image => image.naturalWidth)")
        console, events = browser.get_log("browser"), browser.get_log("performance")
    finally:
        browser.quit()
    assert wide <= PHONE
    assert pictures and all(width > 0 for width in pictures)
    assert console == []
    messages = [json.loads(event["message"])["message"] for event in events]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert {url.split(":")[0] for url in sent} <= {"file", "data", "blob"}


def test_inspect_draws_the_trial_that_begins_so_at_the_step_asked_for(smoke, tmp_path, capsys):
    folder, _ = smoke
    trial_id = topicjax.load(folder).trials["trial_id"][2]
    assert cli.main(["inspect", str(folder), trial_id[:8], "--step", "50", "--out", str(tmp_path)]) == 0
    assert f"{trial_id}-step50.png" in capsys.readouterr().out
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".png", ".svg"]


def test_the_numbers_of_a_page_are_those_of_the_weights(smoke):
    folder, _ = smoke
    run = prepared(topicjax.load(folder))
    trial = run.trials.iloc[5]
    weights = run.restore(trial["trial_id"])
    score = score_trials(run).iloc[5]
    one = run.select([trial["trial_id"]])
    model = trial_page.effective_model(weights, trial.to_dict())
    shown = dict(trial_page.listed_values(model, trial.to_dict(), score, one, int(trial["steps"])))
    sizes = [trial[name] for name in ("topics", "words_per_topic", "p_mask", "p_keep", "p_random")]
    theory = theorem2_matrix(*sizes)
    distance = np.linalg.norm(weights["W_V"] - theory) / np.linalg.norm(theory)
    assert float(shown["distance to Theorem 2"]) == pytest.approx(distance, rel=1e-3)
    assert float(shown["distance to Theorem 2"]) == pytest.approx(trial["final_theorem2_distance"], rel=1e-3)
    assert float(shown["a_topic"]) == pytest.approx(trial["final_a_topic"], rel=1e-3, abs=1e-6)
    assert float(shown["held-out loss"]) == pytest.approx(trial["final_eval_loss"], rel=1e-3)


def test_documents_of_a_trial_with_uneven_words_are_drawn_with_their_words():
    uneven = dict(word_distribution="zipf", topics=2, words_per_topic=3)
    run = run_of(case(1.0, 1.0, **uneven), case(1.0, 1.0))
    words = trial_page.topic_words(run, "000")
    assert words is not None and words.shape == (2, 6)
    assert words[0] == pytest.approx(np.array([6, 3, 2, 0, 0, 0]) / 11)
    assert trial_page.topic_words(run, "001") is None
    documents = trial_page.sample_documents(run.trials.iloc[0].to_dict(), words)
    counts = np.bincount(np.concatenate(documents), minlength=7)
    assert counts[1] + counts[4] > counts[3] + counts[6]


def test_attention_on_documents_is_drawn_relative_to_uniform():
    """One query type prefers its own topic by ln 3: 3/(3a + b) against 1/(3a + b) of n = a + b keys."""
    S = np.zeros((5, 5))
    S[1:3, 1] = np.log(3)
    keys = np.array([1, 1, 2, 3])
    from matplotlib.figure import Figure

    ax = trial_page.attention_panel(S, keys, Figure().subplots(), words_per_topic=2)
    drawn = 2 ** np.asarray(ax.images[0].get_array())
    assert drawn[:, 0] == pytest.approx([1, 1, 1, 1])  # [MASK]
    assert drawn[:, 1] == pytest.approx([1.2, 1.2, 1.2, 0.4])


def cut_run(smoke, folder: Path, keep) -> Path:
    """A copy of the smoke run, without weights, whose tables `keep` has changed."""
    for name in ("trials", "trajectories"):
        (folder / name).mkdir(parents=True)
        frame = keep(pd.read_parquet(smoke[0] / name))
        frame.to_parquet(folder / name / "part-0.parquet", index=False)
    shutil.copytree(smoke[0] / "plans", folder / "plans")
    shutil.copy(smoke[0] / "manifest.json", folder / "manifest.json")
    return folder


@pytest.mark.usefixtures("undrawn")
def test_a_single_trial(smoke, tmp_path):
    one = sorted(topicjax.load(smoke[0]).trials["trial_id"])[0]
    folder = cut_run(smoke, tmp_path / "one", lambda frame: frame[frame["trial_id"] == one])
    text = report.write(folder).read_text()
    assert "1 trials" not in text.split("<h2>")[0].replace("1 of 16 trials", "")
    said = re.sub(r"<.*?>", "", text)
    assert "Every cell has one seed" in said and "1 of 16 trials are finished" in said


@pytest.mark.slow
def test_all_trials_diverged(smoke, tmp_path):
    def spoil(frame):
        if "status" in frame:
            finals = [name for name in frame if name.startswith("final_")]
            return frame.assign(status="diverged", **{name: np.nan for name in finals})
        late = frame["step"] > 0
        values = [name for name in frame if name not in ("trial_id", "step")]
        return frame.assign(**{name: frame[name].where(~late, np.nan) for name in values})

    text = report.write(cut_run(smoke, tmp_path / "bad", spoil)).read_text()
    assert "most frequent is diverged (8 of 8 cells)" in re.sub(r"<.*?>", "", text)


def test_a_folder_of_another_kind_and_a_run_without_trials(smoke, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("not a run")
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    empty = tmp_path / "begun"
    (empty / "trials").mkdir(parents=True)
    shutil.copy(smoke[0] / "manifest.json", empty / "manifest.json")
    shutil.copytree(smoke[0] / "plans", empty / "plans")
    assert cli.main(["report", str(empty)]) == 2
    assert "no trial of 16" in capsys.readouterr().err


def test_weights_that_were_not_kept_are_a_sentence(smoke, capsys):
    folder, _ = smoke
    trial_id = topicjax.load(folder).trials["trial_id"][0]
    assert cli.main(["inspect", str(folder), trial_id, "--step", "7"]) == 2
    assert "no snapshot at step 7; there are: 50, 100" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_a_trial_is_inspected_with_its_folder_opened_once(smoke, tmp_path, monkeypatch):
    run = topicjax.load(smoke[0])
    read, whole = reader.read_columns, []

    def counting(parts, columns=None, *more):
        whole.extend([part.parent.name for part in parts[:1]] * (columns is None))
        return read(parts, columns, *more)

    monkeypatch.setattr(reader, "read_columns", counting)
    report.inspect(run, run.trials["trial_id"][0], out=tmp_path)
    assert sorted(whole) == ["trajectories", "trials"]  # each table once


def test_a_run_as_it_was_loaded_has_scores_and_figures(smoke):
    run = topicjax.load(smoke[0])
    run = run.select(run.trials.query("optimizer == 'sgd' and seed == 0")["trial_id"].tolist())
    scores = score_trials(run)
    for entry in (LEAD, *(entry for entries in FIGURES.values() for entry in entries)):
        if entry.fits(run, scores):
            assert entry.make(run, scores), entry.name


def test_what_is_being_made_is_said(made):
    folder, said = made
    assert said[:2] == ["reading the run ...", "scoring 16 trials ..."]
    assert next(line for line in said if "figure" in line).startswith("figure phase_map (1 of ")
    figures = {path.stem.removesuffix("_2") for path in (folder / "figures").glob("*.svg")}
    assert {line.split()[1] for line in said if line.startswith("figure ")} == figures
    tables = {path.stem for path in (folder / "tables").glob("*.csv")}
    assert {line.split()[1] for line in said if line.startswith("table ")} == tables


def report_of(run, scores, file: str = "") -> report.Report:
    """Return a report whose own page is empty."""
    return report.Report(run, Found(Page(), file=file), Page(), scores=scores)


@pytest.mark.parametrize("kind", ["draw", "tabulate"])
def test_what_cannot_be_made_is_a_sentence_and_a_defect_is_logged(kind, caplog):
    def fail_with(error: BaseException, file: str = ""):
        def make(run, scores):
            raise error

        made = report_of(*scored(case(*TWO_STAGE)), file)
        return getattr(made, kind)(Entry("broken", make), made.page)

    for error in (UserError("there is <no> cell"), StoreError("there is <no> cell")):
        assert "(broken): there is &lt;no&gt; cell.</p>" in fail_with(error)
    for error in (ZeroDivisionError("by zero"), SystemExit("bye")):
        said = f"(broken): broken of mine.py raises {type(error).__name__}: {error}."
        assert said in fail_with(error, "/home/me/mine.py")
    assert not caplog.records
    with caplog.at_level(logging.ERROR, logger="topicjax.analysis.page.report"):
        text = fail_with(ZeroDivisionError("by zero"))
    assert "(broken): this is a defect of topicjax, please report it: ZeroDivisionError: by zero." in text
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError


@pytest.mark.usefixtures("undrawn")
def test_a_defect_in_one_figure_does_not_take_the_page_down(smoke, tmp_path, monkeypatch, caplog):
    folder = cut_run(smoke, tmp_path / "run", lambda frame: frame)
    broken = Entry("theta", lambda run, scores: scores["no such column"])
    figures = {"Maps": [broken], "Trajectories": FIGURES["Trajectories"][:1]}
    monkeypatch.setattr(page, "PAGE", replace(page.PAGE, figures=figures))
    text = report.write(folder).read_text()
    assert "Not drawn (theta): this is a defect of topicjax" in text and "KeyError" in text
    assert (folder / "figures" / "figure4.svg").exists()
    assert "theta could not be made" in caplog.text


def test_entries_are_named_apart():
    for names in ([e.name for part in FIGURES.values() for e in part], [e.name for e in TABLES]):
        assert len(set(names)) == len(names)


def folder_status(*plans: tuple[str, int], finished: int, beyond: int = 0) -> Status:
    listed = tuple(PlanStatus(words, 2 * count, count) for words, count in plans)
    return Status("two_stage", finished, finished, 0, finished, beyond, listed, (), (), None)


def test_a_folder_of_several_plans_says_so():
    one, other = ("two_stage", 384), ("two_stage --set alpha=0.5", 50)
    sentence = "This folder holds trials of 2 plans: two_stage (384), two_stage --set alpha=0.5 (50)"
    assert provenance.plans_sentence(folder_status(one, finished=384)) == ""
    assert provenance.plans_sentence(folder_status(one, other, finished=434)) == f"{sentence}."
    shared = provenance.plans_sentence(folder_status(one, other, finished=400))
    assert shared == f"{sentence}; some trials belong to several."
    more = provenance.plans_sentence(folder_status(one, other, finished=435, beyond=1))
    assert more == f"{sentence}; and 1 trial that no plan names."


def test_every_run_is_listed_with_what_differs():
    first = dict(sweep="two_stage", git_commit="aaa", devices=["cpu", "cpu"], started="Monday", python="3.11")
    first |= dict(versions=dict(jax="0.10.2", numpy="2.4"), trials=3, wall_seconds=1234.5, finished="Tuesday")
    first |= dict(trial_steps_per_second=4321.0)
    second = first | dict(
        overrides=["--set", "alpha=0.5"], git_commit="bbb", devices=["gpu"], started="Friday"
    )
    second |= dict(versions=dict(jax="0.11", numpy="2.4"))
    for name in ("trials", "wall_seconds", "finished", "trial_steps_per_second"):
        del second[name]  # it was killed
    trials = pd.DataFrame(dict(trial_id=list("abcde"), run=[1, 1, 1, 2, 2]))
    run = make_run(trials).replace(manifest=dict(sweep="two_stage", runs=[first, second]))
    table = provenance.runs_table(run, [first, second]).astype(str).to_numpy().tolist()
    assert table == [
        ["1", "two_stage", "3", "Monday", "Tuesday", "1,234", "4,321"],
        ["2", "two_stage --set alpha=0.5", "2", "Friday", "-", "-", "-"],
    ]
    with_what = dict(provenance.circumstances([first, second]).to_numpy().tolist())
    assert with_what["commit"] == "aaa (run 1); bbb (run 2)"
    assert with_what["devices"] == "cpu, cpu (run 1); gpu (run 2)"
    assert with_what["jax"] == "0.10.2 (run 1); 0.11 (run 2)"
    assert (with_what["Python"], with_what["numpy"]) == ("3.11", "2.4")
    text = provenance.provenance(run)
    assert "two_stage --set alpha=0.5" in text and "aaa (run 1)" in text


def test_the_page_says_how_numbers_were_computed():
    plain = dict(jax_enable_x64=False, jax_default_matmul_precision="highest")
    words = {
        "float32, matrix products at full precision": plain,
        "float32, factors of matrix products rounded to BF16": plain | dict(round_products="bf16"),
        "float32, matrix products at the precision that jax calls bfloat16": plain
        | dict(jax_default_matmul_precision="bfloat16"),
        "float64 where the code does not ask for float32, matrix products at full precision": plain
        | dict(jax_enable_x64=True),
    }
    entries = [dict(arithmetic=options) for options in words.values()]
    assert list(map(arithmetic_in_words, entries)) == list(words)
    shown = dict(provenance.circumstances(entries[:2]).to_numpy().tolist())
    assert shown["arithmetic"].endswith(
        "(run 1); float32, factors of matrix products rounded to BF16 (run 2)"
    )
    usual, rounded, *_ = words
    state = folder_status(finished=1)
    for found in ((), (usual,)):
        assert provenance.arithmetic_sentence(replace(state, arithmetic=found)) == ""
    sentence = provenance.arithmetic_sentence(replace(state, arithmetic=(usual, rounded)))
    assert sentence == f"Arithmetic: {usual}; {rounded}."


def test_of_very_many_runs_and_plans_the_page_names_some():
    entries = [dict(sweep="s", git_commit=f"c{number % 2}", started=f"day {number}") for number in range(900)]
    run = make_run(pd.DataFrame(dict(trial_id=["a"]))).replace(manifest=dict(sweep="s", runs=entries))
    text = provenance.provenance(run)
    assert "The runs that trained these trials (the last 40 of 900)" in text
    assert "day 860" in text and "day 859" not in text
    assert "c0 (runs 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, ...); c1 (runs 2" in text
    plans = [(f"plan{number}", 1) for number in range(20)]
    sentence = provenance.plans_sentence(folder_status(*plans, finished=20))
    assert sentence.startswith("This folder holds trials of 20 plans: plan0 (1), plan1 (1)")
    assert sentence.endswith("plan11 (1), ....")


@pytest.mark.usefixtures("undrawn", "one_figure")
def test_a_folder_of_two_plans_has_both_at_the_top_of_its_page(smoke, tmp_path):
    folder = cut_run(smoke, tmp_path / "run", lambda frame: frame)
    manifest = json.loads((folder / "manifest.json").read_text())
    half = pd.read_parquet(next((folder / "plans").iterdir()))[:8]
    half.to_parquet(folder / "plans" / "plan-00000000000a.parquet", index=False)
    manifest["runs"].append(manifest["runs"][0] | dict(plan="00000000000a", overrides=["--set", "seed=1"]))
    del manifest["digest"]
    write_manifest(folder, manifest)
    text = report.write(folder).read_text()
    sentence = "<p>This folder holds trials of 2 plans: smoke (16), smoke --set seed=1 (8)"
    assert sentence in text and text.index(sentence) < text.index("<li>")


@pytest.mark.slow
def test_more_trials_are_not_more_calls_but_longer_arrays():
    """A loop over trials or, for each of them, a pass over all would be many calls per trial."""
    runs = [random_search(count) for count in (2000, 4000)]
    scored_runs = [(run, score_trials(run)) for run in runs]
    alike = ("Maps", "Norms against loss")  # the first map stands for all
    drawn = [entry for head, part in FIGURES.items() if head not in alike for entry in part]
    fitting = [entry for entry in (LEAD, *drawn, *TABLES) if entry.fits(*scored_runs[0])]
    assert {entry.name for entry in fitting} >= {"phase_map", "bands", "loss", "landscape", "onset", "table3"}
    more = {"scores": [count_calls(score_trials, run) for run in runs]}
    for entry in fitting:
        entry.make(*scored_runs[0])  # what is computed once is
        more[entry.name] = [count_calls(entry.make, *each) for each in scored_runs]
    more["answer"] = [count_calls(findings, scores, score_cells(scores)) for _, scores in scored_runs]
    per_trial = {name: (many - few) / 2000 for name, (few, many) in more.items()}
    per_trial["scores"] -= CALLS_OF_FITS
    assert not {name: calls for name, calls in per_trial.items() if calls > CALLS_PER_TRIAL}


def test_a_long_table_is_pooled_on_the_page_and_whole_in_its_csv(tmp_path):
    run = random_search(1200, optimizer=np.where(np.arange(1200) % 2, "sgd", "adam")).replace(folder=tmp_path)
    (entry,) = (entry for entry in TABLES if entry.name == "table3")
    made = report_of(run, score_trials(run))
    text = made.tabulate(entry, made.page)
    assert "rows pool all values of learning rate, L2 (1,200 rows in the csv)" in text
    assert text.count("<tr>") == 1 + 2 * 3  # a head; optimizer x init scale
    markdown = (tmp_path / "tables" / "table3.md").read_text().splitlines()
    assert len(markdown) == 2 + 2 * 3
    assert len(pd.read_csv(tmp_path / "tables" / "table3.csv")) == 1200


def test_a_long_table_that_cannot_be_pooled_says_what_is_shown(tmp_path):
    run, scores = scored(case(*TWO_STAGE))
    long = Entry("long", lambda run, scores: pd.DataFrame(dict(x=np.arange(1500))), title="Numbers")
    made = report_of(run.replace(folder=tmp_path), scores)
    text = made.tabulate(long, made.page)
    assert "Numbers (the first 40 of 1500 rows)." in text and text.count("<tr>") == 41
    markdown = (tmp_path / "tables" / "long.md").read_text()
    assert "The first 1,000 of 1,500 rows; all are in long.csv." in markdown
    assert len(pd.read_csv(tmp_path / "tables" / "long.csv")) == 1500


def links_to(victim: Path, paths: list[Path]) -> None:
    """Put links to a file in place of these, and of the names that files have while they are written."""
    for path in [*paths, *(path.with_name(f".tmp-{path.name}") for path in paths)]:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(victim)


@pytest.mark.usefixtures("one_figure")
def test_nothing_is_written_through_a_link(reported, tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("dear")
    shutil.copytree(reported, folder)
    trial_id = topicjax.load(folder).trials["trial_id"][0]
    written = [*(folder / "tables").iterdir(), *(folder / "figures").glob("phase_map.*")]
    written += [folder / name for name in ("report.html", "stages.parquet", "cells.parquet")]
    pages = [folder / "inspect" / f"{trial_id}-step100.{kind}" for kind in ("png", "svg")]
    assert {path.suffix for path in written} >= {".png", ".svg", ".csv", ".md"}
    links_to(victim, [*written, *pages])
    assert cli.main(["report", str(folder)]) == 0 and cli.main(["inspect", str(folder), trial_id]) == 0
    assert victim.read_text() == "dear"
    assert not [path for path in (*written, *pages) if path.is_symlink() or not path.stat().st_size]
    assert not list(folder.rglob(".tmp-*"))


@pytest.mark.usefixtures("one_figure")
def test_nothing_is_written_into_a_linked_folder(reported, tmp_path, capsys):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    shutil.copytree(reported, folder)
    for name in ("figures", "tables", "inspect"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).symlink_to(elsewhere)
    assert cli.main(["report", str(folder)]) == 0
    text = (folder / "report.html").read_text()
    assert "figures is a link to another place" in text and "tables is a link to another place" in text
    assert cli.main(["inspect", str(folder), topicjax.load(folder).trials["trial_id"][0]]) == 2
    assert "inspect is a link to another place" in capsys.readouterr().err
    assert not list(elsewhere.iterdir())


def test_a_wrong_folder_is_one_sentence_and_nothing_else(tmp_path):
    said: list[str] = []
    with pytest.raises(StoreError):
        report.write(tmp_path / "nowhere", said.append)
    assert said == []

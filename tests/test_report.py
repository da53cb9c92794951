"""Report and inspection of a real run, in files and in a browser; sensible output for poor runs."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import topicjax
from analysis import frames, inspection, report, stages
from topicjax import __main__ as cli
from topicjax.theory import theorem2_matrix

pytestmark = pytest.mark.xdist_group("cli")  # one worker: the smoke run is made once
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)
PHONE = 400  # pixels


@pytest.fixture(scope="session")
def reported(smoke, tmp_path_factory) -> Path:
    """The smoke run with its report."""
    folder = tmp_path_factory.mktemp("report") / "smoke"
    shutil.copytree(smoke[0], folder)
    assert cli.main(["report", str(folder)]) == 0
    return folder


def test_the_answer_comes_first_and_is_that_of_the_scores(reported):
    text = (reported / "report.html").read_text()
    scores = stages.score_trials(frames.load(reported))
    two_stage = int((scores["class"] == "two-stage").sum())
    first = re.search(r"<li>(.*?)</li>", text)
    assert first is not None
    expected = f"{two_stage} of 16 trials" if two_stage else "No trial is two-stage"
    assert first[1].startswith(expected)
    assert text.index(first[1]) < text.index("<figure>") < text.index("<h2>")


def test_every_figure_is_inside_and_in_two_files(reported):
    text = (reported / "report.html").read_text()
    figures = sorted(path.stem for path in (reported / "figures").glob("*.png"))
    assert {"phase_map", "theta", "log_lag", "views", "figure4", "loss", "figure2"} <= set(figures)
    assert figures == sorted(path.stem for path in (reported / "figures").glob("*.svg"))
    assert text.count("<img ") == len(figures)
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
    monkeypatch.setattr("topicjax.engine.use_all_cores", lambda: None)
    assert cli.main(["run", "smoke", "--chunk", "2", "--out", str(reported)]) == 0
    assert "Nothing left to train" in capsys.readouterr().out


def test_in_a_browser_nothing_is_missing_and_nothing_scrolls_sideways(reported):
    """Chromium from Debian's packages: console, pictures, width of a phone, requests."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("chromium and chromium-driver are not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in FLAGS.split():
        options.add_argument(flag)
    size = {"deviceMetrics": {"width": PHONE, "height": 800, "pixelRatio": 2.0}}
    options.add_experimental_option("mobileEmulation", size)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        browser.get((reported / "report.html").as_uri())
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
    assert {url.split(":")[0] for url in sent} <= {"file", "data"}


def test_inspect_draws_the_trial_that_begins_so_at_the_step_asked_for(smoke, tmp_path, capsys):
    folder, _ = smoke
    trial_id = topicjax.load(folder).trials["trial_id"][2]
    assert cli.main(["inspect", str(folder), trial_id[:8], "--step", "50", "--out", str(tmp_path)]) == 0
    assert f"{trial_id}-step50.png" in capsys.readouterr().out
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".png", ".svg"]


def test_the_numbers_of_a_page_are_those_of_the_weights(smoke):
    folder, _ = smoke
    run = frames.load(folder)
    trial = run.trials.iloc[5]
    weights = topicjax.load(folder).restore(trial["trial_id"])
    score = stages.score_trials(run).iloc[5]
    one = inspection.select(run, [trial["trial_id"]])
    model = inspection.inside(weights, trial.to_dict())
    shown = dict(inspection.numbers(model, trial.to_dict(), score, one, int(trial["steps"])))
    sizes = [trial[name] for name in ("topics", "words_per_topic", "p_mask", "p_keep", "p_random")]
    theory = theorem2_matrix(*sizes)
    distance = np.linalg.norm(weights["W_V"] - theory) / np.linalg.norm(theory)
    assert float(shown["distance to Theorem 2"]) == pytest.approx(distance, rel=1e-3)
    assert float(shown["distance to Theorem 2"]) == pytest.approx(trial["final_theorem2_distance"], rel=1e-3)
    assert float(shown["a_topic"]) == pytest.approx(trial["final_a_topic"], rel=1e-3, abs=1e-6)
    assert float(shown["held-out loss"]) == pytest.approx(trial["final_eval_loss"], rel=1e-3)


def test_attention_on_documents_is_drawn_relative_to_uniform():
    """One query type prefers its own topic by ln 3: 3/(3a + b) against 1/(3a + b) of n = a + b keys."""
    S = np.zeros((5, 5))
    S[1:3, 1] = np.log(3)
    keys = np.array([1, 1, 2, 3])
    from matplotlib.figure import Figure

    ax = inspection.attention_panel(S, keys, Figure().subplots(), words_per_topic=2)
    drawn = 2 ** np.asarray(ax.images[0].get_array())
    assert drawn[:, 0] == pytest.approx([1, 1, 1, 1])  # [MASK]
    assert drawn[:, 1] == pytest.approx([1.2, 1.2, 1.2, 0.4])


def cut_run(smoke, folder: Path, keep) -> Path:
    """A copy of the smoke run, without weights, whose tables `keep` has changed."""
    for name in ("trials", "trajectories"):
        (folder / name).mkdir(parents=True)
        frame = keep(pd.read_parquet(smoke[0] / name))
        frame.to_parquet(folder / name / "part-0.parquet", index=False)
    shutil.copy(smoke[0] / "manifest.json", folder / "manifest.json")
    return folder


def test_a_single_trial(smoke, tmp_path):
    one = sorted(topicjax.load(smoke[0]).trials["trial_id"])[0]
    folder = cut_run(smoke, tmp_path / "one", lambda frame: frame[frame["trial_id"] == one])
    text = report.write(folder).read_text()
    assert "1 trials" not in text.split("<h2>")[0].replace("1 of 16 trials", "")
    assert "Every cell has one seed" in text and "1 of 16 trials are finished" in text


def test_all_trials_diverged(smoke, tmp_path):
    def spoil(frame):
        if "status" in frame:
            finals = [name for name in frame if name.startswith("final_")]
            return frame.assign(status="diverged", **{name: np.nan for name in finals})
        late = frame["step"] > 0
        values = [name for name in frame if name not in ("trial_id", "step")]
        return frame.assign(**{name: frame[name].where(~late, np.nan) for name in values})

    text = report.write(cut_run(smoke, tmp_path / "bad", spoil)).read_text()
    assert "most frequent is diverged (16 of 16 trials (100 %))" in text


def test_a_folder_of_another_kind_and_a_run_without_trials(smoke, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("not a run")
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    empty = tmp_path / "begun"
    (empty / "trials").mkdir(parents=True)
    shutil.copy(smoke[0] / "manifest.json", empty / "manifest.json")
    assert cli.main(["report", str(empty)]) == 2
    assert "no trial of 16" in capsys.readouterr().err


def test_weights_that_were_not_kept_are_a_sentence(smoke, capsys):
    folder, _ = smoke
    trial_id = topicjax.load(folder).trials["trial_id"][0]
    assert cli.main(["inspect", str(folder), trial_id, "--step", "7"]) == 2
    assert "no snapshot at step 7; there are: 50, 100" in capsys.readouterr().err

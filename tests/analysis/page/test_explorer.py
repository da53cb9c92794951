"""The interactive map: what is packed equals what was recorded and what is drawn; a browser shows it."""

import base64
import io
import json
import re
import tomllib
import zlib
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.browsers import start_browser
from support.synthetic_runs import STAGE2, STEP, TWO_STAGE, case, ramp, random_search, run_of

from topicjax.analysis.maps.layouts import Layout
from topicjax.analysis.one_layer.cells import score_cells
from topicjax.analysis.one_layer.page import PAGE
from topicjax.analysis.one_layer.phase_maps import map_layout
from topicjax.analysis.one_layer.scores import VIEWS, score_trials
from topicjax.analysis.page import explorer
from topicjax.analysis.page import html as page
from topicjax.analysis.page.contract import Page
from topicjax.analysis.page.explorer import LEVELS, code_series, has_rare_columns, kept_records
from topicjax.analysis.page.runs_index import Entry
from topicjax.analysis.page.scripts import bundle
from topicjax.analysis.topic_model import aligned
from topicjax.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
PHONE, DESK = 390, 1280  # pixels
CELL = ["optimizer", "key_visibility", "learning_rate", "init_scale"]
FINGER = 44  # pixels
HOSTILE = "</script><img src=x onerror=alert(1)>"


def unpacked(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


def decoded(codes: np.ndarray, low: np.ndarray, high: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The numbers as data.js reads them."""
    low, width = np.repeat(low.astype(float), counts), np.repeat((high - low).astype(float), counts)
    size = np.exp(low + ((codes & 0x7FFF) - 1.0) * width / LEVELS)
    found = np.where(codes & 0x8000, -1, 1) * np.where(codes & 0x7FFF, size, 0)
    return np.where(codes == 0x8000, np.nan, found)


def test_numbers_of_any_size_come_back():
    rng = np.random.default_rng(0)
    small = np.exp(rng.uniform(np.log(1e-9), np.log(2), 500)) * rng.choice([-1, 1], 500)
    losses = rng.uniform(2.9, 4.7, 300)
    odd = np.array([0, np.nan, np.inf, -np.inf, 1e-38, -3e38, 1])
    values = np.concatenate([small, losses, odd, np.zeros(3), [7.0]])
    counts = np.array([500, 300, 7, 3, 1])
    codes, low, high = code_series(values, np.cumsum(counts) - counts)
    found = decoded(codes, low, high, counts)
    np.testing.assert_allclose(found[:500], small, rtol=4e-4)
    np.testing.assert_allclose(found[500:800], losses, rtol=1e-5)
    np.testing.assert_allclose(found[800:807], np.where(np.isfinite(odd), odd, np.nan), rtol=3e-3)
    assert (found[807:810] == 0).all() and found[810] == pytest.approx(7, rel=1e-6)


def test_records_near_the_start_the_end_and_what_happens_are_kept():
    step, marks = np.arange(0, 3001, 20), np.array([35.0, 1741.0, np.nan])
    kept = step[kept_records(step, marks, 48)]
    assert len(kept) <= 48 and (kept[0], kept[-1]) == (0, 3000)
    assert {20, 40, 60, 1720, 1740, 1760} <= set(kept)
    assert np.diff(kept).max() <= 20 + 3000 / 17  # evenly spread ...
    assert (kept < 300).sum() > 2 * ((kept > 2300) & (kept <= 2600)).sum()  # ... and denser early
    assert kept_records(step[:40], marks, 48).tolist() == list(range(40))
    assert kept_records(step[:1], marks, 48).tolist() == [0]
    rare = step[kept_records(step, marks, 48, rare=np.flatnonzero(step % (20 * step[1]) == 0))]
    assert len(rare) <= 48 and (rare % (20 * step[1]) == 0).sum() >= min(20, len(step) // 20)


def test_a_curve_of_a_rare_column_has_its_points_if_records_are_spaced_by_the_logarithm():
    evenly, spaced = 10 * np.arange(12), 10 * np.array([0, 1, 2, 3, 4, 6, 10, 16, 25, 40, 63, 100])
    cases = []  # spaced: at 10 ** (n / 5) windows of 10 steps
    for step, per_decade, every in ((evenly, 0, 4), (spaced, 5, 3)):
        row, frame = case(ramp(0, 100, step), 0.0, step, record_every=10)
        frame["a_topic"] = np.where(np.arange(12) % every == 0, 1.0, np.nan)
        cases.append((row | dict(records_per_decade=per_decade, rare_every=every), frame))
    run = run_of(*cases)
    owner = pd.Index(run.trials["trial_id"]).get_indexer(pd.Index(run.trajectories["trial_id"]))
    assert owner.tolist() == [0] * 12 + [1] * 12
    measured = run.trajectories["a_topic"].notna().to_numpy()
    np.testing.assert_array_equal(has_rare_columns(run, run.trials, owner), measured)
    only_second = has_rare_columns(run, run.trials[1:], owner - 1)
    np.testing.assert_array_equal(only_second, measured & (owner == 1))


@pytest.mark.parametrize("most", [16, 48])
def test_no_more_records_than_asked_for(most):
    step = np.arange(0, 20001, 10)
    for marks in ([np.nan] * 3, [0.0, 20000.0, 30000.0], [500.0, 7000.0, 11111.0]):
        kept = kept_records(step, np.array(marks), most)
        assert len(kept) <= most and (kept[0], kept[-1]) == (0, len(step) - 1) and (np.diff(kept) > 0).all()


def small_run():
    """Two optimizers, two key visibilities, 3 x 2 places, two seeds; trials end at different steps."""
    cases = []
    for optimizer in ("sgd", "adam"):
        for keys in ("all", "unmasked"):
            for number, rate in enumerate((0.1, 1.0, 10.0)):
                for init_scale in (1e-4, 1e-2):
                    for seed in (0, 1):
                        gain = TWO_STAGE[1] * (number == 2 or (number == 1 and seed == 0))
                        step = STEP if seed else STEP[:80]
                        values = TWO_STAGE[0][: len(step)], gain[: len(step)]
                        settings = dict(optimizer=optimizer, key_visibility=keys, learning_rate=rate)
                        settings |= dict(init_scale=init_scale, seed=seed)
                        ended = dict(stopped_step=int(step[-1]), stop_reason="" if seed else "decided")
                        attention = values[1] * 1.5 + 1e-8
                        by_norms = dict(norm_k=0.1 + 30 * ramp(0, 100, step)) if keys == "all" else {}
                        row, frame = case(*values, step, a_topic=attention, **by_norms, **settings)
                        cases.append((row | ended, frame))
    return run_of(*cases)


@pytest.fixture(scope="module")
def small():
    run = aligned(small_run())
    return run, score_trials(run)


def written(run, scores, folder: Path, of: Page = PAGE) -> str:
    """Write a page of this run's map; return its address."""
    text = page.page("map", "", explorer.explorer(run, scores, of), [])
    (folder / "report.html").write_text(text, encoding="utf-8")
    return (folder / "report.html").as_uri()


def test_packed_trajectories_are_the_recorded_values(small):
    run, scores = small
    data = explorer.page_data(run, scores, PAGE)
    packed, frame = data["records"], run.trajectories.set_index(["trial_id", "step"])
    counts = unpacked(packed["counts"], "<u2").astype(int)
    rows, step = unpacked(packed["rows"], "<u4"), unpacked(packed["steps"], "<u4")
    assert data["ids"] == run.trials["trial_id"].tolist() and rows.tolist() == list(range(48))
    index = [*zip(np.repeat(run.trials["trial_id"].to_numpy()[rows], counts), step, strict=True)]
    assert set(packed["curves"]) == {name for chart in PAGE.charts for name in chart.columns} - {"norm_e"}
    for name, curve in packed["curves"].items():
        ends = unpacked(curve["low"], "<f4"), unpacked(curve["high"], "<f4")
        found = decoded(unpacked(curve["codes"], "<u2").astype(int), *ends, counts)
        np.testing.assert_allclose(found, frame.loc[index, name].to_numpy(), rtol=5e-4, err_msg=name)
    lines = {line["name"]: unpacked(line["values"], "<f4") for line in packed["references"]}
    assert set(lines) == {"stage 1", "stage 2"} and lines["stage 2"] == pytest.approx(np.full(48, STAGE2))


def drawn(layout: Layout) -> list[tuple]:
    """Each panel that has cells: title, ticks, and the trials and rectangles of each cell."""
    found = []
    for row, text in enumerate(layout.labels):
        for place, title in enumerate(layout.titles):
            part, grid = layout.parts[row][place], layout.grids[row][place]
            if len(part):
                words = [*title.split("\n"), *text.split("\n")[:-1]]
                regions = grid.regions(part)
                members = [tuple(np.flatnonzero(layout.owner == cell)) for cell in part.index]
                own = {name: regions.boxes[regions.whose == n].tolist() for n, name in enumerate(members)}
                found.append((", ".join(filter(None, words)), [*map(list, grid.ticks)], own))
    return found


def on_page(data: dict, place: int = 0) -> list[tuple]:
    """The same, read from the page's JSON."""
    counts, trials = (unpacked(data["cells"][name], "<u4") for name in ("counts", "trials"))
    members = np.split(trials, np.cumsum(counts)[:-1])
    found = []
    for panel in data["maps"][place]["panels"]:
        cells, boxes = unpacked(panel["cells"], "<u4"), unpacked(panel["boxes"], "<u2").reshape(-1, 4)
        whose = unpacked(panel["whose"], "<u4") if "whose" in panel else np.arange(len(cells))
        own = {tuple(members[cell]): (boxes[whose == n] - 0.5).tolist() for n, cell in enumerate(cells)}
        found.append((panel["title"], [*map(list, panel["ticks"])], own))
    return found


@pytest.mark.parametrize("make", ["small", "refined", "random"])
def test_the_page_has_the_rectangles_of_the_picture(make, small):
    runs = {"small": lambda: small[0], "refined": refined_run, "random": lambda: random_search(300)}
    run = aligned(runs[make]())
    scores = score_trials(run)
    data = json.loads(json.dumps(explorer.page_data(run, scores, PAGE)))
    layout, _ = map_layout(run, scores, "loss", None, None, ())
    assert on_page(data) == drawn(layout)
    assert ("whose" in data["maps"][0]["panels"][0]) == (make == "refined")
    for place, other in enumerate(data["maps"]):
        layout, _ = map_layout(run, scores, "loss", other["x"], other["y"], ())
        assert layout.left_out or on_page(data, place) == drawn(layout)


def test_cells_have_the_classes_scores_and_colours_of_the_table(small):
    run, scores = small
    data, cells = explorer.page_data(run, scores, PAGE), score_cells(scores)
    counts, trials = (unpacked(data["cells"][name], "<u4") for name in ("counts", "trials"))
    first = trials[np.cumsum(counts) - counts]
    keys = [*CELL]
    own = scores.iloc[first][keys].merge(cells, on=keys, how="left")
    names = [look["name"] for look in data["classes"]]
    for view in data["views"]:
        end = VIEWS[view["name"]]
        assert [names[kind] for kind in unpacked(view["cells"], "u1")] == own["class" + end].tolist()
        theta = unpacked(data["columns"][view["score"]]["cells"], "<f4")
        np.testing.assert_allclose(theta, own["theta" + end].to_numpy(), rtol=1e-6)
        marks = unpacked(view["marks"], "u1")
        np.testing.assert_array_equal((marks & 1) > 0, own["agreement" + end] < 1)


def data_of(text: str) -> dict:
    """Unpack the data of an explorer."""
    packed = re.findall(r'id="explorer-data">(.*?)</script>', text)[0]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def test_matrices_come_back_within_a_level():
    rng = np.random.default_rng(1)
    for shape, levels in (((4, 5), 91), ((60, 60), 9)):
        values = rng.normal(size=shape)
        values[0, 0] = np.nan
        labels: dict = {}
        packed = explorer.packed_matrix("m", pd.DataFrame(values), labels)
        codes = np.frombuffer(packed["codes"].encode(), "u1").reshape(shape).astype(float)
        found = packed["low"] + (packed["high"] - packed["low"]) * (codes - 35) / (levels - 1)
        assert packed["codes"][0] == "!" and packed["levels"] == levels and packed["cut"] == (levels == 9)
        known = np.clip(values, packed["low"], packed["high"]).ravel()[1:]
        step = (packed["high"] - packed["low"]) / (levels - 1)
        assert np.abs(found.ravel()[1:] - known).max() <= 0.51 * step
        assert levels % 2  # a matrix that is symmetric about 0 has a level for 0
        assert len(labels) == 2 if shape[0] != shape[1] else 1
    with pytest.raises(UserError, match=r"m has shape \(3,\); allowed: a matrix"):
        explorer.packed_matrix("m", np.ones(3), {})


def test_matrices_that_cannot_be_made_are_a_sentence(small):
    def broken(run, scores, ids):
        raise KeyError("mode_9")

    own = replace(PAGE, inside=broken)
    data = explorer.page_data(*small, own, explain=lambda name, error: f"{name} raises {error!r}")
    assert data["inside"] is None and "No matrices: inside raises KeyError('mode_9')." in data["sentence"]
    with pytest.raises(KeyError):
        explorer.page_data(*small, own)


def test_a_cut_of_the_matrices_is_announced(small, monkeypatch):
    def inside(run, scores, ids):
        return {one: {"m": np.eye(3)} for one in ids}

    own = replace(PAGE, inside=inside, inside_cell=None)
    data = explorer.page_data(*small, own)
    assert len(data["inside"]["trials"]) == 48 and data["inside"]["remark"] == ""
    cells = len({*explorer.standing(small[1], on_cells(data), PAGE.views[0])})
    for most, more in ((40, ""), (10, f", for the first 10 of {cells} cells")):
        monkeypatch.setattr(explorer, "MOST_INSIDE", most)
        data = explorer.page_data(*small, own)
        assert len(data["inside"]["trials"]) == min(most, cells)
        said = f"Of 48 trials, matrices are drawn only for the one that stands for a cell{more}."
        assert data["inside"]["remark"] == said and said in data["sentence"]


def on_cells(data: dict) -> list[np.ndarray]:
    """The trials of each cell."""
    counts, trials = (unpacked(data["cells"][name], "<u4") for name in ("counts", "trials"))
    return np.split(trials, np.cumsum(counts)[:-1])


def test_the_trial_in_the_middle_of_the_class_stands_for_a_cell():
    frame = pd.DataFrame(dict(trial_id=list("abcdef"), theta=[0.9, 0.5, 0.7, 0.1, 0.2, np.nan]))
    frame["class"] = ["x", "x", "x", "y", "y", "y"]
    members = [np.arange(4), np.array([3, 4, 5])]
    assert explorer.standing(frame, members, PAGE.views[0]) == [2, 3]


def test_a_part_of_the_trials_and_other_axes_can_be_asked_for(small):
    run, scores = small
    own = scores[scores["optimizer"] == "adam"].reset_index(drop=True)
    text = explorer.explorer(run, own, PAGE, x="key_visibility", y="learning_rate")
    data = data_of(text)
    assert data["ids"] == own["trial_id"].tolist() and len(unpacked(data["records"]["rows"], "<u4")) == 24
    assert (data["maps"][0]["x"], data["maps"][0]["y"]) == ("key_visibility", "learning_rate")
    pairs = {frozenset((each["x"], each["y"])) for each in data["maps"]}
    assert pairs == {frozenset(pair) for pair in combinations(CELL[1:], 2)}


def test_a_thousand_trials_are_small():
    step = np.arange(0, 3001, 20)
    frames = [case(ramp(0, 300, step), ramp(t, 2000, step), step) for t in (500, 900)]
    run = run_of(*(frames[number % 2] for number in range(4)))
    many = np.arange(1000) % 4
    trials = run.trials.iloc[many].assign(
        trial_id=[f"{number:012x}" for number in range(1000)],
        learning_rate=np.geomspace(0.1, 10, 10)[np.arange(1000) % 10],
        seed=np.arange(1000) // 10,
    )
    records = pd.concat([run.trajectories[run.trajectories["trial_id"] == f"{n:03d}"] for n in many])
    names = np.repeat(trials["trial_id"].to_numpy(), len(step))
    run = run.replace(trials=trials.reset_index(drop=True), trajectories=records.assign(trial_id=names))
    run = run.replace(trajectories=run.trajectories.reset_index(drop=True))
    text = explorer.explorer(run, score_trials(run), PAGE)
    assert len(text) < 2_000_000  # figures take up to 4 MB of 6
    assert "Curves show at most 32 records per trial" in data_of(text)["sentence"]


def test_very_many_trials_leave_their_trajectories_out():
    cell = np.repeat(np.arange(1000), 10)
    every, most, sentence = explorer.trials_that_fit(cell[:2000], 10)
    assert (len(every), most, sentence) == (2000, 30, "")
    first, most, sentence = explorer.trials_that_fit(cell, 10)
    assert first.tolist() == list(range(0, 10000, 10)) and most == 32
    assert sentence == "Trajectories of 10,000 trials do not fit: this page has the first of each cell."
    none, _, sentence = explorer.trials_that_fit(np.arange(10000), 10)
    assert not len(none) and "This page has no trajectories: 10,000 trials" in sentence


def test_a_page_of_five_thousand_trials_is_small():
    run = aligned(random_search(5000))
    data = explorer.page_data(run, score_trials(run), PAGE)
    rate = next(column for column in data["settings"] if column["name"] == "learning_rate")
    values = np.array(rate["values"])[unpacked(rate["codes"], "<i4")]
    np.testing.assert_array_equal(values, run.trials["learning_rate"])
    assert data["records"] is None and len(json.dumps(data)) < 2_000_000


def test_an_experiment_without_scores_has_final_values_reference_losses_and_every_column(small):
    run, _ = small
    finals = dict(final_loss=np.linspace(1, 2, 48), final_gain=np.r_[np.nan, np.geomspace(1e-3, 1, 47)])
    trials = run.trials.assign(**finals).drop(columns=[n for n in run.trials if n.startswith("line_")])
    trials["status"] = ["diverged", *["ok"] * 47]
    references = pd.DataFrame(dict(uniform=np.full(48, 4.6), best=3.0, best_se=0.1))
    settings = [name for name in run.setting_names if name in trials]
    bare = run.replace(trials=trials, references=references, setting_names=settings)
    data = explorer.page_data(bare, trials, Page())
    assert data["colour"] == "column:final_loss" and data["views"][0]["name"] == "status"
    loss, gain = data["columns"]
    assert loss["low"] == 1 + 1 / 47  # the other trial of the cell diverged
    assert (loss["log"], gain["log"], gain["group"]) == (False, True, "final values")
    assert data["charts"][0]["references"] and len(data["charts"][0]["curves"]) == 2
    assert {chart["title"] for chart in data["charts"][1:]} >= {"norm v", "v diag"}
    assert [line["name"] for line in data["records"]["references"]] == ["uniform", "best"]
    words = [panel["title"] for panel in data["maps"][0]["panels"]]
    assert words == ["SGD, keys all", "Adam, keys all", "SGD, keys unmasked", "Adam, keys unmasked"]


def test_scripts_and_style_are_installed_and_all_in_the_page(small):
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    folder = ROOT / "analysis" / "page"
    installed = {path for pattern in listed["topicjax.analysis.page"] for path in folder.glob(pattern)}
    found = {path for kind in ("js", "css") for path in folder.rglob(f"*.{kind}")}
    assert found <= installed
    text = explorer.explorer(*small, PAGE)
    script = text.split('<script type="module">')[1]
    assert not re.search(r"^(import|export) ", script, re.M)
    for path in (path for path in found if path.parent.name == "web" and path.name != "document.js"):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert text.count(first) == 1, path
    assert bundle("document.js").count("// What every page does") == 1  # of the whole page, see html.py
    for own in (script, bundle("document.js")):
        names = re.findall(r"^(?:async )?(?:function|const|let) (\w+)", own, re.M)
        assert len(names) == len({*names})  # of all modules together


def test_hostile_words_cannot_leave_the_data():
    run = aligned(small_run())
    run = run.replace(trials=run.trials.assign(stop_reason=HOSTILE))
    text = explorer.explorer(run, score_trials(run), PAGE)
    assert HOSTILE not in text and text.count("</script>") == 2


@pytest.fixture(scope="module")
def browser():
    found = start_browser(DESK, 1000)
    yield found
    found.quit()


@pytest.fixture(scope="module")
def small_page(small, tmp_path_factory) -> str:
    return written(*small, tmp_path_factory.mktemp("small"))


@pytest.fixture
def opened(browser, small_page):
    browser.get("about:blank")  # else an address that differs in its view only would not load the page again
    browser.get(small_page)
    yield browser
    assert browser.get_log("browser") == []


def ask(browser, script: str, *arguments):
    return browser.execute_script(script, *arguments)


def labels(browser) -> list[str]:
    script = "return [...document.querySelectorAll('#explorer .cell')].map(c => c.getAttribute('aria-label'))"
    return ask(browser, script)


def count(browser) -> str:
    return ask(browser, "return document.querySelector('#explorer .count').textContent")


def detail(browser) -> str:
    return ask(browser, "return document.querySelector('#explorer .detail').innerText")


def click(browser, selector: str, number: int = 0) -> None:
    """Click as a reader does; a cell is not an HTML element, so the event is made."""
    event = "new MouseEvent('click', {bubbles: true})"
    ask(
        browser,
        f"document.querySelectorAll(arguments[0])[arguments[1]].dispatchEvent({event})",
        selector,
        number,
    )


def tick(browser, text: str) -> None:
    """Tick or untick the box with this text."""
    script = "[...document.querySelectorAll('#explorer .chip')].find(c => c.children[c.children.length - 1]"
    script += ".textContent === arguments[0] || c.children[2]?.textContent === arguments[0]).click()"
    ask(browser, script, text)


def choose(browser, what: str, value: str) -> None:
    """Choose colours by the key of a view or column, or axes by their names."""
    script = "const s = document.querySelector(`select[data-choice=${arguments[0]}]`);"
    script += "s.value = [...s.options].find(o => [o.value, o.text].includes(arguments[1])).value;"
    ask(browser, script + "s.dispatchEvent(new Event('change', {bubbles: true}))", what, value)


def expected_labels(scores: pd.DataFrame, view: str) -> set[str]:
    """The text of each cell, from the table of cells."""
    names = dict(sgd="SGD", adam="Adam")
    found = set()
    for row in score_cells(scores).to_dict("records"):
        kind, theta = row["class" + VIEWS[view]], row["theta" + VIEWS[view]]
        own = scores[(scores[CELL] == pd.Series(row)[CELL]).all(axis=1)]
        counts = own["class" + VIEWS[view]].value_counts()
        others = [f"{number} {name}" for name, number in counts.items() if name != kind]
        place = f"cross-entropy, {names[row['optimizer']]}, keys {row['key_visibility']}"
        axes = f"learning rate {row['learning_rate']:g}, init scale {row['init_scale']:g}"
        axes = axes.replace("0.0001", "1e-4")
        share = "; ".join([f"{counts[kind]} of 2 trials", *others])
        name = "Θ" if view == "loss" else f"Θ ({view})"
        found.add(f"{place}, {axes}: {kind} ({share}), {name} {'-' if np.isnan(theta) else f'{theta:.3g}'}")
    return found


@pytest.mark.parametrize("view", VIEWS)
def test_every_cell_says_what_the_scores_say(opened, small, view):
    choose(opened, "colour", f"view:{view}")
    assert set(labels(opened)) == expected_labels(small[1], view)
    assert count(opened) == "24 cells with 48 trials of 48"


def test_a_map_can_be_coloured_by_any_column(opened, small):
    choose(opened, "colour", "column:onset_attention")
    cells = score_cells(small[1])["onset_attention"]
    text = ask(opened, "return document.querySelector('#explorer .controls:has(.bar)').innerText")
    assert "onset attention" in text and f"{cells.max():g}" in text
    fills = "return [...document.querySelectorAll('#explorer .cell .shape')].map(s => s.getAttribute('fill'))"
    found = ask(opened, fills)
    assert found.count("url(#no-value)") == cells.isna().sum() and len(found) == 24
    assert sum("onset attention -" in label for label in labels(opened)) == cells.isna().sum()
    choose(opened, "colour", "view:loss")
    assert "url(#no-value)" not in ask(opened, fills)


def test_a_click_shows_the_trials_of_the_cell(opened, small):
    _, scores = small
    number = next(n for n, text in enumerate(labels(opened)) if "Adam, keys all, learning rate 1, " in text)
    label = labels(opened)[number]
    click(opened, "#explorer .cell", number)
    text = detail(opened)
    own = scores[(scores["optimizer"] == "adam") & (scores["key_visibility"] == "all")]
    own = own[(own["learning_rate"] == 1) & (own["init_scale"] == (1e-4 if "1e-4" in label else 1e-2))]
    assert len(own) == 2 and all(f"{trial} · seed" in text for trial in own["trial_id"])
    assert "loss: two-stage, Θ 1 " in text and "loss: V-only, Θ -" in text
    assert "stopped step 790" in text and "stop reason decided" in text
    assert "at the end: held-out loss 3.2, V: same - other topic 5, ‖W^V‖ 150 (step 790)" in text
    lines = "return document.querySelectorAll(`#explorer [data-curve=${arguments[0]}]`).length"
    assert [ask(opened, lines, name) for name in ("eval_loss", "a_topic", "norm_v", "norm_e")] == [2, 2, 2, 0]
    assert ask(opened, "return document.querySelectorAll('#explorer .limit').length") == 2
    tick(opened, "steps on a log axis")
    assert "at the end: held-out loss 3.2" in detail(opened)


def read(browser, place: str = ".detail") -> str:
    """What the first chart says at its cursor."""
    return ask(browser, f"return document.querySelector('#explorer {place} .readout').textContent")


def ticks(browser, place: str = ".detail") -> list[str]:
    script = f"return [...document.querySelectorAll('#explorer {place} .chart')[0].querySelectorAll('.tick')]"
    return ask(browser, script + ".map(t => t.textContent)")


def test_values_of_curves_are_read_and_steps_zoomed(opened, small):
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.common.by import By

    run, _ = small
    number = next(n for n, text in enumerate(labels(opened)) if "Adam, keys all, learning rate 1, " in text)
    click(opened, "#explorer .cell", number)

    def recorded(text: str) -> None:
        said = re.fullmatch(r"step (\d+): held-out loss ([\d.]+), same.*? ([\d.]+) \(seed \d, (\w+)\)", text)
        assert said is not None, text
        frame = run.trajectories.set_index(["trial_id", "step"]).loc[(said[4], int(said[1]))]
        assert float(said[2]) == pytest.approx(frame["eval_loss"], rel=1e-3)
        assert float(said[3]) == pytest.approx(frame["eval_loss_uniform"], rel=1e-3)

    plot = opened.find_element(By.CSS_SELECTOR, "#explorer svg.plot")
    ActionChains(opened).move_to_element_with_offset(plot, 20, 0).perform()
    recorded(read(opened))
    ask(opened, "document.querySelector('#explorer svg.plot').focus()")
    ActionChains(opened).send_keys(Keys.ARROW_LEFT * 3, Keys.ARROW_DOWN).perform()
    recorded(read(opened))
    whole = ticks(opened)
    ActionChains(opened).send_keys("+").perform()  # and the chart keeps the focus
    assert ticks(opened) != whole and "zoom=" in opened.current_url
    ActionChains(opened).send_keys("-").perform()
    assert ticks(opened) == whole and "zoom=" not in opened.current_url
    plot = opened.find_element(By.CSS_SELECTOR, "#explorer svg.plot")
    drag = ActionChains(opened).move_to_element_with_offset(plot, -60, 0).click_and_hold()
    drag.move_by_offset(90, 5).release().perform()
    low, high = (int(step) for step in re.findall(r"zoom=(\d+)\+(\d+)", opened.current_url)[0])
    assert 0 < low < high < 1000 and str(high) in ticks(opened)
    ask(opened, "document.querySelector('#explorer svg.plot').focus()")
    ActionChains(opened).send_keys(Keys.ESCAPE).perform()
    assert ticks(opened) == whole


def test_two_cells_are_compared_on_the_same_axes(opened):
    every = labels(opened)
    first = next(n for n, text in enumerate(every) if "Adam, keys all, learning rate 1, " in text)
    second = next(n for n, text in enumerate(every) if "SGD, keys unmasked, learning rate 10, " in text)
    click(opened, "#explorer .cell", first)
    press(opened, "Pin, to compare with another cell")
    assert "Choose a second cell" in detail(opened)
    click(opened, "#explorer .cell", second)
    texts = ask(
        opened, "return [...document.querySelectorAll('#explorer .detail h3')].map(h => h.textContent)"
    )
    assert texts[0].startswith("cross-entropy, SGD, keys unmasked · learning rate 10")
    assert texts[1].startswith("Pinned: cross-entropy, Adam, keys all · learning rate 1 ")
    assert ticks(opened) == ticks(opened, ".detail + .detail") != []
    pressed = "return document.querySelectorAll('#explorer [aria-pressed=true]').length"
    assert ask(opened, pressed) == 2
    press(opened, "Unpin")
    assert ask(opened, pressed) == 1 and ask(opened, "return document.querySelector('.compared')") is None


def press(browser, text: str) -> None:
    script = (
        "[...document.querySelectorAll('#explorer button')].find(b => b.textContent === arguments[0]).click()"
    )
    ask(browser, script, text)


def set_range(browser, label: str, value: str) -> None:
    """Type the end of a brush as a number."""
    script = "const i = document.querySelector(`#explorer .range input[aria-label='${arguments[0]}']`);"
    ask(browser, script + "i.value = arguments[1]; i.dispatchEvent(new Event('change'))", label, value)


def test_brushes_filter_the_map_and_a_link_keeps_the_view(opened, small):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    _, scores = small
    ask(opened, "document.querySelector('#explorer .brush').open = true")
    pause(opened)
    set_range(opened, "learning rate from", "0.5")
    kept = scores[scores["learning_rate"] > 0.5]
    assert count(opened) == f"{len(kept) // 2} cells with {len(kept)} trials of 48"
    set_range(opened, "Θ (norm) from", "0.9")  # leaves out trials without a score too
    own = kept[kept["theta_norm"] >= 0.9]
    cells = len(own.drop_duplicates(CELL))
    assert 0 < len(own) < len(kept) and count(opened) == f"{cells} cells with {len(own)} trials of 48"
    tick(opened, "SGD")
    choose(opened, "colour", "view:norm")
    own = own[own["optimizer"] == "adam"]
    click(opened, "#explorer .cell", 1)
    left = count(opened), labels(opened), detail(opened)
    assert left[0].endswith(f"with {len(own)} trials of 48")
    link = opened.current_url
    opened.get("about:blank")
    opened.get(link)
    assert (count(opened), labels(opened), detail(opened)) == left
    click(opened, "#explorer .tools button", 1)  # Clear filters
    assert count(opened) == "24 cells with 48 trials of 48"
    plot = opened.find_elements(By.CSS_SELECTOR, "#explorer svg.over")[0]
    drag = ActionChains(opened).move_to_element_with_offset(plot, -20, -60).click_and_hold()
    drag.move_by_offset(190, 140).release().perform()
    assert opened.current_url.count("brush=") == 2
    assert count(opened) != "24 cells with 48 trials of 48"


def pause(browser) -> None:
    browser.execute_async_script("setTimeout(arguments[0], 50)")


def test_runs_are_searched_by_their_words_and_settings(browser, tmp_path):
    runs = [
        Entry("first", "Is it fast?", settings="optimizer=adam learning_rate=0.01 learning_rate=0.1"),
        Entry("second", "Is it slow?", settings="optimizer=sgd learning_rate=1..70"),
    ]
    text = page.page("runs", "", page.runs(runs), [])
    (tmp_path / "index.html").write_text(text, encoding="utf-8")
    browser.get((tmp_path / "index.html").as_uri())

    def found(words: str) -> list[str]:
        script = "const i = document.querySelector('#search input'); i.value = arguments[0];"
        ask(browser, script + "i.dispatchEvent(new Event('input'))", words)
        shown = "return [...document.querySelectorAll('tr[data-search]')].filter(r => r.offsetHeight)"
        return ask(browser, shown + ".map(r => r.querySelector('b').textContent)")

    both = ["first", "second"]
    for words, expected in (
        ("", both),
        ("slow", both[1:]),
        ("is learning_rate=0.10", both[:1]),
        ("learning_rate=1", both[1:]),  # not 0.1; in the range of many values
        ("learning_rate=71", []),
        ("sgd fast", []),
    ):
        assert found(words) == expected, words
    assert browser.get_log("browser") == []


def test_a_word_is_told_to_pointer_and_keyboard(browser, tmp_path):
    words = page.Words({"Θ (Theta)": ("how far V had come", "Θ")})
    text = page.page("words", "", page.answer("Θ is 1.", "", "", [], words), [("Words", words.glossary())])
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    browser.get((tmp_path / "report.html").as_uri())
    ask(browser, "document.querySelector('.term').focus()")
    assert ask(browser, "return document.querySelector('.tip').innerText") == "Θ (Theta)\nhow far V had come"
    ask(browser, "document.activeElement.blur()")
    assert ask(browser, "return document.querySelector('.tip').hidden")
    ask(browser, "document.querySelector('.term').click()")  # tells, and does not lead away
    assert ask(browser, "return [document.querySelector('.tip').hidden, location.hash]") == [False, ""]


def test_when_nothing_is_left_a_sentence_says_so(opened):
    click(opened, "#explorer .cell")
    for name in ("SGD", "Adam"):
        tick(opened, name)
    text = "No trial is left: clear some filters or brushes."
    assert ask(opened, "return document.querySelector('#explorer .map').innerText") == text
    assert detail(opened) == text


def test_a_trial_is_found_by_the_beginning_of_its_id(opened):
    def find(text: str) -> str:
        script = "const i = document.querySelector('[data-choice=trial]'); i.value = arguments[0];"
        ask(opened, script + "i.dispatchEvent(new Event('input'))", text)
        return ask(opened, "return document.querySelector('[data-choice=trial]').parentNode.innerText")

    assert "10 trial ids start with this" in find("03") and "No trial ids start with this" in find("9")
    assert find("037").strip() == "find"
    assert ask(opened, "return document.querySelector('#explorer .found').dataset.trial") == "037"
    tick(opened, "SGD")
    tick(opened, "Adam")
    assert "filtered out" in find("037")


def test_a_dark_page_for_readers_who_prefer_it(opened):
    def seen() -> list[str]:
        click(opened, "#explorer .cell")
        script = (
            "return [document.body, document.querySelector('#explorer .line')].map(e => getComputedStyle(e))"
        )
        return ask(opened, script + ".map((s, n) => n ? s.stroke : s.backgroundColor)")

    light = seen()
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        other = seen()
    finally:
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    bright = [[sum(map(int, re.findall(r"\d+", text)[:3])) for text in own] for own in (light, other)]
    assert bright[0][0] == 3 * 255 and bright[1][0] < 100  # the ground ...
    assert bright[1][1] >= bright[0][1]  # ... and a line on it


def test_the_matrices_of_a_trial_are_drawn_and_read(browser, small, tmp_path):
    from selenium.webdriver import ActionChains, Keys

    run, scores = small
    rng = np.random.default_rng(0)
    blocks = {one: np.r_[rng.normal(size=(2, 2)), [[0, 5]]] for one in run.trials["trial_id"]}
    rows = pd.Index(["a", "a", "b"], name="row")

    def inside(run, scores, ids):
        return {one: {"blocks": pd.DataFrame(blocks[one], rows, ["u", "v"])} for one in ids}

    def inside_cell(run, scores, ids):
        return {one: {"whole": np.outer(np.arange(40), np.arange(40))} for one in ids}

    browser.get(written(run, scores, tmp_path, replace(PAGE, inside=inside, inside_cell=inside_cell)))
    click(browser, "#explorer .cell", 2)
    names = (
        "return [...document.querySelectorAll('#explorer .matrices figcaption b')].map(b => b.textContent)"
    )
    assert ask(browser, names) == ["blocks", "whole"]
    chosen = ask(browser, "return document.querySelector('[data-choice=inside]').value")
    ask(browser, "document.querySelector('#explorer svg.heat').focus()")
    ActionChains(browser).send_keys(Keys.ARROW_DOWN * 2, Keys.ARROW_RIGHT).perform()
    text = read(browser, ".matrices")
    assert text.startswith("row b, v: ")
    found = blocks[run.trials["trial_id"][int(chosen)]]
    assert float(text.split(": ")[1]) == pytest.approx(found[2, 1], abs=0.51 * np.ptp(found) / 89)
    other = "const s = document.querySelector('[data-choice=inside]'); s.selectedIndex = 1 - s.selectedIndex;"
    ask(browser, other + "s.dispatchEvent(new Event('change'))")
    assert ask(browser, names) == ["blocks"]  # only one trial stands for the cell
    assert browser.get_log("browser") == []


def test_hovering_shows_numbers(opened):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    cell = opened.find_elements(By.CSS_SELECTOR, "#explorer .cell")[2]
    ActionChains(opened).move_to_element(cell).perform()
    tip = opened.find_element(By.CSS_SELECTOR, ".tip")
    assert tip.is_displayed() and "Θ 1 (1 to 1)" in tip.text and "onset v 50 (50 to 50)" in tip.text


def test_filters_leave_cells_out_and_come_back(opened):
    tick(opened, "Adam")
    assert count(opened) == "12 cells with 24 trials of 48"
    assert all(text.startswith("cross-entropy, SGD") for text in labels(opened))
    tick(opened, "unmasked")
    assert count(opened) == "6 cells with 12 trials of 48"
    tick(opened, "V-only")
    assert count(opened) == "2 cells with 4 trials of 48"
    assert {text.split(": ")[1][:9] for text in labels(opened)} == {"two-stage"}
    tick(opened, "SGD")
    assert count(opened) == "0 cells with 0 trials of 48" and labels(opened) == []
    click(opened, "#explorer .tools button", 1)  # Clear filters
    assert count(opened) == "24 cells with 48 trials of 48"


def test_any_two_settings_can_be_the_axes(opened):
    titles = "return [...document.querySelectorAll('#explorer .panel h4')].map(h => h.textContent)"
    choose(opened, "axes", "learning rate by keys")
    pairs = [(name, scale) for scale in ("1e-4", "0.01") for name in ("SGD", "Adam")]
    assert ask(opened, titles) == [f"cross-entropy, {name}, init scale {scale}" for name, scale in pairs]
    assert count(opened) == "24 cells with 48 trials of 48"
    choose(opened, "axes", "init scale by optimizer")
    assert all("keys" in title and "η" in title for title in ask(opened, titles))
    tick(opened, "unmasked")
    assert count(opened) == "12 cells with 24 trials of 48"


def test_cells_are_walked_and_opened_by_keys(opened):
    from selenium.webdriver import ActionChains, Keys

    here = "return document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    stops = "return document.querySelectorAll('#explorer .cell[tabindex=\"0\"]').length"
    ask(opened, "document.querySelector('#explorer .cell[tabindex=\"0\"]').focus()")
    keys = ActionChains(opened)
    keys.send_keys(Keys.HOME).perform()
    assert "SGD, keys all, learning rate 0.1, init scale 0.01" in ask(opened, here)
    places = ask(opened, "return document.querySelectorAll('#explorer .opened').length")
    assert places == 1
    for key, place in (
        (Keys.ARROW_RIGHT, "learning rate 1, init scale 0.01"),
        (Keys.ARROW_DOWN, "learning rate 1, init scale 1e-4"),
        (Keys.ARROW_RIGHT, "SGD, keys all, learning rate 10, init scale 1e-4"),
        (Keys.ARROW_RIGHT, "Adam, keys all, learning rate 0.1, init scale 1e-4"),  # the next panel
    ):
        ActionChains(opened).send_keys(key).perform()
        assert place in ask(opened, here)
        assert ask(opened, stops) == 1
        tip = ask(opened, "return document.querySelector('.tip').innerText")
        assert place.split(", ")[-1] in tip and "Θ" in tip
    assert ask(opened, "return document.querySelectorAll('#explorer .ring').length") == 1
    ActionChains(opened).send_keys(Keys.ENTER).perform()
    assert ask(opened, here) == "cross-entropy, Adam, keys all · learning rate 0.1 · init scale 1e-4"
    assert ask(opened, "return document.querySelectorAll('#explorer [aria-pressed=true]').length") == 1
    ActionChains(opened).send_keys(Keys.ESCAPE).perform()
    assert "Adam, keys all, learning rate 0.1, init scale 1e-4" in ask(opened, here)


def test_the_selection_is_downloaded(opened, small):
    run, scores = small
    tick(opened, "SGD")
    ask(
        opened,
        "URL.createObjectURL = blob => { blob.text().then(text => { window.saved = text }); return '#' }",
    )
    ask(opened, "HTMLAnchorElement.prototype.click = function () { window.saved_as = this.download }")
    click(opened, "#explorer .tools button")
    text = opened.execute_async_script("setTimeout(() => arguments[0](window.saved), 200)")
    found = pd.read_csv(io.StringIO(text), dtype={"trial_id": str}, keep_default_na=True)
    own = scores[scores["optimizer"] == "adam"].reset_index(drop=True)
    assert ask(opened, "return window.saved_as") == f"{run.name}-selection.csv"
    shared = [name for name in found if name in own and not name.startswith(("suffix", "flags"))]
    assert set(shared) >= {*CELL, "seed", "class", "class_norm", "theta_order", "log_lag", "onset_attention"}
    pd.testing.assert_frame_equal(found[shared], own[shared], check_dtype=False, rtol=1e-6)
    assert found["stopped_step"].tolist() == [790, 1000] * 12


def test_ids_and_commands_are_copied(opened):
    from selenium.webdriver.common.by import By

    click(opened, "#explorer .cell")
    trial = ask(opened, "return document.querySelector('#explorer [data-trial]').dataset.trial")
    commands = ask(opened, "return [...document.querySelectorAll('[data-copy]')].map(b => b.dataset.copy)")
    folder = Path(opened.current_url.removeprefix("file://")).parent
    assert commands[:2] == [trial, f"topicjax inspect {folder} {trial}"]
    opened.find_element(By.CSS_SELECTOR, "[data-copy]").click()
    said = "setTimeout(() => arguments[0](document.querySelector('#explorer .quiet').textContent), 300)"
    assert opened.execute_async_script(said) == f"Copied: {trial}"


def test_in_print_the_static_map_stands_alone(opened):
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = ask(opened, "return getComputedStyle(document.getElementById('explorer')).display")
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert shown == "none"


def unfinished_run():
    """The first trials of a 5 x 5 lattice: they are no regions, the rest was not run."""
    values = np.geomspace(1e-2, 1, 5)
    places = [(values[number % 5], values[number // 5]) for number in (*range(5, 15), 24)]
    return run_of(*(case(*TWO_STAGE, learning_rate=rate, init_scale=scale) for rate, scale in places))


def refined_run():
    """A coarse lattice, and a finer one around a boundary."""
    values, names = np.geomspace(1e-2, 1, 9), ("learning_rate", "init_scale")
    places = {(i, j) for i in range(0, 9, 4) for j in range(0, 9, 4)} | {
        (i, j) for i in (1, 2, 3) for j in (1, 2, 3)
    }
    run = run_of(
        *(
            case(TWO_STAGE[0], TWO_STAGE[1] * (i > 2), learning_rate=values[i], init_scale=values[j])
            for i, j in sorted(places)
        )
    )
    listed = dict.fromkeys(names, values[::4].tolist())
    return run.replace(manifest=dict(runs=[dict(refine=dict(axes=[*names], levels=2), axes=listed)]))


POOR = {
    "one trial": (lambda: run_of(case(*TWO_STAGE)), 1),
    "one axis": (lambda: run_of(*(case(*TWO_STAGE, l2=l2) for l2 in (0.0, 1e-4, 1e-3))), 3),
    "words": (
        lambda: run_of(
            *(
                case(*TWO_STAGE, init=i, infinite_documents=d)
                for i in ("normal", "uniform")
                for d in (True, False)
            )
        ),
        4,
    ),
    "no lines": (
        lambda: run_of(
            *(case(*TWO_STAGE, lines=dict(line_stage1=np.nan, line_stage2=np.nan), seed=s) for s in (0, 1))
        ),
        1,
    ),
    "diverged": (
        lambda: run_of(
            *(
                case(
                    *TWO_STAGE,
                    status="diverged",
                    learning_rate=r,
                    norm_v=np.nan,
                    eval_loss=np.where(STEP > 90, np.nan, 4.6),
                )
                for r in (1.0, 2.0)
            )
        ),
        2,
    ),
    "refined": (refined_run, 18),
    "unfinished": (lambda: unfinished_run(), 11),
    "sample": (lambda: random_search(30), 30),
    "many": (lambda: random_search(3000), 120),
}


@pytest.mark.parametrize("kind", POOR)
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_any_run_has_a_map(browser, kind, width, tmp_path):
    make, cells = POOR[kind]
    run = aligned(make())
    size = dict(width=width, height=900, deviceScaleFactor=1, mobile=width == PHONE)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(written(run, score_trials(run), tmp_path))
        assert len(labels(browser)) == cells
        click(browser, "#explorer .cell")
        assert "Copy id" in detail(browser)
        choose(browser, "colour", "view:norm")
        assert ask(browser, "return document.documentElement.scrollWidth") <= width
        assert browser.get_log("browser") == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_a_page_of_twenty_thousand_trials_opens(browser, tmp_path, capsys):
    from selenium.webdriver.support.ui import WebDriverWait

    def inside(run, scores, ids):
        return {one: {"m": np.eye(4)} for one in ids}

    run = aligned(random_search(20_000))
    scores = score_trials(run)
    browser.get(written(run, scores, tmp_path, replace(PAGE, inside=inside, inside_cell=inside)))
    is_ready = "return Number(document.querySelector('#explorer').dataset.ready ?? 0)"
    seconds = WebDriverWait(browser, 60).until(lambda opened: ask(opened, is_ready)) / 1000
    size = (tmp_path / "report.html").stat().st_size
    with capsys.disabled():
        print(f"\n20,000 trials: page of {size / 1e6:.1f} MB, map ready after {seconds:.1f} s")
    data = data_of((tmp_path / "report.html").read_text(encoding="utf-8"))
    cells = on_page(data)
    assert len(labels(browser)) == sum(len(own) for _, _, own in cells)
    assert count(browser).endswith(" with 20,000 trials of 20,000")
    remarks = ask(browser, "return document.querySelector('#explorer').innerText")
    assert "Of 20,000 trials, matrices are drawn only for the one that stands for a cell" in remarks
    assert "This page has no trajectories: 20,000 trials are too many for one file." in remarks
    click(browser, "#explorer .cell")
    assert "Copy id" in detail(browser)
    trial = 12_345
    found = ask(
        browser,
        "const i = document.querySelector('[data-choice=trial]'); i.value = arguments[0];"
        "i.dispatchEvent(new Event('input')); return new URLSearchParams(location.hash.slice(5)).get('cell')",
        data["ids"][trial],
    )
    own = next(members for _, _, panel in cells for members in panel if trial in members)
    assert found == data["ids"][own[0]]
    tick(browser, "0.01")
    left = int((scores["init_scale"] != 0.01).sum())
    assert count(browser).endswith(f" with {left:,} trials of 20,000")
    assert browser.get_log("browser") == []


def test_a_refined_map_has_no_gaps(browser, tmp_path):
    run = aligned(refined_run())
    browser.get(written(run, score_trials(run), tmp_path))
    shapes = "return [...document.querySelectorAll('#explorer .cell .shape')].map(s => s.getAttribute('d'))"
    boxes = [re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H", path) for path in ask(browser, shapes)]
    assert len(boxes) == 18
    corners = [np.array(own, float).T for own in boxes]
    areas = [((right - left) * (bottom - top)).sum() for left, top, right, bottom in corners]
    frame = "const f = document.querySelector('#explorer .frame'); return f.width.baseVal.value * "
    box = ask(browser, frame + "f.height.baseVal.value")
    assert min(areas) > 0 and sum(areas) == pytest.approx(box)


def test_places_that_were_not_run_are_dots(browser, tmp_path):
    run = aligned(unfinished_run())
    browser.get(written(run, score_trials(run), tmp_path))
    assert ask(browser, "return document.querySelectorAll('#explorer .cell .shape').length") == 11
    assert ask(browser, "return document.querySelectorAll('#explorer .empty').length") == 3 * 5 - 11


def test_on_a_phone_everything_can_be_touched(small_page):
    phone = start_browser(PHONE, 844)
    try:
        phone.get(small_page)
        top = ask(phone, "return document.querySelector('#explorer .cell').getBoundingClientRect().top")
        assert top < 300
        click(phone, "#explorer .cell", 3)
        assert ask(phone, "return document.documentElement.scrollWidth") <= PHONE
        sizes = "return [...document.querySelectorAll(arguments[0])]"
        sizes += ".filter(e => e.offsetParent || e.ownerSVGElement)"
        sizes += ".map(e => e.getBoundingClientRect()).map(r => Math.min(r.width, r.height))"
        assert min(ask(phone, sizes, "#explorer button, #explorer select, #explorer .chip")) >= FINGER - 1
        assert min(ask(phone, sizes, "#explorer .cell .shape")) >= FINGER - 1
        top = ask(phone, "return document.querySelector('#explorer .detail h3').getBoundingClientRect().top")
        assert -1 <= top < 100
        assert phone.get_log("browser") == []
    finally:
        phone.quit()


def test_hostile_words_are_text_in_the_browser(browser, tmp_path):
    run = aligned(small_run())
    run = run.replace(trials=run.trials.assign(stop_reason=HOSTILE))
    browser.get(written(run, score_trials(run), tmp_path))
    click(browser, "#explorer .cell")
    assert HOSTILE in detail(browser)
    assert ask(browser, "return document.images.length") == 0
    assert browser.get_log("browser") == []

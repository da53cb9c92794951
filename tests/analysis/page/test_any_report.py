"""The report of a run of any experiment: drawn numbers against plain loops, and poor runs."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.calls import count_calls
from support.synthetic_runs import make_run, manifest_of, whole_id, write_run

from topicjax.analysis.figures import any_run
from topicjax.analysis.frames import reference_losses
from topicjax.analysis.page import report
from topicjax.errors import UserError
from topicjax.store.manifest import write_manifest
from topicjax.store.reader import Run, Status

STEPS = np.arange(0, 101, 10)
RATES, DEPTHS, SEEDS = (0.01, 0.1, 1.0), (1, 2), 5
CALLS_PER_TRIAL = 20  # of functions, for each figure and table


def deep(
    number: int, step: np.ndarray = STEPS, status: str = "ok", **settings: Any
) -> tuple[dict, pd.DataFrame]:
    """Return a trial of another experiment with its records."""
    rng = np.random.default_rng(number)
    columns = dict(loss=np.exp(-step / 8 + rng.normal(size=len(step))), gap=rng.normal(size=len(step)))
    columns["none"] = np.full(len(step), np.nan)
    finals = {f"final_{name}": values[-1] for name, values in columns.items()}
    row = dict(trial_id=whole_id(f"{number:x}"), **settings, status=status, diverged_step=None, **finals)
    return row, pd.DataFrame(dict(trial_id=row["trial_id"], step=step, **columns))


def grid() -> list[tuple[dict, pd.DataFrame]]:
    """Return three rates at two depths with five seeds; two diverged, one of them alone in its seed."""
    made = []
    for number, (rate, depth, seed) in enumerate(itertools.product(RATES, DEPTHS, range(SEEDS))):
        status = "diverged" if (rate, depth, seed) in ((1.0, 2, 0), (1.0, 2, 3)) else "ok"
        settings = dict(seed=seed, learning_rate=rate, depth=depth, width=64)
        made.append(deep(number, status=status, **settings))
    made[0][1].loc[4, "loss"] = np.nan  # a hole in one trial that did not diverge
    return made


def folder_of(folder: Path, made: list[tuple[dict, pd.DataFrame]], **manifest: Any) -> Path:
    rows, frames = zip(*made, strict=True)
    named = dict(runs=[dict(experiment="deep_linear")], references=[]) | manifest
    return write_run(folder, list(rows), list(frames), **named)


def run_of(made: list[tuple[dict, pd.DataFrame]]) -> Run:
    rows, frames = zip(*made, strict=True)
    return make_run(pd.DataFrame(list(rows)), pd.concat(frames, ignore_index=True))


def page_of(folder: Path, made: list[tuple[dict, pd.DataFrame]], **manifest: Any) -> str:
    text = report.write(folder_of(folder, made, **manifest)).read_text()
    assert "defect" not in text
    return re.sub(r'src="data:[^"]*"', "", text)


def expected_band(made: list, name: str, **settings: Any) -> np.ndarray:
    """Return the quartiles of a column at each step over the trials that did not diverge."""
    own = [frame for row, frame in made if row["status"] == "ok" and settings.items() <= row.items()]
    found = []
    for place in range(len(STEPS)):
        values = [frame[name].iloc[place] for frame in own]
        found.append(np.percentile([value for value in values if np.isfinite(value)], [25, 50, 75]))
    return np.array(found)


def band_of(collection: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and the upper edge of a drawn band."""
    (path,) = collection.get_paths()
    edges = [sorted({y for at, y in path.vertices if at == step}) for step in x]
    return np.array([edge[0] for edge in edges]), np.array([edge[-1] for edge in edges])


def test_medians_and_bands_over_the_steps_are_those_of_a_plain_loop():
    made = grid()
    run = run_of(made)
    (picture,) = any_run.records(run, run.trials)
    loss, gap, *_ = picture.figure.axes
    assert (loss.get_title(), gap.get_title()) == ("loss", "gap")  # none has no panel
    assert (loss.get_yscale(), gap.get_yscale()) == ("log", "linear")
    for ax, name in ((loss, "loss"), (gap, "gap")):
        cells = list(itertools.product(RATES, DEPTHS))
        assert len(ax.lines) == len(ax.collections) == len(cells)
        for line, band, (rate, depth) in zip(ax.lines, ax.collections, cells, strict=True):
            low, middle, high = expected_band(made, name, learning_rate=rate, depth=depth).T
            assert np.asarray(line.get_xdata()) == pytest.approx(STEPS)
            assert np.asarray(line.get_ydata()) == pytest.approx(middle)
            drawn = band_of(band, STEPS)
            assert drawn[0] == pytest.approx(low) and drawn[1] == pytest.approx(high)
    colours = [line.get_color() for line in loss.lines]
    assert all((colours[place] == colours[place + 1]).all() for place in (0, 2, 4))
    assert (colours[0] != colours[2]).any()


def test_a_line_ends_where_fewer_than_half_of_its_trials_have_records():
    """Of the five seeds of a cell two stop after the second record and one after the third."""
    made = [(row, frame) for row, frame in grid() if row["status"] == "ok"]
    most = {0: 2, 1: 2, 2: 3}
    made = [(row, frame.head(most.get(row["seed"], len(frame)))) for row, frame in made]
    run = run_of(made)
    (picture,) = any_run.records(run, run.trials)
    ends = {}
    for line, (rate, depth) in zip(
        picture.figure.axes[0].lines, itertools.product(RATES, DEPTHS), strict=True
    ):
        own = [frame for row, frame in made if (row["learning_rate"], row["depth"]) == (rate, depth)]
        left = [sum(len(frame) > place for frame in own) for place in range(len(STEPS))]
        ends[rate, depth] = STEPS[[place for place, count in enumerate(left) if 2 * count >= len(own)][-1]]
        assert np.asarray(line.get_xdata())[-1] == ends[rate, depth]
    assert STEPS[2] in ends.values()
    assert "A line ends where fewer than half" in picture.caption


def test_the_caption_counts_what_is_drawn_and_what_is_left_out():
    run = run_of(grid())
    (picture,) = any_run.records(run, run.trials)
    assert "bands quartiles over seeds, 3 to 5 trials each." in picture.caption
    assert "Diverged and left out: 2 of 30 trials." in picture.caption
    assert "Not drawn, without finite values: none." in picture.caption
    assert "On a logarithmic scale: loss." in picture.caption and "Colour: learning rate." in picture.caption
    assert "Shown:" not in picture.caption
    assert "6 lines" in picture.alt


def test_of_many_cells_as_many_are_drawn_as_the_caption_says():
    made = [deep(n, learning_rate=0.1 * (n + 1), status="diverged" if n < 10 else "ok") for n in range(60)]
    run = run_of(made)
    (picture,) = any_run.records(run, run.trials)
    loss = picture.figure.axes[0]
    assert len(loss.lines) == any_run.MOST_LINES
    assert "Shown: 24 of 50 cells with a trial that did not diverge, evenly spaced" in picture.caption
    assert "Each line is one trial." in picture.caption
    ends = [made[place][1]["loss"] for place in (10, 59)]
    for line, values in zip((loss.lines[0], loss.lines[-1]), ends, strict=True):
        assert np.asarray(line.get_ydata()) == pytest.approx(values.to_numpy())


def test_final_values_are_those_of_a_plain_loop():
    made = grid()
    run = run_of(made)
    picture = any_run.finals(run, run.trials)
    for ax, name in zip(picture.figure.axes[:2], ("loss", "gap"), strict=True):
        assert ax.get_xscale() == "log" and ax.get_xlabel() == "learning rate"
        for line, band, depth in zip(ax.lines, ax.collections, DEPTHS, strict=True):
            found = [expected_band(made, name, learning_rate=rate, depth=depth)[-1] for rate in RATES]
            low, middle, high = np.array(found).T
            assert np.asarray(line.get_ydata()) == pytest.approx(middle)
            assert band_of(band, np.array(RATES)) == (pytest.approx(low), pytest.approx(high))
    assert "Final values of 28 trials against learning rate, a colour per value of depth." in picture.caption
    assert "Medians and quartiles over seed." in picture.caption
    assert "left out: 2 of 30 trials." in picture.caption


def test_values_that_share_a_place_are_neighbours_under_their_middle_one():
    values = pd.Series(np.random.default_rng(0).permutation(np.arange(103.0)), name="x")
    pooled = any_run.pooled(values, 40)
    assert pooled.nunique() == 40
    for middle, own in values.groupby(pooled):
        assert sorted(own) == list(np.arange(own.min(), own.max() + 1))
        assert middle == sorted(own)[(len(own) - 1) // 2]
    assert any_run.pooled(values, 103) is values


def test_the_table_of_cells_is_that_of_a_plain_loop(tmp_path):
    made = grid()
    page_of(tmp_path / "run", made)
    table = pd.read_csv(tmp_path / "run" / "tables" / "cells.csv")
    assert list(table.columns[:4]) == ["learning_rate", "depth", "number of trials", "diverged trials"]
    cells = list(itertools.product(RATES, DEPTHS))
    assert len(table) == len(cells)
    for (_, row), (rate, depth) in zip(table.iterrows(), cells, strict=True):
        assert (row["learning_rate"], row["depth"]) == (rate, depth)
        own = [row for row, _ in made if (row["learning_rate"], row["depth"]) == (rate, depth)]
        ok = [row["final_loss"] for row in own if row["status"] == "ok"]
        assert (row["number of trials"], row["diverged trials"]) == (len(own), len(own) - len(ok))
        assert row["final_loss (median)"] == pytest.approx(np.median(ok))
        assert np.isnan(row["final_none (median)"])
    assert len((tmp_path / "run" / "tables" / "cells.md").read_text().splitlines()) == 2 + len(cells)


def test_the_page_has_the_counts_first_and_every_part(tmp_path):
    text = page_of(tmp_path / "run", grid(), planned=32, description="Is it fast?")
    first = re.search(r'<div class="answer "><div>(.*?)</div>', text)
    assert first is not None
    assert first[1] == "30 of 32 planned trials finished, 2 missing: 28 ok, 2 diverged."
    assert "Settings that vary: seed (5 values), learning rate (3 values), depth (2 values)." in text
    assert "Is it fast? Experiment deep_linear: 30 trials in 6 cells." in text
    heads = re.findall(r"<h2>(.*?)</h2>", text)
    assert heads == ["Answer", "Records", "Final values", "Cells", "Settings", "Provenance", "Files"]
    shared = text[text.index("Settings that all trials share") :]
    assert re.findall(r'<td class="text">(.*?)</td><td>(.*?)</td>', shared)[0] == ("width", "64")
    links = set(re.findall(r'href="([^"#:]+)"', text))
    assert links and all((tmp_path / "run" / link).exists() for link in links)
    assert "Not drawn (" not in text and "No table" not in text


def state(planned: int | None, beyond: int = 0, problems: tuple[str, ...] = ()) -> Status:
    return Status("deep", 3, 3, 0, planned, beyond, (), problems, (), None)


def test_the_first_sentence_knows_what_is_planned():
    run = run_of([deep(n, seed=n) for n in range(3)])
    said = [
        (state(3), "3 of 3 planned trials finished: 3 ok, 0 diverged."),
        (state(None), "3 trials finished (number planned unknown): 3 ok, 0 diverged."),
        (state(2, 1), "2 of 2 planned trials finished, and 1 trial that no plan names: 3 ok, 0 diverged."),
    ]
    for each, sentence in said:
        assert next(any_run.findings(run, run.trials, run.trials, each)) == sentence
    assert "Not complete: a file is lost." in [
        *any_run.findings(run, run.trials, run.trials, state(3, 0, ("a file is lost",)))
    ]


def test_one_trial_has_a_page(tmp_path):
    text = page_of(tmp_path / "run", [deep(1, seed=3, learning_rate=0.1)])
    assert "1 of 1 planned trial finished: 1 ok, 0 diverged." in text and "No setting varies." in text
    assert "Each line is one trial." in text and "Diverged" not in text
    assert "Settings that vary" not in text and "Final values" not in text
    assert (tmp_path / "run" / "figures" / "records.png").exists()


def test_a_trial_with_a_single_record_is_a_point():
    run = run_of([deep(1, STEPS[:1], seed=3)])
    (picture,) = any_run.records(run, run.trials)
    (line,) = picture.figure.axes[0].lines
    assert line.get_marker() == "o" and len(line.get_xdata()) == 1


def test_trials_that_all_diverged_have_a_page(tmp_path):
    made = [deep(n, status="diverged", seed=n, learning_rate=1.0 + n // 2) for n in range(4)]
    text = page_of(tmp_path / "run", made)
    assert "4 of 4 planned trials finished: 0 ok, 4 diverged." in text
    assert "Not drawn (records): no value of the 0 trials that did not diverge is finite." in text
    assert "Not drawn (finals): no final value of the 0 trials that did not diverge is finite." in text
    assert list(pd.read_csv(tmp_path / "run" / "tables" / "cells.csv")["diverged trials"]) == [2, 2]


def test_records_without_a_finite_value_have_a_page(tmp_path):
    made = [deep(n, seed=n, learning_rate=1.0 + n) for n in range(2)]
    for row, frame in made:
        frame[["loss", "gap"]] = np.nan
        row["final_loss"], row["final_gap"] = np.nan, np.inf
    text = page_of(tmp_path / "run", made)
    assert "no value of the 2 trials that did not diverge is finite" in text


def test_words_and_truth_values_are_settings_too(tmp_path):
    kinds = ("plain", "cost_in_$", "two_$_and_$", "other")
    choices = itertools.product(kinds, (True, False), range(2))
    made = [deep(n, seed=seed, kind=kind, bias=bias) for n, (kind, bias, seed) in enumerate(choices)]
    text = page_of(tmp_path / "run", made)
    assert "Not drawn (" not in text
    run = run_of(made)
    picture = any_run.finals(run, run.trials)
    ax = picture.figure.axes[0]
    assert [tick.get_text() for tick in ax.get_xticklabels()][-1] == r"two_\$_and_\$"
    assert {line.get_linestyle() for line in ax.lines} == {"None"}  # words have no order
    (legend,) = picture.figure.legends
    assert [entry.get_text() for entry in legend.get_texts()] == ["no", "yes"]


def test_truth_values_alone_are_an_axis(tmp_path):
    text = page_of(tmp_path / "run", [deep(n, bias=n % 2 == 0) for n in range(4)])
    assert "Final values of 4 trials against bias." in text and "Not drawn (" not in text


def test_names_that_the_other_tables_know_keep_their_own(tmp_path):
    made = [deep(n, ratio=0.5 * n, noise_se=n, value=n, n=n, trials=n) for n in range(1, 4)]
    text = page_of(tmp_path / "run", made)
    assert "same / different topic" not in text
    for head in ("ratio", "noise se (setting)", "value", "n", "trials"):
        assert f"<th>{head}</th>" in text
    table = pd.read_csv(tmp_path / "run" / "tables" / "cells.csv")
    assert list(table["trials"]) == [1, 2, 3] and list(table["number of trials"]) == [1, 1, 1]


def test_many_records_and_columns_are_bounded(tmp_path):
    step = np.arange(600)
    row, frame = deep(1, step)
    names = [f"column_{number}" for number in range(40)]
    frame = frame.assign(**{name: np.cos(step) for name in names})
    run = run_of([(row, frame)])
    pictures = any_run.records(run, run.trials)
    assert sum(len(picture.figure.axes) for picture in pictures) == any_run.MOST_COLUMNS
    assert "Shown: the first 24 of 42 columns." in pictures[0].caption
    assert "More than 250 records are drawn as medians over bins of steps." in pictures[0].caption
    assert len(pictures[0].figure.axes[0].lines[0].get_xdata()) <= 250


def random_search(count: int) -> Run:
    """Return a run in which no two trials share a cell."""
    rng = np.random.default_rng(0)
    ids = [f"{number:012x}" for number in range(count)]
    rows = dict(trial_id=ids, seed=np.arange(count) % 3, status="ok", diverged_step=np.nan)
    rows |= dict(rate=10 ** rng.uniform(-3, 1, count), decay=rng.uniform(size=count))
    rows |= dict(final_loss=rng.uniform(size=count))
    step = np.tile(np.arange(5), count)
    frame = pd.DataFrame(dict(trial_id=np.repeat(ids, 5), step=step, loss=rng.uniform(size=5 * count)))
    return make_run(pd.DataFrame(rows), frame)


def test_a_random_search_has_a_page_of_bounded_size(tmp_path):
    run = random_search(3000)
    folder = tmp_path / "run"
    for name, frame in (("trials", run.trials), ("trajectories", run.trajectories)):
        (folder / name).mkdir(parents=True)
        frame.to_parquet(folder / name / "part-00000.parquet", index=False)
    write_manifest(folder, manifest_of("wild", runs=[dict(experiment="deep_linear")], references=[]))
    text = report.write(folder).read_text()
    assert len(text) < 2_000_000 and "Shown: 24 of 3,000 cells" in text
    assert "Neighbouring values of rate share 40 places" in text
    assert "Neighbouring values of decay share 8 places" in text
    assert "(the first 40 of 3000 rows)" in text
    assert len(pd.read_csv(folder / "tables" / "cells.csv")) == 3000


@pytest.mark.parametrize("make", [any_run.records, any_run.finals])
def test_more_trials_are_not_more_calls_but_longer_arrays(make):
    runs = [(run, run.trials) for run in map(random_search, (1000, 3000))]
    make(*runs[0])
    few, many = (count_calls(make, *each) for each in runs)
    assert (many - few) / 2000 < CALLS_PER_TRIAL


def test_pieces_are_said_and_no_scores_are_written(tmp_path):
    said: list[str] = []
    report.write(folder_of(tmp_path / "run", grid()), said.append)
    pieces = ["page explorer ...", "figure records (1 of 3) ...", "figure finals (2 of 3) ..."]
    pieces += ["table cells (3 of 3) ..."]
    assert [line for line in said if line.endswith("...")] == ["reading the run ...", *pieces]
    assert not list((tmp_path / "run").glob("*.parquet"))


def with_details(made: list[tuple[dict, pd.DataFrame]]) -> pd.DataFrame:
    """Return details of these trials: as many layers as they are deep, and a column without a number."""
    frames = []
    for row, frame in made:
        rng = np.random.default_rng(int(row["trial_id"], 16))
        for layer in range(1, row["depth"] + 1):
            norm = layer * np.exp(rng.normal(size=len(frame)))
            frames.append(frame[["trial_id", "step"]].assign(layer=layer, norm=norm, none=np.nan))
    return pd.concat(frames, ignore_index=True)


def test_details_are_drawn_a_panel_per_cell_and_a_line_per_layer():
    """Nothing is pooled but the seed: a learning rate of its own in each panel."""
    made = grid()
    table = with_details(made)
    run = run_of(made).replace(details=table)
    assert any_run.has_details(run, run.trials)
    (picture,) = any_run.details(run, run.trials)
    assert picture.title == "norm by layer" and "Diverged and left out: 2 of 30 trials." in picture.caption
    assert "medians and quartiles over seeds, 5 trials at most." in picture.caption
    *panels, scale = picture.figure.axes
    assert scale.get_ylabel() == "layer"
    for ax, (rate, depth) in zip(panels, itertools.product(RATES, DEPTHS), strict=True):
        assert ax.get_title() == f"learning rate {rate:g}, depth {depth}"
        cell = dict(learning_rate=rate, depth=depth, status="ok")
        ids = [row["trial_id"] for row, _ in made if cell.items() <= row.items()]
        assert len(ax.lines) == depth
        for line, layer in zip(ax.lines, range(1, depth + 1), strict=True):
            own = table[table["trial_id"].isin(ids) & (table["layer"] == layer)]
            middle = [np.median(own.loc[own["step"] == step, "norm"]) for step in STEPS]
            assert np.asarray(line.get_ydata()) == pytest.approx(middle)


def test_runs_without_details_or_with_very_many_layers():
    made = grid()
    assert not any_run.has_details(run_of(made), pd.DataFrame())
    deep_ones = [(row | dict(depth=40), frame) for row, frame in made[:3]]
    run = run_of(deep_ones).replace(details=with_details(deep_ones))
    (picture,) = any_run.details(run, run.trials)
    assert "Shown: 24 of 40 lines." in picture.caption and len(picture.figure.axes[0].lines) == 24


def test_losses_are_drawn_beside_their_references_and_above_the_lowest():
    """Both depths have references of their own: a panel each, the loss above, its excess below."""
    made = [(row, frame.assign(loss=frame["loss"] + 0.5 * row["depth"])) for row, frame in grid()]
    run = run_of(made)
    depth = run.trials["depth"]
    run = run.replace(
        references=pd.DataFrame({"no_input": 2.0 * depth, "bayes": 0.5 * depth, "none": np.nan})
    )
    picture = any_run.losses(run, "loss", reference_losses(run))
    assert "reference losses (no input 2, 4; bayes 0.5, 1)" in picture.caption
    titles = [ax.get_title() for ax in picture.figure.axes]
    for depth in DEPTHS:
        above = picture.figure.axes[titles.index(f"depth {depth}")]
        below = picture.figure.axes[titles.index(f"depth {depth}") + len(DEPTHS)]
        for ax, least in ((above, 0.0), (below, 0.5 * depth)):
            flat = {
                line.get_label(): line.get_ydata()[0] for line in ax.lines if str(line.get_color()) == "black"
            }
            known = {"no input": 2.0 * depth - least, "bayes": 0.5 * depth - least}
            assert flat == pytest.approx({name: value for name, value in known.items() if value or not least})
        assert (above.get_yscale(), below.get_yscale()) == ("linear", "log")
        for ax, least in ((above, 0.0), (below, 0.5 * depth)):
            curves = [line for line in ax.lines if str(line.get_color()) != "black"]
            for line, rate in zip(curves, RATES, strict=True):
                middle = expected_band(made, "loss", learning_rate=rate, depth=depth)[:, 1] - least
                assert np.asarray(line.get_ydata()) == pytest.approx(middle)


def test_how_trials_ended_is_a_table_where_reasons_differ(tmp_path):
    made = [(row | dict(stop_reason="steps", steps=100), frame) for row, frame in grid()]
    made[-1][0]["steps"] = 200  # a reason and a setting may have one name
    assert "How trials ended" not in page_of(tmp_path / "same", made)
    for row, _ in made[:3]:
        row["stop_reason"] = "decided"
    assert "How trials ended" in page_of(tmp_path / "several", made)
    table = pd.read_csv(tmp_path / "several" / "tables" / "ended.csv")
    names = ["learning_rate", "depth", "steps", "number of trials", "ended: decided", "ended: steps"]
    assert list(table.columns) == names and table["steps"].tolist() == [100] * 6 + [200]
    assert table["ended: decided"].tolist() == [3, 0, 0, 0, 0, 0, 0]
    assert table["ended: steps"].tolist() == [2, 5, 5, 5, 5, 4, 1]


def test_curves_of_columns_have_a_panel_per_value_and_pool_nothing_but_seeds():
    made = grid()
    figure = any_run.curves_by(run_of(made), ["loss", "gap"], panel="depth")
    assert [ax.get_title() for ax in figure.axes] == ["depth 1", "depth 2"]
    for ax, depth in zip(figure.axes, DEPTHS, strict=True):
        drawn = [(name, rate) for name in ("loss", "gap") for rate in RATES]
        for line, (name, rate) in zip(ax.lines, drawn, strict=True):
            middle = expected_band(made, name, depth=depth, learning_rate=rate)[:, 1]
            assert np.asarray(line.get_ydata()) == pytest.approx(middle)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["loss", "gap", "a line per learning rate: median over seeds"]
    one = any_run.curves_by(run_of(made), "loss", where=dict(depth=1, learning_rate=0.1))
    middle = expected_band(made, "loss", depth=1, learning_rate=0.1)[:, 1]
    assert np.asarray(one.axes[0].lines[0].get_ydata()) == pytest.approx(middle)
    assert one.legends[0].get_texts()[-1].get_text() == "band: quartiles over seeds"
    with pytest.raises(UserError, match="unknown column 'lost'"):
        any_run.curves_by(run_of(made), "lost")
    with pytest.raises(UserError, match="unknown setting 'deep'; did you mean 'depth'"):
        any_run.curves_by(run_of(made), "loss", panel="deep")
    with pytest.raises(UserError, match="unknown setting 'deep'; did you mean 'depth'"):
        any_run.curves_by(run_of(made), "loss", where=dict(deep=1))

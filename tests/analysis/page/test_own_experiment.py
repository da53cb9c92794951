"""The page of an experiment outside the topic model: classes, a claim, two figures, reference losses.

Deep linear networks by their closed form: a mode of strength s follows a logistic curve at a rate 2 s, so
everything that the page says is known.
"""

import itertools
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from support.synthetic_runs import make_run, whole_id, write_run

from topicjax import Experiment, Real, TrialSettings, Whole, cli
from topicjax.analysis import Claim, Entry, Figure, Page, Verdict, curves_by
from topicjax.analysis.figures import any_trial
from topicjax.analysis.page import lookup, report
from topicjax.analysis.page.selection import Selection
from topicjax.errors import UserError
from topicjax.store.reader import Run
from topicjax.sweep import product
from topicjax.sweep.files import load_sweep

STRENGTHS = (4.0, 2.0, 1.0)
STEPS = np.arange(0, 1001, 20)
RATES, SCALES, DEPTHS, SEEDS = (0.003, 0.01), (1e-3, 1e-1), (1, 2), 2
ORDERED, TOGETHER = "one at a time", "together"


@dataclass(frozen=True)
class Spec:
    depth: Annotated[int, Whole(1), "number of weight matrices"] = 2
    steps: Annotated[int, Whole(1), "training steps"] = 1000
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 20


class Stream(NamedTuple):
    seed: Annotated[Any, Whole(0), "of the data"] = 0


class Hypers(NamedTuple):
    learning_rate: Annotated[Any, Real(low=0), "of gradient descent"] = 0.01
    init_scale: Annotated[Any, Real(low=0), "of the product of the weights"] = 0.01


def curves(rate: float, scale: float, depth: int) -> dict[str, np.ndarray]:
    """Return the modes and the loss over the steps."""
    starts = [scale / strength for strength in STRENGTHS]
    if depth == 1:
        modes = [1 - (1 - u) * np.exp(-s * rate * STEPS) for s, u in zip(STRENGTHS, starts, strict=True)]
    else:
        modes = [
            1 / (1 + (1 / u - 1) * np.exp(-2 * s * rate * STEPS))
            for s, u in zip(STRENGTHS, starts, strict=True)
        ]
    loss = sum(s**2 * (1 - mode) ** 2 / 2 for s, mode in zip(STRENGTHS, modes, strict=True))
    return {"loss": loss} | {f"mode_{number}": mode for number, mode in enumerate(modes, 1)}


def trials() -> list[tuple[dict[str, Any], pd.DataFrame]]:
    made = []
    for number, (depth, rate, scale, seed) in enumerate(
        itertools.product(DEPTHS, RATES, SCALES, range(SEEDS))
    ):
        own = curves(rate, scale, depth)
        row = dict(trial_id=whole_id(f"{number:x}"), depth=depth, steps=1000, record_every=20, seed=seed)
        row |= dict(learning_rate=rate, init_scale=scale, status="ok", diverged_step=None)
        row |= {f"final_{name}": values[-1] for name, values in own.items()}
        made.append((row, pd.DataFrame(dict(trial_id=row["trial_id"], step=STEPS, **own))))
    return made


def references(trials: pd.DataFrame) -> pd.DataFrame:
    rest = [sum(s**2 for s in STRENGTHS[m:]) / 2 for m in range(4)]
    names = ("nothing learned", "one mode", "two modes", "all modes")
    return pd.DataFrame(dict(zip(names, rest, strict=True)), index=trials.index)


def score(run: Run) -> pd.DataFrame:
    half = run.trajectories.set_index("step").groupby("trial_id")
    onsets = {n: half[f"mode_{n}"].apply(lambda mode: (mode >= 0.5).idxmax()) for n in (1, 2)}
    scores = run.trials[["trial_id", *run.setting_names]].copy()
    for number, onset in onsets.items():
        scores[f"onset_{number}"] = scores["trial_id"].map(onset)
    ratio = scores["onset_2"] / scores["onset_1"]
    return scores.assign(**{"class": ratio.gt(1.8).map({True: ORDERED, False: TOGETHER})})


def rate_law(run: Run, scores: pd.DataFrame) -> Verdict:
    ratio = (scores["onset_2"] / scores["onset_1"]).median()
    verdict = "holds" if abs(ratio - 2) < 0.4 else "fails"
    return Verdict(verdict, f"the second mode takes {ratio:.2f} times as long (predicted 2)", ratio=ratio)


def modes(run: Run, scores: pd.DataFrame) -> Figure:
    drawn = curves_by(run, ["mode_1", "mode_2", "mode_3"], panel="depth")
    return Figure(drawn, "Modes over the steps", "Medians and quartiles over all else.")


def onsets(run: Run, scores: pd.DataFrame) -> Figure:
    """Onsets of the first two modes."""
    from matplotlib.figure import Figure as Canvas

    ax = Canvas(figsize=(5, 3), layout="constrained").subplots()
    ax.loglog(scores["onset_1"], scores["onset_2"], "o")
    return Figure(ax, "Onsets", "The second mode against the first.")


def slowest(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Slowest trials."""
    return scores.nlargest(2, "onset_2")[["depth", "learning_rate", "onset_2"]]


def own_report() -> Page:
    return Page(
        score=score,
        classes={ORDERED: "#0072B2", TOGETHER: "#E69F00"},
        claims=[
            Claim("rate law", "A mode of strength s is learned at a rate s", rate_law, "Saxe et al. 2014")
        ],
        figures=[modes, onsets],
        tables=[slowest],
        words={"onset": "the first step at which a mode is half learned"},
    )


def experiment(page: Any = own_report) -> Experiment:
    """Return an experiment of this name with a page, without what trains it."""
    own = object.__new__(Experiment)
    object.__setattr__(own, "settings", TrialSettings("deep_linear", Spec, Stream, Hypers))
    object.__setattr__(own, "report", page)
    return own


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a run of the experiment, whose file is there; its reference losses are known."""
    file = tmp_path / "mine.py"
    file.write_text("")
    monkeypatch.setattr(lookup, "load_sweep", lambda path: SimpleNamespace(experiment=experiment()))
    monkeypatch.setattr(Run, "references", property(lambda run: references(run.trials)), raising=False)
    rows, frames = zip(*trials(), strict=True)
    runs = [dict(experiment="deep_linear", file=str(file), description="One mode after another?")]
    return write_run(tmp_path / "run", list(rows), list(frames), runs=runs, references=[])


def page_of(folder: Path, **options: Any) -> str:
    return re.sub(r'src="data:[^"]*"', "", report.write(folder, **options).read_text())


def test_the_page_opens_with_the_claim_and_has_all_that_the_file_brings(folder):
    text = page_of(folder)
    assert "defect" not in text and "Not drawn" not in text and "Not scored" not in text
    claim = re.search(r'<li class="holds">(.*?)</li>', text, re.S)
    assert claim is not None and "rate law: holds." in claim[1] and "(Saxe et al. 2014)" in claim[1]
    assert re.search(r"the second mode takes [\d.]+ times as long \(predicted 2\)", claim[1])
    assert text.index("rate law") < text.index('id="explorer"') < text.index("<nav>")
    text = text.partition("</nav>")[2]
    order = ["(Saxe et al. 2014)", "planned trials finished", "Modes over the steps", "Onsets."]
    order += ["Slowest trials", "reference losses"]
    order += ["Final values", "<dfn>onset", "Settings that vary.", "Provenance"]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    heads = re.findall(r"<h2>(.*?)</h2>", text)
    assert heads == [
        *("Answer", "Figures", "Tables", "Losses", "Records", "Final values", "Cells"),
        *("Words", "Settings", "Provenance", "Files"),
    ]
    for name in ("modes", "onsets", "losses"):
        assert (folder / "figures" / f"{name}.png").exists()
    assert "nothing learned 10.5; one mode 2.5; two modes 0.5; all modes 0" in text
    scores = pd.read_parquet(folder / "scores.parquet")
    assert set(scores["class"]) == {ORDERED, TOGETHER}
    assert "scores.parquet</a>: one row per trial: scores and classes" in text


@pytest.mark.usefixtures("undrawn")
def test_classes_are_a_filter(folder, capsys):
    count = int((pd.DataFrame(score(loaded(folder)))["class"] == TOGETHER).sum())
    text = page_of(folder, chosen=Selection(filters=(f"class={TOGETHER}",)))
    assert f"Filtered by class={TOGETHER}: {count} of 16 trials are shown." in text
    assert len(pd.read_parquet(folder / "scores.parquet")) == 16
    assert cli.main(["report", str(folder), "--filter", "class=apart"]) == 2
    assert "unknown class 'apart'" in capsys.readouterr().err
    assert cli.main(["report", str(folder), "--filter", "depth=two"]) == 2
    assert "depth is 'two'" in capsys.readouterr().err


def loaded(folder: Path) -> Run:
    import topicjax

    return topicjax.load(folder)


def broken(run: Run, *scores: Any) -> Any:
    raise KeyError("mode_9")


WRONG: dict[str, tuple[Page, str]] = {
    "score": (
        Page(score=broken, figures=[modes]),
        "Not scored (broken): broken of mine.py raises KeyError: &#39;mode_9&#39;.",
    ),
    "rows": (
        Page(score=lambda run: run.trials.head(3)),
        "Not scored (&lt;lambda&gt;): score does not return one row per trial.",
    ),
    "table": (Page(score=lambda run: 3), "score does not return a table with a column trial_id"),
    "parquet": (
        Page(score=lambda run: run.trials[["trial_id"]].assign(odd=[3, "x"] * 8)),
        "Not written (scores.parquet): scores.parquet of mine.py raises Arrow",
    ),
    "words": (Page(words=3), "Not shown (words): words of mine.py raises TypeError"),
    "figure": (Page(figures=[broken, modes]), "Not drawn (broken): broken of mine.py raises KeyError"),
    "no figure": (Page(figures=[lambda run, scores: 3]), "it returns int; allowed: a Figure"),
    "no table": (Page(tables=[lambda run, scores: 3]), "it returns int; allowed: a DataFrame"),
    "ends": (
        Page(figures=[Entry("ends", lambda run, scores: sys.exit("bye"))]),
        "Not drawn (ends): ends of mine.py raises SystemExit: bye.",
    ),
    "bad text": (
        Page(figures=[lambda run, scores: Figure(bad_text(), "Bad", "Text.")]),
        "of mine.py raises ValueError",
    ),
    "claim": (
        Page(claims=[Claim("law", "It holds", broken)]),
        "Not judged: broken of mine.py raises KeyError",
    ),
    "verdict": (
        Page(claims=[Claim("law", "It holds", lambda run, scores: "holds")]),
        "Not judged: its check returns str; allowed: a Verdict.",
    ),
    "findings": (
        Page(findings=lambda run, scores, cells, status: broken(run)),
        "Not shown (answer): answer of mine.py raises KeyError",
    ),
}


def bad_text() -> Any:
    from matplotlib.figure import Figure as Canvas

    figure = Canvas()
    figure.suptitle("$x")
    figure.suptitle(r"$\nothing$")
    return figure


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore")
def test_nothing_a_users_file_raises_takes_the_page_down_or_is_our_defect(name, folder, monkeypatch, request):
    if name != "bad text":  # which is found when it is drawn
        request.getfixturevalue("undrawn")
    page, sentence = WRONG[name]
    monkeypatch.setattr(
        lookup, "load_sweep", lambda path: SimpleNamespace(experiment=experiment(lambda: page))
    )
    text = page_of(folder)
    assert sentence in text and "defect" not in text
    assert "16 of 16 planned trials finished" in text
    assert "Final values" in text


def failing() -> Page:
    raise ImportError("no module named mine")


REMARKS = {
    "raises": (experiment(failing), "report of mine.py raises ImportError: no module named mine; the page"),
    "no page": (experiment(lambda: 3), "report of deep_linear returns int; allowed: a Page; the page shows"),
    "figures": (experiment(lambda: Page(figures=3)), "report of mine.py raises TypeError"),
    "another": ("encoder", "mine.py defines encoder, not deep_linear; the page shows only what any run has."),
}


@pytest.mark.parametrize("name", REMARKS)
@pytest.mark.usefixtures("undrawn")
def test_a_file_that_brings_no_page_is_a_sentence(name, folder, monkeypatch):
    own, sentence = REMARKS[name]
    monkeypatch.setattr(lookup, "load_sweep", lambda path: SimpleNamespace(experiment=own))
    text = page_of(folder)
    assert sentence in text and "defect" not in text and "Losses" in text


def test_a_file_that_is_gone_or_inside_the_folder_is_not_run(folder, monkeypatch):
    def refuse(path: str) -> Any:
        raise AssertionError(f"{path} is run")

    monkeypatch.setattr(lookup, "load_sweep", refuse)
    run = loaded(folder)
    for file in ("/nowhere/mine.py", "mine.py", str(folder / "mine.py")):
        (folder / "mine.py").write_text("")
        manifest = dict(runs=[dict(experiment="deep_linear", file=file)])
        found = lookup.find_page(run.replace(manifest=manifest))
        said = f"The file {file} that defines the experiment deep_linear is gone: "
        assert found.remark == f"{said}the page shows only what any run has."
        assert found.page == Page()
    assert lookup.find_page(run.replace(manifest=dict(runs=[dict(experiment="deep_linear")]))).remark == ""


def test_a_sweep_file_given_by_its_path_is_known_by_it(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        'from topicjax.sweep import product\nEXPERIMENT = "one_layer"\nSWEEP = product(seed=range(2))\n'
    )
    monkeypatch.chdir(tmp_path)
    assert load_sweep("mine.py").file == str(tmp_path / "mine.py")
    assert load_sweep("smoke").file == "" and product(seed=range(2))


def test_a_trial_without_a_drawing_of_its_own_is_drawn_by_its_arrays(folder, tmp_path):
    """Any tree: a list of matrices, a vector, a number; the loss beside its references."""
    tree = dict(layers=[np.eye(3), np.arange(6.0).reshape(2, 3)], bias=np.arange(4.0), gain=np.float64(2.0))
    run = loaded(folder)
    trial_id = run.trials["trial_id"][3]
    run = run.replace(restore=lambda name, step: tree, snapshot_step=lambda name, step: step or 1000)
    files = report.inspect(run, trial_id[:12], out=tmp_path / "drawn")
    assert [file.name for file in files] == [
        *(f"{trial_id}-step1000.{kind}" for kind in ("png", "svg")),
        *(f"{trial_id}-step1000_2.{kind}" for kind in ("png", "svg")),
    ]
    records, weights = any_trial.inspect(run, trial_id, 1000, Page())
    titles = [ax.get_title() for ax in weights.figure.axes if ax.get_title()]
    assert titles == ["layers/0 (3 x 3)", "layers/1 (2 x 3)", "bias (4)", "gain (a number)"]
    images = [ax.images[0] for ax in weights.figure.axes if ax.images]
    assert np.asarray(images[1].get_array()) == pytest.approx(np.arange(6.0).reshape(2, 3))
    loss = records.figure.axes[0]
    assert loss.get_title() == "loss"
    expected = run.trajectories.loc[run.trajectories["trial_id"] == trial_id, "loss"]
    assert np.asarray(loss.lines[0].get_ydata()) == pytest.approx(expected.to_numpy())
    flat = {str(line.get_label()): float(np.asarray(line.get_ydata())[0]) for line in loss.lines[2:]}
    assert flat["one mode"] == 2.5 and flat["two modes"] == 0.5
    title = records.figure.get_suptitle().replace("\n", " ")
    assert "learning rate 0.003" in title and "depth 1" in title


def test_an_experiments_own_drawing_is_used_and_blamed(folder, monkeypatch, capsys):
    page = Page(inspect=broken)
    monkeypatch.setattr(
        lookup, "load_sweep", lambda path: SimpleNamespace(experiment=experiment(lambda: page))
    )
    run = loaded(folder).replace(snapshot_step=lambda name, step: 7)
    with pytest.raises(UserError, match=r"inspect of mine\.py raises KeyError: 'mode_9'"):
        report.inspect(run, run.trials["trial_id"][0])


def test_a_figure_is_one_of_matplotlib_or_its_axes():
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas()
    axes = canvas.subplots(2, 2)
    part = canvas.subfigures().subplots()
    for drawn in (canvas, axes, axes[0, 1], part, list(axes.flat)):
        made = Figure(drawn, "Title", "What is drawn.")
        assert made.figure is canvas and made.alt == "What is drawn."
    with pytest.raises(UserError, match="a Figure is made of str; allowed: matplotlib's, or axes"):
        Figure("picture.png", "Title", "Caption.")


def test_names_for_a_report_are_imported_without_matplotlib_until_they_draw():
    code = "import sys; from topicjax.analysis import Claim, Figure, Page, Verdict; import topicjax.analysis"
    code += "; sys.exit(any(name in sys.modules for name in ('jax', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_verdict_is_refused_where_it_is_given():
    with pytest.raises(ValueError, match="the verdict is 'true'; allowed: holds, fails, partly, undecided"):
        Verdict("true", "it does")


def test_a_run_without_a_folder_has_curves():
    rows, frames = zip(*trials(), strict=True)
    run = make_run(pd.DataFrame(list(rows)), pd.concat(frames, ignore_index=True))
    figure = curves_by(run, "mode_1", panel="depth", where=dict(learning_rate=0.01, init_scale=1e-3))
    for ax, depth in zip(figure.axes, DEPTHS, strict=True):
        drawn = np.asarray(ax.lines[0].get_ydata())
        assert drawn == pytest.approx(curves(0.01, 1e-3, depth)["mode_1"])

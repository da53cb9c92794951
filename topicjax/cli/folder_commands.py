"""Commands on run folders: status, verify, repair, restore, inspect, measure, report, claims and others."""

import argparse
import contextlib
import gc
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from threadpoolctl import threadpool_limits

from topicjax import advice
from topicjax.cli.json_output import write_json
from topicjax.cli.terminal import say, show
from topicjax.errors import UserError, counted, duration
from topicjax.store import reader
from topicjax.store.checkpoints import flatten
from topicjax.store.files import MEASURED, explained, holder_in_words, write_whole
from topicjax.store.verify import repair, verify
from topicjax.version import git_commit

SAY_SECONDS = 2.0
MOST_PROBLEMS = 5  # listed by status


def show_status(options: argparse.Namespace) -> int:
    """Print the status of a run, and of each plan if the folder holds several."""
    state = reader.status(options.folder)
    if options.json:
        write_json(options, {"folder": options.folder, **asdict(state)})
        return 0
    running = f"running ({holder_in_words(state.running)})" if state.running is not None else "not running"
    of = f" of {state.planned:,}" if state.planned is not None and not state.beyond else ""
    show(
        f"{state.sweep}: {state.finished:,}{of} trials finished, {state.ok:,} ok, {state.diverged:,} "
        f"diverged; {running}"
    )
    for problem in state.problems[:MOST_PROBLEMS]:
        show(problem)
    if state.problems:
        more = f"{len(state.problems):,} such files; " if len(state.problems) > 1 else ""
        show(f"{more}to set them aside: {advice.command('repair', options.folder)}")
    if state.versions:
        show(f"trained by {len(state.versions)} versions of the code: {'; '.join(state.versions)}")
    if state.arithmetic:
        show(f"arithmetic: {'; '.join(state.arithmetic)}")
    for name, count in state.measured.items():
        show(f"measured afterwards: {name} of {counted(count, 'snapshot')}")
    if len(state.plans) > 1:
        show("the folder holds trials of several plans:")
        for plan in state.plans:
            show(f"  {plan.finished:,} of {plan.planned:,}  {plan.words}")
    if state.beyond:
        show(f"{state.beyond:,} finished trials belong to no plan that the manifest names")
    return 0


def verify_folder(options: argparse.Namespace) -> int:
    """Check a run folder; exit code 1 and a list if something is not as it was written."""
    started = time.monotonic()
    verdict = verify(options.folder, verifying())
    seconds = time.monotonic() - started
    if options.json:
        found = {name: getattr(verdict, name) for name in ("trials", "chunks", "bytes_read")}
        problems = [asdict(problem) for problem in verdict.problems]
        about = {"folder": options.folder, "is_whole": not problems, **found, "seconds": seconds}
        write_json(options, {**about, "problems": problems})
        return 1 if problems else 0
    for problem in verdict.problems:
        show(problem.sentence)
    rate = verdict.bytes_read / 1e6 / max(seconds, 1e-9)
    show(
        f"{options.folder}: {verdict.trials:,} trials in {verdict.chunks:,} chunks, "
        f"{verdict.bytes_read / 1e6:,.1f} MB read in {seconds:.1f} s ({rate:,.0f} MB/s)"
    )
    if not verdict.problems:
        show("everything is as it was written")
        return 0
    show(f"{len(verdict.problems):,} problems; to set them aside: {advice.command('repair', options.folder)}")
    return 1


def repair_folder(options: argparse.Namespace) -> int:
    """Set aside damaged files; nothing is deleted."""
    reader.load(options.folder)
    verdict, moved = repair(options.folder, verifying())
    for problem in verdict.problems:
        show(problem.sentence)
    for path in moved:
        show(f"moved to {path}")
    if not verdict.problems:
        show("everything is as it was written: nothing to repair")
    else:
        show("the same `topicjax run` as before computes again what is missing")
    return 0


def verifying() -> Callable[[int, int], None]:
    """Make a function that reports the progress of a check every few seconds."""
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > SAY_SECONDS:
            last = time.monotonic()
            say(f"checked {done:,} of {total:,} chunks ...")

    return report


def restore_weights(options: argparse.Namespace) -> int:
    """Write one trial's weights to an .npz file."""
    import numpy as np

    if options.out.suffix != ".npz":
        raise UserError(f"--out is {str(options.out)!r}; allowed: a name that ends in .npz")
    if options.out.exists() and not options.force:
        raise UserError(f"{options.out} is there already; allowed: another --out, or --force")
    weights, _ = flatten(reader.load(options.folder).restore(options.trial_id, options.step))
    write_whole(options.out, lambda file: np.savez(file, allow_pickle=False, **weights))
    shapes = ", ".join(f"{name} {'x'.join(map(str, w.shape))}" for name, w in weights.items())
    show(f"{options.out}: {shapes}")
    return 0


def inspect_trial(options: argparse.Namespace) -> int:
    """Draw one trial's weights and trajectory, with its experiment's figures or generic ones."""
    with explained("draw into", options.out or options.folder):
        run = reader.load(options.folder)
        for path in analysis("page.report").inspect(run, options.trial_id, options.step, options.out):
            show(path)
    return 0


def measure_snapshots(options: argparse.Namespace) -> int:
    """Apply a measure to the snapshots of a run that it has not been applied to yet."""
    from topicjax.engine.options import read_options
    from topicjax.engine.resources import available_devices, choose_devices, configure_jax

    run = reader.load(options.folder)
    given = {} if options.devices is None else {"devices": options.devices}
    chosen = read_options(given)
    steps = None if options.steps is None else numbers(options.steps)
    trial_ids = chosen_trials(run, options)
    configure_jax(chosen)  # before a user's file is loaded: it may create jax arrays
    from topicjax.api import experiment_of, load
    from topicjax.engine.measuring import measure_run
    from topicjax.measures import load_measure

    measure, experiment = load_measure(options.measure), experiment_of(load(options.folder))
    count = chosen.devices if isinstance(chosen.devices, int) else None
    devices = choose_devices(available_devices(), count, None)
    outcome = measure_run(options.folder, experiment, measure, trial_ids, steps, options.again, devices, say)
    table = options.folder / MEASURED / measure.name
    if outcome.left:
        show(
            f"Stopped: {counted(outcome.measured, 'snapshot')} measured and kept in {table}, "
            f"{outcome.left:,} left.\nContinue with the same command: {advice.command(*options.arguments)}"
        )
        return 128 + (outcome.stopped_by or signal.SIGINT)
    before = f" ({outcome.before:,} were measured before)" if outcome.before else ""
    show(
        f"{table}: {', '.join(outcome.columns)} of {counted(outcome.measured, 'snapshot')}{before} in "
        f"{duration(outcome.seconds)} ({duration(outcome.compile_seconds)} of it compiling)\n"
        f"Next: {advice.report_command(options.folder)}"
    )
    return 0


def chosen_trials(run: reader.Run, options: argparse.Namespace) -> set[str] | None:
    """Find the trials that --filter and --trials choose; None: all."""
    if options.trials is None and not options.filters:
        return None
    chosen = set(run.trials["trial_id"])
    if options.trials is not None:
        chosen &= {run.find(text.strip()) for text in options.trials.split(",")}
    if options.filters:
        found = analysis("page.lookup").find_page(run)
        page, classes = found.page, {}
        if page.score and any(text.partition("=")[0].strip() == "class" for text in options.filters):
            scores = page.score(page.prepare(run) if page.prepare else run)
            scores = page.of_trials(scores) if page.of_trials else scores
            classes = dict(zip(scores["trial_id"], scores["class"], strict=True))
        kept = analysis("page.selection").Selection(filters=tuple(options.filters)).kept(run, found, classes)
        chosen &= set(run.trials.loc[kept, "trial_id"])
    if not chosen:
        raise UserError("no trial is left by --trials and --filter together; allowed: trials of both")
    return chosen


def numbers(text: str) -> list[int]:
    """Parse whole numbers separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--steps is {text!r}; allowed: whole numbers separated by commas") from None


def write_report(options: argparse.Namespace) -> int:
    """Write the report of a run into its folder, printing progress; with --watch, while the run continues.

    For a folder of run folders, write their index.
    """
    index = analysis("page.runs_index")
    if options.folder.is_dir() and not index.is_run(options.folder) and any(options.folder.iterdir()):
        names = dict(x="x", y="y", panel="panel", filters="filter", watch="watch")
        given = [option for name, option in names.items() if getattr(options, name)]
        if given and index.run_folders(options.folder):
            where = options.folder
            raise UserError(f"{where} is a folder of runs; allowed with --{given[0]}: one run folder")
        with explained("write into", options.folder):
            show(f"{index.write(options.folder, say)}: open it in a browser")
        return 0
    report, panel = analysis("page.report"), tuple(filter(None, options.panel.split(",")))
    chosen = analysis("page.selection").Selection(options.x, options.y, panel, tuple(options.filters))
    with explained("write into", options.folder), many_small_objects():
        if options.watch is None:
            path = report.write(options.folder, say, chosen)
        else:
            if not options.watch > 0:
                raise UserError(f"--watch is {options.watch:g}; allowed: seconds, above 0")

            def write(live: Any) -> Path:
                return report.write(options.folder, say if live is None else quiet, chosen, live)

            path = analysis("page.live").watch(options.folder, options.watch, write, say)
    show(f"{path}: open it in a browser")
    return 0


@contextlib.contextmanager
def many_small_objects() -> Iterator[None]:
    """Run Python and NumPy as analysis needs it: many small objects, and products of small matrices.

    Garbage is looked for rarely, since the objects of a figure live until it is closed.  NumPy has one
    thread: others would spin while they wait for the next product.
    """
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, *usual[1:])
    try:
        with threadpool_limits(1):
            yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def show_claims(options: argparse.Namespace) -> int:
    """Judge the claims of several runs: a table as HTML and Markdown, or as JSON."""
    made_by = analysis("page.claims_table")
    check_page_name(options.out)
    for folder in options.folders:
        reader.load(folder)  # a wrong name ends the command before the work
    with many_small_objects():
        table = made_by.make_table(options.folders, git_commit() or "", say)
    if options.json:
        write_json(options, asdict(table))
        return 0
    for path in made_by.write_table(table, options.out):
        show(path)
    show(table.summary)
    for each in table.missing:
        show(f"  not run: {each.claim} ({advice.command(*each.commands[0])})")
    return 0


def show_general(options: argparse.Namespace) -> int:
    """Tabulate where training of several runs is two-stage: HTML, Markdown and a figure, or JSON."""
    made_by = analysis("page.general")
    check_page_name(options.out)
    for folder in options.folders:
        reader.load(folder)  # a wrong name ends the command before the work
    with many_small_objects():
        table = made_by.make_general(options.folders, git_commit() or "", say)
    if options.json:
        write_json(options, {"answer": table.answer, **asdict(table)})
        return 0
    for path in made_by.write_general(table, options.out):
        show(path)
    show(" ".join(table.answer))
    for remark in table.remarks:
        show(f"  {remark}")
    return 0


def check_page_name(path: Path) -> None:
    """Raise a UserError unless a page can have this name."""
    if path.suffix != ".html":
        raise UserError(f"--out is {str(path)!r}; allowed: a name that ends in .html")


def quiet(text: str) -> None:
    """Print nothing: a watched page reports its progress in one line."""


def export_run(options: argparse.Namespace) -> int:
    """Export a run for other programs, printing progress."""
    from topicjax import export

    out = options.out or options.folder / "export" / options.format
    paths = export.FORMATS[options.format](reader.load(options.folder), out, say)
    if options.format == "csv":
        show("\n".join(map(str, paths)))
    else:
        viewer = advice.quoted(["tensorboard", "--logdir", str(out)])
        show(f"{out}: {len(paths):,} trials; to see them: {viewer}")
    return 0


def analysis(module: str) -> ModuleType:
    """Import a module of topicjax.analysis, whose folder lies next to the package in a checkout."""
    return import_module(f"topicjax.analysis.{module}")

"""The commands: take what was typed, call what does it, print what came of it."""

import argparse
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from topicjax.cli import advice
from topicjax.errors import UserError
from topicjax.overrides import override
from topicjax.store import reader
from topicjax.store.files import explained, write_whole
from topicjax.store.lock import who
from topicjax.store.repair import repair
from topicjax.store.verify import verify
from topicjax.sweep import trials as expand_trials
from topicjax.sweep_files import NamedSweep, load_sweep, sweep_names
from topicjax.trial import SETTINGS, Trial, make_trial

if TYPE_CHECKING:
    from topicjax.engine.run import Options, Outcome

RESULTS = Path("results")
SAY_SECONDS = 2.0
MOST_PROBLEMS = 5  # of a status


def list_sweeps(options: argparse.Namespace) -> int:
    """Print each sweep with its size and first sentence."""
    for name in sweep_names():
        named = load_sweep(name)
        count = len(expand_trials(named.base, named.sweep))
        print(f"{name:16} {count:6,} trials   {named.description.splitlines()[0]}")
    return 0


def list_settings(options: argparse.Namespace) -> int:
    """Print every setting with its default, what is allowed, and its meaning."""
    rows = [(s.name, str(s.default), s.kind.allowed, s.help) for s in SETTINGS.values()]
    header = ("setting", "default", "allowed", "meaning")
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(3)]
    for row in (header, *rows):
        print("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]))
    return 0


def plan_sweep(options: argparse.Namespace) -> int:
    """Print what a run would do; nothing is compiled or written."""
    named, trials, folder = expand(options)
    engine_options = make_engine_options(options)
    from topicjax.engine.plan_text import plan_text

    print(plan_text(named, trials, folder, engine_options))
    return 0


def run_sweep(options: argparse.Namespace) -> int:
    """Train what is not in the folder yet."""
    named, trials, folder = expand(options)
    engine_options = make_engine_options(options)
    from topicjax.engine import run

    outcome = run.run_sweep(named, trials, folder, engine_options)
    print(closing(folder, outcome, options) if outcome.is_whole else interrupted(folder, outcome, options))
    return 0 if outcome.is_whole else 130


def expand(options: argparse.Namespace) -> tuple[NamedSweep, list[Trial], Path]:
    """Return the sweep with its overrides, its trials and its folder; say what the overrides left out."""
    if options.lanes < 0:
        raise UserError(f"--lanes is {options.lanes}; allowed: 1 or more, or 0 for automatic")
    if not options.save_every >= 0:
        raise UserError(f"--save-every is {options.save_every}; allowed: 0 or more seconds")
    named, notes = override(load_sweep(options.sweep), options.sets, options.axes)
    trials = expand_trials(named.base, named.sweep)
    for note in notes:
        print(note)
    return named, trials, options.out or RESULTS / named.name


def make_engine_options(options: argparse.Namespace) -> "Options":
    """Return how to run; from here on jax has its devices."""
    from topicjax.engine.run import Options, use_all_cores

    use_all_cores()
    overrides = [f"--set {text}" for text in options.sets] + [f"--axis {text}" for text in options.axes]
    return Options(options.lanes, options.snapshots, options.save_every, options.extend, overrides)


def closing(folder: Path, outcome: "Outcome", options: argparse.Namespace) -> str:
    """Return the summary of a run: what was done, where it is, what to type next."""
    from topicjax.engine.progress import duration, size

    trained = outcome.ok + outcome.diverged
    if not trained:
        return (
            f"Nothing left to train: all trials of this sweep are in {folder}.\n"
            f"Next: {advice.report_command(folder)}"
        )
    busy = outcome.seconds - outcome.compile_seconds
    example = min(reader.committed(folder))
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return "\n".join(
        [
            f"\nDone: {trained:,} trials in {duration(outcome.seconds)} "
            f"({duration(outcome.compile_seconds)} of it compiling {outcome.programs} programs), "
            f"{outcome.trial_steps / max(busy, 1e-9):,.0f} trial-steps/s",
            f"  {outcome.ok:,} ok, {outcome.diverged:,} diverged",
            f"  {folder}/trials         one row per trial: settings, status, final values",
            f"  {folder}/trajectories   one row per record: norms, losses, order parameters",
            f"  {folder}/checkpoints    weights (orbax); {size(total)} in all",
            "Next:",
            f"  {advice.report_command(folder)}",
            f"  {advice.command('inspect', folder, example)}",
            f"  {advice.command('restore', folder, example, '--out', 'weights.npz')}",
            f"  in Python: topicjax.load({str(folder)!r}).trials",
        ]
    )


def interrupted(folder: Path, outcome: "Outcome", options: argparse.Namespace) -> str:
    """Return what an interrupted run leaves, and how to continue it."""
    again = advice.same_again(options.arguments)
    if not outcome.left:
        return (
            f"\nStopped: all trials are finished and kept in {folder}; limit lines are missing.\n"
            f"The same command computes them: {again}"
        )
    trained = outcome.ok + outcome.diverged
    return (
        f"\nStopped: {trained:,} trials of this run are finished and kept in {folder}.\n"
        f"Continue with the same command: {again}"
    )


def show_status(options: argparse.Namespace) -> int:
    """Print how far a run is, and by plan where the folder holds several."""
    state = reader.status(options.folder)
    running = f"running ({who(state.running)})" if state.running is not None else "not running"
    of = f" of {state.planned:,}" if state.planned is not None and not state.beyond else ""
    print(
        f"{state.sweep}: {state.finished:,}{of} trials finished, "
        f"{state.ok:,} ok, {state.diverged:,} diverged; {running}"
    )
    for problem in state.problems[:MOST_PROBLEMS]:
        print(f"{problem}, though its trials are finished")
    if state.problems:
        more = f"{len(state.problems):,} such files; " if len(state.problems) > 1 else ""
        print(f"{more}to set them aside: {advice.command('repair', options.folder)}")
    if state.versions:
        print(f"trained by {len(state.versions)} versions of the code: {'; '.join(state.versions)}")
    if len(state.plans) > 1:
        print("the folder holds trials of several plans:")
        for plan in state.plans:
            print(f"  {plan.finished:,} of {plan.planned:,}  {plan.words}")
    if state.beyond:
        print(f"{state.beyond:,} finished trials belong to no plan that the manifest names")
    return 0


def verify_folder(options: argparse.Namespace) -> int:
    """Check a run folder; exit code 1 with a list if something is not as it was written."""
    started = time.monotonic()
    verdict = verify(options.folder, verifying())
    seconds = time.monotonic() - started
    for problem in verdict.problems:
        print(problem.sentence)
    rate = verdict.bytes_read / 1e6 / max(seconds, 1e-9)
    print(
        f"{options.folder}: {verdict.trials:,} trials in {verdict.chunks:,} chunks, "
        f"{verdict.bytes_read / 1e6:,.1f} MB read in {seconds:.1f} s ({rate:,.0f} MB/s)"
    )
    if not verdict.problems:
        print("everything is as it was written")
        return 0
    print(
        f"{len(verdict.problems):,} problems; to set them aside: {advice.command('repair', options.folder)}"
    )
    return 1


def repair_folder(options: argparse.Namespace) -> int:
    """Set aside what is damaged; nothing is deleted."""
    reader.load(options.folder)
    verdict, moved = repair(options.folder, verifying())
    for problem in verdict.problems:
        print(problem.sentence)
    for path in moved:
        print(f"moved to {path}")
    if not verdict.problems:
        print("everything is as it was written: nothing to repair")
    else:
        print("the same `topicjax run` as before computes again what is missing")
    return 0


def verifying() -> Callable[[int, int], None]:
    """Return a function that says how far a check is, every few seconds."""
    last = time.monotonic()

    def say(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > SAY_SECONDS:
            last = time.monotonic()
            print(f"checked {done:,} of {total:,} chunks ...", file=sys.stderr, flush=True)

    return say


def restore_weights(options: argparse.Namespace) -> int:
    """Write one trial's weights to an .npz file."""
    import numpy as np

    if options.out.suffix != ".npz":
        raise UserError(f"--out is {str(options.out)!r}; allowed: a name that ends in .npz")
    if options.out.exists() and not options.force:
        raise UserError(f"{options.out} is there already; allowed: another --out, or --force")
    weights = reader.load(options.folder).restore(options.trial_id, options.step)
    write_whole(options.out, lambda file: np.savez(file, allow_pickle=False, **weights))
    shapes = ", ".join(f"{name} {'x'.join(map(str, w.shape))}" for name, w in weights.items())
    print(f"{options.out}: {shapes}")
    return 0


def inspect_trial(options: argparse.Namespace) -> int:
    """Draw one trial's weights, attention and trajectory on one page."""
    run = reader.load(options.folder)
    trial_id = run.find(options.trial_id)
    row = run.trials.set_index("trial_id").loc[trial_id, list(SETTINGS)]
    words = None
    if row["word_distribution"] != "uniform" or row["overlap"] != 0:
        from topicjax.engine.limit_lines import data_model

        words = data_model(make_trial(row.to_dict())).topic_word
    inspect = analysis("report.trial_page").inspect
    with explained("draw into", options.out or options.folder):
        paths = inspect(run, trial_id, options.step, options.out, words)
    for path in paths:
        print(path)
    return 0


def write_report(options: argparse.Namespace) -> int:
    """Write the report of a run into its folder, saying what is being drawn."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with explained("write into", options.folder):
        path = analysis("report.report").write(options.folder, say)
    print(f"{path}: open it in a browser")
    return 0


def run_bench(options: argparse.Namespace) -> int:
    """Time the engine against the plain ways."""
    if options.repeats is not None and options.repeats < 1:
        raise UserError(f"--repeats is {options.repeats}; allowed: 1 or more")
    if options.scaling:
        return run_scaling(options)
    from topicjax.bench import compare

    compare.main(options.repeats or 5, options.json)
    return 0


def run_scaling(options: argparse.Namespace) -> int:
    """Time the engine at many sizes; write the numbers and their figure."""
    from topicjax.bench import sizes
    from topicjax.engine.run import use_all_cores

    try:
        options.out.mkdir(parents=True, exist_ok=True)  # before minutes of work, not after
    except OSError as error:
        raise UserError(f"{options.out} cannot be written: {error.strerror}") from None
    use_all_cores()
    frame = sizes.run(options.repeats or 3, lambda line: print(line, file=sys.stderr, flush=True))
    frame.to_csv(options.out / "scaling.csv", index=False)
    picture = analysis("figures.bench_sizes").scaling_figure(frame)
    files = [options.out / "scaling.csv", *picture.save(options.out / "scaling")]
    print(frame.to_json(orient="records", indent=2) if options.json else "\n".join(map(str, files)))
    return 0


def analysis(module: str) -> ModuleType:
    """Return a module of topicjax.analysis, whose folder lies beside the package in a checkout."""
    return import_module(f"topicjax.analysis.{module}")

"""The commands on sweeps, and bench: take what was typed, call what does it, print what came of it."""

import argparse
import itertools
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from topicjax.cli import advice
from topicjax.cli.engine_options import engine_options
from topicjax.cli.folder_commands import analysis, say
from topicjax.errors import UserError
from topicjax.experiments import trial_settings
from topicjax.store import reader
from topicjax.sweep import expand as expand_trials
from topicjax.sweep.files import DEFAULT, NamedSweep, load_sweep, sweep_names
from topicjax.sweep.overrides import override
from topicjax.sweep.refine import Label, Panel, Refinement, make_panels, next_trials
from topicjax.trial import Trial

if TYPE_CHECKING:
    from topicjax.engine.run import Options, Outcome

RESULTS = Path("results")
MOST_IDS = 4  # of failed trials


def list_sweeps(options: argparse.Namespace) -> int:
    """Print each sweep with its size and first sentence."""
    for name in sweep_names():
        named = load_sweep(name)
        count = len(expand_trials(named.settings, named.base, named.sweep))
        print(f"{name:18} {count:5,} trials   {named.description.splitlines()[0]}")
    return 0


def list_settings(options: argparse.Namespace) -> int:
    """Print every setting of an experiment with its default, what is allowed, and its meaning."""
    known = load_sweep(options.sweep).settings if options.sweep else trial_settings(DEFAULT)
    rows = [(s.name, str(s.default), s.kind.allowed, s.meaning) for s in known.settings.values()]
    header = ("setting", "default", "allowed", "meaning")
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(3)]
    for row in (header, *rows):
        print("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]))
    return 0


def plan_sweep(options: argparse.Namespace) -> int:
    """Print what a run would do; nothing is written, and compiled only for a --target."""
    named, trials, folder = expand(options)
    if options.target is not None and options.devices is not None:
        raise UserError("--target is given with --devices; allowed: either, a target names its devices")
    if options.target is not None:
        from topicjax.engine.target import compile_for

        compile_for(named.experiment, trials, options.target, options.lanes, options.snapshots, print)
        return 0
    with engine_options(options, plans_only=True) as how:
        from topicjax.engine.plan_text import plan_text

        print(plan_text(named, trials, folder, how))
    if named.refinement is not None:
        panels = make_panels(named.settings, trials, named.refinement)
        print(
            f"then refined along {', '.join(named.refinement.axes)}: further trials where neighbouring cells "
            f"disagree, at most {named.refinement.budget or sum(map(Panel.dense_trials, panels)):,} in all"
        )
    return 0


def run_sweep(options: argparse.Namespace) -> int:
    """Train what is not in the folder yet."""
    named, trials, folder = expand(options)
    panels = make_panels(named.settings, trials, named.refinement) if named.refinement else []
    with engine_options(options) as how:
        from topicjax.engine import run

        outcome = run.run_sweep(named, trials, folder, how)
        if panels and outcome.is_whole:
            outcome = refine(named, trials, folder, how, panels, outcome)
    if outcome.is_whole:
        print(closing(folder, outcome, options))
        return 0
    if outcome.failures and not outcome.stopped_by:
        print(failed(folder, outcome, options))
        return 1
    print(interrupted(folder, outcome, options))
    return 128 + (outcome.stopped_by or signal.SIGINT)


def expand(options: argparse.Namespace) -> tuple[NamedSweep, list[Trial], Path]:
    """Return the sweep with its overrides, its trials and its folder; say what the overrides left out."""
    if options.lanes < 0:
        raise UserError(f"--lanes is {options.lanes}; allowed: 1 or more, or 0 for automatic")
    if not options.save_every >= 0:
        raise UserError(f"--save-every is {options.save_every}; allowed: 0 or more seconds")
    named, notes = override(load_sweep(options.sweep), options.sets, options.axes)
    named = replace(named, refinement=asked_refinement(options, named))
    trials = expand_trials(named.settings, named.base, named.sweep)
    for note in notes:
        print(note)
    return named, trials, options.out or RESULTS / named.name


def asked_refinement(options: argparse.Namespace, named: NamedSweep) -> Refinement | None:
    """Return how boundaries are to be refined: as typed, else as the sweep file says; None: not at all."""
    own = named.refinement
    if options.refine is not None:
        own = Refinement(tuple(options.refine.split(",")))
    given = {name: getattr(options, name) for name in ("levels", "budget")}
    given = {name: value for name, value in given.items() if value is not None}
    if given and own is None:
        raise UserError(f"--{next(iter(given))} is given without --refine; allowed: with it")
    if own is not None and named.settings.experiment != DEFAULT:
        raise UserError(
            f"--refine is given for {named.settings.experiment}; allowed: for {DEFAULT}, which has classes"
        )
    return own and replace(own, **given)


def refine(
    named: NamedSweep,
    trials: list[Trial],
    folder: Path,
    how: "Options",
    panels: list[Panel],
    outcome: "Outcome",
) -> "Outcome":
    """Train further trials where neighbouring cells disagree, round by round; return what was done in all."""
    from topicjax.engine import run

    for number in itertools.count(1):
        say("scoring, to see where neighbouring cells disagree ...")
        mine = [named.settings.trial_id(trial) for trial in trials]  # of earlier rounds: those come again
        trained, page = reader.load(folder).select(mine), analysis("one_layer.phase_maps").MAP_PAGE
        scores = analysis("one_layer.stages").score_trials(trained)
        cells = analysis("maps.cells").cell_labels(trained, scores, page)
        found = next_trials(panels, [(own, Label(*label)) for own, *label in cells], len(trials))
        if not found or not outcome.is_whole:
            return outcome
        trials = [*trials, *map(named.settings.make_trial, found)]
        print(f"refining, round {number}: {len(found):,} more trials, {len(trials):,} in all")
        outcome = outcome.followed_by(run.run_sweep(named, trials, folder, how))
    return outcome


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
            f"  {folder}/trajectories   one row per record: what was measured",
            *(
                [f"  {folder}/details        one row per record and {outcome.detail}"]
                if outcome.detail
                else []
            ),
            f"  {folder}/checkpoints    weights (orbax); {size(total)} in all",
            "Next:",
            f"  {advice.report_command(folder)}",
            *([f"  {advice.command('inspect', folder, example)}"] if outcome.experiment == DEFAULT else []),
            f"  {advice.command('restore', folder, example, '--out', 'weights.npz')}",
            f"  in Python: topicjax.load({str(folder)!r}).trials",
        ]
    )


def failed(folder: Path, outcome: "Outcome", options: argparse.Namespace) -> str:
    """Return which trials a cluster could not train, why, and how to try them again."""
    trained = outcome.ok + outcome.diverged
    lines = [f"\nFailed: {outcome.left:,} trials; {trained:,} of this run are finished and kept in {folder}."]
    for failure in outcome.failures:
        some = ", ".join(failure.trial_ids[:MOST_IDS])
        more = f" and {len(failure.trial_ids) - MOST_IDS:,} more" if len(failure.trial_ids) > MOST_IDS else ""
        lines.append(f"  {failure.reason}: {some}{more}")
    return "\n".join([*lines, f"The same command tries them again: {advice.same_again(options.arguments)}"])


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


def run_bench(options: argparse.Namespace) -> int:
    """Time the engine against the plain ways."""
    if options.repeats is not None and options.repeats < 1:
        raise UserError(f"--repeats is {options.repeats}; allowed: 1 or more")
    if options.scaling:
        return run_scaling(options)
    if options.cluster:
        from topicjax.engine.cluster.address import check_installed
        from topicjax.engine.run import use_one_core

        check_installed()
        use_one_core()
        from topicjax.bench import driver_load

        driver_load.main(options.repeats or 5, options.json, say)
        return 0
    if options.layers:
        from topicjax.bench import depths

        depths.main(options.repeats or 5, options.json)
        return 0
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
    frame = sizes.run(options.repeats or 3, say)
    frame.to_csv(options.out / "scaling.csv", index=False)
    picture = analysis("figures.bench_sizes").scaling_figure(frame)
    files = [options.out / "scaling.csv", *picture.save(options.out / "scaling")]
    print(frame.to_json(orient="records", indent=2) if options.json else "\n".join(map(str, files)))
    return 0

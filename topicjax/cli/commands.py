"""Commands on sweeps and corpora, and bench: call what does the work and print the result."""

import argparse
import itertools
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicjax import advice
from topicjax.cli.folder_commands import analysis
from topicjax.cli.json_output import write_json
from topicjax.cli.terminal import say, show
from topicjax.engine.options import OPTIONS, Options, read_options, requested_cpu_devices
from topicjax.errors import UserError, duration, size
from topicjax.experiments import SHIPPED, trial_settings
from topicjax.store import reader
from topicjax.store.files import MANIFEST
from topicjax.sweep import expand as expand_trials
from topicjax.sweep.files import NamedSweep, failing_line, failure_sentence, load_sweep, sweep_names
from topicjax.sweep.overrides import override
from topicjax.sweep.refine import Label, Panel, Refinement, make_panels, next_trials
from topicjax.trial import Trial, TrialSettings

if TYPE_CHECKING:
    from topicjax.engine.resources import Resources
    from topicjax.engine.run import Outcome

RESULTS = Path("results")
PARTS = ("Spec", "Stream", "Hypers")  # of a trial's settings
MOST_IDS = 4  # of failed trials in a message


def list_sweeps(typed: argparse.Namespace) -> int:
    """Print each sweep with its size and first sentence."""
    rows = []
    for name in sweep_names():
        named = load_sweep(name)
        count = len(expand_trials(named.settings, named.base, named.sweep))
        question = named.description.splitlines()[0]
        if not typed.json:
            show(f"{name:18} {count:5,} trials   {question}")
        about = {"name": name, "question": question, "experiment": named.settings.experiment}
        rows.append({**about, "trials": count, "claims": named.claims})
    if typed.json:
        write_json(typed, {"sweeps": rows})
    return 0


def list_settings(typed: argparse.Namespace) -> int:
    """Print every setting of a sweep's experiment, or of each shipped one: default, range, meaning."""
    every = [load_sweep(typed.sweep).settings] if typed.sweep else list(map(trial_settings, SHIPPED))
    if typed.json:
        found = [{"experiment": known.experiment, "settings": settings_rows(known)} for known in every]
        write_json(typed, {"experiments": found})
        return 0
    header = ("setting", "default", "allowed", "meaning")
    for known in every:
        show(f"experiment {known.experiment}")
        rows = [(s.name, str(s.default), s.kind.allowed, s.meaning) for s in known.settings.values()]
        widths = [max(len(row[column]) for row in [header, *rows]) for column in range(3)]
        for row in (header, *rows):
            texts = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
            show("  ".join(["", *texts, row[3]]).rstrip())
    return 0


def settings_rows(known: TrialSettings) -> list[dict[str, Any]]:
    """List the settings of an experiment for programs."""
    part = {name: kind for kind, names in zip(PARTS, known.names, strict=True) for name in names}
    return [
        {"name": s.name, "part": part[s.name], "default": s.default}
        | {"allowed": s.kind.allowed, "meaning": s.meaning}
        for s in known.settings.values()
    ]


def plan_sweep(typed: argparse.Namespace) -> int:
    """Print what a run would do; nothing is written, and nothing compiled except for a --target."""
    options = typed_options(typed)
    if typed.target is not None:
        if options.devices is not None:
            raise UserError("--target is given with --devices; allowed: either, a target names its devices")
        if typed.json:
            raise UserError("--target is given with --json; allowed: either")
        named, trials, _ = expand(typed)
        from topicjax.engine.target import compile_for

        snapshots = with_snapshots(options, typed, named).snapshots
        compile_for(named.experiment, trials, typed.target, options.lanes, snapshots, show)
        return 0
    named, trials, folder = expand_for(typed, options)
    options = with_snapshots(options, typed, named)
    from topicjax.engine.admission import fitted_to_folder
    from topicjax.engine.plan_text import make_plan, plan_numbers, plan_text
    from topicjax.engine.resources import open_resources

    with open_resources(options, plans_only=True) as (options, resources):
        named = fitted_to_folder(named, folder)
        plan = make_plan(named, trials, folder, options, resources)
        numbers = plan_numbers(plan) if typed.json else {}
        if not typed.json:
            show(plan_text(plan))
    refinement, about = named.refinement, None
    if refinement is not None:
        panels = make_panels(named.settings, trials, refinement)
        most = refinement.budget or sum(map(Panel.dense_trials, panels))
        about = {"axes": refinement.axes, "levels": refinement.levels, "most_trials": most}
        show(
            f"then refined along {', '.join(refinement.axes)}: further trials where neighbouring cells "
            f"disagree, at most {most:,} in all"
        )
    if typed.json:
        write_json(typed, {**numbers, "notes": typed.notes, "refinement": about})
    return 0


def run_sweep(typed: argparse.Namespace) -> int:
    """Train the trials that the folder lacks."""
    options = typed_options(typed)
    named, trials, folder = expand_for(typed, options)
    options = with_snapshots(options, typed, named)
    panels = make_panels(named.settings, trials, named.refinement) if named.refinement else []
    page = analysis("page.lookup").page_of(named.experiment) if panels else None
    from topicjax.engine import run
    from topicjax.engine.admission import fitted_to_folder
    from topicjax.engine.resources import open_resources

    with open_resources(options) as (options, resources):
        named = fitted_to_folder(named, folder)
        outcome = run.run_sweep(named, trials, folder, options, resources)
        if panels and outcome.is_whole:
            outcome = refine(named, trials, folder, options, resources, panels, page, outcome)
    if outcome.is_whole:
        show(closing(folder, outcome))
        return 0
    if outcome.failures and not outcome.stopped_by:
        show(failed(folder, outcome, typed))
        return 1
    show(interrupted(folder, outcome, typed))
    return 128 + (outcome.stopped_by or signal.SIGINT)


def typed_options(typed: argparse.Namespace) -> Options:
    """Parse the options of a run, or raise a UserError."""
    given = {name: getattr(typed, name) for name in OPTIONS}
    return read_options({name: value for name, value in given.items() if value is not None})


def with_snapshots(options: Options, typed: argparse.Namespace, named: NamedSweep) -> Options:
    """Keep the snapshots that the sweep file asks for, unless --snapshots was typed."""
    asked = named.snapshots if typed.snapshots is None else ""
    return replace(options, snapshots=asked) if asked else options


def expand_for(typed: argparse.Namespace, options: Options) -> tuple[NamedSweep, list[Trial], Path]:
    """Load the sweep, its trials and its folder, and configure the devices that the options need.

    A user's file may create jax arrays when it is loaded, so the devices are configured first.  A shipped
    sweep is loaded before that, so that invalid arguments are reported without importing jax.
    """
    expanded = None if is_own_file(typed) else expand(typed)
    requested_cpu_devices()
    from topicjax.engine.resources import configure_jax

    configure_jax(options)
    return expanded or expand(typed)


def expand(typed: argparse.Namespace) -> tuple[NamedSweep, list[Trial], Path]:
    """Load the sweep with its overrides, its trials and its folder; print what the overrides left out."""
    named, notes = override(load_sweep(typed.sweep), typed.sets, typed.axes)
    if named.claims and is_own_file(typed):  # a wrong name is found before training, not by its report
        page = analysis("page.lookup").page_of(named.experiment)
        analysis("page.claims").claims_named(named.claims, page, named.settings.experiment)
    typed.experiment, typed.folder = named.experiment, typed.out or RESULTS / named.name
    typed.written_before = manifest_time(typed.folder)
    overrides = (*(f"--set {text}" for text in typed.sets), *(f"--axis {text}" for text in typed.axes))
    named = replace(named, refinement=asked_refinement(typed, named), overrides=overrides)
    trials = expand_trials(named.settings, named.base, named.sweep)
    typed.notes = list(notes)
    for note in notes:
        show(note)
    return named, trials, typed.folder


def is_own_file(typed: argparse.Namespace) -> bool:
    """Whether the sweep is a user's file, not a shipped one."""
    sweep = getattr(typed, "sweep", None) or ""
    return sweep.endswith(".py") and os.path.isfile(sweep)


def own_failure(typed: argparse.Namespace, error: BaseException) -> str:
    """Word the message for an exception raised by the user's own file; empty if it came from elsewhere."""
    if not is_own_file(typed):
        return ""
    path = Path(typed.sweep)
    place = failing_line(error, path, getattr(typed, "experiment", None))
    return place and f"{failure_sentence(error, path, place)}; for the traceback: --traceback"


def has_begun(typed: argparse.Namespace) -> bool:
    """Whether this command has written to its run folder: every run starts with the manifest."""
    return "folder" in typed and manifest_time(typed.folder) != typed.written_before


def manifest_time(folder: Path) -> int:
    """Return when the manifest of a folder was written; 0 if there is none."""
    try:
        return (folder / MANIFEST).stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


def asked_refinement(typed: argparse.Namespace, named: NamedSweep) -> Refinement | None:
    """Choose how to refine boundaries: as typed, else as the sweep file says; None: not at all."""
    refinement = named.refinement
    if typed.refine is not None:
        refinement = Refinement(tuple(typed.refine.split(",")))
    given = {name: getattr(typed, name) for name in ("levels", "budget")}
    given = {name: value for name, value in given.items() if value is not None}
    if given and refinement is None:
        raise UserError(f"--{next(iter(given))} is given without --refine; allowed: with it")
    if refinement is not None and analysis("page.lookup").page_of(named.experiment).score is None:
        raise UserError(
            f"--refine is given for {named.settings.experiment}, whose page scores no trials; allowed: for "
            f"experiments with classes ({advice.guide('extending')})"
        )
    refinement = refinement and replace(refinement, **given)
    if refinement is not None:
        refinement.check(named.settings)
    return refinement


def refine(
    named: NamedSweep,
    trials: list[Trial],
    folder: Path,
    options: Options,
    resources: "Resources",
    panels: list[Panel],
    page: Any,
    outcome: "Outcome",
) -> "Outcome":
    """Train further trials where neighbouring cells disagree, in rounds; return the combined result."""
    from topicjax.engine import run

    first = trials
    for number in itertools.count(1):
        if not outcome.is_whole:
            return outcome
        say("scoring, to see where neighbouring cells disagree ...")
        asked = [named.settings.trial_id(trial) for trial in trials]  # including those of earlier rounds
        trained = reader.load(folder).select(asked)
        scores = page.score(page.prepare(trained) if page.prepare else trained)
        cells = analysis("maps.cells").cell_labels(trained, scores, page)
        found = next_trials(panels, [(settings, Label(*label)) for settings, *label in cells], len(trials))
        if not found:
            return outcome
        trials = [*trials, *map(named.settings.make_trial, found)]
        show(f"refining, round {number}: {len(found):,} more trials, {len(trials):,} in all")
        further = run.run_sweep(named, trials, folder, options, resources, first)
        outcome = outcome.followed_by(further)
    return outcome


def closing(folder: Path, outcome: "Outcome") -> str:
    """Summarize a run: what was done, where it is, what to type next."""
    trained = outcome.ok + outcome.diverged
    if not trained:
        return (
            f"Nothing left to train: all trials of this sweep are in {folder}.\n"
            f"Next: {advice.report_command(folder)}"
        )
    busy = outcome.seconds - outcome.compile_seconds
    example = min(reader.committed(folder))
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    has_weights = any(path.is_file() for path in (folder / "checkpoints").rglob("*"))
    return "\n".join(
        [
            f"\nDone: {trained:,} trials in {duration(outcome.seconds)} "
            f"({duration(outcome.compile_seconds)} of it compiling {outcome.programs} programs), "
            f"{outcome.trial_steps / max(busy, 1e-9):,.0f} trial-steps/s",
            f"  {outcome.ok:,} ok, {outcome.diverged:,} diverged",
            f"  {folder}/trials         one row per trial: settings, status, final values",
            f"  {folder}/trajectories   one row per record: what was measured",
            *(
                [f"  {folder}/details        one row per record and {' and '.join(outcome.details)}"]
                if outcome.details
                else []
            ),
            *([f"  {folder}/checkpoints    weights (orbax)"] if has_weights else []),
            f"  {size(total)} in all",
            "Next:",
            f"  {advice.report_command(folder)}",
            *(
                [
                    f"  {advice.command('inspect', folder, example)}",
                    f"  {advice.command('restore', folder, example, '--out', 'weights.npz')}",
                ]
                if has_weights
                else []
            ),
            f"  in Python: topicjax.load({str(folder)!r}).trials",
        ]
    )


def failed(folder: Path, outcome: "Outcome", typed: argparse.Namespace) -> str:
    """Describe which trials a cluster could not train, why, and how to retry them."""
    trained = outcome.ok + outcome.diverged
    lines = [f"\nFailed: {outcome.left:,} trials; {trained:,} of this run are finished and kept in {folder}."]
    for failure in outcome.failures:
        some = ", ".join(failure.trial_ids[:MOST_IDS])
        more = f" and {len(failure.trial_ids) - MOST_IDS:,} more" if len(failure.trial_ids) > MOST_IDS else ""
        lines.append(f"  {failure.reason}: {some}{more}")
    return "\n".join([*lines, f"The same command tries them again: {advice.same_again(typed.arguments)}"])


def interrupted(folder: Path, outcome: "Outcome", typed: argparse.Namespace) -> str:
    """Describe what an interrupted run leaves, and how to continue it."""
    again = advice.same_again(typed.arguments)
    if not outcome.left:
        return (
            f"\nStopped: all trials are finished and kept in {folder}; reference losses are missing.\n"
            f"The same command computes them: {again}"
        )
    trained = outcome.ok + outcome.diverged
    return (
        f"\nStopped: {trained:,} trials of this run are finished and kept in {folder}.\n"
        f"Continue with the same command: {again}"
    )


def run_bench(typed: argparse.Namespace) -> int:
    """Time the engine against simpler implementations."""
    if typed.repeats is not None and typed.repeats < 1:
        raise UserError(f"--repeats is {typed.repeats}; allowed: 1 or more")
    result, text = timed(typed)
    if typed.json:
        from topicjax.bench.machine import machine

        write_json(typed, {**result, "machine": machine()})
    elif text:
        show(text)
    return 0


def timed(typed: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Time what was asked for; return the numbers, and their text unless it was shown as they came."""
    repeats = typed.repeats or 5
    if typed.what == "scaling":
        return run_scaling(typed)
    if typed.what == "cluster":
        from topicjax.engine.cluster.connection import check_installed
        from topicjax.engine.resources import use_one_core

        check_installed()
        use_one_core()
        from topicjax.bench.driver_load import measure_driver

        return measure_driver(repeats, say)
    if typed.what == "tiny":
        from topicjax.bench.tiny import compare_tiny

        return compare_tiny(repeats)
    if typed.what:
        from topicjax.bench.deep import compare_deep

        return compare_deep(typed.what, repeats, say if typed.json else show), ""
    from topicjax.bench.compare import compare

    return compare(repeats)


def run_scaling(typed: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Time the engine at many sizes; write the numbers and their figure."""
    from topicjax.bench import sizes
    from topicjax.engine.resources import use_all_cores

    try:
        typed.out.mkdir(parents=True, exist_ok=True)  # before minutes of work, not after
    except OSError as error:
        raise UserError(f"{typed.out} cannot be written: {error.strerror}") from None
    use_all_cores()
    frame = sizes.run(typed.repeats or 3, say)
    frame.to_csv(typed.out / "scaling.csv", index=False)
    picture = analysis("figures.bench_sizes").scaling_figure(frame)
    files = [typed.out / "scaling.csv", *picture.save(typed.out / "scaling")]
    result = {"files": list(map(str, files)), "sizes": frame.to_dict(orient="records")}
    return result, "\n".join(result["files"])


def make_corpus(typed: argparse.Namespace) -> int:
    """Make the corpora of a text, or of Wikipedia, unless they exist."""
    from topicjax.corpora import make
    from topicjax.corpora.corpus import data_folder, read_about

    folder = data_folder()
    if typed.text is not None:
        text = make.file_text(typed.text, typed.name)
    elif typed.name is not None:
        raise UserError("--name is given without --text; allowed: with it")
    else:
        text = make.wikipedia_text(folder, typed.vocabulary, say)
    made, is_new = make.make_corpora(text, typed.vocabulary, folder, say)
    show("Done:" if is_new else "All there already:")
    for path in made:
        about = read_about(path)
        sizes = f"{about['documents']:,} documents, {about['words']:,} words"
        show(f"  {path}   {sizes}, vocabulary {about['vocabulary']:,}, hash {about['hash']}")
    return 0

"""One run of a sweep, as the user sees it: the plan in words, the manifest, limit lines, the summary."""

import argparse
import contextlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from topicjax import config, engine, grid, lda, limits, plan, store
from topicjax.config import Objective, Trial
from topicjax.progress import Progress, duration, size
from topicjax.theory import DataModel

PACKAGES = "topicjax jax jaxlib flax optax numpy scipy orbax-checkpoint pandas pyarrow".split()


def run(named: grid.NamedSweep, trials: Sequence[Trial], folder: Path, arguments: argparse.Namespace) -> int:
    """Train what the folder does not have yet; return the exit code."""
    engine.use_all_cores()
    options = engine.Options(arguments.chunk, arguments.snapshots, arguments.save_every)
    for spec in {trial.spec for trial in trials}:
        plan.parse_snapshots(options.snapshots, spec)  # a mistake is told before anything is written
    command = f"make sweep SWEEP={arguments.sweep}" + (
        f" ARGS='{extra_arguments()}'" if extra_arguments() else ""
    )
    with store.Writer(folder, named.name, arguments.extend) as writer:
        done = writer.committed()
        left = [trial for trial in trials if config.trial_id(trial) not in done]
        total_steps = float(sum(trial.spec.steps for trial in left))
        with Progress(len(left), total_steps) as progress:
            progress.say(opening(named, trials, left, folder, options))
            manifest = Manifest(writer, named, trials, len(done) + len(left), options, progress.training)
            try:
                outcome = engine.run(trials, writer, progress, options)
            except (engine.Interrupted, KeyboardInterrupt):
                manifest.finish(progress, whole=False)
                progress.say(
                    f"\nStopped: {progress.trials} trials of this run are finished and kept in {folder}.\n"
                    f"Continue with the same command: {command}"
                )
                return 130
            progress.say("" if manifest.ready() else "computing limit lines ...")
            manifest.finish(progress, whole=True)
        print(closing(folder, outcome, len(left)))
    return 0


def extra_arguments() -> str:
    """Return what the user gave after the sweep's name, to be repeated in advice."""
    given = sys.argv[3:] if sys.argv[1:2] == ["run"] else []
    return " ".join(given)


def opening(
    named: grid.NamedSweep,
    trials: Sequence[Trial],
    left: Sequence[Trial],
    folder: Path,
    options: engine.Options,
) -> str:
    """Return the first lines of a run."""
    kind = options.devices[0].device_kind
    done = len(trials) - len(left)
    resumed = f" ({done:,} already finished)" if done else ""
    return (
        f"{named.name}: {len(left):,} trials to train{resumed} on {len(options.devices)} x {kind}\n"
        f"results go to {folder}; Ctrl-C stops, the same command continues"
    )


def closing(folder: Path, outcome: engine.Outcome, trained: int) -> str:
    """Return the summary: what was done, where it is, what to type next."""
    if not trained:
        next_step = f"Next: {report_command(folder)}"
        return f"Nothing left to train: all trials of this sweep are in {folder}.\n{next_step}"
    busy = outcome.seconds - outcome.compile_seconds
    example = min(store.committed(folder))
    return "\n".join(
        [
            f"\nDone: {outcome.ok + outcome.diverged:,} trials in {duration(outcome.seconds)} "
            f"({duration(outcome.compile_seconds)} of it compiling {outcome.programs} programs), "
            f"{outcome.trial_steps / max(busy, 1e-9):,.0f} trial-steps/s",
            f"  {outcome.ok:,} ok, {outcome.diverged:,} diverged",
            f"  {folder}/trials         one row a trial: settings, status, final values",
            f"  {folder}/trajectories   one row a record: norms, losses, order parameters",
            f"  {folder}/checkpoints    weights (orbax); {size(folder_bytes(folder))} in all",
            "Next:",
            f"  {report_command(folder)}",
            f"  {program()} inspect {folder} {example}",
            f"  {program()} restore {folder} {example} --out weights.npz",
            f"  in Python: topicjax.load('{folder}').trials",
        ]
    )


def report_command(folder: Path) -> str:
    """Return what to type for the report: make, for a sweep in its usual place."""
    usual = program() != "python -m topicjax" and folder.parent == Path("results")
    return f"make report SWEEP={folder.name}" if usual else f"{program()} report {folder}"


def program() -> str:
    """Return how the user calls the command line, to be repeated in advice."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "topicjax" else "python -m topicjax"


def folder_bytes(folder: Path) -> int:
    """Return the size of all files in the folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Manifest:
    """manifest.json of a run: written at the start, when the limit lines are known, and at the end."""

    def __init__(
        self,
        writer: store.Writer,
        named: grid.NamedSweep,
        trials: Sequence[Trial],
        planned: int,
        options: engine.Options,
        begin: threading.Event,
    ) -> None:
        """Write what is known at the start; compute the limit lines in the background from `begin` on.

        Beside training they cost little; beside compiling, which uses every core, they double its time.
        """
        self.writer, self.lock, self.begin = writer, threading.Lock(), begin
        before = read_previous(writer.folder)
        self.content = describe_run(named, planned, options) | {
            "limit_lines": before.get("limit_lines", []),
            "runs": before.get("runs", []),
        }
        self.write()
        self.wanted: list[tuple[dict[str, Any], Objective, Trial]] = [
            (data, objective, trial)
            for data, objective, trial in distinct_data(trials)
            if (data, objective) not in [(e["settings"], e["objective"]) for e in self.content["limit_lines"]]
        ]
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.compute_lines, daemon=True)
        self.thread.start()

    def compute_lines(self) -> None:
        """Add the limit lines of every data setting that the manifest does not have yet."""
        with contextlib.suppress(OSError, AttributeError):  # training comes first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        self.begin.wait()
        for data, objective, trial in self.wanted:
            if self.stop.is_set():
                return
            entry: dict[str, Any] = {"settings": data, "objective": objective}
            try:
                entry |= limits.limit_lines(data_model(trial), objective)
            except ValueError as error:  # a data setting theory has no lines for
                entry["error"] = str(error)
            with self.lock:
                self.content["limit_lines"] = [*self.content["limit_lines"], entry]
        with contextlib.suppress(store.StoreError):  # the end of the run tells of a full disk
            self.write()

    def ready(self) -> bool:
        """Return whether all limit lines are known."""
        return not self.thread.is_alive()

    def finish(self, progress: Progress, whole: bool) -> None:
        """Write what the run did; a whole run waits for its limit lines."""
        if not whole:
            self.stop.set()
        self.begin.set()
        self.thread.join()
        if progress.trials:
            seconds = time.monotonic() - progress.started
            entry = {
                "finished": now(),
                "trials": progress.trials,
                "trial_steps": progress.steps,
                "wall_seconds": round(seconds, 2),
                "compile_seconds": round(progress.compile_seconds, 2),
                "trial_steps_per_second": round(progress.rate, 1),
            }
            self.content["runs"] = [*self.content["runs"], entry]
        self.write()

    def write(self) -> None:
        """Write the file as it is known now."""
        with self.lock:
            self.writer.write_manifest(self.content)


def read_previous(folder: Path) -> dict[str, Any]:
    """Return the manifest an earlier run left, or nothing."""
    return store.read_manifest(folder) if (folder / "manifest.json").exists() else {}


def describe_run(named: grid.NamedSweep, planned: int, options: engine.Options) -> dict[str, Any]:
    """Return the sweep as data and where and with what it runs."""
    return {
        "sweep": named.name,
        "description": named.description,
        "trials_planned": planned,
        "base": named.base,
        "axes": grid.axes_of(named.base, named.sweep),
        "snapshots": options.snapshots,
        "started": now(),
        "versions": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "git_commit": git_commit(),
        "devices": [device.device_kind for device in options.devices],
    }


def version(package: str) -> str:
    """Return the installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def git_commit() -> str | None:
    """Return the commit of the code, with + if it was changed since; None outside a checkout."""
    if not shutil.which("git"):
        return None
    here = Path(__file__).parent
    ask = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12"]
    found = subprocess.run(ask, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def distinct_data(trials: Sequence[Trial]) -> list[tuple[dict[str, Any], Objective, Trial]]:
    """Return each data setting and objective of the sweep once, with a trial that has it."""
    found: dict[str, tuple[dict[str, Any], Objective, Trial]] = {}
    seen: set[tuple] = set()
    for trial in trials:
        drawn = trial.spec.word_distribution == "dirichlet"
        stream = trial.stream if drawn else trial.stream._replace(seed=0)
        quick = (trial.spec, stream, trial.hypers.objective)
        if quick in seen:
            continue
        seen.add(quick)
        settings = config.settings_of(trial)
        data = {name: settings[name] for name in (*config.DATA_SETTINGS, *(["seed"] if drawn else []))}
        objective = trial.hypers.objective
        found.setdefault(f"{sorted(data.items())}{objective}", (data, objective, trial))
    return list(found.values())


def data_model(trial: Trial) -> DataModel:
    """Return the trial's documents as theory takes them."""
    plain = trial.spec.word_distribution == "uniform" and trial.stream.overlap == 0
    words = None
    if not plain:
        words = np.asarray(lda.topic_words(trial.spec, config.numbers(trial.stream)), np.float64)
        words /= words.sum(axis=1, keepdims=True)
    return DataModel.of(config.settings_of(trial), words)


def plan_text(
    named: grid.NamedSweep, trials: Sequence[Trial], folder: Path, arguments: argparse.Namespace
) -> str:
    """Return what a run would do and cost."""
    engine.use_all_cores()
    options = engine.Options(lanes_per_device=arguments.chunk, snapshots=arguments.snapshots)
    lanes = engine.choose_lanes(trials, options)
    done = store.committed(folder) if folder.exists() else set()
    groups = plan.make_plan(trials, len(options.devices), lanes, done)
    left = sum(group.num_trials for group in groups)
    lines = [f"{named.name}: {len(trials):,} trials"]
    for name, values in grid.axes_of(named.base, named.sweep).items():
        shown = ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values[:8])
        lines.append(f"  {name:16} {len(values):4} values: {shown}{', ...' if len(values) > 8 else ''}")
    lines.append(f"{len(groups)} programs on {len(options.devices)} x {options.devices[0].device_kind}")
    for group in groups:
        lines.append(
            f"  {engine.describe(group.spec)}: {group.num_trials:,} trials in {len(group.chunks):,} chunks "
            f"of {group.rows_per_chunk} streams x {group.lanes} trials"
        )
    lines += costs(groups, options, folder)
    lines.append(f"already in {folder}: {len(trials) - left:,} trials; left: {left:,}")
    return "\n".join(lines)


def costs(groups: Sequence[plan.Group], options: engine.Options, folder: Path) -> list[str]:
    """Return the lines on memory, disk and time."""
    memory = disk = flops = steps = 0.0
    for group in groups:
        spec, kept = group.spec, plan.parse_snapshots(options.snapshots, group.spec)
        lanes = group.lanes * group.rows_per_chunk / len(options.devices)
        memory = max(memory, lanes * plan.lane_bytes(spec))
        disk += group.num_trials * (plan.record_bytes(spec) + len(kept) * plan.weight_bytes(spec) + 500)
        steps += group.num_trials * spec.steps
        flops += group.num_trials * spec.steps * plan.step_flops(spec)
    measured = [run["trial_steps_per_second"] for run in read_previous(folder).get("runs", [])]
    if measured:
        seconds, basis = (
            steps / measured[-1],
            f"the {measured[-1]:,.0f} trial-steps/s of its last run",
        )
    else:
        rate = plan.flop_rate(options.devices[0].platform)
        seconds = flops / rate / len(options.devices)
        basis = f"an assumed {rate / 1e9:,.0f} GFLOP/s a device; a real run tells better"
    return [
        f"memory: about {size(memory)} a device    disk: about {size(disk)}",
        f"time: about {duration(seconds)} for {steps:,.0f} trial-steps, without compiling (from {basis})",
    ]

"""The command line: list, plan, run, status, restore, inspect, report, bench.  See --help of each.

Exit codes: 0 done, 2 the user's mistake, 1 anything else, 130 interrupted.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from topicjax import grid
from topicjax.config import Trial

if TYPE_CHECKING:
    import numpy as np

RESULTS = Path("results")


class UserError(Exception):
    """A mistake of the user, told in one sentence."""


class Parser(argparse.ArgumentParser):
    """Errors of one sentence, exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where help is."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    from topicjax.store import StoreError

    options = make_parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except (ValueError, UserError, FileNotFoundError) as error:
        if type(error) not in (ValueError, UserError, FileNotFoundError):
            raise
        print(f"topicjax: {error}", file=sys.stderr)
        return 2
    except StoreError as error:
        print(f"topicjax: {error}", file=sys.stderr)
        return 1 if isinstance(error.__cause__, OSError) else 2  # a full disk is nobody's mistake
    except KeyboardInterrupt:
        print("topicjax: stopped at once; the same command continues the run", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, like `head`, has seen enough
        sys.stdout = None
        return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(prog="topicjax", description="Train sweeps of tiny transformers on topic models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    add = commands.add_parser

    lister = add("list", help="the sweeps there are")
    lister.set_defaults(command=list_sweeps)

    for name, command, text in (
        ("plan", plan_sweep, "what a sweep would do and cost, without doing it"),
        ("run", run_sweep, "train a sweep, or continue it"),
    ):
        sub = add(name, help=text, description=text.capitalize() + ".")
        add_sweep_options(sub)
        sub.set_defaults(command=command)

    status = add("status", help="how far a run is")
    status.add_argument("folder", type=Path)
    status.set_defaults(command=show_status)

    restore = add("restore", help="write the weights of one trial to a file")
    restore.add_argument("folder", type=Path)
    restore.add_argument("trial_id", help="as in the trials table; an unambiguous beginning is enough")
    restore.add_argument("--step", type=int, help="which snapshot (default: the last)")
    restore.add_argument("--out", type=Path, default=Path("weights.npz"), help="default: weights.npz")
    restore.set_defaults(command=restore_weights)

    inspect = add("inspect", help="draw one trained model: weights, attention, trajectory, numbers")
    inspect.add_argument("folder", type=Path)
    inspect.add_argument("trial_id", help="as in the trials table; an unambiguous beginning is enough")
    inspect.add_argument("--step", type=int, help="which snapshot (default: the last)")
    inspect.add_argument("--out", type=Path, help="folder of the pictures (default: FOLDER/inspect)")
    inspect.set_defaults(command=inspect_trial)

    report = add("report", help="write report.html: the answer, figures and tables of a run")
    report.add_argument("folder", type=Path)
    report.set_defaults(command=write_report)

    bench = add("bench", help="how fast this machine is")
    bench.add_argument("--repeats", type=int, help="default: 5; with --scaling 3")
    bench.add_argument("--json", action="store_true", help="print the numbers for machines")
    bench.add_argument("--scaling", action="store_true", help="how the rate scales: a table and a figure")
    bench.add_argument(
        "--out", type=Path, default=RESULTS / "bench", help="folder of --scaling (default: results/bench)"
    )
    bench.set_defaults(command=run_bench)
    return parser


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """Add what plan and run share."""
    parser.add_argument("sweep", help="a name from `topicjax list`, or the path of a sweep file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="sets",
        help="fix a setting for every trial; repeatable",
    )
    parser.add_argument(
        "--axis",
        action="append",
        default=[],
        metavar="NAME=V1,V2|log:LO:HI:N|lin:LO:HI:N|range:LO:HI",
        dest="axes",
        help="replace an axis or add one; repeatable",
    )
    parser.add_argument("--out", type=Path, help="run folder (default: results/SWEEP)")
    parser.add_argument("--chunk", type=int, default=0, help="trials a device trains together")
    parser.add_argument(
        "--snapshots",
        default="last",
        metavar="WHEN",
        help="steps whose weights are kept: last (default), none, log:N, or S1,S2,...",
    )
    parser.add_argument(
        "--save-every",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how often long trials save their state (default: 60)",
    )
    parser.add_argument(
        "--extend", action="store_true", help="add to a folder that holds another sweep's trials"
    )


def expand(options: argparse.Namespace) -> tuple[grid.NamedSweep, list[Trial], Path]:
    """Return the sweep with its overrides, its trials and its folder."""
    if options.chunk < 0:
        raise UserError(f"--chunk is {options.chunk}; allowed: 1 or more, or 0 for automatic")
    if not options.save_every >= 0:
        raise UserError(f"--save-every is {options.save_every}; allowed: 0 or more seconds")
    named = grid.load_sweep(options.sweep)
    base, sweep = grid.override(named.base, named.sweep, options.sets, options.axes)
    named = grid.NamedSweep(named.name, named.description, base, sweep)
    return named, grid.trials(base, sweep), options.out or RESULTS / named.name


def list_sweeps(options: argparse.Namespace) -> int:
    """Print each sweep with its size and first sentence."""
    for name in grid.sweep_names():
        sweep = grid.load_sweep(name)
        count = len(grid.trials(sweep.base, sweep.sweep))
        print(f"{name:16} {count:6,} trials   {sweep.description.splitlines()[0]}")
    return 0


def plan_sweep(options: argparse.Namespace) -> int:
    """Print what a run would do; nothing is compiled or written."""
    expanded = expand(options)
    from topicjax import session

    print(session.plan_text(*expanded, options))
    return 0


def run_sweep(options: argparse.Namespace) -> int:
    """Train what is not in the folder yet."""
    named, trials, folder = expand(options)
    from topicjax import session

    return session.run(named, trials, folder, options)


def show_status(options: argparse.Namespace) -> int:
    """Print how far a run is."""
    from topicjax import lock, store

    state = store.status(options.folder)
    running = f"running ({lock.who(state['running'])})" if state["running"] else "not running"
    print(
        f"{state['sweep']}: {state['finished']:,} of {state['planned']:,} trials finished, "
        f"{state['ok']:,} ok, {state['diverged']:,} diverged; {running}"
    )
    return 0


def restore_weights(options: argparse.Namespace) -> int:
    """Write one trial's weights to an .npz file."""
    import numpy as np

    from topicjax import store

    weights = store.load(options.folder).restore(options.trial_id, options.step)
    if options.out.suffix != ".npz":
        raise UserError(f"--out is {str(options.out)!r}; allowed: a name that ends in .npz")
    try:
        np.savez(options.out, allow_pickle=False, **weights)
    except OSError as error:
        raise UserError(f"{options.out} cannot be written: {error.strerror}") from None
    shapes = ", ".join(f"{name} {'x'.join(map(str, w.shape))}" for name, w in weights.items())
    print(f"{options.out}: {shapes}")
    return 0


def inspect_trial(options: argparse.Namespace) -> int:
    """Draw one trial's weights, attention and trajectory on one page."""
    from analysis import inspection
    from topicjax.lock import explained

    words = drawn_words(options.folder, options.trial_id)
    with explained("draw into", options.out or options.folder, FileNotFoundError):
        paths = inspection.inspect(options.folder, options.trial_id, options.step, options.out, words)
    for path in paths:
        print(path)
    return 0


def drawn_words(folder: Path, trial_id: str) -> "np.ndarray | None":
    """Return the trial's word distribution of each topic; None if words are uniform in their topic."""
    from topicjax import config, store

    run = store.load(folder)
    trials = run.trials.set_index("trial_id", drop=False)
    settings = trials.loc[run.find(trial_id), list(config.IDENTITY)].to_dict()
    if settings["word_distribution"] == "uniform" and settings["overlap"] == 0:
        return None
    from topicjax import session

    return session.data_model(config.make_trial(settings)).topic_word


def write_report(options: argparse.Namespace) -> int:
    """Write the report of a run into its folder."""
    from analysis import report
    from topicjax.lock import explained

    with explained("write into", options.folder, FileNotFoundError):
        path = report.write(options.folder)
    print(f"{path}: open it in a browser")
    return 0


def run_bench(options: argparse.Namespace) -> int:
    """Time the engine against the plain ways."""
    if options.repeats is not None and options.repeats < 1:
        raise UserError(f"--repeats is {options.repeats}; allowed: 1 or more")
    if options.scaling:
        return run_scaling(options)
    from topicjax import bench

    bench.main(options.repeats or 5, options.json)
    return 0


def run_scaling(options: argparse.Namespace) -> int:
    """Time the engine at many sizes; write the numbers and their figure."""
    from analysis.scaling import scaling_figure
    from topicjax import engine, scaling

    try:
        options.out.mkdir(parents=True, exist_ok=True)  # before minutes of work, not after
    except OSError as error:
        raise UserError(f"{options.out} cannot be written: {error.strerror}") from None
    engine.use_all_cores()
    frame = scaling.run(options.repeats or 3, lambda line: print(line, file=sys.stderr, flush=True))
    frame.to_csv(options.out / "scaling.csv", index=False)
    files = [options.out / "scaling.csv", *scaling_figure(frame).save(options.out / "scaling")]
    print(frame.to_json(orient="records", indent=2) if options.json else "\n".join(map(str, files)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What can be typed: commands, options and their help."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from topicjax.cli import commands
from topicjax.version import __version__

AXIS_FORMS = "NAME=V1,V2|log:LO:HI:N|lin:LO:HI:N|range:LO:HI"


class Parser(argparse.ArgumentParser):
    """Errors of one sentence, exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where help is."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(prog="topicjax", description="Train sweeps of tiny transformers on topic models.")
    parser.add_argument("--version", action="version", version=f"topicjax {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.set_defaults(command=command)
        return sub

    add("list", commands.list_sweeps, "list the sweeps there are")
    add(
        "settings", commands.list_settings, "list every setting of a trial: default, what is allowed, meaning"
    )
    add_sweep_options(
        add("plan", commands.plan_sweep, "say what a sweep would do and cost, without doing it")
    )
    add_sweep_options(add("run", commands.run_sweep, "train a sweep, or continue it"))
    add_folder(add("status", commands.show_status, "say how far a run is and what its folder holds"))

    add_folder(add("verify", commands.verify_folder, "check every file of a run folder against its checksum"))
    add_folder(
        add("repair", commands.repair_folder, "set damaged files aside: the next run computes them again")
    )

    restore = add("restore", commands.restore_weights, "write the weights of one trial to a file")
    add_trial(restore)
    restore.add_argument("--out", type=Path, default=Path("weights.npz"), help="default: weights.npz")
    restore.add_argument("--force", action="store_true", help="write over a file that is there")

    inspect = add("inspect", commands.inspect_trial, "draw one trained model: weights, attention, trajectory")
    add_trial(inspect)
    inspect.add_argument("--out", type=Path, help="folder of the pictures (default: FOLDER/inspect)")

    add_folder(
        add("report", commands.write_report, "write report.html: the answer, figures and tables of a run")
    )
    add_bench_options(add("bench", commands.run_bench, "measure how fast this machine is, as ratios"))
    return parser


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the run folder."""
    parser.add_argument("folder", type=Path, help="a run folder, as results/two_stage")


def add_trial(parser: argparse.ArgumentParser) -> None:
    """Add the run folder, a trial in it, and one of its snapshots."""
    add_folder(parser)
    parser.add_argument("trial_id", help="as in the trials table; an unambiguous beginning is enough")
    parser.add_argument("--step", type=int, help="which snapshot (default: the last)")


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """Add what plan and run share."""
    add = parser.add_argument
    add("sweep", help="a name from `topicjax list`, or the path of a sweep file")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="sets",
        help="fix a setting: selects its trials where the sweep names it, else sets it for all; repeatable",
    )
    add(
        "--axis",
        action="append",
        default=[],
        metavar=AXIS_FORMS,
        dest="axes",
        help="replace an axis or add one; repeatable",
    )
    add("--out", type=Path, help="run folder (default: results/SWEEP)")
    add("--lanes", type=int, default=0, help="trials that a device trains together (default: chosen)")
    add(
        "--snapshots",
        default="last",
        metavar="WHEN",
        help="steps whose weights are kept: last (default), none, log:N, or S1,S2,...",
    )
    add(
        "--save-every",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how often long trials save their state (default: 60)",
    )
    add("--extend", action="store_true", help="add to a folder that holds another sweep's trials")


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of bench."""
    add = parser.add_argument
    add("--repeats", type=int, help="default: 5; with --scaling 3")
    add("--json", action="store_true", help="print the numbers for machines")
    add("--scaling", action="store_true", help="how the rate scales: a table and a figure")
    add(
        "--out",
        type=Path,
        default=commands.RESULTS / "bench",
        help="folder of --scaling (default: results/bench)",
    )

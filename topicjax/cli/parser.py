"""Command line parser: commands, options and their help."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from topicjax.cli import commands, folder_commands, json_output, probe_commands
from topicjax.cli.terminal import one_line
from topicjax.engine.options import OPTIONS, Options, flag, parse_path
from topicjax.errors import shown
from topicjax.measures import SHIPPED as MEASURES
from topicjax.version import __version__

EXIT_CODES = (
    "Exit codes: 0 done; 1 the disk is full, a folder is damaged, trials failed on a cluster, your file "
    "failed in the middle of a run, or a defect of topicjax; 2 a mistake in what was typed or in your file, "
    "nothing was created; 129, 130, 143 stopped by SIGHUP, Ctrl-C, SIGTERM: what is finished is kept, and "
    "the same command continues."
)
WATCH_SECONDS = 30.0
AXIS_FORMS = "NAME=V1,V2|log:LO:HI:N|lin:LO:HI:N|range:LO:HI"


class Parser(argparse.ArgumentParser):
    """Reports errors in one sentence, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and how to get help."""
        self.exit(2, one_line(f"{self.prog}: {message} (see {self.prog} --help)") + "\n")


class Help(argparse.HelpFormatter):
    """Keeps the line breaks of a list of fields."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    about = "Train sweeps of tiny transformers on topic models."
    parser = Parser(prog="topicjax", description=about, epilog=EXIT_CODES)
    parser.add_argument("--version", action="version", version=f"topicjax {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def add(
        name: str, command: Callable[[argparse.Namespace], int], text: str, prints: bool = False
    ) -> argparse.ArgumentParser:
        """Add a command; `prints`: its output is all it does."""
        description = f"{text[0].upper()}{text[1:]}."
        sub = subparsers.add_parser(name, help=text, description=description, formatter_class=Help)
        sub.set_defaults(command=command, prints=prints)
        if name in json_output.FIELDS:
            sub.epilog = json_output.help_text(name)
            sub.add_argument("--json", action="store_true", help="print one JSON object, and nothing else")
        return sub

    settings = "list every setting of a trial: default, what is allowed, meaning"
    plan = "say what a sweep would do and cost, without doing it"
    corpus = "make the corpora of Wikipedia, or of a text of your own, in data/ (or TOPICJAX_DATA)"
    add("list", commands.list_sweeps, "list the sweeps there are", prints=True)
    listed = add("settings", commands.list_settings, settings, prints=True)
    listed.add_argument("sweep", nargs="?", help="list only its experiment (default: every shipped one)")
    planned = add_sweep_options(add("plan", commands.plan_sweep, plan, prints=True))
    target = (
        "compile for devices that are not here, TPUs as v5e:2x2 (needs the extra tpu) or the GPU a100 (needs "
        "the extra cuda12), and say whether it fits and what limits a step"
    )
    planned.add_argument("--target", metavar="TOPOLOGY", help=target)
    add_sweep_options(add("run", commands.run_sweep, "train a sweep, or continue it"))
    add_corpus_options(add("corpus", commands.make_corpus, corpus))
    probe = "measure how language models see topics: Figure 3, Tables 1 and 2"
    probe_commands.add_probe_options(add("probe", probe_commands.probe_models, probe), path)
    add_folder_commands(add)
    add_bench_options(add("bench", commands.run_bench, "measure how fast this machine is, as ratios"))
    return parser


def add_folder_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands on run folders."""
    does = folder_commands
    status = "say how far a run is and what its folder holds"
    verify = "check every file of a run folder against its checksum"
    repair = "set damaged files aside: the next run computes them again"
    inspect = "draw one trained model: weights, attention, trajectory"
    report = "write report.html: the answer, figures and tables of a run; or the index of a folder of runs"
    add_folder(add("status", does.show_status, status, prints=True))
    add_folder(add("verify", does.verify_folder, verify, prints=True))
    add_folder(add("repair", does.repair_folder, repair))
    add_restore_options(add("restore", does.restore_weights, "write the weights of one trial to a file"))
    pictures = add_trial(add("inspect", does.inspect_trial, inspect))
    pictures.add_argument("--out", type=path, help="folder of the pictures (default: FOLDER/inspect)")
    measure = "apply a function of settings, weights and data to the snapshots of a run"
    add_measure_options(add("measure", does.measure_snapshots, measure))
    add_report_options(add("report", does.write_report, report))
    claims = "judge the claims that runs are about: one table, and what is missing"
    add_table_options(add("claims", does.show_claims, claims), "claims")
    general = (
        "tabulate over runs where training is two-stage, how clean the stages are, and what removes them"
    )
    add_table_options(add("general", does.show_general, general), "general")
    add_export_options(add("export", does.export_run, "write a run as CSV files or TensorBoard events"))


def path(text: str) -> Path:
    """Parse a path, or raise if no file system can hold it."""
    try:
        return parse_path(text)
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a path") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{shown(text)} is {error}") from None


def add_corpus_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of corpus."""
    parser.add_argument("--text", type=path, metavar="FILE", help="UTF-8 text, one document per line")
    named = "name of the corpora NAME and NAME_content (default: that of the file)"
    parser.add_argument("--name", help=named)
    size = "words of the vocabulary, [MASK] and [UNK] among them (default: 32,768, or all there are)"
    parser.add_argument("--vocabulary", type=int, metavar="N", help=size)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the run folder."""
    parser.add_argument("folder", type=path, help="a run folder, as results/two_stage")


def add_trial(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the run folder, a trial in it, and one of its snapshots."""
    add_folder(parser)
    parser.add_argument("trial_id", help="as in the trials table; an unambiguous beginning is enough")
    parser.add_argument("--step", type=int, help="which snapshot (default: the last)")
    return parser


def add_restore_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of restore."""
    add_trial(parser)
    parser.add_argument("--out", type=path, default=Path("weights.npz"), help="default: weights.npz")
    parser.add_argument("--force", action="store_true", help="write over a file that is there")


def add_sweep_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options that plan and run share."""
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
    add(
        "--refine",
        metavar="NAME[,NAME]",
        help="add trials where neighbouring cells of the sweep disagree, along one or two settings",
    )
    add("--levels", type=int, metavar="K", help="how often --refine halves the spacing (default: 2)")
    add(
        "--budget",
        type=int,
        metavar="TRIALS",
        help="most trials in all with --refine (default: no limit)",
    )
    add("--out", type=path, help="run folder (default: results/SWEEP)")
    for name, option in OPTIONS.items():
        if getattr(Options, name) is False:
            add(flag(name), dest=name, action="store_const", const=True, help=option.help)
        else:
            add(flag(name), dest=name, metavar=option.metavar, help=option.help)
    add("--traceback", action="store_true", help="print the whole traceback of an error, of your file say")
    return parser


def add_measure_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of measure."""
    add_folder(parser)
    add = parser.add_argument
    named = f"one of {', '.join(MEASURES)}; or a function of a file, FILE.py[:NAME] (default: NAME measure)"
    add("measure", metavar="MEASURE", help=named)
    add_filter(parser, "measure")
    add("--trials", metavar="ID[,ID]", help="measure only these; the beginning of an id is enough")
    add("--steps", metavar="S1[,S2]", help="measure only snapshots of these steps (default: all)")
    add("--devices", metavar="N", help="how many devices to use (default: all)")
    add(
        "--again",
        action="store_true",
        help="set aside what this measure has written, and measure again: its code has changed, say",
    )
    add("--traceback", action="store_true", help="print the whole traceback of an error, of your file say")


def add_filter(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the option that selects trials."""
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="NAME=VALUE[,VALUE]",
        dest="filters",
        help=f"{verb} only trials with these values, as optimizer=sgd or class=two-stage; repeatable",
    )


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of report."""
    add_folder(parser)
    add = parser.add_argument
    add("--x", metavar="NAME", help="the setting along x of maps (default: learning_rate if it varies)")
    add("--y", metavar="NAME", help="the setting along y of maps (default: init_scale if it varies)")
    add(
        "--panel",
        metavar="NAME[,NAME]",
        default="",
        help="the settings that tell panels of maps apart first (default: objective,optimizer)",
    )
    add_filter(parser, "show")
    add(
        "--watch",
        type=float,
        nargs="?",
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help="make the page again while the sweep runs, at this interval (default: 30)",
    )


def add_table_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of a table over several runs, of this name."""
    add = parser.add_argument
    add("folders", type=path, nargs="+", metavar="FOLDER", help="run folders, as results/theorem3")
    out = (
        "the page; a Markdown file of the same name is written beside it (default: "
        f"results/{name}.html); with --json nothing is written"
    )
    add("--out", type=path, default=commands.RESULTS / f"{name}.html", metavar="FILE.html", help=out)


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of export."""
    add_folder(parser)
    formats = parser.add_mutually_exclusive_group(required=True)
    choices = {
        "csv": "trials.csv, trajectories.csv, and details.csv if there are any",
        "tensorboard": "one event file per trial",
    }
    for name, text in choices.items():
        formats.add_argument(f"--{name}", action="store_const", const=name, dest="format", help=text)
    parser.add_argument("--out", type=path, help="a new or empty folder (default: FOLDER/export/FORMAT)")


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of bench."""
    add = parser.add_argument
    add("--repeats", type=int, help="default: 5; with --scaling 3")
    choices = {
        "--scaling": "how the rate scales: a table and a figure",
        "--layers": "encoders of 1, 2 and 4 layers, of the sweep depth and by default, against eager PyTorch",
        "--text": "the encoder of the sweep wikipedia against eager PyTorch",
        "--syntax": "the encoder of the sweep syntax against eager PyTorch",
        "--tiny": "linear attention against jit(vmap(scan)) and eager PyTorch",
        "--cluster": "how many workers of a cluster one driver can feed",
    }
    group = parser.add_mutually_exclusive_group()
    for name, text in choices.items():
        const = name.removeprefix("--")
        group.add_argument(name, action="store_const", const=const, dest="what", help=text)
    add(
        "--out",
        type=path,
        default=commands.RESULTS / "bench",
        help="folder of --scaling (default: results/bench)",
    )

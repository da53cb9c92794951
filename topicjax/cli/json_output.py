"""Output for programs: the fields that each command prints with `--json`, and the function that prints them.

Standard output is one JSON object, printed at the end, and nothing else; progress, and what a user's file
prints, go to standard error.  A command that fails prints no object: its message is on standard error, and
its exit code is not 0.  `verify` exits with 1 if it finds problems, and prints them.
"""

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topicjax.advice import guide
from topicjax.version import __version__

Fields = dict[str, tuple[str, str]]  # by path: a.b is in an object, a[].b in each object of an array

TEXT, NUMBER, FLAG, OBJECT = "string", "number", "boolean", "object"
TEXTS, ANY = "array of strings", "any"
NO_NUMBER = "number or null"
NO_TEXT = "string or null"

COMMON: Fields = {"topicjax": (TEXT, "version of topicjax")}
MACHINE: Fields = {
    "machine.started": (TEXT, "when it was measured, UTC"),
    "machine.versions": (OBJECT, "version of each package that results depend on"),
    "machine.python": (TEXT, "version of Python"),
    "machine.git_commit": (NO_TEXT, "commit of the checkout, + if there are changes; null if installed"),
    "machine.devices": (TEXTS, "kind of each device"),
    "machine.platform": (TEXT, "cpu, gpu or tpu"),
    "machine.runtime": (TEXT, "version of the platform's runtime"),
    "machine.driver": (NO_TEXT, "version of NVIDIA's driver"),
    "machine.device_memory_bytes": (NO_NUMBER, "memory of a device, if it is known"),
    "machine.accelerator_packages": (OBJECT, "version of each installed package that drives accelerators"),
    "machine.system": (TEXT, "operating system"),
    "machine.processor": (TEXT, "model of the CPU"),
    "machine.cores": (NUMBER, "cores of the machine"),
}
TIMED: Fields = {
    "repeats": (NUMBER, "how often each method was timed, in turns"),
    "device": (TEXT, "number and kind of devices"),
    "load_before": (NUMBER, "processes per core that ran before"),
}
METHOD: Fields = {
    "methods[].method": (TEXT, "what was timed"),
    "methods[].trial_steps_per_second": (NUMBER, "median rate"),
    "methods[].spread": (NUMBER, "(highest - lowest) / median"),
    "methods[].gemm_share": (NUMBER, "rate of its matrix products, as a share of the large product's"),
    "methods[].compile_seconds": (NUMBER, "seconds of compiling"),
}
SHARES: Fields = {
    "gemm_gflops": (NUMBER, "rate of a large matrix product on all cores, GFLOP/s"),
    "record_share": (NUMBER, "share of the engine's time that records take"),
    "drawing_share": (NUMBER, "share that drawing data takes"),
    "record_every": (NUMBER, "steps from one record to the next"),
}
TORCH = "processes and threads of PyTorch, whichever were faster; on the CPU always"
DEEP: Fields = {
    **TIMED,
    "models[].model": (TEXT, "sweep and number of layers, or text"),
    "models[].trial_steps_per_second": (NUMBER, "median rate of the engine"),
    "models[].without_records": (NUMBER, "its rate without records"),
    "models[].torch": (NUMBER, "rate of eager PyTorch"),
    "models[].torch_processes": (TEXT, TORCH),
    "models[].ratio": (NUMBER, "engine to PyTorch, median of neighbouring turns"),
    "models[].lowest_ratio": (NUMBER, "the lowest of them"),
    "models[].highest_ratio": (NUMBER, "the highest"),
    "models[].ratio_without_records": (NUMBER, "the median without records"),
    "models[].flop_per_trial_step": (NUMBER, "floating-point operations of a step"),
    "models[].gemm_gflops": (NUMBER, "rate of a large matrix product on all cores, GFLOP/s"),
    "models[].gemm_share": (NUMBER, "rate of the engine's products as a share of it"),
    "models[].record_share": (NUMBER, "share of the engine's time that records take"),
    "models[].planned_record_share": (NUMBER, "the share that `topicjax plan` expects"),
    "models[].drawing_share": (NUMBER, "share that drawing data takes"),
    "models[].compile_seconds": (NUMBER, "seconds of compiling"),
    "models[].record_every": (NUMBER, "steps from one record to the next"),
    "models[].rare_every": (NUMBER, "records from one rare measurement to the next"),
    "models[].seconds": (NUMBER, "seconds of timing"),
    **MACHINE,
}

FIELDS: dict[str, Fields] = {  # by command; a form of it that prints other fields has its option in the name
    "list": {
        "sweeps[].name": (TEXT, "as `topicjax run` takes it"),
        "sweeps[].question": (TEXT, "first line of its description"),
        "sweeps[].experiment": (TEXT, "what its trials train"),
        "sweeps[].trials": (NUMBER, "number of its trials"),
        "sweeps[].claims": (TEXTS, "names of the claims it is about"),
    },
    "settings": {
        "experiments[].experiment": (TEXT, "name of an experiment"),
        "experiments[].settings[].name": (TEXT, "name of a setting"),
        "experiments[].settings[].part": (
            TEXT,
            "Spec (a program for each value), Stream (fixes the data) or Hypers (acts on a trial)",
        ),
        "experiments[].settings[].default": (ANY, "its default"),
        "experiments[].settings[].allowed": (TEXT, "its values, in words"),
        "experiments[].settings[].meaning": (TEXT, "what it does"),
    },
    "plan": {
        "sweep": (TEXT, "name of the sweep"),
        "experiment": (TEXT, "what its trials train"),
        "folder": (TEXT, "run folder"),
        "trials": (NUMBER, "trials of the sweep"),
        "finished": (NUMBER, "those that the folder has"),
        "left": (NUMBER, "those to train"),
        "resumed": (NUMBER, "those to train that continue a shorter training"),
        "may_stop": (FLAG, "trials end once they are decided; seconds are then the most it takes"),
        "axes": (OBJECT, "every setting that varies, with its values"),
        "programs[].label": (TEXT, "settings that tell a program from the others"),
        "programs[].trials": (NUMBER, "trials to train with it"),
        "programs[].chunks": (NUMBER, "chunks of them"),
        "programs[].streams_per_chunk": (NUMBER, "streams of a chunk"),
        "programs[].trials_per_stream": (NUMBER, "most trials of a stream in a chunk"),
        "programs[].record_share": (NUMBER, "expected share of the work that records take"),
        "devices": (TEXTS, "kind of each device, of one worker on a cluster"),
        "workers": (NO_NUMBER, "workers of the cluster, if there is one"),
        "memory_bytes": (NUMBER, "expected memory per device"),
        "disk_bytes": (NUMBER, "expected size of what is left to train"),
        "trial_steps": (NUMBER, "training steps of all trials left"),
        "seconds": (NUMBER, "expected time, without compiling unless on a cluster"),
        "seconds_from": (TEXT, "what this expectation is based on"),
        "compile_seconds": (NO_NUMBER, "expected time of compiling, if it was ever measured here"),
        "limited_by": (NO_TEXT, "what limits the workers of a cluster"),
        "notes": (TEXTS, "what --set and --axis left out"),
        "refinement": ("object or null", "axes, levels and most trials (most_trials) of refinement, if any"),
    },
    "status": {
        "folder": (TEXT, "run folder"),
        "sweep": (NO_TEXT, "name of its sweep"),
        "planned": (NO_NUMBER, "distinct trials of all plans; null if no plan can be read"),
        "finished": (NUMBER, "finished trials"),
        "ok": (NUMBER, "those that stayed finite"),
        "diverged": (NUMBER, "those that did not"),
        "beyond": (NUMBER, "finished trials in no plan"),
        "running": ("object or null", "pid, host and since of the process that writes to the folder"),
        "plans[].words": (TEXT, "a sweep and its overrides, as typed"),
        "plans[].planned": (NUMBER, "its trials"),
        "plans[].finished": (NUMBER, "those that are finished"),
        "problems": (TEXTS, "files that are missing, cut short or unknown, in sentences"),
        "versions": (TEXTS, "of the code that trained the trials, if more than one"),
        "arithmetic": (TEXTS, "precision of its runs, in words"),
    },
    "verify": {
        "folder": (TEXT, "run folder"),
        "is_whole": (FLAG, "everything is as it was written; the exit code is 1 if not"),
        "trials": (NUMBER, "trials found"),
        "chunks": (NUMBER, "chunks checked"),
        "bytes_read": (NUMBER, "bytes read"),
        "seconds": (NUMBER, "how long it took"),
        "problems[].path": (TEXT, "a file that is not as it was written"),
        "problems[].sentence": (TEXT, "what is wrong with it"),
        "problems[].chunk": (NO_TEXT, "the chunk whose trials must be computed again, if any"),
    },
    "claims": {
        "rows[].claim": (TEXT, "name of a claim"),
        "rows[].source": (TEXT, "where it was stated"),
        "rows[].says": (TEXT, "what it says"),
        "rows[].verdict": (TEXT, "holds, partly, fails or undecided"),
        "rows[].measured": (TEXT, "what was measured, in a sentence"),
        "rows[].change": (TEXT, "what would change the verdict"),
        "rows[].run": (TEXT, "sweep of the run"),
        "rows[].commit": (TEXT, "of the code that trained it, if known"),
        "rows[].page": (TEXT, "path of the run's page; empty without one"),
        "rows[].shown_by": (TEXT, "path of the figure or table that shows it; empty without one"),
        "rows[].numbers": (OBJECT, "measured numbers by name; null if not finite"),
        "missing[].claim": (TEXT, "name of a claim of the paper that none of the runs is about"),
        "missing[].source": (TEXT, "where it was stated"),
        "missing[].says": (TEXT, "what it says"),
        "missing[].sweeps": (TEXTS, "shipped sweeps that are about it; none: `topicjax probe` tests it"),
        "remarks": (TEXTS, "on incomplete runs, and on sweeps that would add to these claims"),
        "commit": (TEXT, "of the code that made the table, if known"),
        "made": (TEXT, "when"),
    },
    "general": {
        "answer": (TEXTS, "the answer, one or two sentences"),
        "summary[].experiment": (TEXT, "what the run trains"),
        "summary[].run": (TEXT, "sweep of the run"),
        "summary[].answers": (OBJECT, "two-stage cells by loss, order parameters and norms, or why not"),
        "rows[].experiment": (TEXT, "what the run trains"),
        "rows[].run": (TEXT, "sweep of the run"),
        "rows[].view": (TEXT, "name of the view"),
        "rows[].words": (TEXT, "what it measures"),
        "rows[].cells": (NUMBER, "cells (trials that differ only in the seed)"),
        "rows[].judged": (NUMBER, "those that have an answer"),
        "rows[].two_stage": (NUMBER, "those that are two-stage"),
        "rows[].others": (OBJECT, "judged cells of the other classes, by class"),
        "rows[].not_judged": (OBJECT, "cells that are not judged, by class"),
        "rows[].trials": (NUMBER, "trials of all cells; of parts of a model, rows"),
        "rows[].most_trials": (NUMBER, "most trials of a cell"),
        "rows[].theta": (NO_NUMBER, "Θ, median over judged cells"),
        "rows[].theta_lowest": (NO_NUMBER, "the lowest"),
        "rows[].theta_highest": (NO_NUMBER, "the highest"),
        "rows[].agreement": (
            NO_NUMBER,
            "share of the trials of judged cells that have the class of their cell; null if each has one",
        ),
        "rows[].removes": (TEXT, "what removes the two stages, in a sentence"),
        "rows[].settings[].name": (TEXT, "a setting that varies"),
        "rows[].settings[].values[].value": (ANY, "one of its values"),
        "rows[].settings[].values[].words": (TEXT, "the same in words"),
        "rows[].settings[].values[].cells": (NUMBER, "cells with it"),
        "rows[].settings[].values[].judged": (NUMBER, "judged ones"),
        "rows[].settings[].values[].two_stage": (NUMBER, "two-stage ones"),
        "rows[].settings[].values[].kept": (
            NUMBER,
            "pairs with a two-stage cell that differs in this setting alone: two-stage here too",
        ),
        "rows[].settings[].values[].removed": (NUMBER, "pairs of this kind: not two-stage here"),
        "rows[].settings[].values[].unanswered": (NUMBER, "pairs of this kind: not judged here"),
        "rows[].settings[].values[].fall": (
            NO_NUMBER,
            "share of two-stage cells among the others minus that among these, over judged pairs",
        ),
        "rows[].settings[].values[].where": (
            TEXT,
            "settings that vary in the run but not in the pairs that are kept or removed",
        ),
        "rows[].commit": (TEXT, "of the code that trained it, if known"),
        "rows[].page": (TEXT, "path of the run's page; empty without one"),
        "rows[].dots": (ANY, "of judged cells: Θ, and whether the cell is two-stage"),
        "remarks": (TEXTS, "on incomplete runs, and on those without a view"),
        "commit": (TEXT, "of the code that made the table, if known"),
        "made": (TEXT, "when"),
    },
    "bench": {
        **TIMED,
        **SHARES,
        "planned_record_share": (NUMBER, "the share that `topicjax plan` expects"),
        "peak_memory_bytes": (NUMBER, "peak memory of the process"),
        "torch_processes": (OBJECT, f"by method: {TORCH}"),
        **METHOD,
        "methods[].lowest": (NUMBER, "lowest rate"),
        "methods[].highest": (NUMBER, "highest rate"),
        "methods[].times_token_vmap": (NO_NUMBER, "rate over that of the token-space model under vmap"),
        "methods[].times_torch_eager": (NO_NUMBER, "rate over that of eager PyTorch, if it is installed"),
        "methods[].flop_per_trial_step": (NUMBER, "floating-point operations of a step"),
        "methods[].memory_bytes": (NO_NUMBER, "memory of the compiled program, if it is known"),
        **MACHINE,
    },
    "bench --layers": DEEP,
    "bench --text": DEEP,
    "bench --syntax": DEEP,
    "bench --tiny": {
        **TIMED,
        **SHARES,
        "flop_per_trial_step": (NUMBER, "floating-point operations of a step"),
        "trials": (NUMBER, "trials trained together"),
        "order": (TEXT, "order of work over the trials that the engine chose"),
        "lanes": (NUMBER, "trials per program call and device"),
        "torch_processes": (TEXT, TORCH),
        **METHOD,
        "methods[].times_by_hand": (NUMBER, "rate over that of jit(vmap(scan)) written by hand"),
        "methods[].times_torch": (NUMBER, "rate over that of eager PyTorch"),
        **MACHINE,
    },
    "bench --cluster": {
        "trials": (NUMBER, "trials of a large chunk"),
        "dispatch": (NUMBER, "seconds of the driver to send it"),
        "fetch": (NUMBER, "to fetch its results"),
        "write": (NUMBER, "to write them"),
        "num_bytes": (NUMBER, "size of its results"),
        "small": (OBJECT, "the same numbers of a small chunk"),
        "simulation[].load": (NUMBER, "chunks of sleeping workers, as a share of what the driver can do"),
        "simulation[].sleep": (NUMBER, "seconds that a worker sleeps per chunk"),
        "simulation[].rounds": (NUMBER, "chunks per worker"),
        "simulation[].expected": (NUMBER, "expected chunks per second"),
        "simulation[].measured": (NUMBER, "measured chunks per second"),
        **MACHINE,
    },
    "bench --scaling": {
        "files": (TEXTS, "table and figure that were written"),
        "sizes[].curve": (TEXT, "what is varied"),
        "sizes[].devices": (NUMBER, "devices"),
        "sizes[].streams_per_device": (NUMBER, "streams per device"),
        "sizes[].hypers_per_stream": (NUMBER, "trials per stream"),
        "sizes[].trials_per_chunk": (NUMBER, "trials per chunk"),
        "sizes[].batch_size": (NUMBER, "documents per step"),
        "sizes[].topics": (NUMBER, "topics"),
        "sizes[].words_per_topic": (NUMBER, "words per topic"),
        "sizes[].trials": (NUMBER, "trials trained"),
        "sizes[].steps": (NUMBER, "steps of each"),
        "sizes[].seconds": (NUMBER, "median time"),
        "sizes[].trial_steps_per_second": (NUMBER, "median rate"),
        "sizes[].lowest": (NUMBER, "lowest rate"),
        "sizes[].highest": (NUMBER, "highest rate"),
        "sizes[].useful_gflops": (NUMBER, "rate of useful operations, GFLOP/s"),
        "sizes[].repeats": (NUMBER, "how often it was timed"),
        "sizes[].compile_seconds": (NUMBER, "seconds of compiling"),
        **MACHINE,
    },
}
FIELDS = {command: COMMON | fields for command, fields in FIELDS.items()}


def write_json(typed: argparse.Namespace, content: Mapping[str, Any]) -> None:
    """Print the output of a command for programs."""
    text = json.dumps(plain({"topicjax": __version__, **content}), indent=2, allow_nan=False)
    typed.out_stream.write(f"{text}\n")


def plain(value: Any) -> Any:
    """Turn a value into what JSON has; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    value = value.item() if hasattr(value, "item") else value  # a number of NumPy
    return None if isinstance(value, float) and not math.isfinite(value) else value


def help_text(command: str) -> str:
    """List the fields of a command for its --help."""
    forms = {form: fields for form, fields in FIELDS.items() if form.split()[0] == command}
    if len(forms) > 1:
        return f"With --json it prints one JSON object; {guide('json')} lists its fields: {', '.join(forms)}."
    (fields,) = forms.values()
    width = max(map(len, fields))
    lines = [f"  {path:{width}}  {meaning}" for path, (_, meaning) in fields.items()]
    return "\n".join(["fields of --json:", *lines])


def tables() -> str:
    """Write the fields of all commands as Markdown tables; those of the machine have one of their own."""
    parts = []
    for command, fields in {**FIELDS, "machine": MACHINE}.items():
        own = {path: field for path, field in fields.items() if command == "machine" or path not in MACHINE}
        rows = [f"| `{path}` | {kind} | {meaning} |" for path, (kind, meaning) in own.items()]
        rows += ["| `machine` | object | the machine it ran on, see [machine](#machine) |"] * (own != fields)
        parts.append("\n".join([f"## {command}\n", "| field | type | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)

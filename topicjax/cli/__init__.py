"""The command line: `main` runs one command and returns its exit code.

0              done
1              the disk is full, a folder is damaged (`verify`), a cluster ended or failed to train trials,
               the user's own file raised an exception while it trained, or a defect of topicjax
2              a mistake in what was typed or in the user's file, in one sentence; nothing was created
129, 130, 143  stopped by SIGHUP, Ctrl-C, SIGTERM; what is finished is kept
"""

import argparse
import contextlib
import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from topicjax.cli.commands import has_begun, own_failure
from topicjax.cli.parser import make_parser
from topicjax.cli.terminal import one_line, open_standard_files, say, steady_output
from topicjax.errors import ClusterLost, UserError
from topicjax.store.files import OF_THE_DISK, REASONS, StoreError

DEFECT = (
    "topicjax: this is a defect of topicjax, not a mistake of yours; please report it, with the lines above, "
    "where you got topicjax"
)
INTERRUPTED = 128 + signal.SIGINT
MISNAMED = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EINVAL,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; the default arguments are those of this process."""
    if arguments is not None:
        return run_command(list(arguments))
    open_standard_files()
    sys.unraisablehook = report_unraisable
    try:
        code = run_command(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code > 128:
        os._exit(code)  # everything is closed; another Ctrl-C could only interrupt Python's own exit
    return code


def run_command(arguments: list[str]) -> int:
    """Run a command to its end, even if its output can no longer be written."""
    with steady_output() as out:
        typed = make_parser().parse_args(arguments)
        typed.arguments, typed.out_stream = arguments, out
        for_programs = getattr(typed, "json", False)  # then the object is all that goes to standard output
        with contextlib.redirect_stdout(sys.stderr if for_programs else sys.stdout):
            code = guarded(typed)
        out.flush()
        is_lost = out.error is not None and not isinstance(out.error, BrokenPipeError)
        if (
            is_lost and (typed.prints or for_programs) and code == 0
        ):  # its output was all the command had to do
            code = fail(f"cannot write to standard output: {out.error}", 1)
    return code


def guarded(typed: argparse.Namespace) -> int:
    """Run the command and return its exit code, whatever it raises."""
    try:
        return typed.command(typed)
    except KeyboardInterrupt:
        return fail("stopped", INTERRUPTED)
    except (Exception, SystemExit) as error:
        if getattr(typed, "traceback", False):
            say(traceback.format_exc().rstrip())
        return explain(typed, error)


def explain(typed: argparse.Namespace, error: BaseException) -> int:
    """Print what an exception means for the user and return the exit code."""
    if isinstance(error, UserError):
        return fail(error, 2)
    if isinstance(error, StoreError):
        return fail(error, store_code(error))
    if isinstance(error, ClusterLost):
        return fail(error, 1)
    if isinstance(error, OSError) and error.errno in OF_THE_DISK:
        return fail(REASONS[error.errno], 1)
    if sentence := own_failure(typed, error):
        return fail(sentence, 1 if has_begun(typed) else 2)
    if isinstance(error, PermissionError) and error.filename is not None:
        return fail(f"cannot use {error.filename}: {REASONS[errno.EACCES]}", 1)
    say("".join(traceback.format_exception(error)) + DEFECT)
    return 1


def store_code(error: StoreError) -> int:
    """Return 2 if the user named an impossible folder, 1 if the system refuses a possible one."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        return 2 if cause.errno in MISNAMED else 1
    return 1 if any(REASONS[number] in str(error) for number in OF_THE_DISK) else 2


def fail(reason: object, code: int) -> int:
    """Print a message and return the exit code."""
    say(f"topicjax: {one_line(str(reason))}")
    return code


def report_unraisable(unraisable: Any) -> None:
    """Print exceptions that Python cannot raise, except Ctrl-C, which has been handled."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)

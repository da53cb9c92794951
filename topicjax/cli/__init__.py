"""The command line: `main` runs one command and returns its exit code.

0              done
1              the disk is full, a folder is damaged (`verify`), a cluster could not train some trials, or a
               defect of topicjax
2              a mistake of the user's, in one sentence; nothing was created
129, 130, 143  stopped by SIGHUP, Ctrl-C, SIGTERM; what is finished is kept
"""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from topicjax.cli.parser import make_parser
from topicjax.cli.terminal import one_line, open_standard_files, steady_output
from topicjax.errors import UserError
from topicjax.store.files import REASONS, StoreError

DEFECT = (
    "topicjax: this is a defect of topicjax, not a mistake of yours; please report it with the lines above "
    "(CONTRIBUTING.md says where)"
)
INTERRUPTED = 128 + signal.SIGINT
FULL = (errno.ENOSPC, errno.EDQUOT)
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
    """Run a command and return its exit code; without arguments, those of this process."""
    if arguments is not None:
        return run_command(list(arguments))
    open_standard_files()
    sys.unraisablehook = report_unraisable
    try:
        code = run_command(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code > 128:
        os._exit(code)  # everything is closed; one more Ctrl-C could only interrupt Python's own end
    return code


def run_command(arguments: list[str]) -> int:
    """Run a command; whatever becomes of its output, it goes on to its end."""
    with steady_output() as out:
        options = make_parser().parse_args(arguments)
        options.arguments = arguments
        code = guarded(options)
        out.flush()
        is_lost = out.error is not None and not isinstance(out.error, BrokenPipeError)
        if is_lost and options.prints and code == 0:  # all it was to do
            code = fail(f"cannot write to standard output: {out.error}", 1)
    return code


def guarded(options: Any) -> int:
    """Run the command and return its exit code, whatever it raises."""
    try:
        return options.command(options)
    except UserError as error:
        return fail(error, 2)
    except StoreError as error:
        return fail(error, store_code(error))
    except KeyboardInterrupt:
        return fail("stopped", INTERRUPTED)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            return fail(REASONS[error.errno], 1)
        traceback.print_exc()
        print(DEFECT, file=sys.stderr)
        return 1


def store_code(error: StoreError) -> int:
    """Return 2 if the user named a folder that cannot be right, 1 if the system refuses: nobody's mistake."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        return 2 if cause.errno in MISNAMED else 1
    return 1 if any(REASONS[number] in str(error) for number in FULL) else 2


def fail(reason: object, code: int) -> int:
    """Print a sentence and return the exit code."""
    print(f"topicjax: {one_line(str(reason))}", file=sys.stderr)
    return code


def report_unraisable(unraisable: Any) -> None:
    """Print errors that Python cannot raise as it always does, except Ctrl-C: it was heard."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)

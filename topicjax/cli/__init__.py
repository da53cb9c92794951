"""The command line: `main` runs one command and returns its exit code.

Exit codes: 0 done, 2 the user's mistake, 1 anything else, 130 interrupted.
"""

import sys
import traceback
from collections.abc import Sequence

from topicjax.cli.parser import make_parser
from topicjax.errors import UserError
from topicjax.store.files import StoreError

DEFECT = (
    "topicjax: this is a defect of topicjax, not a mistake of yours; please report it with the lines above "
    "(CONTRIBUTING.md says where)"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = make_parser().parse_args(arguments)
    options.arguments = arguments
    try:
        return options.command(options)
    except UserError as error:
        return fail(error, 2)
    except StoreError as error:
        return fail(
            error, 1 if isinstance(error.__cause__, OSError) else 2
        )  # a full disk is nobody's mistake
    except KeyboardInterrupt:
        return fail("stopped", 130)
    except BrokenPipeError:  # the reader, like `head`, has seen enough
        sys.stdout = None
        return 0
    except Exception:
        traceback.print_exc()
        print(DEFECT, file=sys.stderr)
        return 1


def fail(reason: object, code: int) -> int:
    """Print a sentence and return the exit code."""
    print(f"topicjax: {reason}", file=sys.stderr)
    return code

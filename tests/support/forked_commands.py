"""Run the command line in processes forked from one that has imported everything: each starts at once."""

import multiprocessing
import os
import time
from pathlib import Path

import jax  # noqa: F401  imported once, by the process that is forked; jax itself starts in each fork
import matplotlib.figure  # noqa: F401
import orbax.checkpoint  # noqa: F401

import topicjax.analysis.page.report  # noqa: F401
from topicjax import cli


def work(arguments: tuple[str, ...], cwd: Path, printed: Path) -> None:
    """Be the command line: its output goes to a file."""
    os.chdir(cwd)
    descriptor = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os._exit(cli.main(list(arguments)))


class Commands:
    """Starts commands in a folder."""

    def __init__(self, cwd: Path) -> None:
        self.cwd, self.printed = cwd, cwd / "printed.txt"
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["support.forked_commands"])

    def run(self, *arguments: str, kill_after: float | None = None) -> int:
        """Run a command to its end, or kill it after these seconds; return its exit code."""
        process = self.context.Process(target=work, args=(arguments, self.cwd, self.printed))
        process.start()
        if kill_after is not None:
            until = time.monotonic() + kill_after
            while process.is_alive() and time.monotonic() < until:
                time.sleep(0.005)
            process.kill()  # nothing happens if it has ended
        process.join()
        return process.exitcode or 0

    def finish(self, *arguments: str) -> float:
        """Run a command to its end, which must be a good one; return the seconds it took."""
        begun = time.monotonic()
        code = self.run(*arguments)
        assert code == 0, self.printed.read_text()[-2000:]
        return time.monotonic() - begun

"""Worker of a cluster: owns its devices, keeps its compiled programs and trains one chunk after another.

Training runs in a separate thread, so that the driver gets answers at once.
"""

import contextlib
import os
import queue
import re
import threading
import traceback
from typing import Any

import jax

from topicjax.engine import costs
from topicjax.engine.chunk import Callbacks, Interrupted
from topicjax.engine.cluster.messages import Event, Kind, Orders, Report, Task
from topicjax.engine.options import DEVICES_FLAG, DEVICES_VARIABLE
from topicjax.engine.origin import use
from topicjax.engine.plan import Group
from topicjax.engine.programs import Programs, device_mesh
from topicjax.engine.references import ReferencesOf
from topicjax.engine.resources import use_all_cores
from topicjax.engine.segments import train_chunk
from topicjax.engine.training import decider
from topicjax.errors import UserError
from topicjax.store.files import first_line
from topicjax.sweep.files import failing_line

REPORT_SECONDS = 1.0  # longest wait between two reports
NO_MEMORY = re.compile("RESOURCE_EXHAUSTED|out of memory", re.IGNORECASE)
QUIET = ("begun", "said")  # events that can wait for the next report


class Worker:
    """Trains chunks on the devices of its process."""

    def __init__(self, num_devices: int, on_cores: bool) -> None:
        """Start jax with `num_devices` accelerators or CPU cores, and wait for tasks."""
        devices = start_jax(num_devices, on_cores)
        memory = costs.device_memory(devices)
        self.devices = [(device.platform, device.device_kind, memory) for device in devices]
        self._mesh = device_mesh(devices)
        self._groups: dict[int, Group] = {}
        self._programs: dict[int, Programs] = {}
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._report, self._is_stopping = Report(), False
        self._references: dict[int, ReferencesOf] = {}
        threading.Thread(target=self._work, daemon=True).start()

    def exchange(self, orders: Orders) -> Report:
        """Take orders; return a report as soon as something important happens, or after a second."""
        with self._changed:
            self._is_stopping |= orders.stop
            self._references |= orders.references
            self._changed.notify_all()
        for task in orders.tasks:
            if task.group is not None:
                self._groups[task.program] = task.group
            self._tasks.put(task)
        with self._changed:
            self._changed.wait_for(self._has_news, REPORT_SECONDS)
            report, self._report = self._report, Report()
        return report

    def _has_news(self) -> bool:
        return any(event.kind not in QUIET for event in self._report.events)

    def _tell(self, task: Task, kind: Kind, content: Any = None) -> None:
        with self._changed:
            self._report.events.append(Event(task.number, kind, content))
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            self._attempt(self._tasks.get())

    def _attempt(self, task: Task) -> None:
        """Train a chunk and report the result, success or failure."""
        try:
            if self._is_stopping:
                raise Interrupted
            self._train(task)
        except Interrupted:
            self._tell(task, "stopped")
        except UserError as error:
            self._tell(task, "refused", str(error))
        except BaseException as error:
            traceback.print_exc()  # to Ray's log of this worker
            self._programs.pop(task.program, None)
            is_memory = isinstance(error, MemoryError) or NO_MEMORY.search(str(error))
            self._tell(
                task, "memory" if is_memory else "failed", described(error, self._groups[task.program])
            )

    def _train(self, task: Task) -> None:
        use(task.arithmetic)
        self._programs = {
            number: programs for number, programs in self._programs.items() if number >= task.first_program
        }
        if task.program not in self._programs:
            group = self._groups[task.program]
            self._programs[task.program] = Programs(group, self._mesh, self._add_compile_time)
        programs, chunk = self._programs[task.program], task.chunk
        self._tell(task, "begun")
        train_chunk(programs, chunk, task.start, self._callbacks(task, programs))
        chunk.rows = ()  # the driver has them already
        self._tell(task, "trained", chunk)

    def _callbacks(self, task: Task, programs: Programs) -> Callbacks:
        def references() -> ReferencesOf:
            if self._known(task) is None:
                self._tell(task, "waits")
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping or self._known(task) is not None)
                known = self._known(task)
            if known is None:
                raise Interrupted
            return known

        def on_segment(steps: float, spared: float) -> bool:
            with self._changed:
                done, not_needed = self._report.steps.get(task.number, (0.0, 0.0))
                self._report.steps[task.number] = (done + float(steps), not_needed + float(spared))
                return self._is_stopping

        return Callbacks(
            task.options,
            decider(programs.group.experiment, task.trials, references),
            on_segment,
            lambda saved: self._tell(task, "saved", saved),
            lambda text: self._tell(task, "said", text),
        )

    def _known(self, task: Task) -> ReferencesOf | None:
        return self._references.get(task.number) if task.references is None else task.references

    def _add_compile_time(self, seconds: float) -> None:
        with self._changed:
            self._report.compile_seconds += seconds


def start_jax(num_devices: int, on_cores: bool) -> list[Any]:
    """Start jax and return the devices of this process, CPU cores or accelerators."""
    if not on_cores:
        use_all_cores(1)
        return jax.local_devices()[:num_devices]
    os.environ.pop(DEVICES_VARIABLE, None)
    os.environ["XLA_FLAGS"] = DEVICES_FLAG.sub("", os.environ.get("XLA_FLAGS", ""))
    for variable in ("NPROC", "PJRT_NPROC"):
        os.environ.pop(variable, None)
    with contextlib.suppress(RuntimeError):  # jax has already started: in a test
        jax.config.update("jax_platforms", "cpu")
    use_all_cores(num_devices)
    return jax.local_devices()[:num_devices]


def described(error: BaseException, group: Group) -> str:
    """Describe an exception in one line, and where the functions of the experiment raised it."""
    said = first_line(error) if isinstance(error, Exception) else ""
    place = failing_line(error, None, group.experiment)
    return f"{type(error).__name__}: {said}{f' ({place})' if place else ''}"

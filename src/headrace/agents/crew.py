"""Workers as joblib runs them: threads of this process, or processes with a socket to it.

    launch -> joblib.Parallel: one long task a worker -> Worker.run over a port -> goodbye
    mend: whoever is missing while there are groups left is started again

The engine stays here. What travels to a process is a plan, pickled once by us (so that what can't be pickled is known
before anything starts), and the hub's address.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from headrace.agents.auto import BACKENDS
from headrace.agents.bridge import Bridge
from headrace.agents.dispatcher import Dispatcher
from headrace.agents.engines.protocol import Completion, Engine, Request
from headrace.agents.plan import Ticket
from headrace.agents.records import Group
from headrace.agents.wire import Hub, SocketPort
from headrace.agents.worker import Worker, WorkerPlan
from headrace.clock import now_s
from headrace.errors import HeadraceError, UsageError

_START_S = 60.0  # for the first worker to come up
_END_S = 10.0  # for workers to end
_MOST_RESTARTS = 3  # per worker, on average

logger = logging.getLogger(__name__)


class MemoryPort:
    """A port without a wire, for workers in threads."""

    def __init__(self, worker: int, dispatcher: Dispatcher, engine: Engine) -> None:
        self._worker, self._dispatcher, self._engine = worker, dispatcher, engine
        self._bridge = Bridge()

    async def pull(self) -> Ticket | None:
        """From the dispatcher."""
        return await self._bridge.result(self._dispatcher.pull(self._worker))

    async def generate(self, request: Request, limit_s: float) -> Completion:
        """From the engine, who need not answer what nobody waits for."""
        future = self._engine.submit(request)
        try:
            return await self._bridge.result(future, limit_s)
        except (asyncio.CancelledError, TimeoutError):
            future.cancel()
            raise

    def done(self, group: Group) -> None:
        """To the dispatcher."""
        self._dispatcher.done(self._worker, group)

    def beat(self, waits: list[tuple[str, float]]) -> None:
        """To the dispatcher."""
        self._dispatcher.beat(self._worker, waits)


class CrewError(HeadraceError):
    """The workers could not be started: nothing was played, and something else may be tried."""


class CrewLostError(HeadraceError):
    """Workers keep dying. Whatever kills them should not be let into this process."""


class Crew:
    """All workers of one call of run()."""

    def __init__(self, backend: str, n_jobs: int, plan: WorkerPlan, dispatcher: Dispatcher, engine: Engine) -> None:
        if backend not in BACKENDS:
            raise UsageError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
        self._backend, self._n_jobs, self._plan = backend, n_jobs, plan
        self._dispatcher, self._engine = dispatcher, engine
        self._hub: Hub | None = None
        self._pickled = b""
        self._runs: list[_JoblibRun] = []
        self._stops: dict[int, Callable[[], None]] = {}  # of workers in threads
        self._started_s = now_s()
        self.restarts = 0

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by worker; empty for threads."""
        return dict(self._hub.pids) if self._hub is not None else {}

    def launch(self) -> None:
        """Start everybody; CrewError if that can't be."""
        if self._backend != "threading":
            try:
                self._pickled = cloudpickle.dumps(self._plan)
            except Exception as error:
                raise CrewError(f"what workers need can't be pickled: {type(error).__name__}: {error}") from error
            self._hub = Hub(self._dispatcher, self._engine)
        self._start(list(range(self._n_jobs)))

    def look(self) -> None:
        """Replace who is gone; CrewError if nobody comes, CrewLostError if nobody stays."""
        for run in [run for run in self._runs if run.error is not None]:
            assert run.error is not None
            self._runs.remove(run)
            if not any(self._dispatcher.has_joined(worker) for worker in run.workers):
                raise CrewError(run.error)
            for worker in run.workers:
                self._dispatcher.lost(worker, run.error)
        for worker in self._dispatcher.silent(self._plan.limits.env_s + 10.0):
            self._end_silent(worker)
        if not self._dispatcher.num_joined and now_s() - self._started_s > _START_S:
            raise CrewError(f"no worker came up within {_START_S:g} s")
        missing = self._dispatcher.missing()
        if self._backend == "loky" and any(run.is_running and missing & set(run.workers) for run in self._runs):
            return  # one death ends the whole pool: it has to be over before another can be had
        if missing and self.restarts + len(missing) > _MOST_RESTARTS * self._n_jobs:
            raise CrewLostError(f"workers keep dying: {self.restarts} were started again")
        if missing:
            self.restarts += len(missing)
            self._dispatcher.forget(missing)
            self._start(sorted(missing))

    def close(self, is_finished: bool) -> None:
        """End everybody: those who have finished end by themselves, the others lose what they play."""
        if not is_finished:
            for stop in list(self._stops.values()):
                stop()
            if self._hub is not None:
                self._hub.close()
        for run in self._runs:
            if not run.join(_END_S, has_lost=self._dispatcher.num_lost > 0):
                logger.warning("workers %s did not end within %g s and are left behind", run.workers, _END_S)
        if self._hub is not None:
            self._hub.close()

    def _start(self, workers: list[int]) -> None:
        from joblib import delayed

        if self._hub is None:
            what = (self._plan, self._dispatcher, self._engine, self._stops)
            tasks = [delayed(_host_in_thread)(worker, *what) for worker in workers]
        else:
            where = (self._hub.address, self._hub.key)
            tasks = [delayed(host_in_process)(*where, worker, self._pickled) for worker in workers]
        self._runs.append(_JoblibRun(self._backend, workers, tasks))

    def _end_silent(self, worker: int) -> None:
        pid = self.pids.get(worker)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._dispatcher.lost(worker, "gave no sign of life: something in it holds on to the interpreter")


class _JoblibRun:
    """One call of joblib.Parallel, in a thread: a long task for each of some workers."""

    def __init__(self, backend: str, workers: list[int], tasks: list[Any]) -> None:
        self.workers = workers
        self.error: str | None = None  # its first line: the exception itself would keep the dead pool alive
        self._backend = {"multiprocessing": _patient_pool, "loky": _own_loky}.get(backend, lambda: backend)()
        self._thread = threading.Thread(target=self._run, args=(tasks,), name="crew-joblib", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether some of its tasks are, as far as joblib knows."""
        return self._thread.is_alive()

    def join(self, patience_s: float, has_lost: bool) -> bool:
        """Wait until all tasks have ended; those of killed processes never will, and are not waited for."""
        if has_lost and hasattr(self._backend, "give_up"):
            self._backend.give_up()
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self, tasks: list[Any]) -> None:
        from joblib import Parallel

        try:
            # One job alone joblib would run here, in the parent: a worker that dies would take us with it.
            Parallel(max(2, len(tasks)), backend=self._backend, batch_size=1, pre_dispatch="all")(tasks)
        except BaseException as error:
            self.error = f"{type(error).__name__}: {error}".splitlines()[0]


def _own_loky() -> Any:
    """joblib's loky backend, which would keep its processes and their folder for whoever comes next."""
    from joblib._parallel_backends import LokyBackend

    class OwnLoky(LokyBackend):  # type: ignore[misc]
        _workers: Any

        def terminate(self) -> None:
            """End the processes too."""
            if self._workers is not None:
                self._workers.terminate(kill_workers=True)
                self._workers = None
            self.reset_batch_stats()

    return OwnLoky()


def _patient_pool() -> Any:
    """joblib's multiprocessing backend, which would wait for ever for the task of a process that was killed."""
    from joblib.parallel import MultiprocessingBackend

    class PatientPool(MultiprocessingBackend):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._answers: list[Callable[[Any], None]] = []

        def submit(self, func: Any, callback: Any = None) -> Any:
            """As joblib's own, with a second way to answer."""
            is_answered = threading.Event()

            def answer(out: Any) -> None:
                if not is_answered.is_set():
                    is_answered.set()
                    callback(out)

            self._answers.append(answer)
            return super().submit(func, answer)

        def give_up(self) -> None:
            """Whatever has not been answered by now is over."""
            for answer in self._answers:
                answer([None])

    return PatientPool()


def _host_in_thread(
    worker: int, plan: WorkerPlan, dispatcher: Dispatcher, engine: Engine, stops: dict[int, Callable[[], None]]
) -> None:
    async def serve() -> None:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert task is not None
        stops[worker] = lambda: _cancel(loop, task)
        await Worker(worker, plan, MemoryPort(worker, dispatcher, engine)).run()

    dispatcher.join(worker)
    try:
        asyncio.run(serve())
    except asyncio.CancelledError:
        dispatcher.leave(worker)
    except BaseException as error:
        dispatcher.lost(worker, f"{type(error).__name__}: {error}")
        logger.exception("worker %d failed", worker)
    else:
        dispatcher.leave(worker)


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    with contextlib.suppress(RuntimeError):  # it has ended already
        loop.call_soon_threadsafe(task.cancel)


def host_in_process(address: str, key: bytes, worker: int, pickled: bytes) -> None:
    """What joblib runs in a process: a worker with a socket to the hub. Ends when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's matter
    parent = os.getppid()

    async def serve() -> None:
        port = SocketPort(address, key, worker)
        try:
            await Worker(worker, cloudpickle.loads(pickled), port).run()
        finally:
            port.close()

    try:
        asyncio.run(serve())
    except* (ConnectionError, asyncio.CancelledError):  # the parent hung up: it needs nothing more of us
        threading.Thread(target=_end_as_orphan, args=(parent, Path(address).parent), daemon=True).start()


def _end_as_orphan(parent: int, folder: Path) -> None:
    """joblib's processes wait for another task, minutes long, even if nobody is left to give them one.

    The hub's folder is the parent's to remove, unless it was killed.
    """
    pause = threading.Event()
    for _ in range(100):
        if os.getppid() != parent:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)
        pause.wait(0.05)

"""Where workers run: joblib starts them, as threads of this process or as processes with a socket to it.

    start(workers) -> joblib.Parallel, in a thread: one long task a worker -> Worker.run over a port -> goodbye
    a call of joblib that fails -> its workers have died

joblib's processes are not ours, and wait minutes for another task even if no parent is left to give them one: each is
bound to the life of this process as the first thing it does. The engine stays here. What travels to a process is a
brief, pickled once by us (so that what can't be pickled is known before anything starts), and the hub's address. Which
workers are started, and when, is the desk's decision.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from headrace.agents.desk import Desk, NoWorkersError
from headrace.agents.engines.protocol import Engine
from headrace.agents.ports import Hub, MemoryPort, OnStep, SocketPort
from headrace.agents.worker import Worker, WorkerBrief
from headrace.clock import now_s
from headrace.runtime.life import Life, bind_one_of_many

_END_S = 10.0  # for workers to end

logger = logging.getLogger(__name__)


class JoblibHosts:
    """The workers of one call of run(), by one of joblib's backends."""

    def __init__(
        self, backend: str, brief: WorkerBrief, desk: Desk, engine: Engine, on_step: OnStep | None = None
    ) -> None:
        self._backend, self._brief = backend, brief
        self._desk, self._engine, self._on_step = desk, engine, on_step
        self._hub: Hub | None = None
        self._pickled = b""
        self._calls: list[_JoblibCall | _Threads] = []
        self._stops: dict[int, Callable[[], None]] = {}  # of workers in threads
        self._life: Life | None = None  # of workers in processes
        self._line: Any = None  # their end of it

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by worker; empty for threads."""
        return dict(self._hub.pids) if self._hub is not None else {}

    def start(self, workers: Sequence[tuple[int, int]]) -> None:
        """Start some workers, each in its so-manieth life; NoWorkersError if that can't be."""
        if self._backend == "threading":
            self._calls.append(_Threads(workers, self._host))
            return
        from joblib import delayed

        hub = self._hub = self._hub or self._open_hub()
        if self._life is None:
            self._life = Life()
            self._line = self._life.for_many()
        tasks = [delayed(host_in_process)(hub.address, hub.key, *who, self._pickled) for who in workers]
        self._calls.append(_JoblibCall(self._backend, workers, tasks, self._desk.died, self._line))

    def may_start(self, workers: Sequence[int]) -> bool:
        """One death ends loky's whole pool: it has to be over before there can be another."""
        return self._backend != "loky" or not any(call.is_running for call in self._calls)

    def kill(self, worker: int) -> bool:
        """SIGKILL for a process; a thread can't be ended."""
        pid = self.pids.get(worker)
        if pid is not None:
            _end_process(pid)
        return pid is not None

    def close(self, is_finished: bool) -> None:
        """End all workers: if everything was played they end by themselves, else they lose what they play."""
        if not is_finished:
            for stop in list(self._stops.values()):
                stop()
            if self._hub is not None:
                self._hub.close()
        for call in self._calls:
            if not call.join(_END_S, has_lost=self._desk.restarts > 0):
                logger.warning("workers %s did not end within %g s and are left behind", call.workers, _END_S)
        if self._hub is not None:
            self._hub.close()
        if self._life is not None:
            self._life.end()
            self._line.close()

    def _host(self, worker: int, life: int) -> None:
        """A worker's life in a thread."""
        desk = self._desk
        one = Worker(worker, self._brief, MemoryPort(worker, desk, self._engine, self._on_step))
        self._stops[worker] = one.stop
        desk.join(worker, life)
        try:
            one.run()
        except BaseException as error:
            logger.exception("worker %d failed", worker)
            desk.died(worker, life, f"{type(error).__name__}: {error}")
        else:
            desk.leave(worker, life)

    def _open_hub(self) -> Hub:
        try:
            self._pickled = cloudpickle.dumps(self._brief)
        except Exception as error:
            raise NoWorkersError(f"what workers need can't be pickled: {type(error).__name__}: {error}") from error
        if self._backend == "loky":  # its call has to fail before there can be another
            return Hub(self._desk, self._engine, _end_process)
        return Hub(self._desk, self._engine)  # the task ends; its process may hold a lock of the pool, and is let be


def _end_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class _JoblibCall:
    """One call of joblib.Parallel, in a thread: a long task for each of some workers."""

    def __init__(
        self,
        backend: str,
        workers: Sequence[tuple[int, int]],
        tasks: list[Any],
        died: Callable[[int, int, str], None],
        line: Any = None,
    ) -> None:
        self._lives, self._died = list(workers), died
        makers = {"multiprocessing": _patient_pool, "loky": _own_loky}
        self._backend = makers[backend](line) if backend in makers else backend
        self._thread = threading.Thread(target=self._run, args=(tasks,), name="hosts-joblib", daemon=True)
        self._thread.start()

    @property
    def workers(self) -> list[int]:
        """Their numbers."""
        return [worker for worker, _ in self._lives]

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
        except BaseException as error:  # its first line is kept: the exception itself would keep the dead pool alive
            how = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            return
        for worker, life in self._lives:
            self._died(worker, life, how)


def _own_loky(line: Any = None) -> Any:
    """joblib's loky backend, which would keep its processes and their folder for the next call of any program part."""
    from joblib.parallel import LokyBackend

    class OwnLoky(LokyBackend):  # type: ignore[misc]
        has_processes = False

        def configure(self, *args: Any, **options: Any) -> Any:
            """Start them."""
            n_jobs = super().configure(*args, **options, **_bound_to(line))
            self.has_processes = True
            return n_jobs

        def abort_everything(self, ensure_ready: bool = True) -> None:
            """End them by force."""
            self.has_processes = False
            super().abort_everything(ensure_ready=ensure_ready)

        def terminate(self) -> None:
            """The call is over: end the processes, too."""
            if self.has_processes:
                self.abort_everything(ensure_ready=False)

    return OwnLoky()


def _patient_pool(line: Any = None) -> Any:
    """joblib's multiprocessing backend, which would wait for ever for the task of a process that was killed."""
    from joblib.parallel import MultiprocessingBackend

    class PatientPool(MultiprocessingBackend):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._lock = threading.Lock()
            self._open: dict[object, Callable[[Any], None]] = {}  # tasks without an answer
            self._is_given_up = False

        def configure(self, *args: Any, **options: Any) -> Any:
            """Start them."""
            return super().configure(*args, **options, **_bound_to(line))

        def submit(self, func: Any, callback: Any = None) -> Any:
            """As joblib's own, with a second way to answer."""
            task = object()

            def answer(out: Any) -> None:
                if self._open.pop(task, None) is not None:
                    callback(out)

            with self._lock:
                self._open[task] = callback
                is_given_up = self._is_given_up
            if is_given_up:  # it was while the pool started
                return answer([None])
            return super().submit(func, answer)

        def give_up(self) -> None:
            """What has not been answered by now is over, and what is submitted later."""
            with self._lock:
                self._is_given_up = True
                left = list(self._open)
            for task in left:
                if (callback := self._open.pop(task, None)) is not None:
                    callback([None])

    return PatientPool()


def _bound_to(line: Any) -> dict[str, Any]:
    """What joblib's processes do first of all: from then on the kernel ends them when this process ends."""
    return {} if line is None else {"initializer": bind_one_of_many, "initargs": (line,)}


class _Threads:
    """Workers in threads of this process."""

    def __init__(self, workers: Sequence[tuple[int, int]], host: Callable[[int, int], None]) -> None:
        self.workers = [worker for worker, _ in workers]
        self._threads = [threading.Thread(target=host, args=one, name="agents-worker", daemon=True) for one in workers]
        for thread in self._threads:
            thread.start()

    @property
    def is_running(self) -> bool:
        """Whether some of them are."""
        return any(thread.is_alive() for thread in self._threads)

    def join(self, patience_s: float, has_lost: bool) -> bool:
        """Wait until all have ended."""
        deadline = now_s() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - now_s()))
        return not self.is_running


def host_in_process(address: str, key: bytes, worker: int, life: int, pickled: bytes) -> None:
    """What joblib runs in a process: a worker with a socket to the hub. Ends when the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    brief = cloudpickle.loads(pickled)
    with contextlib.suppress(ConnectionError):  # the parent hung up: it needs nothing more of us
        port = SocketPort(address, key, worker, life)
        try:
            Worker(worker, brief, port).run()
        except ConnectionError:
            raise
        except BaseException as error:  # not for joblib, whose call would fail, and with it all other workers
            logger.exception("worker %d failed", worker)
            port.close(f"{type(error).__name__}: {error}")
        else:
            port.close()

"""Central inference over other transports: pipes, pyzmq, gRPC and Ray actor calls. Run by benchmarks/inference.py.

    worker ──observations, noise──> message ──> server: `Gather` of inference_loop.py ──actions──> message ──> worker

The loop, the batches and the policy are headrace's own for every way; what differs is the transport: one message
of raw bytes per request, over Unix sockets; a gRPC stream per worker, which is faster than a call per request; an
asynchronous Ray actor. gRPC and Ray answer for an instant server without the loop, which spares them a thread's turn.
The last line of stdout is a JSON list: the results of the cells that were asked for.
"""

import argparse
import asyncio
import json
import os
import queue
import sys
import tempfile
from concurrent import futures
from multiprocessing import Pipe, connection
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from inference_loop import WAYS, Cell, Gather, Way, cell_of, run_forked, summed, work  # noqa: E402


class Pipes(Way):
    """multiprocessing's pipes."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self._ends = [Pipe() for _ in range(cell.workers)]

    def serve(self, ready: Any) -> None:
        gather, ends = Gather(self.cell), [end for _, end in self._ends]
        number = {end: worker for worker, end in enumerate(ends)}
        ready()
        while True:
            for end in ends if len(ends) == 1 and gather.wait_s is None else connection.wait(ends, gather.wait_s):
                gather.asked_in_bytes(number[end], end.recv_bytes())
            for worker, action in gather.answers():
                ends[worker].send_bytes(action.data)

    def asks(self, worker: int) -> Any:
        end = self._ends[worker][0]

        class Asking:
            def ask(self, obs: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
                end.send_bytes(obs.tobytes() + noise.tobytes())
                out[...] = np.frombuffer(end.recv_bytes(), np.int64)

        return Asking()


class AtSocket(Way):
    """A server at a Unix socket in a folder of its own."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self._folder = tempfile.TemporaryDirectory()
        self._address = f"{self._folder.name}/server"

    def close(self) -> None:
        self._folder.cleanup()


class Zmq(AtSocket):
    """pyzmq: a ROUTER at the server, a DEALER per worker."""

    def serve(self, ready: Any) -> None:
        import zmq

        gather, socket = Gather(self.cell), zmq.Context().socket(zmq.ROUTER)
        socket.bind(f"ipc://{self._address}")
        ready()
        while True:
            flags = 0
            if gather.wait_s is not None and not socket.poll(1e3 * gather.wait_s):
                flags = zmq.NOBLOCK
            try:
                while True:
                    name, message = socket.recv_multipart(flags)
                    gather.asked_in_bytes(int(name), message)
                    flags = zmq.NOBLOCK
            except zmq.Again:
                pass
            for worker, action in gather.answers():
                socket.send_multipart((b"%d" % worker, action.tobytes()))

    def asks(self, worker: int) -> Any:
        import zmq

        socket = zmq.Context().socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, b"%d" % worker)
        socket.connect(f"ipc://{self._address}")

        class Asking:
            def ask(self, obs: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
                socket.send(obs.tobytes() + noise.tobytes())
                out[...] = np.frombuffer(socket.recv(), np.int64)

        return Asking()


class Grpc(AtSocket):
    """gRPC: one stream per worker, raw bytes, a thread per stream."""

    def serve(self, ready: Any) -> None:
        import grpc

        gather, requests = Gather(self.cell), queue.SimpleQueue()
        replies = [queue.SimpleQueue() for _ in range(self.cell.workers)]
        is_instant = self.cell.network == "instant"
        nothing = np.zeros(self.cell.rows, np.int64).tobytes()

        def stream(messages: Any, context: Any) -> Any:
            worker = int(next(messages))
            for message in messages:
                if is_instant:
                    yield nothing
                else:
                    requests.put((worker, message))
                    yield replies[worker].get()

        handler = grpc.method_handlers_generic_handler(
            "inference", {"act": grpc.stream_stream_rpc_method_handler(stream)}
        )
        server = grpc.server(futures.ThreadPoolExecutor(self.cell.workers + 1))
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{self._address}")
        server.start()
        ready()
        while True:
            try:
                gather.asked_in_bytes(*requests.get(timeout=gather.wait_s))
                while True:
                    gather.asked_in_bytes(*requests.get_nowait())
            except queue.Empty:
                pass
            for worker, action in gather.answers():
                replies[worker].put(action.tobytes())

    def asks(self, worker: int) -> Any:
        import grpc

        channel = grpc.insecure_channel(f"unix:{self._address}")
        messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        messages.put(b"%d" % worker)
        answers = channel.stream_stream("/inference/act")(iter(messages.get, b""))

        class Asking:
            def ask(self, obs: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
                messages.put(obs.tobytes() + noise.tobytes())
                out[...] = np.frombuffer(next(answers), np.int64)

        return Asking()


class GrpcUnary(Grpc):
    """gRPC: a call per request."""

    def serve(self, ready: Any) -> None:
        import grpc

        assert self.cell.network == "instant"
        nothing = np.zeros(self.cell.rows, np.int64).tobytes()
        method = grpc.unary_unary_rpc_method_handler(lambda message, context: nothing)
        server = grpc.server(futures.ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference", {"act": method}),))
        server.add_insecure_port(f"unix:{self._address}")
        server.start()
        ready()
        server.wait_for_termination()

    def asks(self, worker: int) -> Any:
        import grpc

        call = grpc.insecure_channel(f"unix:{self._address}").unary_unary("/inference/act")

        class Asking:
            def ask(self, obs: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
                out[...] = np.frombuffer(call(obs.tobytes() + noise.tobytes()), np.int64)

        return Asking()


class RayServer:
    """An actor. Its calls wait for their batch side by side."""

    def __init__(self, cell: Cell) -> None:
        torch.set_num_threads(1)
        self._gather, self._waiting = Gather(cell), {}
        self._timer: Any = None

    async def act(self, worker: int, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        answer = self._waiting[worker] = asyncio.get_running_loop().create_future()
        self._gather.asked(worker, obs, noise)
        self._look()
        return await answer

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for worker, action in self._gather.answers():
            self._waiting.pop(worker).set_result(action.copy())
        wait_s = self._gather.wait_s
        self._timer = None if wait_s is None else asyncio.get_running_loop().call_later(wait_s, self._look)


class RayInstant:
    def __init__(self, cell: Cell) -> None:
        self._nothing = np.zeros(cell.rows, np.int64)

    def act(self, worker: int, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return self._nothing


class RayWorker:
    def run(self, cell: Cell, worker: int, server: Any, together: Any) -> list[float]:
        import ray

        class Asking:
            def ask(self, obs: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
                out[...] = ray.get(server.act.remote(worker, obs, noise))

        return work(cell, worker, Asking(), lambda: ray.get(together.come.remote(cell.workers)))


class Together:
    """All workers of a cell begin at once."""

    def __init__(self) -> None:
        self._here, self._all = 0, asyncio.Event()

    async def come(self, count: int) -> None:
        self._here += 1
        if self._here == count:
            self._all.set()
        await self._all.wait()


def run_in_ray(cells: list[Cell]) -> list[dict[str, float]]:
    import ray

    sys.path.append(str(Path(__file__).parent))
    paths = ":".join((*sys.path[:2], sys.path[-1]))
    # No token: nothing but this machine reaches it.
    os.environ |= {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    import transports as here  # by its name, so that Ray's processes import it

    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    results = []
    remote = ray.remote(num_cpus=0)
    workers = [remote(here.RayWorker).remote() for _ in range(max(cell.workers for cell in cells))]
    for cell in cells:
        kind = here.RayInstant if cell.network == "instant" else here.RayServer
        server, together = remote(kind).remote(cell), remote(here.Together).remote()
        rows = ray.get([workers[i].run.remote(cell, i, server, together) for i in range(cell.workers)], timeout=120)
        results.append(summed(rows))
        ray.kill(server)
        ray.kill(together)
    ray.shutdown()
    return results


MESSAGES = {"pipes": Pipes, "pyzmq": Zmq, "gRPC": Grpc, "gRPC unary": GrpcUnary}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=[*WAYS, *MESSAGES, "Ray"])
    parser.add_argument("cells", type=json.loads, help="JSON: a list of cells")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cells = [cell_of(options) for options in arguments.cells]
    if arguments.way == "Ray":
        results = run_in_ray(cells)
    else:
        results = [run_forked({**WAYS, **MESSAGES}[arguments.way](cell)) for cell in cells]
    print(json.dumps({"results": results}))


if __name__ == "__main__":
    main()

"""The fork server answers; children outlive it; whoever asks gets another server, and in the end one clear error."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from headrace.errors import HeadraceError
from headrace.runtime import fork_server, standby
from headrace.runtime.child import Child
from headrace.runtime.death import how_it_ended
from headrace.runtime.fork_server import ForkServer
from headrace.runtime.line import Line
from headrace.runtime.standby import Standby
from support.children import echo, leave
from support.waiting import is_gone, wait_until


@pytest.fixture
def server() -> Iterator[ForkServer]:
    """One with nothing to import, ended after the test."""
    one = ForkServer(())
    yield one
    if one._server is not None:
        one._server.end(0.0)


def server_of(standing_by: Standby) -> ForkServer:
    assert standing_by._server is not None
    return standing_by._server


@pytest.fixture
def spares(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standby]:
    """One spare, over a server of its own."""
    monkeypatch.setattr(ForkServer, "shared", classmethod(lambda cls, preload: cls(preload)))
    one = Standby("forkserver", (), 1)
    yield one
    one.end()
    for child in filter(None, [server_of(one)._server]):
        child.end(0.0)


def works(child: Child) -> bool:
    child.assign(echo, "yes")
    return (child.line.receive() or b"").endswith(b"yes")


def test_children_find_the_parents_folder_and_path(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the moment, not those of the server's start."""
    server.fork("one").end(0.0)
    (tmp_path / "only_here.py").write_text("def target(line, _): line.send(b'found')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path / "no text", b"nor this"])  # Python passes over it
    child = server.fork("two")
    child.assign(echo, "", is_last=False)
    assert child.line.receive() == f"{tmp_path} ".encode()
    import only_here  # type: ignore[import-not-found]

    child.assign(only_here.target, None)
    assert child.line.receive() == b"found"
    assert child.end(5.0) == 0
    del sys.modules["only_here"]


def test_exit_codes(server: ForkServer) -> None:
    children = [server.fork(str(code)) for code in (0, 3)]
    for code, child in zip((0, 3), children, strict=True):
        child.assign(leave, code)
    assert [child.end(5.0) for child in children] == [0, 3]
    killed = server.fork("killed")
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.end(5.0) == -signal.SIGKILL


def test_children_outlive_the_server(server: ForkServer) -> None:
    """Only their exit codes are lost, and that is said."""
    child, dying = server.fork("one"), server.fork("two")
    (pid,) = server.pids
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid))
    assert not child.has_ended
    assert works(child)
    dying.assign(leave, 3)
    assert dying.end(5.0) is None
    assert "fork server" in how_it_ended(None)
    other = server.fork("three")
    assert works(other)
    assert server.pids != [pid]
    assert other.end(5.0) == 0
    child.end(5.0)


def test_the_server_is_killed_while_it_is_asked(server: ForkServer) -> None:
    """Stopped first, so that the request is on its way when it dies: one OSError, and the next request is answered."""
    server.fork("one").end(0.0)
    (pid,) = server.pids
    os.kill(pid, signal.SIGSTOP)
    killer = os.fork()
    if killer == 0:
        os.system(f"sleep 0.3; kill -9 {pid}")
        os._exit(0)
    with pytest.raises(OSError, match="fork server ended"):
        server.fork("two")
    os.waitpid(killer, 0)
    child = server.fork("three")
    assert works(child)
    child.end(5.0)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_process_that_can_not_be_started_is_one_clear_error(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fork server that dies at its imports is tried a few times; a limit on processes, too."""
    monkeypatch.setattr(standby, "_PAUSE_S", 0.01)
    (tmp_path / "dies_at_import.py").write_text("import os\nos._exit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    standing_by = Standby(method, ("dies_at_import",), 0)
    if method == "spawn":
        monkeypatch.setattr(Child, "spawn", refused)
    caplog.set_level(logging.INFO)
    with pytest.raises(HeadraceError, match=r"headrace-worker-0 could not be started, 5 times in a row; last: ") as got:
        standing_by.take("headrace-worker-0")
    why = "the fork server ended before it was ready: exit code 3" if method == "forkserver" else "no more processes"
    assert why in str(got.value)
    assert len([one for one in caplog.messages if "could not be started" in one]) == 5


def refused(*_: object) -> Child:
    raise BlockingIOError(11, "no more processes")


def test_a_server_that_never_comes_up_is_not_started_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ahead of need a few are; then it waits until it is needed."""
    (tmp_path / "dies_at_import.py").write_text("import os\nos._exit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    server = ForkServer(("dies_at_import",))
    tried = set()
    while not server.is_ready() and server.watched:
        tried.add(server._server)
    assert len(tried) == 5


def test_a_spare_is_replaced_and_taken(spares: Standby) -> None:
    wait_until(lambda: spares.mend() or bool(spares.spare_pids))  # type: ignore[func-returns-value]
    (first,), server = spares.spare_pids, spares.server_pids
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: is_gone(first))
    spares.mend()
    (second,) = spares.spare_pids
    assert (second != first, spares.server_pids) == (True, server)
    child = spares.take("worker")
    assert (child.pid, child.name) == (second, "worker")
    assert works(child)
    child.end(5.0)


def test_a_dead_spare_is_not_taken(spares: Standby) -> None:
    wait_until(lambda: spares.mend() or bool(spares.spare_pids))  # type: ignore[func-returns-value]
    os.kill(spares.spare_pids[0], signal.SIGKILL)
    wait_until(lambda: not spares.spare_pids)
    child = spares.take("worker")
    assert works(child)
    child.end(5.0)


def test_a_spare_serves_when_the_server_is_gone(spares: Standby) -> None:
    """At once, while another server comes up."""
    wait_until(lambda: spares.mend() or bool(spares.spare_pids))  # type: ignore[func-returns-value]
    (spare,), (server,) = spares.spare_pids, spares.server_pids
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: is_gone(server))
    child = spares.take("worker")
    assert child.pid == spare
    assert works(child)
    spares.mend()
    assert spares.server_pids not in ([], [server])
    child.end(5.0)


def test_spares_that_die_at_once_are_not_started_for_ever(spares: Standby) -> None:
    """A few in a row; then none, until one is needed."""
    spares._rehearsal = (leave, 1)
    seen = set()
    wait_until(lambda: spares.mend() or spares._spares != [])  # type: ignore[func-returns-value]
    for _ in range(20):
        for spare in spares._spares:
            seen.add(spare.pid)
            wait([spare.sentinel], 10.0)
        spares.mend()
    assert len(seen) == 5


@pytest.mark.parametrize("call", ["send", "_answer", "_wait_for", "receive_descriptors"])
def test_a_question_that_is_broken_off_leaves_no_answer_to_the_next_one(
    server: ForkServer, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at any moment of it: before it was sent, while the answer is on its way, and when half of it was read."""
    first = server.fork("first")

    def interrupted(*_: object) -> None:
        if call != "send":
            time.sleep(0.2)  # the answer is there by now
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if call == "send":
            patch.setattr(Line, call, interrupted)
        elif call == "receive_descriptors":
            patch.setattr(fork_server, call, interrupted)
        else:
            patch.setattr(ForkServer, call, interrupted)
        with pytest.raises(KeyboardInterrupt):
            server.fork("broken off")
    second = server.fork("second")
    assert works(second)
    wait_until(lambda: second.has_ended)
    assert second.end(5.0) == 0
    assert works(first), "children outlive their server"
    wait_until(lambda: first.has_ended)
    assert first.end(5.0) is None


def test_a_reaping_that_is_broken_off_loses_an_exit_code_and_no_more(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = [server.fork("first"), server.fork("second")]
    for child in children:
        child.assign(leave, 3)
        wait_until(lambda child=child: child.has_ended)  # type: ignore[misc]
    answer = ForkServer._answer

    def interrupted(self: ForkServer, asked: Child) -> bytes:
        answer(self, asked)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ForkServer, "_answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            children[0].end(5.0)
    assert [child.end(5.0) for child in children] == [None, None]
    third = server.fork("third")
    assert works(third)
    third.end(5.0)


def test_a_stopped_server_is_not_waited_for(server: ForkServer) -> None:
    """Its answer would come when it is continued, or never."""
    child = server.fork("one")
    stopped = server._server
    assert stopped is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    wait_until(lambda: stopped.is_stopped)
    began = time.monotonic()
    assert child.end(0.0) is None
    assert time.monotonic() - began < 10
    another = server.fork("two")
    assert works(another)
    assert another.end(60.0) == 0

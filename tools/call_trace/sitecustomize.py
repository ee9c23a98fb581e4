"""Writes down which functions of a package run, in every process that has this folder first on its PYTHONPATH.

    CALL_TRACE_LOGS: a folder with the one-byte file `window`      CALL_TRACE_PACKAGE: the package's folder
    while the byte is 1, events go to CALL_TRACE_LOGS/<process id>.tsv:

    f  id  file  first line  kind  name  lines     a function, before its first event; kind: python, compiled, generated
    >  thread  caller's id (or -)  id              a call; the caller is the nearest function of the package below it
    <  thread  id                                  a return, also of a generator that yields and of a failed call
    l  file  line                                  a line that ran, the first time

Python imports `sitecustomize` when an interpreter starts, so fork servers and joblib's processes are traced without a
word in the package. Events are written at once: workers are sometimes killed. Functions that numba compiled are seen
when Python calls them; what they call in turn is found in their globals. Dataclasses' own methods belong to the file of
their class. A function that an event loop or a new thread runs has no caller. Does not know what is traced, or why.
"""

import itertools
import mmap
import os
import sys
import threading
from importlib.machinery import PathFinder

LOGS, PACKAGE = os.environ.get("CALL_TRACE_LOGS", ""), os.environ.get("CALL_TRACE_PACKAGE", "")
DISPATCHERS = "numba.core.dispatcher"  # where the callable that numba makes of a function is defined
LOOPS = {"asyncio", "concurrent", "joblib", "multiprocessing", "threading"}  # they run what others have handed in


class Log:
    """One process's file of events."""

    def __init__(self):
        with open(os.path.join(LOGS, "window"), "r+b") as file:
            self.window = mmap.mmap(file.fileno(), 1)
        self.name = os.path.basename(PACKAGE.rstrip(os.sep))
        self.begin()

    def begin(self):
        """A forked child begins a file of its own."""
        self.file = None
        self.lock = threading.RLock()  # a function's line stands before its first event, whichever thread came first
        self.numbers = itertools.count()
        self.ids = {}  # code -> id; None: not the package's
        self.lines = set()
        self.compiled = set()  # where functions are whose calls the dispatcher reports; numba tells profilers of a copy
        self.followed = set()

    def write(self, *fields):
        """One line."""
        with self.lock:
            if self.file is None:
                path = os.path.join(LOGS, f"{os.getpid()}.tsv")
                self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self.file, ("\t".join(map(str, fields)) + "\n").encode())

    def id_of(self, code, module, kind="python"):
        """The number of a function of the package; None for all others."""
        if code not in self.ids:
            with self.lock:
                if code not in self.ids:
                    self.ids[code] = self.register(code, module, kind)
        return self.ids[code]

    def register(self, code, module, kind):
        """Write a function down, if it is the package's."""
        path = code.co_filename
        if path == "<string>" and (module == self.name or module.startswith(self.name + ".")):
            path, kind = getattr(sys.modules.get(module), "__file__", path), "generated"
        if not path.startswith(PACKAGE):
            return None
        own = {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno}
        lines = "" if kind == "generated" else ",".join(map(str, sorted(own)))
        number = next(self.numbers)
        self.write("f", number, path[len(PACKAGE) :], code.co_firstlineno, kind, code.co_qualname, lines)
        return number

    def caller_of(self, frame):
        """The nearest function of the package below a frame."""
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module.partition(".")[0] in LOOPS:
                break
            number = self.id_of(frame.f_code, module)
            if number is not None:
                return number
            frame = frame.f_back
        return "-"

    def profile(self, frame, event, argument):
        """For sys.setprofile: calls and returns."""
        if self.window[0] != 1 or event not in ("call", "return") or place_of(frame.f_code) in self.compiled:
            return
        number = self.id_of(frame.f_code, frame.f_globals.get("__name__", ""))
        if number is None:
            return
        if event == "call":
            self.write(">", threading.get_ident(), self.caller_of(frame.f_back), number)
        else:
            self.write("<", threading.get_ident(), number)

    def trace(self, frame, event, argument):
        """For sys.settrace: lines."""
        path = frame.f_code.co_filename
        if not path.startswith(PACKAGE):
            return None
        if event == "line" and self.window[0] == 1 and (path, frame.f_lineno) not in self.lines:
            self.lines.add((path, frame.f_lineno))
            self.write("l", path[len(PACKAGE) :], frame.f_lineno)
        return self.trace

    def called(self, dispatcher, frame):
        """A compiled function runs, called by `frame`; returns its number, None if it is not the package's."""
        function = dispatcher.py_func
        self.compiled.add(place_of(function.__code__))
        number = self.id_of(function.__code__, function.__module__, "compiled")
        if number is not None:
            self.write(">", threading.get_ident(), self.caller_of(frame), number)
            self.follow(dispatcher, number)
        return number

    def follow(self, dispatcher, number):
        """What a compiled function calls is compiled, too, and the call can't be seen: look for it by name, once."""
        function = dispatcher.py_func
        if function.__code__ in self.followed:
            return
        self.followed.add(function.__code__)
        for name in function.__code__.co_names:
            other = function.__globals__.get(name)
            if isinstance(other, type(dispatcher)):
                self.compiled.add(place_of(other.py_func.__code__))
                callee = self.id_of(other.py_func.__code__, other.py_func.__module__, "compiled")
                if callee is not None:
                    self.write(">", threading.get_ident(), number, callee)
                    self.follow(other, callee)
                    self.write("<", threading.get_ident(), callee)

    def report(self, dispatcher):
        """Have numba's dispatchers report their calls."""
        log, plain = self, dispatcher.__call__

        def call(self, *arguments, **named):
            if log.window[0] != 1:
                return plain(self, *arguments, **named)
            number = log.called(self, sys._getframe(1))
            try:
                return plain(self, *arguments, **named)
            finally:
                if number is not None:
                    log.write("<", threading.get_ident(), number)

        dispatcher.__call__ = call

    def watch(self):
        """From now on, in this thread and in those that it starts; callers that are on the stack already included."""
        threading.setprofile(self.profile)
        threading.settrace(self.trace)
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(PACKAGE):
                frame.f_trace = self.trace
            frame = frame.f_back
        sys.settrace(self.trace)
        sys.setprofile(self.profile)


def place_of(code):
    """Where a function is."""
    return code.co_filename, code.co_firstlineno


class CompiledCalls:
    """Finds numba's dispatcher when it is imported."""

    def __init__(self, log):
        self.log = log

    def find_spec(self, name, path=None, target=None):
        """Only that one module."""
        if name != DISPATCHERS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            self.log.report(module.Dispatcher)

        spec.loader.exec_module = exec_module
        return spec


def open_window(is_open):
    """Begin to watch in every process, or end it for good. For the program that is watched."""
    if is_open:
        log.watch()
    log.window[0] = 1 if is_open else 2


def after_fork():
    """In the child of a fork server."""
    log.begin()
    log.watch()


log = None
if LOGS and PACKAGE:
    log = Log()
    os.register_at_fork(after_in_child=after_fork)
    sys.meta_path.insert(0, CompiledCalls(log))
    threading.setprofile(log.profile)
    threading.settrace(log.trace)
    # A profiled import takes twice as long. The program itself is watched once it opens the window, and a fork server's
    # children are from their first moment on; all others from here.
    is_program = os.environ.setdefault("CALL_TRACE_PROGRAM", str(os.getpid())) == str(os.getpid())
    if not is_program and not any("multiprocessing.forkserver" in word for word in sys.orig_argv):
        log.watch()

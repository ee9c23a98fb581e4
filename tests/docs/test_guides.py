"""README, guides and examples do what they say: every block runs, every link leads somewhere, every option exists.

    page ──> blocks in order ──┬── ```python          one namespace a page, in this process, in an empty directory
                               └── ```console, ```sh  the `$ ` lines, by the shell, with this interpreter's headrace

Starting headrace takes seconds, so the guides' headrace lines call its entry point in this process. README's are real
commands, and `make test-full` runs everybody's so.

A block whose first line is `# file: NAME` is written to NAME instead. Lines shown below a command must come out of it,
in that order; `…` stands for anything, and alone for any lines. `# exit code N` behind a command says how it must fail.
A block marked <!-- not executed: reason --> or tagged text is not run.
"""

from __future__ import annotations

import functools
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime  # noqa: F401  # it opens files of its own when it is imported, once a process
import pytest

from headrace.cli.main import COMMANDS, main
from headrace.cli.options import CLEANRL_NAMES

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
PAGES = [ROOT / "README.md", *GUIDES]
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED += sorted((ROOT / "docs" / "decisions").glob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

FENCE = re.compile(
    r"(?P<skip><!-- not executed: .+? -->\n\n?)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
FILE = re.compile(r"# file: (\S+)\n")
EXIT_CODE = re.compile(r"# exit code (\d+)")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)|\bsrc=\"(?P<source>[^\"]+)\"")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*")

INNER = {"agents": ("rollout", "compare", "serve", "show")}  # commands of a command

by_name = functools.partial(pytest.mark.parametrize, ids=lambda path: path.stem)


@dataclass(frozen=True)
class Block:
    """One fenced block and the line its body starts on."""

    language: str
    body: str
    line: int
    is_skipped: bool


@dataclass
class Command:
    """A `$ ` line, the lines shown below it, and how it must end."""

    text: str
    line: int
    shown: list[str]

    @property
    def exit_code(self) -> int:
        found = EXIT_CODE.search(self.text)
        return int(found.group(1)) if found else 0


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it said."""

    code: int
    text: str


def blocks_of(text: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("body")) + 1
        yield Block(match["language"], match["body"], line, match["skip"] is not None or match["language"] == "text")


def commands_of(block: Block) -> list[Command]:
    commands: list[Command] = []
    for number, text in enumerate(block.body.splitlines(), block.line):
        if text.startswith("$ "):
            commands.append(Command(text[2:], number, []))
        elif commands and commands[-1].text.endswith("\\"):
            commands[-1].text += "\n" + text
        elif commands and text.strip():
            commands[-1].shown.append(text)
    assert commands, f"line {block.line}: a {block.language} block without a command"
    return commands


def execute(page: Path, folder: Path, headrace: Callable[[str, Path], Said]) -> None:
    """Every block of a page, in order, in a folder; raises at the first that does not do what it says."""
    namespace: dict[str, Any] = {"__name__": "guide"}
    for block in blocks_of(page.read_text()):
        where = f"{page.name}, line {block.line}"
        if block.is_skipped:
            continue
        if named := FILE.match(block.body):
            (folder / named.group(1)).write_text(block.body)
        elif block.language == "python":
            code = "\n" * (block.line - 1) + block.body  # so that a traceback names the line of the page
            exec(compile(code, str(page), "exec"), namespace)
        elif block.language in ("console", "sh"):
            for command in commands_of(block):
                run = headrace if command.text.startswith("headrace ") else shell
                compare(command, run(command.text, folder), f"{page.name}, line {command.line}: $ {command.text}")
        else:
            pytest.fail(f"{where}: nobody runs a {block.language or 'nameless'} block; tag it text, or name its file")


def compare(command: Command, said: Said, where: str) -> None:
    assert said.code == command.exit_code, f"{where}\nexit code {said.code}, not {command.exit_code}:\n{said.text}"
    lines = iter(said.text.splitlines())
    for shown in command.shown:
        if shown.strip() == "…":
            continue
        pattern = ".*".join(map(re.escape, shown.rstrip().split("…")))
        found = any(re.fullmatch(pattern, line.rstrip()) for line in lines)
        assert found, f"{where}\ndid not say (in this order)\n{shown}\nbut\n{said.text}"


def shell(text: str, folder: Path) -> Said:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        text,
        shell=True,
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
        check=False,
    )
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode  # a signal, as a shell tells it
    return Said(code, done.stdout)


def entry_point(text: str, folder: Path) -> Said:
    """What the executable does, without its start."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = main(shlex.split(text, comments=True)[1:])
        except SystemExit as exit:
            code = int(exit.code or 0)
    return Said(code, said.getvalue())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a reader would be: an empty directory with the repository's configs/, importable from."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@by_name("page", GUIDES)
def test_every_guide_does_what_it_says(page: Path, folder: Path) -> None:
    execute(page, folder, entry_point)


@by_name("page", [PAGES[0], *(pytest.param(guide, marks=pytest.mark.full) for guide in GUIDES)])
def test_a_reader_who_types_it_sees_the_same(page: Path, folder: Path) -> None:
    execute(page, folder, shell)


@by_name("example", EXAMPLES)
def test_every_example_runs(example: Path, folder: Path) -> None:
    said = shell(f"python {example}", folder)
    assert said.code == 0, said.text
    if example.stem == "own_ppo":  # what the guide says of it
        reached = re.search(r"mean return over 100 episodes: ([\d.]+)", said.text)
        assert reached, said.text
        assert float(reached[1]) >= 475
        assert len(example.read_text().splitlines()) < 120


@by_name("page", LINKED)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = broken_links(page)
    assert not broken, f"{page.relative_to(ROOT)}: {broken}"


def broken_links(page: Path) -> list[str]:
    """Relative links to files that are not there, or to headings that the file does not have."""
    broken = []
    for match in LINK.finditer(without_blocks(page.read_text())):
        target = match["target"] or match["source"]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in anchors_of(linked)):
            broken.append(target)
    return broken


def anchors_of(page: Path) -> set[str]:
    """Headings as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def without_blocks(text: str) -> str:
    return FENCE.sub("", text)


@functools.cache
def options_of(command: str) -> frozenset[str]:
    """What a command's help lists, and CleanRL's names for it."""
    listed = set()
    for one in (command, *(f"{command} {inner}" for inner in INNER.get(command, ()))):
        said = entry_point(f"headrace {one} --help", ROOT)
        assert said.code == 0, said.text
        listed |= set(OPTION.findall(said.text))
    return frozenset(listed | {f"--{theirs}" for theirs, ours in CLEANRL_NAMES.items() if f"--{ours}" in listed})


def unknown_options(text: str) -> list[str]:
    """Options of headrace that a page names, in commands or in prose, and that no help lists."""
    unknown = []
    everywhere = frozenset().union(*map(options_of, COMMANDS))
    commands = [
        line for block in blocks_of(text) if block.language in ("console", "sh") for line in block.body.splitlines()
    ]
    prose = [span for span in re.findall(r"`([^`\n]+)`", without_blocks(text)) if span.startswith(("--", "headrace "))]
    for line in [*commands, *prose]:
        _, named, rest = line.partition("headrace ")
        command = rest.split(maxsplit=1)[0] if named and rest.strip() else ""
        known = options_of(command) if command in COMMANDS else everywhere | {"--help", "--version"}
        if named or line.startswith("--"):
            unknown += [option for option in OPTION.findall(line) if option.replace("_", "-") not in known]
    return unknown


@by_name("page", PAGES)
def test_every_option_exists(page: Path) -> None:
    assert not unknown_options(page.read_text())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nassert 1 == 2, 'so it is'\n```\n", "so it is"),
        ("```console\n$ exit 3\n```\n", "exit code 3, not 0"),
        ("```console\n$ true  # exit code 2\n```\n", "exit code 0, not 2"),
        ("```console\n$ headrace --version  # exit code 1\n```\n", "exit code 0, not 1"),
        ("```console\n$ echo one; echo two\ntwo\none\n```\n", "did not say"),
        ("```sh\ntrue\n```\n", "without a command"),
        ("```toml\nseed = 1\n```\n", "nobody runs a toml block"),
    ],
    ids=["python", "it fails", "it does not fail", "headrace does not fail", "order", "no command", "unknown language"],
)
def test_a_page_that_lies_is_caught(text: str, complaint: str, folder: Path) -> None:
    page = folder / "page.md"
    page.write_text(text)
    with pytest.raises((AssertionError, pytest.fail.Exception), match=complaint):
        execute(page, folder, shell)


def test_what_is_skipped_and_what_is_shown(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text(
        "```text\nnot run\n```\n<!-- not executed: it would fail -->\n```console\n$ false\n```\n"
        "```python\n# file: one.py\nvalue = 7\n```\n"
        "```console\n$ python -c 'import one; print(one.value, 8)'\n… 8\n```\n"
        "```python\nimport one\n```\n```python\nassert one.value == 7\n```\n"
    )
    execute(page, folder, shell)


def test_dead_links_and_invented_options_are_caught(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text("# A title\n[a](configs/cartpole.toml) [b](#a-title) [c](nowhere.md) [d](#no-title)\n")
    assert broken_links(page) == ["nowhere.md", "#no-title"]
    text = "```sh\n$ headrace eval RUN --n-envs 3 --json out.json\n```\n`--run-dir`, `--ru-dir`, `tar --xz`\n"
    assert unknown_options(text) == ["--n-envs", "--ru-dir"]

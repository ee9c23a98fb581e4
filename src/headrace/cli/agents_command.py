"""`headrace agents rollout | compare | serve | show`: multi-turn rollouts of LLM agents."""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.own_modules import find_modules
from headrace.cli.printing import say
from headrace.cli.writing import PICTURES
from headrace.clock import wall_time
from headrace.errors import HeadraceError, UsageError
from headrace.extras import has, left_out, require
from headrace.files import read_named, require_no_links
from headrace.plain_text import printable
from headrace.runtime import guard

if TYPE_CHECKING:
    from headrace.agents.codec import Codec
    from headrace.agents.config import AgentsConfig
    from headrace.agents.records import Group


def main(argv: list[str]) -> int:
    """Run one of its commands; returns the exit code."""
    options = _parsed(argv)
    try:
        import joblib  # noqa: F401
    except ImportError as error:
        raise UsageError(f"headrace agents: {error}; pip install 'headrace[llm]'") from error
    code: int = options.run(options)
    return code


def _parsed(argv: list[str]) -> argparse.Namespace:
    """Overrides may stand on both sides of an option: a command reads its own words, which a subparser would not."""
    parser, commands = _parsers()
    if not argv or argv[0] not in commands:
        return parser.parse_args(argv)  # help, or an error that lists the commands
    return commands[argv[0]].parse_intermixed_args(argv[1:])


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    parser = argparse.ArgumentParser(
        "headrace agents", description="Multi-turn rollouts of LLM agents over one engine."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    rollout = commands.add_parser("rollout", help="play groups of episodes and keep their records")
    _configured(rollout)
    rollout.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="where records go; an interrupted run there continues"
    )
    rollout.add_argument(
        "--val", action="store_true", help="play the groups of es_manager.val, not of es_manager.train"
    )
    rollout.set_defaults(run=_rollout)

    compare = commands.add_parser("compare", help="sequential and parallel side by side; exit code 1 if they disagree")
    _configured(compare)
    compare.add_argument("--cheap-only", action="store_true", help="add no environment that waits for a tool")
    compare.add_argument(
        "--plot", type=Path, metavar="FILE", help="where the picture goes (default: agents-compare.png)"
    )
    compare.add_argument("--json", type=Path, metavar="FILE", help="the numbers, as JSON")
    compare.set_defaults(run=_compare)

    serve = commands.add_parser("serve", help="a server with vLLM's token interface")
    _configured(serve)
    serve.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                       help="where to listen; other than loopback needs a token (default: %(default)s)")  # fmt: skip
    serve.add_argument("--port", type=int, metavar="N", default=8000, help="port to listen on (default: %(default)s)")
    serve.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file with the token that clients must send, on every route"
    )
    serve.add_argument("--token", help="the token itself; others on this machine can read a command line. Without "
                       "either, the environment variable HEADRACE_TOKEN")  # fmt: skip
    serve.add_argument(
        "--weights-dir", type=Path, metavar="DIR", help="folder below which clients may name safetensors files to load"
    )
    for kind in ("slow", "error", "drop", "garbage", "wrong-logprobs", "wrong-ids", "stale", "limited"):
        serve.add_argument(f"--fault-{kind}", type=float, default=0.0, metavar="SHARE",
                           help=f"share of requests, 0 to 1, with the fault {kind} (default: 0)")  # fmt: skip
    serve.add_argument(
        "--slow-s", type=float, metavar="X", default=5.0, help="seconds that a slow answer takes (default: 5)"
    )
    serve.add_argument("--fault-seed", type=int, metavar="N", default=0, help="seed of the faults (default: 0)")
    serve.set_defaults(run=_serve)

    show = commands.add_parser("show", help="print a recorded conversation, or list a file's episodes")
    show.add_argument("file", type=Path, metavar="FILE", help="records.parquet, groups.jsonl or a run directory")
    show.add_argument("episode", nargs="?", metavar="EPISODE", help="group-member, as in 3-0")
    show.add_argument("--html", type=Path, metavar="FILE", help="write a page to look through them, in one file")
    show.set_defaults(run=_show)
    return parser, commands.choices


def _configured(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-name", metavar="NAME", default="base",
                        help="base, base-parallel, or a YAML file (default: %(default)s)")  # fmt: skip
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="another directory with configuration files")
    parser.add_argument("--trust", action="store_true", help="import and call what the file names without asking")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides, as in agent_proxy.max_turn=3")


def _loaded(options: argparse.Namespace) -> AgentsConfig:
    """The configuration; what it says to a trainer is listed, once."""
    from headrace.agents.config import load
    from headrace.agents.ragen import shown

    guard.command.begin()
    is_val = getattr(options, "val", False)
    config = load(options.config_name, options.overrides, options.config_dir, options.trust, find_modules, is_val)
    if config.ignored:
        say(f"--config-name {options.config_name}: {shown(config.ignored)}")
    return config


def _rollout(options: argparse.Namespace) -> int:
    from headrace.agents.build import engine_of, rollouts_of
    from headrace.agents.codec import describe
    from headrace.agents.cost import cost_of, session_cost
    from headrace.agents.engines.servers import OutageError
    from headrace.agents.exports.parquet import write_parquet
    from headrace.agents.exports.verl import left_out_episodes
    from headrace.agents.metrics import summary
    from headrace.agents.records import COMPLETED, fingerprint
    from headrace.telemetry.sinks import json_record
    from headrace.views.agents import RolloutView

    config = _loaded(options)
    folder = options.run_dir or Path("runs") / f"agents__{config.seed}__{int(wall_time())}"
    _require_folder(folder, "--run-dir")
    try:
        require_no_links(folder, ("log.txt", "codec.json", "groups.jsonl", "records.parquet", "result.json"))
    except OSError as error:
        raise UsageError(f"--run-dir {folder}: {error.strerror}; remove it, or choose another directory") from error
    handler = logging.FileHandler(folder / "log.txt", encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("headrace")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    if config.ignored:
        logger.info("keys that concern a trainer and do nothing here: %s", ", ".join(config.ignored))
    try:
        ended: OutageError | None = None
        with RolloutView(config.env_groups, config.group_size) as view:
            engine = engine_of(config, view.teaching)
            if hasattr(engine, "on_wait"):
                engine.on_wait = view.waiting
            try:
                with rollouts_of(config, engine, folder) as rollouts:
                    (folder / "codec.json").write_text(json.dumps(describe(engine.codec)))
                    groups = []
                    try:
                        for group in rollouts.stream(config.env_groups):
                            groups.append(group)
                            view.update(group, rollouts.statistics, rollouts.choice)
                    except OutageError as error:
                        ended = error
                    played = rollouts.statistics.groups
            finally:
                engine.close()
        write_parquet(groups, folder / "records.parquet", engine.codec)
        metrics = summary(groups)
        left_out = left_out_episodes(groups)
        result = {
            "groups": len(groups),
            "fingerprint": fingerprint(groups),
            "metrics": json_record(metrics),
            "left_out": left_out,
            "cost": cost_of(groups, config.engine.prices),
            "ended": "done" if ended is None else str(ended),
        }
        (folder / "result.json").write_text(json.dumps(result, indent=2))
        session = session_cost(engine.statistics(), config.engine.prices, played)
        logger.info("this session: %s", json.dumps(session))  # answers that were refused or lost included
        if ended is not None:
            logger.error("%s", ended)
            raise ended
    finally:
        logger.removeHandler(handler)
        handler.close()
    failed = sum(group.status != COMPLETED for group in groups)
    view.summary(metrics)
    print(f"{len(groups)} groups, {failed} of them failed; records in {folder}/records.parquet")
    if "text_only" in left_out:
        print(f"{left_out['text_only']} episodes have text only and can't be trained on")
    if "silent" in left_out:
        print(f"{left_out['silent']} episodes have no answer: their first prompt and max_tokens exceed max_context")
    told = "{requests:,} requests, {prompt_tokens:,} prompt tokens, {answer_tokens:,} answer tokens".format(**session)
    print(f"this session: {told}" + (f", {session['money']:.2f} to pay" if session["money"] else ""))
    print(f"look at one with: headrace agents show {folder} {groups[0].episodes[0].episode_id}")
    if failed == len(groups):
        reasons = Counter(f"{one.boundary}: {one.message}" for group in groups for one in group.failures)
        most_often = f"; most often {reasons.most_common(1)[0][0]}" if reasons else ""
        raise HeadraceError(f"no group has a result{most_often}; {folder}/log.txt has the rest")
    return 0


def _require_folder(folder: Path, option: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {folder}: expected a directory: {error.strerror}") from error


def _compare(options: argparse.Namespace) -> int:
    from headrace.agents.build import engine_of
    from headrace.agents.compare import compare
    from headrace.views.comparison import numbers, text_table, write_plot

    config = _loaded(options)
    if options.plot is not None:
        require("plots", "--plot")
    elif has("plots"):
        options.plot = Path("agents-compare.png")
    for option, path in (("--plot", options.plot), ("--json", options.json)):
        if path is not None:  # now, not after minutes of playing
            _require_folder(path.parent, option)
            _require_writable(path, option)
    compared = compare(config, lambda: engine_of(config), lambda name: say(f"running: {name}"), options.cheap_only)
    print(text_table(compared))
    print(f"\n{left_out('plots')}" if options.plot is None else f"\npicture: {write_plot(compared, options.plot)}")
    if options.json:
        options.json.write_text(json.dumps(numbers(compared), indent=2))
    return 0 if compared.agree else 1


def _require_writable(path: Path, option: str) -> None:
    if path.is_dir():
        raise UsageError(f"{option} {path}: expected a file, got a directory")
    if option == "--html" and path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{option} {path}: expected a name that ends in .html")
    if option == "--plot" and path.suffix.lower() not in PICTURES:
        raise UsageError(f"{option} {path}: expected a name that ends in .png, .svg or .pdf")


def _serve(options: argparse.Namespace) -> int:
    from headrace.agents.build import engine_of
    from headrace.agents.faults import KINDS, Faults
    from headrace.agents.serve import application, bound, require_safe

    config = _loaded(options)
    token = _token(options)
    require_safe(options.host, token)
    if options.weights_dir is not None and not options.weights_dir.is_dir():
        raise UsageError(f"--weights-dir {options.weights_dir}: expected a directory")
    if not 0 < options.port < 65536:
        raise UsageError(f"--port: expected 1 to 65535, got {options.port}")
    shares = {kind: getattr(options, f"fault_{kind}") for kind in KINDS}
    faults = Faults(**shares, slow_s=options.slow_s, seed=options.fault_seed)
    import uvicorn

    with bound(options.host, options.port) as listener:
        engine = engine_of(config, lambda done, total: None)
        print(f"serving {config.engine.kind} at http://{options.host}:{options.port}/v1; Ctrl-C ends it", flush=True)
        try:
            app = application(engine, faults, token, options.weights_dir)
            with suppress(KeyboardInterrupt):  # it has ended in order
                uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
        finally:
            engine.close()
    return 0


def _token(options: argparse.Namespace) -> str:
    """From a file, the command line, or the environment."""
    if options.token is not None and options.token_file is not None:
        raise UsageError("--token and --token-file: expected one of them")
    if options.token is not None:
        return _printable_token(options.token, "--token")
    if options.token_file is None:
        return os.environ.get("HEADRACE_TOKEN", "")
    try:
        token = read_named(options.token_file, 4096).decode().strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"--token-file {options.token_file}: can't be read: {error}") from error
    return _printable_token(token, f"--token-file {options.token_file}")


def _printable_token(token: str, source: str) -> str:
    """An empty one, as of a variable that is not set, would let everybody in."""
    if not token or not token.isascii() or not token.isprintable():
        raise UsageError(f"{source}: expected a token of printable ASCII, got none")
    return token


def _show(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.text import Text

    from headrace.agents.show import codec_of, conversation, find_episode, group_of, listing, read_records

    if options.html is not None:
        _require_folder(options.html.parent, "--html")
        _require_writable(options.html, "--html")
    text: Text | str
    console = Console()
    try:
        groups = read_records(options.file)
        if options.html is not None:
            kept = groups if options.episode is None else [group_of(groups, options.episode)]
            text = _traced(kept, codec_of(options.file), options)
        elif options.episode is None:
            text = listing(groups)
        else:
            has_colour = console.is_terminal and "NO_COLOR" not in os.environ
            text = conversation(find_episode(groups, options.episode), codec_of(options.file), has_colour)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise UsageError(
            f"{options.file}: expected the records of a rollout: {type(error).__name__}: {error}"
        ) from error
    if isinstance(text, str):
        print(text)
    else:
        console.print(text, soft_wrap=True)
    return 0


def _traced(groups: list[Group], codec: Codec | None, options: argparse.Namespace) -> str:
    """Write the page; returns what there is to say."""
    from headrace.views.trace import write_trace

    total = sum(len(group.episodes) for group in groups)
    title = options.file.resolve().name if options.file.is_dir() else options.file.resolve().parent.name
    try:
        shown = write_trace(groups, codec, title, options.html)
    except OSError as error:
        raise UsageError(f"--html {options.html}: can't be written: {error.strerror}; choose another place") from error
    part = f" of {total:,}; name an episode to see its group" if shown < total else ""
    return printable(f"{options.html}: {shown:,} episodes{part}. Open it in a browser", is_one_line=True)

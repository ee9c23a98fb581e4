"""Loading is not running: a file that names code gets nothing imported or called without consent.

A canary module leaves a line when it is imported or called; every test looks for that line.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.checkpoints import proof
from headrace.checkpoints.snapshot import find_latest, load
from headrace.envs.consent import parts_to_ask_for
from headrace.errors import CheckpointError, ConsentError, HeadraceError
from support.command import TINY, Outcome, assert_says, run
from support.doctored import doctor, names_env, proof_of, rehash

CANARY = "support.canary"
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of this user's, CartPole, with one checkpoint."""
    folder = tmp_path_factory.mktemp("saved")
    assert run("train", "CartPole-v1", *TINY, "--total-timesteps", "16", "--run-dir", "out", cwd=folder).code == 0
    return folder / "out"


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """What the canary sang. The module is forgotten before, so that importing it is heard."""
    path = tmp_path / "canary.txt"
    monkeypatch.setenv("HEADRACE_CANARY", str(path))
    monkeypatch.delitem(sys.modules, CANARY, raising=False)
    yield lambda: path.read_text().splitlines() if path.exists() else []
    sys.modules.pop(CANARY, None)


def payloads() -> dict[str, Change]:
    touch = "import os, pathlib; pathlib.Path(os.environ['HEADRACE_CANARY']).write_text('ran')"
    return {
        "subprocess": names_env(env="subprocess:call", kwargs={"args": [sys.executable, "-c", touch]}),
        "popen": names_env(env="subprocess:Popen", kwargs={"args": [sys.executable, "-c", touch]}),
        "builtins": names_env(env="builtins:exec", kwargs={"source": touch}),
        "system": names_env(env="os:system", kwargs={"command": "echo ran > $HEADRACE_CANARY"}),
        "canary": names_env(env=f"{CANARY}:make"),
        "dotted": names_env(env=f"{CANARY}:make.__call__"),
        "registers": names_env(env=f"{CANARY}:CartPole-v1"),
        "no such id": names_env(env=f"{CANARY}:No/Such-v0"),
        "wrapper": names_env(wrappers=[f"{CANARY}:wrap"]),
        "two wrappers": names_env(wrappers=["gymnasium.wrappers:FlattenObservation", f"{CANARY}:wrap"]),
        "kwargs": names_env(kwargs={"additional_wrappers": [1]}),
        "file kwargs": names_env(env="Ant-v5", kwargs={"xml_file": "/etc/passwd"}),
        "vector": names_env(env=f"{CANARY}:make", kwargs={"num_envs": 2}),
    }


def run_dir(saved: Path, target: Path, change: Change, **more: Any) -> Path:
    """The whole run directory, its checkpoint doctored."""
    shutil.copytree(saved, target)
    newest = max((target / "checkpoints").iterdir())
    shutil.rmtree(newest)
    doctor(saved / "checkpoints" / newest.name, newest, change, **more)
    config = json.loads((target / "config.json").read_text())
    change({"config": config})
    (target / "config.json").write_text(json.dumps(config))
    return target


def by_load(folder: Path) -> str:
    with pytest.raises(ConsentError) as caught:
        hr.PPO.load(folder)
    return str(caught.value)


def by_weights_only(folder: Path) -> str:
    with pytest.raises(ConsentError) as caught:
        hr.PPO.load(folder, weights_only=True, topology="inline")
    return str(caught.value)


def by_snapshot(folder: Path) -> str:
    with pytest.raises(ConsentError) as caught:
        hr.PPO.from_snapshot(find_latest(folder)[1])
    return str(caught.value)


def by_replay(folder: Path) -> str:
    with pytest.raises(ConsentError) as caught:
        hr.replay(folder, "0:0")
    return str(caught.value)


def by_export(folder: Path) -> str:
    with pytest.raises(ConsentError) as caught:
        hr.export_rollouts(folder, folder.parent / "out.parquet")
    assert not (folder.parent / "out.parquet").exists()
    return str(caught.value)


def refused(outcome: Outcome) -> str:
    assert outcome.code == 2, outcome
    return outcome.only_error


WAYS: dict[str, Callable[[Path], str]] = {
    "load": by_load,
    "weights_only": by_weights_only,
    "from_snapshot": by_snapshot,
    "hr.replay": by_replay,
    "hr.export_rollouts": by_export,
    "rollouts": lambda folder: refused(run("rollouts", folder.name, "--to", "out.parquet", cwd=folder.parent)),
    "replay": lambda folder: refused(run("replay", folder.name, "0:0", cwd=folder.parent)),
    "eval": lambda folder: refused(run("eval", folder.name, cwd=folder.parent)),
    "resume": lambda folder: refused(run("train", "--resume", folder.name, "--quiet", cwd=folder.parent)),
    "dry run": lambda folder: refused(run("train", "--resume", folder.name, "--dry-run", cwd=folder.parent)),
    "config": lambda folder: refused(run("train", "--config", folder / "config.json", "--dry-run", cwd=folder.parent)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("payload", payloads())
def test_nothing_runs(payload: str, way: str, saved: Path, tmp_path: Path, canary: Callable[[], list[str]]) -> None:
    """143 doctored files. The message names what it was, in one line, and what to do."""
    folder = run_dir(saved, tmp_path / "theirs", payloads()[payload])
    before = set(sys.modules)
    text = WAYS[way](folder)
    assert canary() == []
    assert CANARY not in set(sys.modules) - before
    env = json.loads((folder / "config.json").read_text())["env"]
    for wrapper in env["wrappers"]:
        assert wrapper in text
    if ":" in env["env"]:
        assert_says(text, [env["env"], f"imports {env['env'].partition(':')[0]}"])
    assert_says(text, ["names what you did not name yourself", "Nothing was imported or called", "--trust"])
    for key in env["kwargs"]:
        assert key in text
    assert "\n" not in text
    assert "Error" not in text
    assert "EnvSpec" not in text.replace("hr.EnvSpec", "")


# ------------------------------------------------------------------------------------------------------------ consent


@pytest.fixture
def theirs(saved: Path, tmp_path: Path) -> Path:
    """A run with an environment, kwargs and a wrapper of its own, from elsewhere."""
    env = names_env(env=f"{CANARY}:make", kwargs={"size": 3}, wrappers=[f"{CANARY}:wrap"])
    return run_dir(saved, tmp_path / "theirs", env)


SPEC = hr.EnvSpec(f"{CANARY}:make", {"size": 3}, (f"{CANARY}:wrap",))
TYPED = (f"{CANARY}:make", "--env-kwargs", '{"size": 3}', "--wrappers", f"{CANARY}:wrap")


@pytest.mark.parametrize("consent", [{"trust": True}, {"env": SPEC}], ids=["trust", "env"])
def test_consent_in_python(consent: dict[str, Any], theirs: Path, canary: Callable[[], list[str]]) -> None:
    with hr.PPO.load(theirs, **consent) as model:
        model.learn(8)
    assert {"imported", "called", "wrapped"} <= set(canary())


def test_an_environment_of_the_callers_does_not_consent_to_the_files_kwargs(
    theirs: Path, canary: Callable[[], list[str]]
) -> None:
    for env in (f"{CANARY}:make", "CartPole-v1", lambda **kwargs: None):
        with pytest.raises(ConsentError, match=r'kwargs \{"size": 3\}; wrapper "support.canary:wrap"'):
            hr.PPO.load(theirs, env=env)
    assert canary() == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "theirs", "--n-eval-episodes", "1", "--trust"),
        ("train", "--resume", "theirs", "--dry-run", "--trust"),
        ("train", *TYPED, "--resume", "theirs", "--dry-run"),
        ("train", "--config", "theirs/config.json", "--dry-run", "--trust"),
        ("train", *TYPED, "--config", "theirs/config.json", "--dry-run"),
    ],
    ids=["eval", "resume", "resume typed", "config", "config typed"],
)
def test_consent_on_the_command_line(arguments: tuple[str, ...], theirs: Path, canary: Callable[[], list[str]]) -> None:
    outcome = run(*arguments, cwd=theirs.parent)
    assert outcome.code == 0, outcome.err
    assert {"imported", "called", "wrapped"} <= set(canary())


@pytest.mark.parametrize(
    "typed",
    [
        (f"{CANARY}:make",),
        (f"{CANARY}:make", "--env-kwargs", '{"size": 3.0}', "--wrappers", f"{CANARY}:wrap"),
        (f"{CANARY}:make", "--env-kwargs", '{"size": true}', "--wrappers", f"{CANARY}:wrap"),
        ("CartPole-v1", *TYPED[1:]),
        (*TYPED, "os:system"),
    ],
    ids=str,
)
@pytest.mark.parametrize("way", [("--resume", "theirs"), ("--config", "theirs/config.json")], ids=["resume", "config"])
def test_other_words_are_no_consent(
    typed: tuple[str, ...], way: tuple[str, str], theirs: Path, canary: Callable[[], list[str]]
) -> None:
    outcome = run("train", *typed, *way, "--dry-run", cwd=theirs.parent)
    if way[0] == "--config" and typed != (f"{CANARY}:make",):
        return  # what is typed wins over the file there, so it is built, or fails, as the user's own
    assert outcome.code == 2
    assert canary() == []


@pytest.mark.parametrize(("theirs", "ours"), [(1, True), (1, 1.0), ([1], [True]), ({"a": 0}, {"a": False}), ("a", "b")])
def test_equal_for_python_is_not_equal_for_consent(theirs: object, ours: object) -> None:
    named = {"env": "CartPole-v1", "kwargs": {"x": theirs}, "wrappers": []}
    assert parts_to_ask_for(named, hr.EnvSpec("CartPole-v1", {"x": ours}))
    assert not parts_to_ask_for(named, hr.EnvSpec("CartPole-v1", {"x": theirs}))


def test_evaluating_with_an_environment_of_ones_own_does_not_build_the_files(
    theirs: Path, canary: Callable[[], list[str]]
) -> None:
    outcome = run("eval", "theirs", "--env", "CartPole-v1", "--n-eval-episodes", "1", cwd=theirs.parent)
    assert outcome.code == 0, outcome.err
    assert canary() == []


def test_a_registered_id_needs_no_consent(saved: Path, tmp_path: Path) -> None:
    folder = run_dir(saved, tmp_path / "theirs", lambda state: None, manifest=lambda body: body.pop("proof"))
    assert find_latest(folder)[1].origin.doubt
    with hr.PPO.load(folder) as model:
        model.learn(8)
    assert run("eval", "theirs", "--n-eval-episodes", "1", cwd=tmp_path).code == 0
    assert run("train", "--resume", "theirs", "--dry-run", cwd=tmp_path).code == 0
    assert run("train", "--config", "theirs/config.json", "--dry-run", cwd=tmp_path).code == 0


def test_what_this_user_made_needs_no_consent(tmp_path: Path, canary: Callable[[], list[str]]) -> None:
    """The whole way: train, copy elsewhere, evaluate, resume, take its configuration."""
    arguments = (*TYPED, *TINY, "--total-timesteps", "16", "--run-dir", "out")
    assert run("train", *arguments, cwd=tmp_path).code == 0
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    for command in (
        ("eval", "copy", "--n-eval-episodes", "1"),
        ("train", "--resume", "copy", "--dry-run"),
        ("train", "--resume", "copy", "--total-timesteps", "32", "--quiet"),
        ("train", "--config", "copy/config.json", "--dry-run"),
    ):
        outcome = run(*command, cwd=tmp_path)
        assert outcome.code == 0, outcome.err
    with hr.PPO.load(tmp_path / "copy") as model:
        assert model.num_timesteps == 32
        model.save(tmp_path / "model")
    hr.PPO.load(tmp_path / "model").close()
    assert canary()


# ----------------------------------------------------------------------------------------------- proofs that are lies


@pytest.fixture
def own(tmp_path: Path, canary: Callable[[], list[str]]) -> Path:
    """A checkpoint of this user's with the canary as its environment; afterwards the canary is silent again."""
    with hr.PPO("MlpPolicy", f"{CANARY}:make", n_envs=2, n_steps=4, batch_size=4, n_epochs=1, seed=1) as model:
        model.learn(8)
        model.save(tmp_path / "own")
    Path(os.environ["HEADRACE_CANARY"]).unlink()
    sys.modules.pop(CANARY, None)
    return tmp_path / "own"


def refuses(path: Path, why: str, canary: Callable[[], list[str]]) -> None:
    with pytest.raises(ConsentError, match=why):
        hr.PPO.load(path)
    assert canary() == []


def test_the_proof_of_another_checkpoint(
    own: Path, saved: Path, tmp_path: Path, canary: Callable[[], list[str]]
) -> None:
    """The user's own environment and proof, put into a checkpoint with other weights; and the other way round."""
    stolen = proof_of(own)
    other = max((saved / "checkpoints").iterdir())
    target = doctor(other, tmp_path / "a", names_env(env=f"{CANARY}:make"), manifest=lambda b: b.update(proof=stolen))
    refuses(target, "not made with your key, or it was changed", canary)
    target = doctor(own, tmp_path / "b", arrays=lambda parts: parts["weights"].update(x=parts["weights"].popitem()[1]))
    refuses(target, "not made with your key, or it was changed", canary)


def test_an_edited_environment_with_the_proof_left_in_place(
    own: Path, tmp_path: Path, canary: Callable[[], list[str]]
) -> None:
    for number, change in enumerate(
        (names_env(kwargs={"x": 1}), names_env(env="os:system"), names_env(action_repeat=2))
    ):
        refuses(doctor(own, tmp_path / str(number), change), "not made with your key, or it was changed", canary)


@pytest.mark.parametrize("forged", [None, 5, [], "", "00" * 32, "é", {"a": 1}], ids=str)
def test_a_forged_proof(forged: object, own: Path, tmp_path: Path, canary: Callable[[], list[str]]) -> None:
    refuses(doctor(own, tmp_path / "it", manifest=lambda b: b.update(proof=forged)), "proof", canary)


def test_a_configurations_proof_is_none_of_a_checkpoint(own: Path) -> None:
    body = {"format": 1, "sha256": {}}
    made = proof.prove(proof.CONFIGURATION, body)
    assert proof.doubt_about(proof.CONFIGURATION, body, made) == ""
    assert proof.doubt_about(proof.CHECKPOINT, body, made)


def test_an_archive_of_another_users_run(
    own: Path, tmp_path: Path, canary: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpacked here it belongs to us, as every file we unpack does. That proves nothing."""
    with tarfile.open(tmp_path / "run.tar", "w") as archive:
        archive.add(own, "unpacked")
    monkeypatch.setenv("HEADRACE_KEY_FILE", str(tmp_path / "another" / "key"))  # we are somebody else now
    assert proof.prove(proof.CHECKPOINT, {})  # with a key of our own
    with tarfile.open(tmp_path / "run.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    assert (tmp_path / "unpacked").stat().st_uid == os.geteuid()
    refuses(tmp_path / "unpacked", "not made with your key", canary)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601, 0o620], ids=oct)
def test_a_key_that_others_may_know_proves_nothing(
    mode: int, own: Path, tmp_path: Path, canary: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(proof.key_path(), tmp_path / "key")
    monkeypatch.setenv("HEADRACE_KEY_FILE", str(tmp_path / "key"))
    os.chmod(tmp_path / "key", 0o600)
    hr.PPO.load(own).close()
    Path(os.environ["HEADRACE_CANARY"]).unlink()
    sys.modules.pop(CANARY)
    os.chmod(tmp_path / "key", mode)
    refuses(own, f"has mode {mode:04o}, so others may know it", canary)


def test_a_key_that_is_no_key(
    own: Path, tmp_path: Path, canary: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, key = proof.key_path(), tmp_path / "key"
    monkeypatch.setenv("HEADRACE_KEY_FILE", str(key))
    refuses(own, "there is no key", canary)
    assert not key.exists(), "looking makes none"
    key.symlink_to(real)
    refuses(own, "is a link, expected a regular file", canary)
    key.unlink()
    os.mkfifo(key, 0o600)
    refuses(own, "is a named pipe", canary)
    key.unlink()
    key.mkdir(mode=0o700)
    refuses(own, "is a directory", canary)
    key.rmdir()
    key.write_bytes(real.read_bytes()[:16])
    key.chmod(0o600)
    refuses(own, "is damaged", canary)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_key_of_another_user(
    own: Path, tmp_path: Path, canary: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(proof.key_path(), tmp_path / "key")
    os.chmod(tmp_path / "key", 0o600)
    os.chown(tmp_path / "key", 12345, 12345)
    monkeypatch.setenv("HEADRACE_KEY_FILE", str(tmp_path / "key"))
    refuses(own, "belongs to user 12345", canary)


def test_the_key_is_made_once_and_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_KEY_FILE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = os.umask(0)
    try:
        first = proof.prove(proof.CHECKPOINT, {"a": 1})
    finally:
        os.umask(before)
    key = tmp_path / "state" / "headrace" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert [path.name for path in key.parent.iterdir()] == ["key"]
    assert proof.prove(proof.CHECKPOINT, {"a": 1}) == first
    assert len(key.read_bytes()) == 32
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert proof.key_path() == tmp_path / "home" / ".local" / "state" / "headrace" / "key"


def test_without_a_home_there_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose user has no entry in /etc/passwd."""

    def nobody(number: int) -> Any:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HEADRACE_KEY_FILE", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert proof.prove(proof.CHECKPOINT, {"a": 1}) is None
    assert "no home directory for a key; set HEADRACE_KEY_FILE" in proof.doubt_about(proof.CHECKPOINT, {}, "0" * 64)


def test_without_a_key_training_goes_on_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, canary: Callable[[], list[str]]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_KEY_FILE", str(tmp_path / "file" / "key"))
    steps = ("--total-timesteps", "32", "--checkpoint-every", "8", "--run-dir", "out")
    assert run("train", f"{CANARY}:make", *TINY, *steps, cwd=tmp_path).code == 0
    assert (tmp_path / "out" / "log.txt").read_text().count("carry no proof that you made them") == 1
    outcome = run("train", "--resume", "out", "--dry-run", cwd=tmp_path)
    assert_says(refused(outcome), ["it carries no proof that you made it"])
    assert run("train", "--resume", "out", "--dry-run", "--trust", cwd=tmp_path).code == 0


# ------------------------------------------------------------------------------------------------ configuration files


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f'env = "{CANARY}:make"', [f'environment "{CANARY}:make"', f"imports {CANARY}"]),
        (f'env = "{CANARY}:CartPole-v1"', [f"imports {CANARY}"]),
        (f'env = "CartPole-v1"\nwrappers = ["{CANARY}:wrap"]', [f'wrapper "{CANARY}:wrap"']),
        ('env = "CartPole-v1"\n[env_kwargs]\nsutton_barto_reward = true', ["sutton_barto_reward"]),
        ('env = "CartPole-v1"\nrun_dir = "/tmp/elsewhere"', ['run_dir "/tmp/elsewhere"']),
        ('env = "CartPole-v1"\nschedule = "/etc/passwd"', ['schedule "/etc/passwd"']),
    ],
    ids=["env", "id", "wrapper", "kwargs", "run_dir", "schedule"],
)
def test_a_toml_file_is_a_file(text: str, named: list[str], tmp_path: Path, canary: Callable[[], list[str]]) -> None:
    (tmp_path / "run.toml").write_text(text)
    outcome = run("train", "--config", "run.toml", "--dry-run", cwd=tmp_path)
    assert_says(refused(outcome), [*named, "--config run.toml", "--trust"])
    assert canary() == []


@pytest.mark.parametrize("key", ["trust = true", 'resume = "out"', 'config = "other.toml"'])
def test_a_file_may_not_agree_with_itself(key: str, tmp_path: Path, canary: Callable[[], list[str]]) -> None:
    (tmp_path / "run.toml").write_text(f'env = "{CANARY}:make"\n{key}\n')
    outcome = run("train", "--config", "run.toml", "--dry-run", cwd=tmp_path)
    assert_says(refused(outcome), [key.partition(" ")[0], "for the command line only"])
    assert canary() == []


def test_numbers_of_a_file_need_no_consent(tmp_path: Path, canary: Callable[[], list[str]]) -> None:
    (tmp_path / "run.toml").write_text("n_envs = 2\nn_steps = 4\nbatch_size = 4\n")
    assert run("train", f"{CANARY}:make", "--config", "run.toml", "--dry-run", cwd=tmp_path).code == 0
    assert canary()


def test_a_configurations_proof_covers_all_of_it(tmp_path: Path, canary: Callable[[], list[str]]) -> None:
    arguments = (f"{CANARY}:make", *TINY, "--total-timesteps", "8", "--run-dir", "out")
    assert run("train", *arguments, cwd=tmp_path).code == 0
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    assert run("train", "--config", path, "--dry-run", cwd=tmp_path).code == 0
    for change in ({"seed": 8}, {"env": config["env"] | {"kwargs": {"x": 1}}}, {"proof": "00" * 32}):
        path.write_text(json.dumps(config | change))
        text = refused(run("train", "--config", path, "--dry-run", cwd=tmp_path))
        assert "not made with your key, or it was changed" in text


def test_a_run_directory_of_a_files_choice_is_refused_on_resume(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "out")
    (tmp_path / "more.toml").write_text(f'run_dir = "{tmp_path / "elsewhere"}"\n')
    outcome = run("train", "--resume", "out", "--config", "more.toml", "--dry-run", cwd=tmp_path)
    assert_says(refused(outcome), ["run_dir", "elsewhere"])


# --------------------------------------------------------------------------------------------- the working directory


def test_the_working_directory_is_not_searched_for_a_registered_id(saved: Path, tmp_path: Path) -> None:
    """An unpacked archive may bring a module by the name of a package that is not installed here."""
    code = "import os; open(os.environ['HEADRACE_CANARY'], 'w').write('imported')\n"
    shutil.copytree(saved, tmp_path / "out")
    for name in ("boto3", "moviepy", "shimmy", "triton", "wandb", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(code)
    before = list(sys.path)
    seen: list[list[str]] = []
    from headrace.cli import eval_command

    real = eval_command.main
    try:
        eval_command.main = lambda argv: (seen.append(list(sys.path)), real(argv), seen.append(list(sys.path)))[1]
        assert run("eval", "out", "--n-eval-episodes", "1", cwd=tmp_path).code == 0
    finally:
        eval_command.main = real
    assert seen == [before, before]
    assert str(tmp_path) not in before


def test_agents_configurations(tmp_path: Path, canary: Callable[[], list[str]]) -> None:
    from headrace.agents.config import load as load_config

    path = tmp_path / "theirs.yaml"
    tags = "es_manager: {train: {env_configs: {tags: [Odd], n_groups: [8]}}}\n"
    odd = f"custom_envs: {{Odd: {{env_type: '{CANARY}:make', env_config: {{size: 3}}}}}}\n"
    path.write_text(tags + odd)
    with pytest.raises(ConsentError, match=r"env_type \"support.canary:make\" \(imports support.canary\).*size"):
        load_config(str(path))
    with pytest.raises(ConsentError, match=r"env_config"):
        load_config(str(path), [f"custom_envs.Odd.env_type={CANARY}:make"])
    for command in ("rollout", "compare", "serve"):
        assert_says(refused(run("agents", command, "--config-name", path, cwd=tmp_path)), ["--trust", CANARY])
    assert canary() == []
    typed = [f"custom_envs.Odd.env_type={CANARY}:make", "custom_envs.Odd.env_config.size=3"]
    load_config(str(path), typed)
    load_config(str(path), trust=True)
    assert canary()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("engine: {urls: ['http://example.com/v1']}", "engine.urls"),
        ("engine: {urls: 'http://127.0.0.1.example.com/v1'}", "engine.urls"),
        ("engine: {urls: ['http://127.0.0.1@example.com/v1']}", "engine.urls"),
        ("engine: {tokenizer: /etc}", "engine.tokenizer"),
    ],
)
def test_what_else_an_agents_configuration_may_not_decide(text: str, named: str, tmp_path: Path) -> None:
    from headrace.agents.config import load as load_config

    (tmp_path / "it.yaml").write_text(text)
    with pytest.raises(ConsentError, match=named):
        load_config(str(tmp_path / "it.yaml"))
    load_config(str(tmp_path / "it.yaml"), trust=True)


def test_a_server_on_this_machine_needs_no_consent(tmp_path: Path) -> None:
    from headrace.agents.config import load as load_config

    (tmp_path / "it.yaml").write_text("engine: {urls: ['http://localhost:8000/v1', 'http://[::1]:1/v1']}")
    assert len(load_config(str(tmp_path / "it.yaml")).engine.server.urls) == 2


@pytest.mark.parametrize("parent", ["/etc/other", "../other", "other.yaml", "a/b"])
def test_defaults_lead_to_no_other_place(parent: str, tmp_path: Path) -> None:
    from headrace.agents.config import load as load_config

    (tmp_path / "it.yaml").write_text(f"defaults: ['{parent}']\n")
    with pytest.raises(HeadraceError, match="defaults: expected names such as base"):
        load_config(str(tmp_path / "it.yaml"))


def test_a_proof_does_not_hide_damage(own: Path) -> None:
    state = json.loads((own / "state.json").read_text())
    state["steps"] = -1
    (own / "state.json").write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match="damaged"):
        load(own)
    rehash(own)
    with pytest.raises(CheckpointError, match="steps: expected a whole number"):
        hr.PPO.load(own, trust=True)

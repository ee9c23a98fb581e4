"""Files whose hashes fit and whose contents do not: one clear error that names the file, nothing built, no gigabytes.

Whoever writes a checkpoint writes its unkeyed hashes too, so every case here is hash-consistent unless it says so.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.checkpoints.run_directory import cut_episodes, cut_schedule, open_run_dir, read_evaluations
from headrace.checkpoints.snapshot import FORMAT, find_latest, load
from headrace.collecting.schedule import Schedule
from headrace.errors import CheckpointError, HeadraceError, UsageError
from headrace.files import parse_json
from headrace.telemetry.sinks import read_records
from support.command import assert_says, run
from support.doctored import doctor, malformed, rehash, write_manifest

Arrays = dict[str, dict[str, np.ndarray]]
MAX_MORE_BYTES = 2 << 30


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "it"
    with hr.PPO("MlpPolicy", "CartPole-v1", n_envs=2, n_steps=4, batch_size=4, n_epochs=1, seed=1, topology="inline",
                policy_kwargs={"net_arch": [4]}) as model:  # fmt: skip
        model.learn(48)
        model.save(path)
    return path


@pytest.fixture(autouse=True)
def no_gigabytes() -> Iterator[None]:
    """An allocation that a file alone asks for fails here instead of filling the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_MORE_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def refused(path: Path) -> str:
    """The one error, by every way in; they all say the same."""
    with pytest.raises(CheckpointError) as caught:
        hr.PPO.load(path, trust=True)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    assert len(text) < 1000
    with pytest.raises(CheckpointError):
        hr.PPO.load(path)
    return text


def put(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set (or, for ..., remove) an entry by its dotted place."""

    def change(state: dict[str, Any]) -> None:
        *folders, last = place.split(".")
        entry: Any = state
        for name in folders:
            entry = entry[int(name) if isinstance(entry, list) else name]
        if last not in ("more", "extra"):
            assert isinstance(entry, list) or last in entry, f"{place} is not an entry of a checkpoint's state"
        if value is ...:
            del entry[last]
        else:
            entry[int(last) if isinstance(entry, list) else last] = value

    return change


NAN, INF, HUGE = float("nan"), float("inf"), 10**12
STATES: list[tuple[str, Any]] = [
    *(("config.topology.n_envs", value) for value in (HUGE, 10**9, 10**4000, -1, 0, 3, True, 2.0, "2", None, NAN, [])),
    *(("config.topology.n_steps", value) for value in (HUGE, 10**10, -4, 0, "4", None)),
    *(("config.topology.max_lag", value) for value in (10**9, 10**6, -1, "0")),
    *(("config.topology.workers", value) for value in ("9" * 5000, "2000", "-1", 2, None)),
    *(("config.topology.shards", value) for value in (3, -1, "x")),
    *(("config.topology.topology", value) for value in ("telepathy", 3, None)),
    *(("config.topology.publish_every", value) for value in ("never", "nans", 5)),
    *(("config.policy.net_arch", value) for value in ([10**6, 10**6], [2**23] * 64, [-1], ["a"], 5, [4] * 1000)),
    ("config.policy.activation", "__class__"),
    ("config.policy.log_std_init", INF),
    ("config.policy.tile", 10**9),
    ("config.policy.more", 1),
    ("config.algorithm.more", 1),
    ("config.algorithm.name", "sac"),
    ("config.algorithm.name", ["ppo"]),
    ("config.algorithm.name", ...),
    ("config.algorithm.learner_threads", 10**9),
    ("config.algorithm.gamma", NAN),
    ("config.algorithm.vf_coef", NAN),
    ("config.algorithm.vf_coef", "x"),
    ("config.algorithm.max_grad_norm", NAN),
    ("config.algorithm.vf_coef", 10**400),
    ("config.policy.clip_obs", 10**400),
    ("config.algorithm.learning_rate", "lin_nan"),
    ("config.algorithm.learning_rate", [1]),
    ("config.algorithm.batch_size", 0),
    ("config.seed", -1),
    ("config.seed", "1"),
    ("config.env", "CartPole-v1"),
    ("config.env.env", 5),
    ("config.env.env", "a\x1b[2J"),
    ("config.env.env", ...),
    ("config.env.kwargs", []),
    ("config.env.wrappers", "os:system"),
    ("config.env.action_repeat", HUGE),
    ("config.env.action_repeat", 0),
    ("config", ...),
    ("config", []),
    ("config.algorithm", None),
    ("steps", -1),
    ("steps", 1.5),
    ("steps", ...),
    ("updates", 10**30),
    ("weights.version", -3),
    ("weights.version", 2**63),
    ("source.batches", "1"),
    ("algorithm.minibatches_done", -1),
    ("algorithm.minibatches_done", ...),
    ("algorithm.more", 1),
    ("algorithm", []),
    ("weights", {}),
    ("source", None),
    ("hashes", {}),
    ("hashes.weights_sha256", 5),
    ("source.live_episodes", []),
    ("source.live_episodes", [[0, 1]] * 3),
    ("source.live_episodes.0", [0]),
    ("source.live_episodes.0", [-1, 5]),
    ("source.live_episodes.0.1", "x"),
    ("source.ledger", {}),
    ("source.ledger.sequences", []),
    ("source.ledger.sequences", [-1]),
    ("source.ledger.sequences", [1] * 100),
    ("source.ledger.produced", 10**6),
    ("source.ledger.discarded", [1]),
    ("source.ledger.discarded", {"why": -1}),
    ("source.statistics.return", [0.0]),
    ("source.statistics.return", [NAN, 0.0]),
    ("source.statistics.return", [10**400, 0.0]),
    ("source.statistics.length", [1, 2, 3]),
    ("source.statistics.recent", [[1.0]]),
    ("source.statistics.recent", [[1.0, 2]] * 20_000),
    ("source.statistics.finished", -1),
    ("observation_space.kind", "Everything"),
    ("observation_space.kind", ["Box"]),
    ("observation_space.dtype", "O"),
    ("observation_space.dtype", "V1000000000"),
    ("observation_space.shape", [10**9, 10**9]),
    ("observation_space.shape", [-4]),
    ("observation_space.low", ["nan"]),
    ("observation_space.low", ["1"] * 7),
    ("observation_space", 3),
    ("action_space.n", -2),
    ("action_space.dtype", "float"),
    ("extra", 1),
]


@pytest.mark.parametrize(("place", "value"), STATES, ids=[f"{p}-{str(v)[:20]!r}" for p, v in STATES])
def test_a_state_that_no_run_would_write(place: str, value: Any, saved: Path, tmp_path: Path) -> None:
    path = doctor(saved, tmp_path / "it", put(place, value))
    text = refused(path)
    assert "state.json" in text
    assert "use an earlier checkpoint" in text


def replaced(part: str, name: str, array: Any) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        if array is None:
            del arrays[part][name]
        else:
            arrays[part][name] = array(arrays[part].get(name))

    return change


ARRAYS: dict[str, tuple[Callable[[Arrays], None], str]] = {
    "lengths too long": (replaced("episodes", "lengths", lambda a: a + 10**15), "actions"),
    "lengths negative": (replaced("episodes", "lengths", lambda a: a - 10**15), "lengths"),
    "lengths that overflow": (replaced("episodes", "lengths", lambda a: np.full(2, 2**62)), "actions"),
    "lengths of another dtype": (replaced("episodes", "lengths", lambda a: a.astype(np.float64)), "lengths"),
    "noise negative": (replaced("episodes", "noise_counter", lambda a: a - 10**6), "noise_counter"),
    "noise too short": (replaced("episodes", "noise_counter", lambda a: a[:1]), "noise_counter"),
    "checksums of another dtype": (replaced("episodes", "checksum", lambda a: a.astype(np.int64)), "checksum"),
    "checksums too few": (replaced("episodes", "checksum", lambda a: a[:1]), "checksum"),
    "no last_obs": (replaced("episodes", "last_obs", None), "n_envs"),
    "last_obs of a scalar": (replaced("episodes", "last_obs", lambda a: np.array(1, np.float32)), "last"),
    "last_obs of another shape": (replaced("episodes", "last_obs", lambda a: a[:, :2].copy()), "last_obs"),
    "last_obs NaN": (replaced("episodes", "last_obs", lambda a: a * np.float32(NAN)), "NaN"),
    "more episodes": (replaced("episodes", "extra", lambda a: np.zeros(1)), "extra"),
    "published too short": (replaced("episodes", "published", lambda a: np.zeros(1, np.float32)), "published"),
    "published of another dtype": (replaced("episodes", "published", lambda a: np.zeros(42, np.int8)), "published"),
    "weights of another shape": (
        replaced("weights", "actor.0.weight", lambda a: a[:, :2].copy()),
        "parameters do not fit",
    ),
    "weights missing": (replaced("weights", "actor.0.weight", None), "parameters do not fit"),
    "weights more": (replaced("weights", "x", lambda a: np.zeros(1, np.float32)), "parameters do not fit"),
    "weights NaN": (replaced("weights", "actor.0.weight", lambda a: a * np.float32(NAN)), "NaN"),
    "moments that broadcast": (replaced("optimizer", "exp_avg", lambda a: a[:1].copy()), "exp_avg"),
    "moments missing": (replaced("optimizer", "exp_avg_sq", None), "exp_avg_sq"),
    "moments more": (replaced("optimizer", "x", lambda a: np.zeros(1)), "exp_avg"),
    "moments NaN": (replaced("optimizer", "exp_avg", lambda a: a * np.float32(NAN)), "NaN"),
    "steps negative": (replaced("optimizer", "step", lambda a: np.array(-5, np.float32)), "step"),
    "steps infinite": (replaced("optimizer", "step", lambda a: np.array(INF, np.float32)), "step"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_do_not_belong_together(case: str, saved: Path, tmp_path: Path) -> None:
    change, named = ARRAYS[case]
    assert named in refused(doctor(saved, tmp_path / "it", arrays=change))


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


TENSORS = {
    "empty": b"",
    "short": b"\0\0",
    "header beyond the file": safetensors({}, length=10**18),
    "header of a list": safetensors([]),
    "header of noise": safetensors(b"\xff\xfe\xfd"),
    "header deep": safetensors(b"[" * 100_000),
    "twice": safetensors(b'{"a": 1, "a": 2}'),
    "no offsets": safetensors({"a": {"dtype": "F32", "shape": [1]}}, b"1234"),
    "huge": safetensors({"a": entry(shape=[10**9, 10**9])}, b"1234"),
    "huge and empty": safetensors({"a": entry(shape=[2**62, 0], offsets=[0, 0])}),
    "overflow": safetensors({"a": entry(shape=[2**32, 2**32])}, b"1234"),
    "negative": safetensors({"a": entry(shape=[-1])}, b"1234"),
    "bool shape": safetensors({"a": entry(shape=[True])}, b"1234"),
    "overlap": safetensors({"a": entry(), "b": entry()}, b"1234"),
    "gap": safetensors({"a": entry(offsets=[4, 8])}, b"12345678"),
    "rest": safetensors({"a": entry()}, b"12345678"),
    "object": safetensors({"a": entry("O")}, b"1234"),
    "f8": safetensors({"a": entry("F8_E4M3", [4])}, b"1234"),
    "bf16": safetensors({"a": entry("BF16", [2])}, b"1234"),
}


@pytest.mark.parametrize("case", TENSORS)
@pytest.mark.parametrize("part", ["weights", "episodes"])
def test_tensor_files_whose_header_lies(part: str, case: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "it")
    (tmp_path / "it" / f"{part}.safetensors").write_bytes(TENSORS[case])
    rehash(tmp_path / "it")
    assert f"{part}.safetensors" in refused(tmp_path / "it")


MANIFESTS: dict[str, str] = {
    "list": "[]",
    "text": '"x"',
    "null": "null",
    "noise": "{nope",
    "deep": "[" * 50_000,
    "deep objects": '{"a":' * 50_000,
    "deep enough": '{"format": FORMAT, "sha256": ' + '{"a":' * 500 + "1" + "}" * 501,
    "no hashes": '{"format": FORMAT}',
    "hashes of a list": '{"format": FORMAT, "sha256": []}',
    "hashes of numbers": '{"format": FORMAT, "sha256": {"state.json": 5}}',
    "no format": '{"sha256": {}}',
    "format twice": '{"format": FORMAT, "format": FORMAT, "sha256": {}}',
    "format of a list": '{"format": [FORMAT], "sha256": {}}',
    "a huge number": '{"format": ' + "9" * 5000 + ', "sha256": {}}',
    "NaN": '{"format": NaN, "sha256": {}}',
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_manifest_that_is_none(case: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "it")
    write_manifest(tmp_path / "it", MANIFESTS[case].replace("FORMAT", str(FORMAT)))
    refused(tmp_path / "it")


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "sub/file", "more.json", "", ".", "state.json\0", "a" * 5000]
)
def test_a_manifest_that_names_other_files(name: str, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for number, change in enumerate(
        (lambda body: body["sha256"].update({name: "0" * 64}), lambda body: body.update(sha256={name: "0" * 64}))
    ):
        path = doctor(saved, tmp_path / str(number), manifest=change)
        assert_says(refused(path), ["manifest.json", "expected format and sha256 of weights.safetensors"])


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", "[" * 99_999, '{"a": 1, "a": 2}', "9" * 5000, "\ud800"], ids=range(8)
)
def test_a_state_that_is_no_object(text: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "it")
    (tmp_path / "it" / "state.json").write_bytes(text.encode(errors="surrogatepass"))
    rehash(tmp_path / "it")
    assert "state.json" in refused(tmp_path / "it")


# ------------------------------------------------------------------------------------------------ entries of a folder


def as_link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def as_link_out(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def as_sparse(path: Path) -> None:
    os.truncate(path, 9 << 30)


@pytest.mark.parametrize(
    "change", [as_link, as_link_out, as_pipe, as_folder, as_device, as_sparse], ids=lambda c: c.__name__
)
@pytest.mark.parametrize("name", ["weights.safetensors", "state.json", "manifest.json"])
def test_only_regular_files_of_a_sane_size_are_read(
    name: str, change: Callable[[Path], None], saved: Path, tmp_path: Path
) -> None:
    shutil.copytree(saved, tmp_path / "it")
    change(tmp_path / "it" / name)
    with pytest.raises(CheckpointError, match=r"can't be read.*(regular file|bytes)|found none"):
        load(tmp_path / "it")


def test_the_size_limit_can_be_set(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MAX_FILE_BYTES", "1000")
    with pytest.raises(CheckpointError, match=r"expected at most 1,000 \(HEADRACE_MAX_FILE_BYTES"):
        hr.PPO.load(saved)
    monkeypatch.setenv("HEADRACE_MAX_FILE_BYTES", "nonsense")
    hr.PPO.load(saved).close()


def test_links_among_checkpoints_are_not_followed(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "step_000000000099").symlink_to(saved)
    (folder / ".step_000000000098.aa.old").symlink_to(saved)
    with pytest.raises(CheckpointError, match=r"step_000000000099 is a link, which is not followed"):
        find_latest(tmp_path / "run")
    shutil.copytree(saved, folder / "step_000000000048")
    found, _, damaged = find_latest(tmp_path / "run")
    assert found.name == "step_000000000048"
    assert any("is a link" in line for line in damaged)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "checkpoints").symlink_to(folder)
    with pytest.raises(CheckpointError, match="is a link"):
        find_latest(tmp_path / "other")
    (tmp_path / "by-the-user").symlink_to(tmp_path / "run")
    assert find_latest(tmp_path / "by-the-user")[0].name == "step_000000000048", "what the user names is followed"


@pytest.mark.parametrize(
    "name", ["log.txt", "metrics.jsonl", "episodes.jsonl", "config.json", "superseded", "best", "config.partial",
             "evaluations.npz", ".report.html.unfinished", "events.out.tfevents.1"]
)  # fmt: skip
def test_nothing_is_written_through_a_link(name: str, saved: Path, tmp_path: Path) -> None:
    """The links of an unpacked archive lead to files of the user's: resuming must not append, cut or move there."""
    target = tmp_path / "precious"
    target.mkdir() if name in ("superseded", "best") else target.write_text("keep me\n")
    out = tmp_path / "out"
    shutil.copytree(saved, out / "checkpoints" / "step_000000000048")
    (out / name).symlink_to(target)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    outcome = run("train", "--resume", "out", "--quiet", "--total-timesteps", "96", cwd=tmp_path)
    assert outcome.code in (1, 2)
    assert_says(outcome.only_error, [name.split(".")[0], "link"] if name != "config.json" else ["config.json"])
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert target.is_dir() or target.read_text() == "keep me\n"


@pytest.mark.parametrize(
    "name", ["episodes.jsonl", "metrics.jsonl", "evaluations.npz", "result.json", "journal", "best"]
)
def test_a_directory_in_the_place_of_a_file_and_a_file_in_that_of_one(name: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "out" / "checkpoints" / "step_000000000048")
    there = tmp_path / "out" / name
    there.mkdir() if "." in name else there.touch()
    outcome = run("train", "--resume", "out", "--quiet", "--total-timesteps", "96", cwd=tmp_path)
    assert outcome.code == 2
    got, expected = ("a directory", "a file") if "." in name else ("a file", "a directory")
    assert_says(outcome.only_error, [f"run directory out: {name} is {got}, expected {expected}; remove it"])


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", "[" * 99_999, '{"session": []}', '{"session": {"total_timesteps": "x"}}',
             '{"session": {"total_timesteps": -1}}', '{"session": {"tags": NaN}}', '{"session": {"what": 1}}', "\0",
             '{"session": {"eval_every": 8, "stop_reward": "x"}}',
             '{"session": {"total_timesteps": 1' + "0" * 400 + "}}"],
    ids=range(13),
)  # fmt: skip
def test_a_config_of_a_run_that_is_none(text: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "out" / "checkpoints" / "step_000000000048")
    (tmp_path / "out" / "config.json").write_text(text)
    outcome = run("train", "--resume", "out", "--quiet", "--total-timesteps", "96", cwd=tmp_path)
    assert outcome.code == 1
    assert_says(outcome.only_error, ["out/config.json can't be read"])
    with pytest.raises(UsageError, match=r"config\.json can't be read|holds another run"):
        open_run_dir(tmp_path / "out", {"seed": 1, "topology": {}}, False)


def test_a_config_of_a_run_whose_parts_are_none(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "out" / "checkpoints" / "step_000000000048")
    for part in ("[]", "null", '"ppo"'):
        text = '{"session": {}, "topology": {}, "algorithm": ' + part + "}"
        (tmp_path / "out" / "config.json").write_text(text)
        outcome = run("train", "--resume", "out", "--quiet", "--total-timesteps", "96", cwd=tmp_path)
        assert outcome.code == 2
        assert_says(outcome.only_error, ["run directory out holds another run"])


# ------------------------------------------------------------------------------------------------- files beside them


def npz(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=array.dtype == object)
    return file.getvalue()


def evaluations(**changed: bytes) -> dict[str, bytes]:
    whole = {"timesteps": np.array([1]), "results": np.ones((1, 2)), "ep_lengths": np.ones((1, 2), np.int64)}
    return {f"{name}.npy": npy(array) for name, array in whole.items()} | {
        f"{name}.npy": data for name, data in changed.items()
    }


LYING = npy(np.ones((1, 2))).replace(b"(1, 2)", b"(9, 9)").replace(b"'<f8'", b"'<f8'")
NPZ: dict[str, dict[str, bytes]] = {
    "missing": {"timesteps.npy": npy(np.array([1]))},
    "rows": evaluations(timesteps=npy(np.array([1, 2]))),
    "flat": evaluations(results=npy(np.ones(2))),
    "pickle": evaluations(results=npy(np.array([[{}, {}]], object))),
    "text": evaluations(timesteps=npy(np.array(["a"]))),
    "NaN": evaluations(results=npy(np.full((1, 2), NAN))),
    "lying": evaluations(results=LYING),
    "huge": evaluations(results=LYING.replace(b"(9, 9), }      ", b"(9**9999, 9), }")),
    "noise": evaluations(results=b"nonsense"),
    "empty": evaluations(results=b""),
    "void": evaluations(results=npy(np.zeros((1, 2), "V8"))),
}


@pytest.mark.parametrize("case", [*NPZ, "bomb", "link", "sparse", "junk"])
def test_evaluations_that_are_none_cost_only_themselves(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "evaluations.npz"
    if case in NPZ:
        npz(path, NPZ[case])
    elif case == "bomb":
        npz(path, evaluations(results=npy(np.zeros((1, 5 << 20)))), zipfile.ZIP_DEFLATED)
    elif case == "link":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"PK\x03\x04" * 100)
        if case == "sparse":
            os.truncate(path, 9 << 30)
    assert read_evaluations(path, 100) == []
    assert "evaluations start anew" in caplog.text


def test_evaluations_that_are_whole(tmp_path: Path) -> None:
    npz(tmp_path / "evaluations.npz", evaluations())
    assert [at for at, _ in read_evaluations(tmp_path / "evaluations.npz", 100)] == [1]


@pytest.mark.parametrize(
    "line",
    ['{"version": 1000000000000, "shards": 1, "slabs": [[0, 0, [[0, 0]]]]}',
     '{"version": 0, "shards": 1000000000000, "slabs": [[999999999999, 0, [[0, 0]]]]}',
     '{"version": 0, "shards": 1, "slabs": [[5, 0, [[0, 0]]]]}',
     '{"version": 0, "shards": 1, "slabs": [[0, -1, [[0, 0]]]]}',
     '{"version": 0, "shards": 1, "slabs": [[0, 0, [[0, -1]]]]}',
     '{"version": 0, "shards": 1, "slabs": [[0, 0, [[2, 0]]]]}',
     '{"version": 0, "shards": 1, "slabs": [[0, 0, []]]}',
     '{"version": NaN, "shards": 1, "slabs": []}', "[" * 99_999, "\0"],
    ids=range(10),
)  # fmt: skip
def test_a_schedule_that_no_run_would_write(line: str, tmp_path: Path) -> None:
    (tmp_path / "schedule.jsonl").write_text(line + "\n")
    with pytest.raises(UsageError, match=r"expected the schedule\.jsonl of an asynchronous run"):
        Schedule.read(tmp_path / "schedule.jsonl", 4)


def test_metrics_from_elsewhere_are_numbers_or_nothing(tmp_path: Path) -> None:
    lines = ['{"a": "x", "b": [1], "c": 1, "d": null, "e": 1' + "0" * 400 + "}", "[" * 99_999, "7", "\0"]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (record,) = read_records(tmp_path / "metrics.jsonl")
    assert record.keys() == {"c", "d"}


def test_lists_that_a_resume_cuts_are_read_line_by_line(tmp_path: Path) -> None:
    """A file of any size costs the memory of a line; a line without an end is cut, not read."""
    episodes, schedule = tmp_path / "episodes.jsonl", tmp_path / "schedule.jsonl"
    good = '{"steps": 8}\n{"steps": 16}\n'
    for rest in ('{"steps": 24}\n', '{"st', "[" * 99_999 + "\n", '{"steps": "x"}\n', "\0" * 100):
        episodes.write_text(good + rest + '{"steps": 8}\n')
        cut_episodes(episodes, 16)
        assert episodes.read_text() == good
    for count, kept in ((0, ""), (1, '{"steps": 8}\n'), (5, good)):
        schedule.write_text(good + "torn")
        cut_schedule(schedule, count)
        assert schedule.read_text() == kept
    for file, cut in ((episodes, partial(cut_episodes, steps=16)), (schedule, partial(cut_schedule, updates=9))):
        file.write_text(good)
        os.truncate(file, 1 << 40)
        cut(file)
        assert file.read_text() == good
        file.unlink()
        cut(file)
        assert not file.exists()


def test_groups_of_agents_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "groups.jsonl").write_text('{"identity": {}}\n' + "[]\n" * 100)
    monkeypatch.setenv("HEADRACE_MAX_FILE_BYTES", "200")
    outcome = run("agents", "show", "groups.jsonl", cwd=tmp_path)
    assert (outcome.code, "expected at most 200 (HEADRACE_MAX_FILE_BYTES sets this)" in outcome.only_error) == (2, True)


def test_a_report_of_files_from_elsewhere(tmp_path: Path) -> None:
    """Read as data: links, pipes and numbers that nothing can draw cost their part of the page."""
    (tmp_path / "config.json").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "versions.json")
    (tmp_path / "result.json").write_text(
        json.dumps({"steps": 10**400, "exit_reason": "\ud800\x1b[31m", "ledger": [1]})
    )
    huge = {"time/total_timesteps": 1e308, "headrace/sps": -1e308, "train/value_loss": 1e308}
    lines = [json.dumps(huge | {"time/total_timesteps": step}) for step in (1, 2.5, 1e308)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    outcome = run("report", ".", cwd=tmp_path, has_report=True)
    assert outcome.code == 0
    assert "root:" not in (tmp_path / "report.html").read_text()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / ".report.html.unfinished").symlink_to("victim")
    assert_says(run("report", ".", cwd=tmp_path, has_report=True).error, ["report.html.unfinished is a link"])
    assert (tmp_path / "victim").read_text() == "mine"
    assert_says(run("report", "nowhere", cwd=tmp_path).only_error, ["nowhere", "expected a run directory"])


@pytest.mark.parametrize(
    ("name", "text"),
    [("run.json", "[" * 99_999), ("run.json", '{"n_envs": 2, "n_envs": 3}'), ("run.json", "\0"),
     ("run.json", '{"env": {"kwargs": {}}}'), ("run.toml", "a = " + "[" * 99_999), ("run.toml", "n_envs = nan"),
     ("run.json", '{"gamma": 1' + "0" * 400 + "}"), ("run.toml", "hang_floor_s = 1" + "0" * 400)],
)  # fmt: skip
def test_a_configuration_that_is_none(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    outcome = run("train", "CartPole-v1", "--config", name, "--dry-run", cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, [f"--config {name}"])


@pytest.mark.parametrize(
    "text",
    ["a: &a [*a]\nb: *a\n", "x: " + "[" * 900, "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))],
    ids=["circle", "deep", "laughs"],
)  # fmt: skip
def test_an_agents_configuration_that_grows(text: str, tmp_path: Path) -> None:
    from headrace.agents.config import load as load_config

    (tmp_path / "it.yaml").write_text(text)
    with pytest.raises(UsageError, match="not YAML"):
        load_config(str(tmp_path / "it.yaml"))


@pytest.mark.parametrize(
    "line", ["[]", "null", "[" * 99_999, '{"episodes": 5}', '{"number": [], "episodes": []}', "\0"]
)
def test_records_of_agents_that_are_none(line: str, tmp_path: Path) -> None:
    (tmp_path / "groups.jsonl").write_text('{"identity": {}}\n' + line + "\n" + line + "\n")
    outcome = run("agents", "show", "groups.jsonl", cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, ["groups.jsonl", "expected the"])
    (tmp_path / "codec.json").symlink_to("/etc/passwd")
    assert_says(run("agents", "show", ".", cwd=tmp_path).only_error, ["codec.json is a link"])


# ---------------------------------------------------------------------------------------------------------- at random


def loaded(path: Path) -> str:
    """Load it, and close it again; the message of the refusal, if there was one."""
    try:
        hr.PPO.load(path, topology="inline", workers=1).close()
    except HeadraceError as error:
        return str(error)
    return ""


def test_two_hundred_checkpoints_malformed_at_random(saved: Path, tmp_path: Path) -> None:
    """Each is refused with one clear line, or loads because the change was harmless; nothing else ever happens."""
    chosen = random.Random(12)
    told = json.loads((saved / "state.json").read_text())
    refusals = 0
    for number in range(200):
        state = malformed(told, chosen)
        path = doctor(saved, tmp_path / str(number), lambda old, new=state: (old.clear(), old.update(new)))
        refusal = loaded(path)
        refusals += bool(refusal)
        assert not refusal or (refusal.isprintable() and len(refusal) < 3000), refusal
        shutil.rmtree(path)
    assert refusals > 150


def test_flipped_bytes_behind_fitting_hashes(saved: Path, tmp_path: Path) -> None:
    """Damage that the hashes agree with: in headers and JSON it is found, in numbers it is another number."""
    chosen = random.Random(3)
    for number in range(60):
        path = tmp_path / str(number)
        shutil.copytree(saved, path)
        name = chosen.choice(["state.json", "weights.safetensors", "optimizer.safetensors", "episodes.safetensors"])
        data = bytearray((path / name).read_bytes())
        for _ in range(chosen.choice((1, 4, 16))):
            data[chosen.randrange(min(len(data), 600))] = chosen.randrange(256)
        (path / name).write_bytes(data[: len(data) if chosen.random() < 0.8 else chosen.randrange(len(data))])
        rehash(path)
        assert "\n" not in loaded(path)
        shutil.rmtree(path)


def test_json_is_bounded() -> None:
    assert parse_json(b'{"a": [1, {"b": NaN}]}')["a"][0] == 1
    assert parse_json(b"[" * 60 + b"]" * 60)
    for data in (b"[" * 70 + b"]" * 70, b'{"a": 1, "b": {"c": 1, "c": 1}}', b"\xff", b"1" * 5000, b"[" * 10**6):
        with pytest.raises(ValueError, match=r"."):
            parse_json(data)

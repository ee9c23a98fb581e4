"""Sinks: what is written can be read back, whole, at the right step, and a full disk costs records but not the run."""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.telemetry.sinks import JsonlSink, Record, Sinks, TensorBoardSink, cleanrl_tags, read_records


def a_record(step: int = 2048, **more: float) -> Record:
    return {"time/total_timesteps": step, "train/entropy_loss": -0.69, "headrace/sps": 41230.5} | more


def read_events(directory: Path) -> list[Any]:
    """Every event of the only event file, by the TFRecord format: length, checksum, data, checksum."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    (path,) = directory.glob("events.out.tfevents.*")
    data, events, offset = path.read_bytes(), [], 0
    while offset < len(data):
        header = data[offset : offset + 8]
        (length,) = struct.unpack("<Q", header)
        body = data[offset + 12 : offset + 12 + length]
        assert struct.unpack_from("<I", data, offset + 8)[0] == masked_crc32c(header)
        assert struct.unpack_from("<I", data, offset + 12 + length)[0] == masked_crc32c(body)
        events.append(Event.FromString(body))
        offset += 16 + length
    return events


def tags_of(event: Any) -> dict[str, float]:
    return {value.tag: value.simple_value for value in event.summary.value}


class FullDisk:
    """A sink whose disk is full until told otherwise."""

    title = "the full disk"

    def __init__(self) -> None:
        self.is_full = True
        self.kept: list[Record] = []

    def write(self, record: Record) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.kept.append(record)

    def close(self) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")


class TestJsonl:
    def test_records_come_back_as_written(self, tmp_path: Path) -> None:
        written = [a_record(2048), a_record(4096, **{"rollout/ep_rew_mean": 43.125})]
        sink = JsonlSink(tmp_path / "metrics.jsonl")
        for record in written:
            sink.write(record)
        assert read_records(tmp_path / "metrics.jsonl") == written, "a line is on disk before close"
        sink.close()

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_what_json_has_no_word_for_is_null(self, tmp_path: Path, value: float) -> None:
        path = tmp_path / "metrics.jsonl"
        sink = JsonlSink(path)
        sink.write(a_record(**{"train/loss": value}))
        sink.close()

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        assert json.loads(path.read_text(), parse_constant=refuse)["train/loss"] is None
        (record,) = read_records(path)
        assert math.isnan(record["train/loss"])

    def test_numpy_numbers_are_numbers(self, tmp_path: Path) -> None:
        np = pytest.importorskip("numpy")
        sink = JsonlSink(tmp_path / "metrics.jsonl")
        sink.write({"time/total_timesteps": np.int64(7), "train/loss": np.float32(0.5)})
        sink.close()
        assert read_records(tmp_path / "metrics.jsonl") == [{"time/total_timesteps": 7, "train/loss": 0.5}]

    def test_a_resumed_run_goes_on_after_a_torn_line(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.jsonl"
        path.write_text(json.dumps(a_record(2048)) + '\n{"time/total_times')
        sink = JsonlSink(path)
        sink.write(a_record(4096))
        sink.close()
        assert read_records(path) == [a_record(2048), a_record(4096)]

    def test_steps_made_again_after_a_resume_replace_the_old_ones(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.jsonl"
        for steps, sps in (((1, 2, 3), 10.0), ((2, 3, 4), 20.0)):
            sink = JsonlSink(path)
            for step in steps:
                sink.write({"time/total_timesteps": step, "headrace/sps": sps})
            sink.close()
        records = read_records(path)
        assert [record["time/total_timesteps"] for record in records] == [1, 2, 3, 4]
        assert [record["headrace/sps"] for record in records] == [10.0, 20.0, 20.0, 20.0]

    def test_a_record_cut_short_by_the_disk_leaves_no_trace(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.jsonl"
        sink = JsonlSink(path)
        sink.write(a_record(2048))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                sink.write(a_record(4096))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sink.write(a_record(6144))
        sink.close()
        assert path.read_text().count("\n") == 2
        assert read_records(path) == [a_record(2048), a_record(6144)]

    def test_a_file_beyond_the_limit_is_thinned_out(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A report of a long run needs no more, and a file from elsewhere can't fill the memory."""
        path = tmp_path / "metrics.jsonl"
        path.write_text("".join(json.dumps(a_record(step)) + "\n" for step in range(300)))
        monkeypatch.setenv("HEADRACE_MAX_FILE_BYTES", str(path.stat().st_size // 3 + 1))
        assert [record["time/total_timesteps"] for record in read_records(path)] == list(range(0, 300, 3))

    def test_a_line_without_an_end_and_what_is_no_file(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.jsonl"
        with path.open("wb") as file:
            file.truncate(1 << 40)  # a terabyte of zeros that takes no space
        with pytest.raises(ValueError, match="line 1 has more than 1,048,576 bytes"):
            read_records(path)
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(OSError, match="expected a regular file, got a named pipe"):
            read_records(path)

    def test_no_file_is_no_records(self, tmp_path: Path) -> None:
        assert read_records(tmp_path / "metrics.jsonl") == []


class TestCleanrlTags:
    def test_entropy_changes_sign_and_nothing_else_does(self) -> None:
        record = {
            "rollout/ep_rew_mean": 43.0,
            "time/fps": 100.0,
            "train/entropy_loss": -0.69,
            "train/policy_gradient_loss": -0.01,
            "train/explained_variance": -0.5,
            "train/clip_fraction": 0.1,
            "train/clip_range": 0.2,
            "headrace/lag": 1.0,
        }
        assert cleanrl_tags(record) == {
            "charts/episodic_return": 43.0,
            "charts/SPS": 100.0,
            "losses/entropy": 0.69,
            "losses/policy_loss": -0.01,
            "losses/explained_variance": -0.5,
            "losses/clipfrac": 0.1,
        }


class TestTensorBoard:
    def test_events_are_at_environment_steps(self, tmp_path: Path) -> None:
        sink = TensorBoardSink(tmp_path, wall_clock=lambda: 1000.0)
        sink.write(a_record(2048) | {"time/iterations": 1})
        sink.write(a_record(4096) | {"time/iterations": 2})
        opening, first, second = read_events(tmp_path)
        sink.close()
        assert opening.file_version == "brain.Event:2"
        assert (first.step, second.step) == (2048, 4096)
        assert second.wall_time == 1000.0
        assert tags_of(second)["headrace/sps"] == pytest.approx(41230.5)
        assert tags_of(second)["train/entropy_loss"] == pytest.approx(-0.69)

    @pytest.mark.parametrize(
        ("style", "expected"),
        [
            ("sb3", {"time/total_timesteps", "train/entropy_loss", "headrace/sps", "eval/mean_reward"}),
            ("cleanrl", {"losses/entropy", "headrace/sps", "eval/mean_reward"}),
            (
                "both",
                {"time/total_timesteps", "train/entropy_loss", "losses/entropy", "headrace/sps", "eval/mean_reward"},
            ),
        ],
    )
    def test_tag_styles(self, tmp_path: Path, style: Any, expected: set[str]) -> None:
        sink = TensorBoardSink(tmp_path, tags=style)
        sink.write(a_record(**{"eval/mean_reward": 9.0}))
        sink.close()
        tags = tags_of(read_events(tmp_path)[1])
        assert set(tags) == expected
        if style != "sb3":
            assert tags["losses/entropy"] == pytest.approx(0.69)

    def test_an_unknown_style_is_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"sb3, cleanrl, both.*'rllib'"):
            TensorBoardSink(tmp_path, tags="rllib")  # type: ignore[arg-type]

    def test_two_in_one_second_do_not_share_a_file(self, tmp_path: Path) -> None:
        for sink in [TensorBoardSink(tmp_path, wall_clock=lambda: 1000.0) for _ in range(2)]:
            sink.close()
        assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2

    def test_no_thread_is_started(self, tmp_path: Path) -> None:
        before = threading.active_count()
        sink = TensorBoardSink(tmp_path)
        sink.write(a_record())
        assert threading.active_count() == before
        sink.close()


class TestSinks:
    def test_a_full_disk_is_said_once_and_costs_the_others_nothing(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        full = FullDisk()
        sinks = Sinks([full, JsonlSink(tmp_path / "metrics.jsonl")])
        with caplog.at_level(logging.WARNING):
            sinks.write(a_record(1))
            sinks.write(a_record(2))
        assert [record.getMessage() for record in caplog.records] == [
            "the full disk could not keep a record, training goes on: [Errno 28] No space left on device"
        ]
        full.is_full = False
        sinks.write(a_record(3))
        assert full.kept == [a_record(3)], "a sink gets another chance"
        caplog.clear()
        sinks.close()
        assert "lost 2 records" in caplog.text
        assert len(read_records(tmp_path / "metrics.jsonl")) == 3

    def test_the_device_that_is_always_full(self, caplog: pytest.LogCaptureFixture) -> None:
        sinks = Sinks([JsonlSink(Path("/dev/full"))])
        sinks.write(a_record())
        sinks.close()
        assert "training goes on" in caplog.text

    def test_one_that_will_not_close_does_not_keep_the_others_open(self, tmp_path: Path) -> None:
        after = JsonlSink(tmp_path / "metrics.jsonl")
        Sinks([FullDisk(), after]).close()
        with pytest.raises(ValueError, match="closed"):
            after.write(a_record())

    def test_a_bug_is_not_a_full_disk(self, tmp_path: Path) -> None:
        sinks = Sinks([TensorBoardSink(tmp_path)])
        with pytest.raises(KeyError, match="time/total_timesteps"):
            sinks.write({"train/loss": 1.0})
        sinks.close()

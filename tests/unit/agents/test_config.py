"""YAML with RAGEN's keys: what they mean, how files compose, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.agents.config import load
from headrace.agents.config_files import names
from headrace.errors import UsageError


def test_base_is_sequential_and_base_parallel_is_not() -> None:
    base, parallel = load("base"), load("base-parallel")
    assert base.backend == "sequential"
    assert (parallel.backend, parallel.n_jobs) == ("auto", -1)
    assert (base.envs, base.rules, base.n_groups) == (parallel.envs, parallel.rules, parallel.n_groups)
    assert names() == ["base", "base-parallel"]


def test_what_the_keys_mean() -> None:
    got = load(
        "base-parallel",
        [
            "agent_proxy.parallel_n_jobs=3",
            "agent_proxy.max_turn=2",
            "es_manager.train.env_groups=6",
            "es_manager.train.group_size=5",
            "es_manager.train.env_configs.tags=[Bandit, Sokoban]",
            "es_manager.train.env_configs.n_groups=[4, 2]",
            "es_manager.format_penalty=-0.5",
            "agent_proxy.parallel_backend=loky",
            "custom_envs.Sokoban.env_config.size=7",
            "custom_envs.Sokoban.max_actions_per_traj=20",
        ],
    )
    assert (got.n_jobs, got.env_groups, got.group_size, got.n_groups, got.backend) == (3, 6, 5, (4, 2), "loky")
    assert (got.rules.max_turn, got.rules.format_penalty) == (2, -0.5)
    assert [spec.tag for spec in got.envs] == ["Bandit", "Sokoban"]
    assert got.envs[1].options == {"size": 7, "boxes": 1}
    assert got.envs[1].limits == {"max_actions_per_traj": 20}


def test_groups_are_shared_out_evenly_if_nothing_is_said() -> None:
    got = load("base", ["es_manager.train.env_configs.n_groups=null", "es_manager.train.env_groups=10"])
    assert got.n_groups == (3, 3, 2, 2)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("agent_proxy.max_turns=3", "unknown key 'agent_proxy.max_turns': did you mean agent_proxy.max_turn?"),
        ("max_turn=3", "did you mean agent_proxy.max_turn?"),
        ("nonsense=1", "unknown key 'nonsense'"),
        ("agent_proxy.max_turn", "expected key=value"),
        ("agent_proxy.max_turn=[", "can't be read"),
        ("agent_proxy.max_turn=many", "max_turn: expected a whole number, got 'many'"),
        ("agent_proxy.max_turn=0", "max_turn: expected at least 1"),
        ("agent_proxy.use_parallel_rollout=3", "expected true or false"),
        ("es_manager.train.env_groups=7", "add up to env_groups = 7"),
        ("es_manager.train.env_configs.tags=Bandit", "expected a list of tags"),
        ("es_manager.train.env_configs.tags=[Bandits]", "did you mean Bandit?"),
        ("agent_proxy.parallel_backend=lockstep", "agent_proxy.parallel_backend: expected one of auto, sequential"),
        ("agent_proxy.parallel_n_jobs=0", "agent_proxy.parallel_n_jobs: expected -1 (auto) or at least 1, got 0"),
        ("engine.kind=vllm", "engine.kind: expected one of scripted, tiny, openai"),
        ("custom_envs.Bandit.env_confg.pulls=3", "did you mean env_config?"),
        ("custom_envs.Bandit.env_type=bandits", "did you mean bandit?"),
        ("limits.env_s=0", "env_s: expected seconds above 0"),
        ("limits.env_s=abc", "limits.env_s: expected a number, got 'abc'"),
        ("custom_envs.Bandit.env_config=5", "custom_envs.Bandit.env_config: expected names and values, got 5"),
        ("engine.max_batch=abc", "max_batch: expected a whole number, got 'abc'"),
        ("engine.max_wait_s=abc", "engine.max_wait_s: expected a number, got 'abc'"),
        ("engine.urls=5", "engine.urls: expected the address of a server, or several, got 5"),
        ("engine.urls=[5]", "engine.urls: expected the address"),
        ("engine.slots=2", "engine.slots: expected a whole number of at least 4, got 2"),
        ("engine.parked=-1", "engine.parked: expected a whole number of at least 0, got -1"),
        ("engine.steps=x", "engine.steps: expected a whole number of at least 0"),
        ("engine.attempts=0", "engine.attempts: expected a whole number of at least 1"),
        ("engine.latency.base_s=-1", "latency.base_s: expected seconds, 0 or more, got -1"),
        ("engine.latency.jitter_s=x", "engine.latency.jitter_s: expected a number"),
        ("es_manager.train.env_configs.n_groups=3", "n_groups: expected a list, a number per tag, got 3"),
        ("es_manager.train.env_configs.n_groups=[a]", "n_groups: expected a whole number of at least 0, got 'a'"),
        ("es_manager.train.group_size=0", "group_size: expected a whole number of at least 1, got 0"),
        ("seed=-3", "seed: expected a whole number of at least 0, got -3"),
        ("agent_proxy.temperature=.nan", "temperature: expected 0 or more, got nan"),
        ("agent_proxy.temperature=.inf", "temperature: expected 0 or more, got inf"),
        ("es_manager.format_penalty=.nan", "format_penalty: expected a finite number, got nan"),
        ("agent_proxy.max_tokens=4096", "max_tokens: expected fewer than max_context = 4096, got 4096"),
        ("agent_proxy.parallel_n_jobs=2.5", "parallel_n_jobs: expected a whole number"),
    ],
)
def test_what_is_refused(override: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        load("base", [override])
    assert told in str(caught.value)


def test_files_of_ones_own_build_on_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [base-parallel]\nagent_proxy:\n  max_turn: 9\n")
    assert load("mine", folder=tmp_path).rules.max_turn == 9
    assert load(str(tmp_path / "mine.yaml")).backend == "auto"
    assert "mine" in names(tmp_path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("agent_proxy:\n  max_trun: 3\n", "unknown key 'agent_proxy.max_trun': did you mean agent_proxy.max_turn?"),
        ("- a\n- b\n", "expected keys and values"),
        ("a: [", "not YAML"),
        ("custom_envs: 3\n", "custom_envs: expected tags"),
        ("defaults: 5\n", "defaults: expected the name of a configuration, or several, got 5"),
        ("defaults: [5]\n", "defaults: expected the name"),
        ("custom_envs: {Bandit: {env_config: 5}}\n", "env_config: expected names and values, got 5"),
    ],
)
def test_bad_files_are_named(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(str(path))
    assert told in str(caught.value)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="no such configuration: did you mean base-parallel"):
        load("base-paralel")


def test_defaults_that_lead_back_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("defaults: b\n")
    (tmp_path / "b.yaml").write_text("defaults: a\n")
    with pytest.raises(UsageError, match="a: its defaults lead back to it: a -> b -> a"):
        load("a", folder=tmp_path)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_bytes(b"seed: \xff\xfe\n")
    with pytest.raises(UsageError, match=r"odd\.yaml: not YAML"):
        load(str(tmp_path / "odd.yaml"))

"""A whole configuration of RAGEN's, with its trainer's keys: what counts, what does nothing, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.agents.config import AgentsConfig, load
from headrace.agents.ragen import shown
from headrace.agents.rollouts import AgentRollouts
from headrace.cli.main import main
from headrace.errors import UsageError

# The keys are RAGEN's and verl's; the values and the choice of environments are this test's.
BASE = """
defaults:
  - ppo_trainer
  - envs
  - actor@actor_rollout_ref.actor: dp_actor
  - _self_

hydra: {searchpath: ["file://verl/trainer/config"]}
archer: {alpha: 0.2}
system: {CUDA_VISIBLE_DEVICES: "0,1"}
seed: {train: 4321, val: 17}
micro_batch_size_per_gpu: 2
ppo_mini_batch_size: 16
model_path: Org/Model-1B
enable_response_mask: true
grpo_advantage_length_weight: false
lora: {rank: 8, alpha: 8, target_modules: all-linear}

actor_rollout_ref:
  hybrid_engine: true
  model: {path: "${model_path}", lora_rank: "${lora.rank}", lora_alpha: "${lora.alpha}"}
  actor:
    ppo_mini_batch_size: ${ppo_mini_batch_size}
    ppo_micro_batch_size_per_gpu: ${micro_batch_size_per_gpu}
    use_ref: true
    entropy_coeff: 0.002
    use_kl_loss: false
    kl_loss_coef: 0.0
    kl_loss_type: kl
    clip_ratio_low: 0.2
    clip_ratio_high: 0.3
    optim: {lr: 1.0e-6, betas: [0.9, 0.99]}
  ref: {log_prob_micro_batch_size_per_gpu: "${micro_batch_size_per_gpu}"}
  rollout:
    name: vllm
    log_prob_micro_batch_size_per_gpu: ${micro_batch_size_per_gpu}
    tensor_model_parallel_size: 1
    max_model_len: 3000
    prompt_length: 1
    response_length: 300
    gpu_memory_utilization: 0.5
    max_num_batched_tokens: 6000
    temperature: 0.9
    top_p: 1
    top_k: -1
    do_sample: true
    rollout_filter_ratio: 0.5
    rollout_filter_type: largest
    rollout_filter_include_zero: true
    enforce_eager: true
    free_cache_engine: true
    n: 1
    val_kwargs: {do_sample: true, temperature: 0.25, top_p: 1.0, top_k: -1, n: 1}
    tp_size_check: true

critic:
  ppo_mini_batch_size: ${ppo_mini_batch_size}
  model: {path: "${model_path}"}
  optim: {betas: [0.9, 0.99]}

data: {max_prompt_length: null, max_response_length: null, train_batch_size: null}
reward_model: {enable: false}
custom_reward_function: {path: null, name: compute_score}
ray_init: {num_cpus: null}

algorithm:
  gamma: 1.0
  lam: 1.0
  high_level_gamma: 0.95
  adv_estimator: gae
  bi_level_gae: false
  kl_ctrl: {type: fixed, kl_coef: 0.0}

trainer:
  project_name: mine
  experiment_name: one
  total_training_steps: 100
  validation_steps: 1
  n_gpus_per_node: 1
  test_freq: 10
  generations_to_log_to_wandb: {train: 8, val: 2}
  logger: [console]

agent_proxy:
  max_context_window: -1
  max_turn: 4
  action_sep: "||"
  max_actions_per_turn: 3
  use_turn_scores: false
  enable_think: true
  reward_normalization: {grouping: state, method: identity}

es_manager:
  format_penalty: -0.2
  train:
    env_groups: 6
    group_size: 3
    env_configs: {tags: [SmallSokoban, TwoArms, Sums], n_groups: [3, 2, 1]}
  val:
    env_groups: 4
    group_size: 1
    env_configs: {tags: [Lake], n_groups: [4]}

ctx_manager:
  generation:
    gen_config:
      response_length: ${actor_rollout_ref.rollout.response_length}
      temperature: ${actor_rollout_ref.rollout.temperature}
      top_p: ${actor_rollout_ref.rollout.top_p}
      kwargs: null
"""
ENVS = """
custom_envs:
  SmallSokoban:
    env_type: sokoban
    max_actions_per_traj: 8
    env_instruction: Push the box. Say where you go.
    max_tokens: 100
    env_config: {dim_x: 6, dim_y: 6, num_boxes: 1, max_steps: 100, search_depth: 30}
  TwoArms:
    env_type: bandit
    max_actions_per_traj: 1
    env_instruction: ""
    max_tokens: 100
    env_config: {lo_arm_name: Teacher, hi_arm_name: Farmer}
  Sums: {env_type: countdown, max_actions_per_traj: 1, max_tokens: 100, env_config: null}
  Lake: {env_type: frozen_lake, max_actions_per_traj: 10, max_tokens: 100, env_config: {size: 4, p: 0.7}}
  Shop: {env_type: webshop, max_actions_per_traj: 9, max_tokens: 200, env_config: null}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "envs.yaml").write_text(ENVS)
    (tmp_path / "task.yaml").write_text("defaults: [base]\ntrainer: {experiment_name: two}\n")
    return tmp_path


def loaded(folder: Path, *overrides: str, is_val: bool = False) -> AgentsConfig:
    return load("task", overrides, folder, is_val=is_val)


def test_what_means_something_here_is_used(folder: Path) -> None:
    got = loaded(folder)
    assert (got.seed, got.env_groups, got.group_size, got.n_groups) == (4321, 6, 3, (3, 2, 1))
    rules = got.rules
    assert (rules.temperature, rules.max_tokens, rules.max_context) == (0.9, 300, 3000)
    assert (rules.max_turn, rules.max_actions_per_turn, rules.format_penalty) == (4, 3, -0.2)
    assert got.engine.server.model == "Org/Model-1B"
    sokoban, arms, sums = got.envs
    assert sokoban.options == {"size": 6, "boxes": 1, "env_instruction": "Push the box. Say where you go."}
    assert sokoban.limits == {"max_actions_per_traj": 8}, "max_tokens is a hint in RAGEN's prompt, not a limit"
    assert sokoban.build().instructions == "Push the box. Say where you go."
    assert arms.build().actions == ("Teacher", "Farmer")
    assert "arms" in arms.build().instructions, "an empty instruction leaves the environment's own"
    assert sums.options == {}


def test_every_other_key_is_listed_once(folder: Path) -> None:
    ignored = loaded(folder).ignored
    assert len(ignored) == len(set(ignored))
    for key in (
        "trainer.experiment_name",
        "algorithm.adv_estimator",
        "critic.model.path",
        "actor_rollout_ref.actor.optim.betas",
        "actor_rollout_ref.rollout.rollout_filter_ratio",
        "agent_proxy.use_turn_scores",
        "agent_proxy.reward_normalization.method",
        "es_manager.val.env_groups",
        "custom_envs.SmallSokoban.max_tokens",
        "custom_envs.SmallSokoban.env_config.search_depth",
        "ctx_manager.generation.gen_config.temperature",
        "hydra.searchpath",
    ):
        assert key in ignored
    for key in ("actor_rollout_ref.rollout.temperature", "seed.train", "agent_proxy.max_turn", "model_path"):
        assert key not in ignored
    line = shown(ignored)
    assert line.count("\n") == 0
    assert "trainer.* (9)" in line
    assert "--val plays es_manager.val" in line
    assert load("base").ignored == (), "ours has none"


def test_the_keys_of_later_versions(folder: Path) -> None:
    """Of those that evaluate, of collapse detection, of parallel environments, and of how a grid is shown."""
    (folder / "later.yaml").write_text(
        """
defaults: [base]
log_prob_micro_batch_size_per_gpu: 4
collapse_detection: {compute_freq: 5, num_samples: 64}
output: {dir: results, keep_batch_keys: null}
model_config: {model_name: some, max_concurrency: 16}
model_info: {some: {provider_name: one, generation_kwargs: {temperature: 0}}}
agent_proxy: {context_window_mode: full, batch_adjust_mode: copy}
actor_rollout_ref: {rollout: {rollout_filter_strategy: top_p, val_kwargs: {logprobs: 20}}}
es_manager:
  train: {env_groups: 4, env_configs: {tags: [SmallSokoban, Lake, TwoArms, Ice], n_groups: [1, 1, 1, 1]}}
custom_envs:
  SmallSokoban: {parallel_friendly: false, max_workers: 32, env_config: {observation_format: grid_coord}}
  Lake: {parallel_friendly: true, env_config: {success_rate: 1, observation_format: grid}}
  TwoArms: {env_config: {split: train, lo_arm_score: 0.1, hi_arm_hiscore: 1.0, hi_arm_hiscore_prob: 0.25}}
  Ice: {env_type: frozen_lake, env_config: {is_slippery: false}}
"""
    )
    got = load("later", (), folder)
    sokoban, lake, arms, ice = got.envs
    assert {**sokoban.options, "env_instruction": ""} == {"size": 6, "boxes": 1, "env_instruction": ""}
    assert lake.options == {"size": 4, "frozen": 0.7, "is_slippery": False}
    assert ice.options == {"is_slippery": False}
    assert arms.options == {"arms": ("Teacher", "Farmer"), "steady": 0.1, "payoff": 1.0, "chance": 0.25}
    for spec in got.envs:
        spec.build().close()
    for key in (
        "collapse_detection.compute_freq",
        "agent_proxy.batch_adjust_mode",
        "custom_envs.SmallSokoban.max_workers",
        "custom_envs.Lake.parallel_friendly",
        "custom_envs.SmallSokoban.env_config.observation_format",
    ):
        assert key in got.ignored
    with pytest.raises(UsageError, match=r"Lake\.env_config\.success_rate: expected 1, or is_slippery"):
        load("later", ["custom_envs.Lake.env_config.success_rate=0.8"], folder)
    with pytest.raises(UsageError, match="context_window_mode: expected 'full'"):
        load("later", ["agent_proxy.context_window_mode=single_turn"], folder)


def test_val_plays_other_groups(folder: Path) -> None:
    got = loaded(folder, is_val=True)
    assert (got.seed, got.env_groups, got.group_size, got.n_groups) == (17, 4, 1, (4,))
    assert [spec.tag for spec in got.envs] == ["Lake"]
    assert got.envs[0].options == {"size": 4, "frozen": 0.7, "is_slippery": True}, "as ice is in RAGEN"
    assert got.rules.temperature == 0.25
    assert not [key for key in got.ignored if key.startswith("es_manager.val")]
    greedy = loaded(folder, "actor_rollout_ref.rollout.val_kwargs.do_sample=false", is_val=True)
    assert greedy.rules.temperature == 0
    with pytest.raises(UsageError, match=r"--val: expected es_manager\.val in the configuration"):
        load("base", is_val=True)


def test_the_command_line_has_the_last_word(folder: Path) -> None:
    """In either project's name for a thing, and in what others refer to."""
    assert loaded(folder, "agent_proxy.temperature=0.5").rules.temperature == 0.5
    assert loaded(folder, "actor_rollout_ref.rollout.temperature=0.4").rules.temperature == 0.4
    cut = loaded(folder, "actor_rollout_ref.rollout.top_p=0.9", "agent_proxy.top_k=20").rules
    assert (cut.top_p, cut.top_k) == (0.9, 20)
    assert loaded(folder, "actor_rollout_ref.rollout.top_k=null").rules.top_k == 0
    val = loaded(folder, "actor_rollout_ref.rollout.val_kwargs.top_k=7", is_val=True).rules
    assert (val.top_p, val.top_k) == (1.0, 7)
    assert loaded(folder, "model_path=Org/Other").engine.server.model == "Org/Other"
    assert loaded(folder, "+trainer.new_key=1", "++agent_proxy.max_turn=2").rules.max_turn == 2


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("actor_rollout_ref.rollout.temprature=1", "did you mean actor_rollout_ref.rollout.temperature?"),
        ("actor_rollout_ref.rollout.reponse_length=1", "did you mean actor_rollout_ref.rollout.response_length?"),
        ("es_manager.val.env_group=1", "unknown key 'es_manager.val.env_group': did you mean es_manager."),
        ("traner.save_freq=3", "did you mean trainer?"),
        ("actor_rolout_ref.model.path=x", "did you mean actor_rollout_ref?"),
        ("agent_proxy.use_turn_score=true", "did you mean agent_proxy."),
        ("actor_rollout_ref.rollout.top_p=1.5", "top_p: expected a number above 0, and at most 1, got 1.5"),
        ("actor_rollout_ref.rollout.top_k=few", "agent_proxy.top_k: expected a whole number of at least -1, got 'few'"),
        ("agent_proxy.max_context_window=3", "agent_proxy.max_context_window: expected -1"),
        ("actor_rollout_ref.rollout.temperature=${no.where}", "'${no.where}' leads nowhere"),
        ("custom_envs.SmallSokoban.env_config.dim_x=7", "expected a square room"),
        ("actor_rollout_ref.rollout.temperature=hot", "agent_proxy.temperature: expected a number, got 'hot'"),
    ],
)
def test_what_is_refused(override: str, said: str, folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        loaded(folder, override)
    assert said in str(caught.value)


def test_verls_own_file_may_be_there(folder: Path) -> None:
    (folder / "ppo_trainer.yaml").write_text(
        "actor_rollout_ref: {rollout: {temperature: 0.1, layered_summon: false}}\ntransfer_queue: {enable: false}\n"
    )
    got = loaded(folder)
    assert got.rules.temperature == 0.9, "the file that builds on it counts"
    assert "transfer_queue.enable" in got.ignored


def test_a_file_that_is_missing_is_no_trainers(folder: Path) -> None:
    (folder / "envs.yaml").unlink()
    with pytest.raises(UsageError, match="--config-name envs: no such configuration"):
        loaded(folder)


def test_other_instructions_are_another_run(folder: Path, tmp_path: Path) -> None:
    """They are part of every prompt: a log of other words is not continued."""

    def begun(words: str) -> None:
        got = loaded(folder, f"custom_envs.SmallSokoban.env_instruction={words}")
        AgentRollouts(got.envs, group_size=2, rules=got.rules, run_dir=tmp_path / "run").close()

    begun("one")
    begun("one")
    with pytest.raises(UsageError, match="its envs is"):
        begun("two")


def test_the_command_says_it_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["agents", "rollout", "--config-dir", str(folder), "--config-name", "task", "--val"]
    assert main([*words, "--run-dir", str(folder / "run")]) == 0
    said = capsys.readouterr()
    assert said.err.count("keys that concern a trainer") == 1
    assert "4 / 4 episodes" in said.out
    assert "trainer.experiment_name" in (folder / "run" / "log.txt").read_text()

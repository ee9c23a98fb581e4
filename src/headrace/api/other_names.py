"""Names that users of other libraries bring, and what they are called here: the hints of errors about unknown names.

    hr.PPO(lr=...)             --option_hint-->     did you mean learning_rate?
    model.set_env(...)         --attribute_hint-->  save, and load(path, env=...)
    hr.make_vec_env            --module_hint-->     pass the id, and n_envs
    headrace train --anneal-lr --flag_hint-->       --learning-rate lin_X

Knows words only; imports nothing of headrace.
"""

from __future__ import annotations

_SAME = {
    "lr": "learning_rate",
    "num_envs": "n_envs",
    "num_env": "n_envs",
    "num_steps": "n_steps",
    "num_epochs": "n_epochs",
    "update_epochs": "n_epochs",
    "minibatch_size": "batch_size",
    "clip_coef": "clip_range",
    "entropy_coef": "ent_coef",
    "value_coef": "vf_coef",
    "norm_adv": "normalize_advantage",
    "num_workers": "workers",
    "n_workers": "workers",
    "env_id": "env",
    "random_seed": "seed",
    "discount": "gamma",
    "normalize_obs": "norm_obs",
    "normalize_reward": "norm_reward",
}
"""Other libraries' names of options that there are."""

_INSTEAD = {
    "max_episode_steps": 'env_kwargs={"max_episode_steps": ...} sets it',
    "render_mode": 'env_kwargs={"render_mode": ...} sets it',
    "anneal_lr": 'learning_rate="lin_3e-4" falls linearly to 0',
    "num_minibatches": "batch_size is the size of one minibatch: n_envs * n_steps / num_minibatches",
    "clip_vloss": "clip_range_vf=0.2 does it",
    "vec_env_cls": 'topology="processes" or "inline" says where environments run',
    "monitor_dir": "learn(run_dir=...) keeps episodes.jsonl",
    "capture_video": "headrace replay RUN EPISODE --render FILE makes a video of a recorded episode",
}
"""What does the same under another form."""

OF_CALLS = {
    **_SAME,
    "n_episodes": "n_eval_episodes",
    "eval_episodes": "n_eval_episodes",
    "eval_every": "eval_freq",
    "checkpoint_every": "save_freq",
    "exclude": "leave it out: all that a run needs to go on is saved",
    "include": "leave it out: all that a run needs to go on is saved",
}
"""Names that are given to a model's methods, to callbacks and to evaluate_policy: an argument there, or a sentence."""

LEARN = {
    "total_steps": "total_timesteps",
    "n_timesteps": "total_timesteps",
    "num_timesteps": "total_timesteps",
    "timesteps": "total_timesteps",
    "track": "wandb",
    "callbacks": "callback",
    "eval_freq": "eval_every",
    "save_freq": "checkpoint_every",
    "verbose": "progress_bar",
}
_WANDB = ("project", "entity", "name", "mode")

_MODEL = {
    "set_env": "save it, and PPO.load(path, env=...)",
    "get_parameters": "model.policy.state_dict() has the parameters",
    "set_parameters": "model.policy.load_state_dict(...) sets the parameters",
    "set_random_seed": "the seed is an argument of PPO(...)",
    "set_logger": "learn(run_dir=...) keeps metrics; a callback gets every update's record",
    "rollout_buffer": "hr.Collector yields rollouts",
    "env": "model.get_env() has environments to play in",
    "device": "the learner's device is learner_device of PPO(...)",
}

_NO_MORE = "see docs/guides/coming-from-sb3-and-cleanrl.md"
_MODULE = {
    "A2C": "hr.IMPALA in a synchronous run is A2C with minibatches",
    "DQN": "there are hr.PPO and hr.IMPALA",
    "SAC": "there are hr.PPO and hr.IMPALA",
    "TD3": "there are hr.PPO and hr.IMPALA",
    "DDPG": "there are hr.PPO and hr.IMPALA",
    "MaskablePPO": "hr.PPO(..., action_masks=True)",
    "RecurrentPPO": 'hr.PPO("MlpLstmPolicy", ...)',
    "make_vec_env": "pass the id to hr.PPO, with n_envs=...",
    "DummyVecEnv": 'hr.PPO(..., topology="inline", n_envs=...)',
    "SubprocVecEnv": 'hr.PPO(..., topology="processes", n_envs=...)',
    "VecNormalize": "hr.PPO(..., norm_obs=True, norm_reward=True)",
    "VecFrameStack": "wrappers=[(gymnasium.wrappers.FrameStackObservation, {'stack_size': 4})]",
    "Monitor": "it is not needed: every run keeps its episodes",
    "ProgressBarCallback": "learn(..., progress_bar=True)",
    "BaseFeaturesExtractor": "any torch module with features_dim will do",
}


def option_hint(name: str, known: list[str], others: dict[str, list[str]]) -> str | None:
    """What an option of a constructor that there is not is called here; `others` are those of other places."""
    same = _SAME.get(name)
    if same in known:
        return f"did you mean {same}?"
    if name in _INSTEAD and name not in known:
        return _INSTEAD[name]
    if name in others["learn"]:
        return f"it is an option of learn: model.learn(..., {name}=...)"
    if name in others["policy_kwargs"]:
        return f"it belongs to policy_kwargs: policy_kwargs={{{name!r}: ...}}"
    if name in others.get("models", ()):
        return "it is an option of hr.PPO and hr.IMPALA"
    return "it is an option of hr.PPO only" if name in others["PPO"] else None


def learn_hint(name: str) -> str | None:
    """The same for a keyword of learn."""
    part = name.removeprefix("wandb_")
    if part in _WANDB and part != name:
        return f"it is a part of wandb: wandb={{{part!r}: ...}}"
    return f"did you mean {LEARN[name]}?" if name in LEARN else None


def flag_hint(flag: str) -> str | None:
    """The same for a flag of the command line that there is not."""
    said = {
        "anneal-lr": "--learning-rate lin_3e-4 falls linearly to 0",
        "num-minibatches": "--batch-size is the size of one minibatch: n_envs * n_steps / num_minibatches",
        "clip-vloss": "--clip-range-vf 0.2 does it",
        "capture-video": _INSTEAD["capture_video"],
        "tensorboard-log": "every run directory has TensorBoard files; --run-dir says where it is",
        "eval-freq": "--eval-every is the number of steps between evaluations",
        "save-freq": "--checkpoint-every is the number of steps between checkpoints",
        "policy-kwargs": "--net-arch, --net-arch-vf, --activation and --no-ortho-init set them",
        "verbose": "the terminal shows a run; --quiet does not",
        "max-episode-steps": "--env-kwargs '{\"max_episode_steps\": 100}' sets it",
        "torch-deterministic": "every synchronous run is deterministic",
        "exp-name": "--run-dir names the run's directory",
        "render-mode": '--env-kwargs \'{"render_mode": "human"}\' sets it',
    }
    return said.get(flag)


def attribute_hint(name: str) -> str:
    """What has what a model's attribute of SB3 has; to follow an error, or empty."""
    return f"; {_MODEL[name]}" if name in _MODEL else ""


def module_hint(name: str) -> str:
    """The same for a name of SB3's modules."""
    return f"; {_MODULE[name]} ({_NO_MORE})" if name in _MODULE else ""

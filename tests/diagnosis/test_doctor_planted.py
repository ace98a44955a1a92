"""Short trainings with one planted fault each: `doctor` names it first, with its evidence, and a sound run has none."""

import contextlib
from pathlib import Path

import doctor_envs
import pytest

import lockstep
from lockstep import RLModuleSpec
from lockstep.rollout.errors import MalformedBufferError

ON_CARTPOLE = {
    "reporting.total_steps": 4096,
    "reporting.steps_per_epoch": 1024,
    "training.train_batch_size": 512,
    "training.minibatch_size": 128,
    "training.num_epochs": 4,
    "evaluation.evaluation_duration": 8,
}
DQN = {
    "reporting.total_steps": 3000,
    "reporting.steps_per_epoch": 750,
    "replay.learning_starts": 500,
    "training.epsilon": [[0, 1.0], [1500, 0.05]],
    "evaluation.evaluation_duration": 8,
}
TD3 = {
    "reporting.total_steps": 800,
    "reporting.steps_per_epoch": 200,
    "replay.learning_starts": 200,
    "evaluation.evaluation_duration": 4,
    "rl_module.model_config": {"hiddens": [64, 64]},
}
PPO = ("ppo", "CartPole-v1", ON_CARTPOLE)
ON_PENDULUM = ("ppo", "Pendulum-v1", {**ON_CARTPOLE, "reporting.total_steps": 8192, "reporting.steps_per_epoch": 2048})
PLANTED = {
    "value_explodes": (
        ("dqn", "CartPole-v1", {**DQN, "reporting.total_steps": 2000}),
        {
            "training.lr": 0.01,
            "training.target_update_interval": 1,
            "training.gamma": 0.999,
            "training.double_q": False,
            "training.huber_delta": 1.0,
            "rl_module.model_config": {"orthogonal_init": True},
        },
        "q_mean went",
    ),
    "entropy_gone": (
        PPO,
        {"training.entropy_coeff": -5.0, "training.lr": 1e-2, "training.num_epochs": 10},
        "training.entropy_coeff=-5.0",
    ),
    "no_exploration": (("dqn", "MountainCar-v0", DQN), {"training.epsilon": 0.0}, "training.epsilon=0.0"),
    "saturated_actions": (
        ("td3", "Pendulum-v1", TD3),
        {"rl_module.model_config": {"hiddens": [64, 64], "orthogonal_init": True, "policy_gain": 100.0}},
        "of the most likely actions",
    ),
    "clipped_gradients": (PPO, {"training.grad_clip": 1e-6}, "training.grad_clip=1e-06"),
    "reward_scale": (
        ("ppo", doctor_envs.thousandfold, ON_PENDULUM[2]),
        {},
        "environment.normalize_rewards=False",
    ),
    "dead_units": (
        PPO,
        {
            "rl_module.rl_module_spec": RLModuleSpec(module_class=doctor_envs.DeadModule),
            "rl_module.model_config": {"activation": "relu"},
        },
        "64 of 64",
    ),
    "never_started": (("dqn", "CartPole-v1", DQN), {"replay.learning_starts": 50_000}, "replay.learning_starts=50,000"),
    "zero_learning_rate": (PPO, {"training.lr": 0.0}, "100% of 128 gradient steps; training.lr=0.0"),
    "zero_learning_rate of a schedule": (
        PPO,
        {"training.lr": [[0, 1e-3], [600, 0.0]]},
        "default_optimizer_learning_rate is 0 in 88% of 128 gradient steps, from about step 128 on",
    ),
    "endless_episodes": (
        ("ppo", doctor_envs.Endless, ON_CARTPOLE),
        {"evaluation.evaluation_interval": 0, "env_runners.num_envs_per_env_runner": 4},
        "no episode ended in 4,096",
    ),
    "nan": (PPO, {"training.lr": 1e30}, "vf_loss, total_loss, gradients_default_optimizer_global_norm are not finite"),
    "nan of the environment": (("ppo", doctor_envs.BrokenLater, ON_CARTPOLE), {}, "rewards of the environment"),
}


def train(root, kind, fault) -> Path:
    """Train and return the run's folder, however it ends."""
    algorithm, env, options = kind
    with contextlib.suppress(FloatingPointError, MalformedBufferError):
        lockstep.train(algorithm, env, recipe=False, root=root, settings={**options, **fault})
    (folder,) = Path(root).iterdir()
    return folder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.long
def test_a_planted_fault_is_named_first(name, tmp_path):
    kind, fault, evidence = PLANTED[name]
    found = lockstep.doctor(train(tmp_path, kind, fault))
    print(found)
    assert not found.learns
    assert found.findings[0].code == name.split()[0], found
    assert evidence in found.findings[0].evidence


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("algorithm", "steps"), [("ppo", 100_000), ("dqn", 15_000)])
@pytest.mark.long
def test_a_sound_run_gives_no_finding(algorithm, steps, tmp_path):
    run = lockstep.train(algorithm, "CartPole-v1", total_steps=steps, root=tmp_path)
    found = lockstep.doctor(run.path)
    assert found.learns
    assert found.findings == ()
    assert found.note is None

"""A student with a memory learns from a teacher that sees more than it does. `python examples/distillation.py`"""

import numpy as np

from lockstep import DistillationConfig, Policy, PPOConfig

ENV = "lockstep/HistoryProbe-v0"  # a wheel turns by a hidden load, which is the best action


def learn_from_the_load(total_steps: int) -> tuple[Policy, float]:
    """Train a teacher, which sees the load, by reward; return it with its mean return."""
    config = PPOConfig().environment(ENV).debugging(seed=1)
    config.rl_module(model_config={"hiddens": (32,)}, observation_groups={"policy": ["load"], "critic": ["load"]})
    config.training(lr=1e-2, gamma=0.5, train_batch_size=512, minibatch_size=128)
    config.env_runners(num_envs_per_env_runner=8).evaluation(evaluation_duration=100)
    config.reporting(total_steps=total_steps, steps_per_epoch=total_steps)
    trainer = config.build_trainer()
    info = trainer.run()
    return trainer.policy, float(np.mean(info.history[-1].test_collect_stat.returns))


def learn_from_the_teacher(teacher: Policy, memory: str | None, total_steps: int) -> float:
    """Train a student, which sees the wheel's angle alone, by its teacher's actions; return its mean return."""
    config = DistillationConfig().environment(ENV).debugging(seed=1)
    config.rl_module(
        model_config={"hiddens": (32,), "recurrent": memory, "recurrent_size": 32},
        observation_groups={"policy": ["proprio"], "teacher": ["load"]},
    )
    config.training(teacher=teacher, lr=3e-3, train_batch_size=640)
    config.env_runners(num_envs_per_env_runner=8).evaluation(evaluation_duration=100)
    config.reporting(total_steps=total_steps, steps_per_epoch=total_steps)
    info = config.build_trainer().run()
    return float(np.mean(info.history[-1].test_collect_stat.returns))


def main(total_steps: int = 12_800) -> dict[str, float]:
    """Train a teacher, a student with a GRU and one without memory; return their mean returns."""
    teacher, of_teacher = learn_from_the_load(8_192)
    returns = {"teacher": of_teacher}
    returns["student with a GRU"] = learn_from_the_teacher(teacher, "gru", total_steps)
    returns["student without memory"] = learn_from_the_teacher(teacher, None, total_steps)
    for name, mean_return in returns.items():
        print(f"{name}: {mean_return:.2f} of 20")
    return returns


if __name__ == "__main__":
    main()

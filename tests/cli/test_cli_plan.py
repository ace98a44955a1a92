"""The plan of `lockstep train` announces the gradient steps that the run then makes."""

import os
import re

import numpy as np
import pytest
import torch
from agent_games import CountingGame, game_config
from algorithm_cases import NAMES, class_of

from lockstep import BCConfig, DQNConfig, PPOConfig, SACConfig, SampleBatch, get_config
from lockstep.algorithms.ppo import PPOLearner
from lockstep.cli.doctor import advice
from lockstep.cli.plan import Plan
from lockstep.modules import ModelConfig
from lockstep.options.texts import size_text
from lockstep.runs.run import prepare_run


def ppo(num_learners=0, **training):
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"hiddens": (8,)})
    config.training(**{"train_batch_size": 64, "minibatch_size": 24, "num_epochs": 2, **training})
    config.learners(num_learners=num_learners, num_cpus_per_learner=0)
    return config.evaluation(evaluation_interval=0).reporting(total_steps=192)


def off_policy(cls=DQNConfig, env="CartPole-v1", num_envs=4, fragment=1, **replay):
    config = cls().environment(env).rl_module(model_config={"hiddens": (8,)}).training(train_batch_size=8)
    config.replay(**{"capacity": 1000, "learning_starts": 10, "update_per_step": 0.3, **replay})
    config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=fragment)
    return config.evaluation(evaluation_interval=0).reporting(total_steps=50)


def offline(size=None):
    n = 20
    done = np.arange(n) % 5 == 4
    batch = SampleBatch(
        obs=np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32),
        actions=np.arange(n) % 2,
        rewards=np.ones(n, np.float32),
        terminateds=done,
        truncateds=np.zeros(n, bool),
    )
    config = BCConfig().environment("CartPole-v1").rl_module(model_config={"hiddens": (8,)})
    config.training(train_batch_size=size or 7).offline_data(input_=batch)
    return config.evaluation(evaluation_interval=0).reporting(total_steps=30, steps_per_epoch=10)


def test_the_plan_says_what_each_part_of_a_network_sees():
    config = PPOConfig().environment("lockstep/PrivilegedProbe-v0").reporting(total_steps=64)
    config.rl_module(observation_groups={"policy": ["proprio"], "critic": ["proprio", "load"]})
    facts = Plan(config.build_trainer(), config).facts([])
    assert facts["observations"] == "policy sees proprio, critic sees proprio, load"
    assert "observations" not in Plan(ppo().build_trainer(), ppo()).facts([])

    central = game_config(CountingGame, multi_agent={"centralized_critic": "observations"})
    seen = Plan(central.build_trainer(), central).facts([])["observations"]
    assert "policy sees obs, critic sees state, obs" in seen


def announced_and_made(config):
    """The number of gradient steps that the plan says, and the number that the run makes; the text."""
    trainer = config.build_trainer()
    try:
        text = Plan(trainer, config).facts(["test"])["gradient steps"]
        made = trainer.run().gradient_step
    finally:
        trainer.policy.learner_group.shutdown()
    return int(re.match(r"(?:at most |about )?([\d,]+)", text)[1].replace(",", "")), made, text


@pytest.mark.filterwarnings("ignore:.*rows are left out")
@pytest.mark.parametrize(
    "config",
    [
        ppo(),
        ppo(minibatch_size=None),
        ppo(minibatch_size=64),
        ppo(minibatch_size=33),
        ppo(train_batch_size=60),  # 8 environments: 64 steps
        ppo().env_runners(num_envs_per_env_runner=12),
        off_policy(),
        off_policy(learning_starts=0, update_per_step=1.0),
        off_policy(num_envs=3, fragment=4, learning_starts=13, update_per_step=0.37),
        off_policy(learning_starts=1000, update_per_step=1.0),
        off_policy(SACConfig, "Pendulum-v1", num_envs=1, update_per_step=2.0),
        off_policy(prioritized=True),
        offline(),
        offline(size=50),
    ],
    ids=lambda config: f"{config.algorithm}-{config.train_batch_size}-{config.minibatch_size}",
)
@pytest.mark.filterwarnings("ignore:learning_starts")
def test_the_announced_gradient_steps_are_made(config):
    announced, made, _ = announced_and_made(config)
    assert announced == made


@pytest.mark.filterwarnings("ignore:.*rows are left out")
def test_the_plan_names_rows_that_fill_no_minibatch():
    announced, made, text = announced_and_made(ppo())
    assert announced == made == 3 * 2 * 2
    assert text.startswith("12: for each update 2 passes over 2 minibatches of 24; ")
    assert text.endswith("16 of 64 rows fill none and are left out of each pass")
    assert "left out" not in announced_and_made(ppo(minibatch_size=32))[2]


def test_the_plan_of_a_resumed_run_is_of_its_remaining_steps():
    config = off_policy(update_per_step=0.37)
    config.reporting(steps_per_epoch=24)
    trainer = config.build_trainer()
    next(iter(trainer))
    before = trainer.gradient_step
    text = Plan(trainer, config).facts(["test"])["gradient steps"]
    for _ in range(2):
        next(trainer, None)
    assert text.startswith(f"{trainer.gradient_step - before} on 8 transitions")


def test_the_plan_names_collects_of_whole_episodes():
    config = ppo().env_runners(batch_mode="complete_episodes")
    plan = Plan(config.build_trainer(), config).facts(["test"])
    assert plan["updates"].endswith("(a collect continues to the end of its episodes, so it may have more steps)")
    assert plan["gradient steps"].startswith("about 12:")


@pytest.mark.filterwarnings("ignore:.*rows are left out")
def test_an_update_that_may_end_early_announces_a_bound():
    announced, made, text = announced_and_made(ppo(target_kl=1e-9))
    assert text.startswith("at most 12:")
    assert made < announced


@pytest.mark.parametrize(
    "config",
    [
        off_policy(),
        off_policy(ignore_obs_next=True),
        off_policy().environment("CartPole-v1", frame_stack=3),
        off_policy(SACConfig, "Pendulum-v1", num_envs=1),
        off_policy(storage="memmap"),
    ],
)
def test_the_announced_memory_of_the_replay_buffer_is_taken(config):
    trainer = config.build_trainer()
    plan = Plan(trainer, config).facts(["test"])["replay buffer"]
    assert trainer.buffer.nbytes() == 0, "said before it is taken"
    trainer.run()
    kind = "in files of " if config.storage == "memmap" else ""
    assert plan == f"1,000 transitions, 0 in it, {kind}{size_text(trainer.buffer.nbytes())}"


def test_replay_larger_than_the_memory_is_refused_with_both_numbers(tmp_path):
    config = off_policy(capacity=10**12)
    with pytest.raises(ValueError) as caught:
        prepare_run(config, tmp_path / "runs")
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    assert f"replay.capacity={10**12} needs {10**12 * (2 * 16 + 8 + 4) / 2**30:,.1f} GiB" in str(caught.value)
    assert f"this machine has {there:,.1f} GiB" in str(caught.value)
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize("algorithm", [PPOConfig, DQNConfig])
def test_several_agents_have_a_plan(algorithm):
    config = game_config(CountingGame, algorithm)
    trainer = config.build_trainer()
    plan = Plan(trainer, config).facts(["test"])
    assert "first: Box" in plan["environments"]
    if algorithm is PPOConfig:
        assert plan["gradient steps"].endswith(
            "minibatches of 8 rows of the module that has most, as many as the episodes fill"
        )
    else:
        assert plan["gradient steps"].startswith(f"{trainer.run().gradient_step} on")


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore:.*rows are left out")
def test_the_announced_gradient_steps_are_made_by_two_learners():
    pytest.importorskip("ray")
    announced, made, _ = announced_and_made(ppo(num_learners=2))
    assert announced == made == 12


class WithOwnRate(PPOLearner):
    """Registers an optimizer without a rate: its own stays."""

    def configure_optimizers_for_module(self, module_id, config):
        params = list(self.module[module_id].parameters())
        self.register_optimizer(module_id=module_id, optimizer=torch.optim.Adam(params, lr=2e-3), params=params)


def test_an_optimizer_with_a_rate_of_its_own_has_a_plan():
    config = ppo(learner_class=WithOwnRate)
    assert "0.002 throughout" in str(Plan(config.build_trainer(), config).facts(["test"]))


WIDE = [
    (class_of(name), ", ".join(map(str, widths)))
    for name in NAMES
    if (widths := ModelConfig.of(get_config(name).rl_module.model_config).critic_hiddens) is not None
]
"""algorithms whose critics are wider than the other networks"""


@pytest.mark.parametrize("config, widths", WIDE)
def test_the_plan_names_the_critics_and_a_first_guess_of_the_time(config, widths):
    wide = off_policy(config, "Pendulum-v1")
    narrow = off_policy(config, "Pendulum-v1").rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,)})
    texts = []
    for each in (wide, narrow):
        trainer = each.reporting(total_steps=20_000).build_trainer()
        texts.append(Plan(trainer, each).facts(["test"]))
        module = trainer.policy.module
        number = sum(p.numel() for p in module.critics.parameters())
        assert f"{number:,} of them in critics" in texts[-1]["networks"]
    assert f"layers of {widths} (model_config.critic_hiddens)" in texts[0]["networks"]
    assert "layers of 8 (model_config.critic_hiddens)" in texts[1]["networks"]
    assert all(re.match(r"a first guess is [\d.]+ (s|min|h);", text["time"]) for text in texts)
    assert texts[0]["time"] != texts[1]["time"]


@pytest.mark.parametrize("make", [ppo, off_policy, offline])
def test_every_plan_has_a_first_guess_of_the_time(make):
    config = make()
    assert "first guess" in Plan(config.build_trainer(), config).facts(["test"])["time"]


@pytest.mark.parametrize(
    "algo, has, has_not",
    [
        ("sac", "replay.update_per_step", "minibatch_size"),
        ("dqn", "replay.update_per_step", "num_epochs"),
        ("cql", "rl_module.model_config", "minibatch_size"),
        ("ppo", "training.minibatch_size", "update_per_step"),
    ],
)
def test_advice_on_slow_updates_names_options_that_the_algorithm_has(algo, has, has_not):
    (line,) = advice({"update": 0.9}, {}, algo)
    assert has in line
    assert has_not not in line


def test_the_plan_says_that_steps_of_evaluation_leave_the_device():
    on_host = {"environment.env": "CartPole-v1"}
    for env, others, leave in (
        ("tensor/CartPole-v1", {}, True),
        ("tensor/CartPole-v1", on_host, False),
        ("CartPole-v1", {}, False),
    ):
        config = PPOConfig().environment(env).reporting(total_steps=64).evaluation(evaluation_config=others)
        evaluation = Plan(config.build_trainer(), config).facts([])["evaluation"]
        assert ("steps copied to the host" in evaluation) == leave, evaluation

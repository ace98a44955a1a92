"""Episodes that never end in a collect of whole episodes: the warning, and `evaluation(max_episode_steps=...)`."""

import warnings
from functools import partial

import pytest
from agent_games import game_config
from runner_tools import ManyRunners

from lockstep import PPOConfig
from lockstep.cli.plan import Plan
from lockstep.envs import CountingEnv
from lockstep.rollout import EnvRunnerGroup, base_collector, evaluation_sink
from lockstep.rollout.group_collector import EvaluationCollector

LONG = partial(CountingEnv, ((600, "truncate"),))


def config_of(env=LONG, **evaluation):
    config = PPOConfig().environment(env).rl_module(model_config={"hiddens": (4,)}).debugging(seed=1)
    return config.evaluation(**{"evaluation_duration": 2, "evaluation_num_envs": 2, **evaluation})


def in_runners(config, policy):
    config = config.copy().evaluation(evaluation_num_env_runners=2)
    settings = config.evaluation_settings()
    build = partial(settings.build_env_runner, (policy.observation_space, policy.action_space), evaluates=True)
    return EvaluationCollector(policy, EnvRunnerGroup(ManyRunners(build, 2), settings.env_runners))


def evaluation_of(kind, **evaluation):
    """The evaluation collector of a configuration whose environments are stepped in one of the `KINDS` of ways."""
    if kind == "several agents":
        config = game_config().evaluation(evaluation_duration=2, evaluation_num_envs=2, **evaluation)
        return config.build_test_collector(config.build_policy())
    config = config_of(**evaluation)
    if kind == "workers":
        config.env_runners(vectorize_mode="async")
    policy = config.build_policy()
    return in_runners(config, policy) if kind == "env runners" else config.build_test_collector(policy)


@pytest.mark.parametrize("kind", ["one process", "workers", "env runners", "several agents"])
def test_a_collect_of_episodes_warns_once_about_an_endless_episode(kind, monkeypatch):
    steps = 2 if kind == "several agents" else 300
    for module in (base_collector, evaluation_sink):
        monkeypatch.setattr(module, "WARN_EPISODE_STEPS", steps, raising=False)
        monkeypatch.setattr(module, "CHUNK", 1 if kind == "several agents" else 128)
    collector = evaluation_of(kind)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        collector.collect(n_episode=2)
    collector.close()
    texts = [str(each.message) for each in caught if "ended in" in str(each.message)]
    assert len(texts) == 1
    assert "if episodes never end, limit the episodes' length" in texts[0]


@pytest.mark.parametrize("kind", ["one process", "workers", "env runners"])
def test_max_episode_steps_truncates_the_episodes_of_evaluation(kind):
    collector = evaluation_of(kind, evaluation_duration=3, evaluation_num_envs=2, max_episode_steps=7)
    stats = collector.collect(n_episode=3)
    collector.close()
    assert stats.lens.tolist() == [7, 7, 7]
    assert stats.n_collected_steps == 21


def test_max_episode_steps_leaves_training_as_it_is():
    config = config_of(max_episode_steps=7)
    config.env_runners(num_envs_per_env_runner=1)
    policy = config.build_policy()
    with config.build_collector(policy).env as env:
        env.reset([0])
        assert not any(env.step([0]).any_done for _ in range(20))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.evaluation(max_episode_steps=0), "max_episode_steps"),
        (lambda c: c.environment("tensor/Pendulum-v1").evaluation(max_episode_steps=9), "for tensor/Pendulum-v1"),
        (lambda c: c.env_runners(vectorize_mode="envpool").evaluation(max_episode_steps=9), "vectorize_mode='envpool'"),
        (lambda c: c.environment(LONG()).evaluation(max_episode_steps=9), "which is finished"),
        (lambda c: c.multi_agent(policies={"a", "b"}).evaluation(max_episode_steps=9), "for several agents"),
    ],
)
def test_max_episode_steps_is_refused_without_single_environments(change, words):
    with pytest.raises(ValueError, match=words):
        change(config_of()).evaluation_settings()


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        ({"evaluation_duration": 20}, "; may take up to 50% of all steps"),
        ({"evaluation_duration": 1}, ""),
        ({"evaluation_duration": 20, "evaluation_interval": 20}, ""),
        ({"evaluation_duration": 20, "max_episode_steps": 10}, ""),
        (
            {"evaluation_duration": 9000, "evaluation_duration_unit": "timesteps"},
            "; may take up to 47% of all steps",
        ),
    ],
)
def test_the_plan_says_when_evaluation_may_take_more_than_a_third(evaluation, words):
    config = config_of("CartPole-v1", **evaluation)
    config.training(train_batch_size=1000, minibatch_size=100).reporting(total_steps=100_000)
    trainer = config.build_trainer()
    text = Plan(trainer, config).facts(["test"])["evaluation"]
    trainer.close()
    assert words in text
    assert bool(words) == ("of all steps" in text)

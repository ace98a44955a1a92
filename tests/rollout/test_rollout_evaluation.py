"""`EvaluationCollector`: evaluation in env runners, with the returns of one process."""

from functools import partial

import pytest
from agent_games import CountingGame, DictGame, TellingCountingGame, TurnGame, game_config
from parts import fast_if
from runner_tools import ManyRunners

from lockstep import DQNConfig, PPOConfig, get_config
from lockstep.rollout import EnvRunnerGroup
from lockstep.rollout.group_collector import EvaluationCollector


def small_config(algorithm="ppo"):
    config = get_config(algorithm).environment("CartPole-v1").rl_module(model_config={"hiddens": (8,)})
    return config.debugging(seed=3)


def in_runners(config, policy, number):
    """The evaluation collector of `config` with so many runners, all in this process."""
    config = config.copy().evaluation(evaluation_num_env_runners=number)
    settings = config.evaluation_settings()
    spaces = policy.observation_space, policy.action_space
    build = partial(settings.build_env_runner, spaces, evaluates=True)
    return EvaluationCollector(policy, EnvRunnerGroup(ManyRunners(build, number), settings.env_runners))


CASES = {
    "ppo": ("ppo", {}),
    "ppo, drawn": ("ppo", {"evaluation_explore": True}),
    "ppo, fewer episodes than environments": ("ppo", {"evaluation_duration": 3, "evaluation_num_envs": 8}),
    "dqn, epsilon": ("dqn", {"epsilon": 0.3}),
}


@pytest.mark.parametrize("number", fast_if((2).__eq__, [1, 2, 3]))
@pytest.mark.parametrize("case", CASES)
def test_evaluation_in_runners_has_the_bits_of_one_process(case, number):
    algorithm, options = CASES[case]
    config = small_config(algorithm).evaluation(**{"evaluation_duration": 11, "evaluation_num_envs": 6, **options})
    policy = config.build_policy()
    if config.evaluation.num_envs % number:
        return
    here, there = config.build_test_collector(policy), in_runners(config, policy, number)
    amounts = [{"n_episode": config.evaluation.evaluation_duration}, {"n_step": 600}, {"n_step": 60}, {"n_episode": 4}]
    for amount in 2 * amounts:
        if "n_step" in amount:
            here.reset(reset_stats=False)
            there.reset(reset_stats=False)
        first, second = here.collect(**amount), there.collect(**amount)
        assert second.returns.tolist() == first.returns.tolist()
        assert second.lens.tolist() == first.lens.tolist()
        assert (second.n_collected_steps, second.n_collected_episodes) == (
            first.n_collected_steps,
            first.n_collected_episodes,
        )
    assert (there.collect_step, there.collect_episode) == (here.collect_step, here.collect_episode)
    again = in_runners(config, policy, number)
    again.set_state(there.get_state())
    assert again.collect(n_episode=5).returns.tolist() == there.collect(n_episode=5).returns.tolist()
    for collector in (here, there, again):
        collector.close()


def by_episode(agent, episode):
    """Who acts depends on the episode's number."""
    return "first" if agent == "a" and int(episode.id_, 16) % 2 else "others"


GRU = {"hiddens": (4,), "recurrent": "gru"}
GAMES = {
    "at once": (CountingGame, PPOConfig, {}, {}),
    "in turns, drawn": (TurnGame, PPOConfig, {"evaluation_explore": True}, {}),
    "in turns, with memory": (TurnGame, PPOConfig, {}, {"rl_module": {"model_config": GRU}}),
    "dicts, epsilon": (DictGame, DQNConfig, {"epsilon": 0.5}, {}),
}


@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=pytest.mark.long if number == 3 else pytest.mark.exhaustive) for number in (1, 2, 3)],
)
@pytest.mark.parametrize("case", GAMES)
def test_multi_agent_evaluation_in_runners_has_the_bits_of_one_process(case, number):
    env, algorithm, options, sections = GAMES[case]
    config = game_config(env, algorithm, **sections).evaluation(
        evaluation_num_envs=6, evaluation_duration=17, **options
    )
    mapping = {"a": "first", "b": "first", "c": "others"} if env is DictGame else by_episode
    config.multi_agent(policy_mapping_fn=mapping)
    policy = config.build_policy()
    here, there = config.build_test_collector(policy), in_runners(config, policy, number)
    assert isinstance(there, EvaluationCollector)
    for amount in 2 * [{"n_episode": 17}, {"n_step": 60}, {"n_episode": 4}, {"n_episode": 6}]:
        if "n_step" in amount:
            here.reset(reset_stats=False)
            there.reset(reset_stats=False)
        first, second = here.collect(**amount), there.collect(**amount)
        assert len(first.agent_returns) == first.n_collected_episodes > 0
        for name in ("agents", "agent_returns", "agent_modules", "n_collected_steps", "n_collected_episodes"):
            assert getattr(second, name) == getattr(first, name), name
        assert second.lens.tolist() == first.lens.tolist()
    assert (there.collect_step, there.collect_episode) == (here.collect_step, here.collect_episode)
    again = in_runners(config, policy, number)
    again.set_state(there.get_state())
    assert again.collect(n_episode=5).agent_modules == there.collect(n_episode=5).agent_modules
    for collector in (here, there, again):
        collector.close()


def test_a_lost_evaluation_runner_is_replaced_and_the_evaluation_goes_on():
    config = small_config().evaluation(evaluation_duration=4, evaluation_num_envs=4)
    collector = in_runners(config, config.build_policy(), 2)
    collector.group._backend.lost.add(1)
    assert len(collector.collect(n_episode=4).returns) == 4
    assert collector.group.num_restarts == 1
    collector.close()


def test_a_runner_that_is_lost_within_an_evaluation_changes_no_later_one():
    """The episodes of several agents have seeds by their number, which begins with that before the evaluation."""
    config = game_config(TellingCountingGame, PPOConfig).evaluation(evaluation_num_envs=4)
    policy = config.build_policy()
    undisturbed, disturbed = (in_runners(config, policy, 2) for _ in range(2))
    fragments = disturbed.schedule.fragments
    num_samples = 0

    def lose_one(*amounts, **options):
        nonlocal num_samples
        num_samples += 1
        if num_samples == 3:  # the second sample of the second evaluation
            disturbed.group._backend.lost.add(1)
        return fragments(*amounts, **options)

    disturbed.schedule.fragments = lose_one
    for n_episode in (5, 250, 30):
        first, second = (collector.collect(n_episode=n_episode) for collector in (undisturbed, disturbed))
        assert first.agent_returns == second.agent_returns
        assert first.lens.tolist() == second.lens.tolist()
    assert disturbed.group.num_restarts == 1
    assert num_samples >= 4
    for collector in (undisturbed, disturbed):
        collector.close()

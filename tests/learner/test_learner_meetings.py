"""docs/scaling.md, "What it costs": how often learners meet in an update, and how much they say."""

from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest

from lockstep import PPOConfig, SampleBatch
from lockstep.data.episode import SingleAgentEpisode
from lockstep.learner.reduction import DistributedReducer
from lockstep.learner.sharding import shards_of

SPACES = {"observation_space": gym.spaces.Box(-1.0, 1.0, (3,)), "action_space": gym.spaces.Discrete(2)}


class Counting(DistributedReducer):
    """Remembers the bytes of each sum."""

    def __init__(self, *args):
        self.sums = []
        super().__init__(*args)

    def sum_(self, tensor):
        self.sums.append(tensor.numel() * tensor.element_size())
        return super().sum_(tensor)


@pytest.fixture(scope="module")
def learners(tmp_path_factory):
    config = PPOConfig().environment(**SPACES).rl_module(model_config={"hiddens": (8,)})
    config.training(train_batch_size=48, minibatch_size=12)
    store = tmp_path_factory.mktemp("meetings") / "store"
    with ThreadPoolExecutor(2) as pool:
        reducers = [each.result() for each in [pool.submit(Counting, rank, 2, store) for rank in range(2)]]
        yield pool, [config.build_learner(reducer=reducer) for reducer in reducers]


def update(learners, method, data, **options):
    """Meetings of one update, and the bytes of its sums."""
    pool, both = learners
    before = both[0].reducer.num_calls
    both[0].reducer.sums.clear()
    shards = shards_of(data, 2, {"default_policy": False})
    for each in [pool.submit(getattr(one, method), shard, **options) for one, shard in zip(both, shards)]:
        each.result()
    return both[0].reducer.num_calls - before, both[0].reducer.sums


def episodes():
    rng = np.random.default_rng(0)
    return [
        SingleAgentEpisode(
            observations=rng.uniform(size=(length + 1, 3)).astype(np.float32),
            actions=rng.integers(2, size=length),
            rewards=rng.normal(size=length),
            terminated=True,
            **SPACES,
        )
        for length in (20, 20, 8)
    ]


def batch():
    rng = np.random.default_rng(0)
    return SampleBatch(
        obs=rng.uniform(size=(48, 3)).astype(np.float32),
        actions=rng.integers(2, size=48),
        action_logp=np.full(48, -0.7, np.float32),
        advantages=rng.normal(size=48).astype(np.float32),
        value_targets=rng.normal(size=48).astype(np.float32),
    )


@pytest.mark.parametrize(("passes", "rows"), [(1, 48), (1, 12), (3, 12), (2, 6)])
def test_ppo_meets_9_times_and_once_between_passes_and_3_times_for_each_gradient_step(learners, passes, rows):
    steps = passes * 48 // rows
    options = {"num_epochs": passes, "minibatch_size": rows, "shuffle_batch_per_epoch": True}
    count, sums = update(learners, "update_from_episodes", episodes(), **options)
    assert count == 9 + (passes - 1) + 3 * steps
    gradient = 4 * sum(p.numel() for p in learners[1][0].module.parameters())
    assert sums.count(gradient) == steps
    assert sums.count(2 * 3 * 8) == steps  # moments of the advantages
    assert sums.count(16) == steps  # what the loss is made of
    assert sum(sums) == steps * (48 + 16 + gradient) + 4 * (passes - 1) + 8
    assert update(learners, "update_from_batch", batch(), **options)[0] == count

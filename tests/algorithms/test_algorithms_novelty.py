"""Intrinsic rewards: random network distillation, and the maze that nothing else gets out of."""

import numpy as np
import pytest
import torch
from algorithm_cases import NAMES, OFF_POLICY, class_of, takes
from gymnasium import spaces
from parts import one_in

from lockstep import A2CConfig, DQNConfig, PPOConfig, SACConfig
from lockstep.data import SampleBatch
from lockstep.envs import SparseMaze
from lockstep.learner.compile.update import CompiledUpdate
from lockstep.learner.many.reduction import LocalReducer
from lockstep.learner.novelty import IntrinsicReward, RandomNetworkDistillation
from lockstep.recipes.sparse_rewards import ppo_sparse_maze

MASKED = spaces.Dict({"cell": spaces.Discrete(5), "action_mask": spaces.Box(0, 1, (3,), np.int8)})
SPACES = {
    "discrete": (spaces.Discrete(5), torch.arange(4)),
    "box": (spaces.Box(-1, 1, (3,)), torch.randn(4, 3)),
    "image": (spaces.Box(0, 255, (10, 10, 3), np.uint8), torch.zeros(4, 10, 10, 3, dtype=torch.uint8)),
    "masked": (MASKED, {"cell": torch.arange(4), "action_mask": torch.ones(4, 3)}),
}


@pytest.mark.parametrize("name", SPACES)
def test_errors_are_those_of_the_predictor_against_fixed_weights(name):
    space, obs = SPACES[name]
    network = RandomNetworkDistillation(space, hiddens=(8,), size=6)
    errors = network(obs)
    assert errors.shape == (4,)
    errors.sum().backward()
    learns = {part for part, p in network.named_parameters() if p.grad is not None}
    assert learns == {part for part, p in network.named_parameters() if p.requires_grad}
    assert {part.split(".")[0] for part in learns} == {"predictor", "head"}
    network.predictor.load_state_dict(network.target.state_dict())
    network.head.load_state_dict(network.target_head.state_dict())
    assert network(obs).abs().max() == 0.0


def test_the_error_falls_where_it_was_trained_and_stays_elsewhere():
    torch.manual_seed(0)
    network = RandomNetworkDistillation(spaces.Discrete(10))
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], 1e-3)
    seen, new = torch.arange(5), torch.arange(5, 10)
    before = network(new).mean().item()
    for _ in range(300):
        optimizer.zero_grad()
        network(seen).mean().backward()
        optimizer.step()
    assert network(seen).max() < 0.01 * before < 0.2 * network(new).mean()


def test_rewards_are_errors_in_units_of_their_running_deviation():
    class Errors(torch.nn.Module):
        def forward(self, obs):
            return obs[..., 0]

    novelty = IntrinsicReward(Errors(), 0.5)
    first, counted = torch.tensor([[1.0], [3.0], [100.0]]), torch.tensor([True, True, False])
    assert novelty(first, counted, LocalReducer()).tolist() == pytest.approx([0.5, 1.5, 50.0])  # the deviation is 1
    second = torch.tensor([[5.0], [7.0], [0.0]])  # of 1, 3, 5, 7 it is sqrt(5)
    assert novelty(second, counted, LocalReducer()).tolist() == pytest.approx([2.5 / 5**0.5, 3.5 / 5**0.5, 0.0])


def learner_of(config, **training):
    return config.environment("lockstep/SparseMaze-v0", env_config={"size": 3}).training(**training).build_learner()


def transitions(cells):
    number = len(cells)
    return SampleBatch(
        obs=np.zeros(number, np.int64),
        actions=np.zeros(number, np.int64),
        rewards=np.zeros(number, np.float32),
        new_obs=np.asarray(cells),
        terminateds=np.zeros(number, bool),
        truncateds=np.zeros(number, bool),
    )


@pytest.mark.parametrize("config", one_in(2, [DQNConfig, SACConfig]))
def test_transitions_to_new_cells_are_worth_more(config):
    learner = learner_of(config(), intrinsic_reward="rnd", intrinsic_coeff=2.0, lr=1e-2)
    novelty = learner.novelty_of("default_policy")
    seen = []
    original = learner.compute_losses
    learner.compute_losses = lambda **parts: seen.append(parts["batch"]["default_policy"]) or original(**parts)
    for _ in range(200):
        learner.update_from_batch(transitions([0, 0, 0, 5]))
    with torch.no_grad():
        errors = novelty.network(torch.tensor([0, 5]))
    assert errors[0] < 0.05 * errors[1]  # 0 is in the batch's observations, 5 only in the next ones
    rewards = seen[-1]["rewards"].flatten()
    assert rewards[-1] > 10 * rewards[0] > 0


def test_initial_networks_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = learner_of(PPOConfig().debugging(seed=3), intrinsic_reward="rnd").novelty_of("default_policy").get_state()
    torch.manual_seed(2)
    second = learner_of(PPOConfig().debugging(seed=3), intrinsic_reward="rnd").novelty_of("default_policy").get_state()
    other = learner_of(PPOConfig().debugging(seed=4), intrinsic_reward="rnd").novelty_of("default_policy").get_state()
    assert all(np.array_equal(first["network"][name], second["network"][name]) for name in first["network"])
    assert not np.array_equal(first["network"]["head.weight"], other["network"]["head.weight"])


def test_a_network_of_ones_own_takes_its_place_and_goes_with_its_module():
    class Counted(torch.nn.Module):
        def __init__(self, space):
            super().__init__()
            self.known = torch.nn.Parameter(torch.ones(int(space.n)))

        def forward(self, obs):
            return self.known[obs.long()].square()

    learner = learner_of(DQNConfig(), intrinsic_reward=Counted, lr=0.5)
    results = learner.update_from_batch(transitions([1, 2]))["default_policy"]
    assert results["novelty_loss"] == 1.0
    known = learner.novelty_of("default_policy").network.known
    assert known[0] < 1.0
    assert known[1] == 1.0
    assert "default_policy/novelty" in learner.get_state()["registered"]
    assert "intrinsic rewards" in CompiledUpdate(learner).reason_to_run_eagerly()


WHOLE_RETURNS = [
    class_of(name)
    for name in NAMES
    if takes(name, "discrete") and name not in OFF_POLICY and not class_of(name).learner_class.learns_step_by_step
]


@pytest.mark.parametrize("config", WHOLE_RETURNS)
def test_algorithms_without_single_rewards_refuse_it(config):
    with pytest.raises(ValueError, match=r"training.intrinsic_reward='rnd' is not allowed for"):
        config().environment("CartPole-v1").training(intrinsic_reward="rnd").validate()


def test_ppo_and_a2c_add_it_to_what_advantages_are_made_of():
    for config in (PPOConfig(), A2CConfig()):
        config.environment("lockstep/SparseMaze-v0", env_config={"size": 3})
        config.training(train_batch_size=64, intrinsic_reward="rnd").reporting(total_steps=64)
        trainer = config.build_trainer()
        stats = next(trainer)
        assert stats.train_collect_stat.returns_stat is None or stats.train_collect_stat.returns_stat.max <= 1.0
        assert trainer.policy.learner_group.get_state() is not None
        assert stats.training_stat.get_loss_stats_dict()["novelty_loss"] > 0


# -- the maze ---


def test_the_maze_is_a_tree_with_its_exit_farthest_from_the_first_cell():
    for layout in range(5):
        env = SparseMaze(6, layout)
        ways = {(cell, int(after)) for cell, row in enumerate(env.next_cells) for after in row if after != cell}
        assert len(ways) == 2 * (36 - 1)
        assert {(b, a) for a, b in ways} == ways
        assert env.distance >= 10
        assert env.exit != 0
    assert not np.array_equal(SparseMaze(6, 0).next_cells, SparseMaze(6, 1).next_cells)


def test_the_way_out_is_paid_at_its_end_and_chance_does_not_find_it():
    env = SparseMaze()
    came_from = {0: None}
    for cell in (front := [0]):
        for action, after in enumerate(env.next_cells[cell]):
            if int(after) not in came_from:
                came_from[int(after)] = (cell, action)
                front.append(int(after))
    way, cell = [], env.exit
    while came_from[cell] is not None:
        cell, action = came_from[cell]
        way.append(action)
    env.reset(seed=0)
    results = [env.step(action) for action in reversed(way)]
    assert len(way) == env.distance
    assert [reward for _, reward, *_ in results] == [0.0] * (len(way) - 1) + [1.0]
    assert [terminated for _, _, terminated, *_ in results] == [False] * (len(way) - 1) + [True]
    moves = np.zeros((49, 49))
    np.add.at(moves, (np.repeat(np.arange(49), 4), env.next_cells.reshape(-1)), 0.25)
    moves[env.exit] = np.eye(49)[env.exit]
    assert np.linalg.matrix_power(moves, 4 * env.distance)[0, env.exit] < 1e-5


def test_an_episode_is_truncated_after_four_times_the_way():
    env = SparseMaze(3)
    env.reset(seed=0)
    steps = next(n for n in range(1, 100) if env.step(0)[3])
    assert steps == 4 * env.distance


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
def test_only_with_it_ppo_finds_the_way_out(seed):
    def best(config):
        trainer = config.debugging(seed=seed).build_trainer()
        trainer.run()
        return trainer.best_stats.returns_stat.mean

    assert best(ppo_sparse_maze()) == 1.0
    assert best(ppo_sparse_maze().training(intrinsic_reward=None)) == 0.0

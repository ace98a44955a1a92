"""PQN: its targets and its loss against written-out numbers and a loop in plain numpy, and its network."""

import numpy as np
import pytest
import torch
from algorithm_tools import MODULE, exact_learner, some_episodes
from gymnasium import spaces

from lockstep import PQNConfig
from lockstep.algorithms.pqn import PQNLearner
from lockstep.data.columns import Columns
from lockstep.data.episode import SingleAgentEpisode

GAMMA, LAMBDA = 0.9, 0.6


class Noting(PQNLearner):
    """Notes the rows of each gradient step, and how it judged them."""

    def compute_loss_for_module(self, *, batch, fwd_out, **parts):
        loss = super().compute_loss_for_module(batch=batch, fwd_out=fwd_out, **parts)
        rows = {name: np.asarray(column) for name, column in batch.items() if torch.is_tensor(column)}
        self.__dict__.setdefault("seen", []).append((rows, fwd_out["q_values"].detach().numpy(), float(loss.detach())))
        return loss


class NotingConfig(PQNConfig):
    learner_class = Noting


def learner_of(**training):
    return exact_learner(NotingConfig(), **{"gamma": GAMMA, "lambda_": LAMBDA, "lr": 0.01, **training})


def action_values(module, obs):
    """The network of the paper's code for one observation: dense, normalised, rectified; then dense."""
    weights = {name: parameter.detach().numpy().copy() for name, parameter in module.named_parameters()}
    x = np.asarray(obs, np.float64)
    x = weights["encoder.mlp.0.weight"] @ x + weights["encoder.mlp.0.bias"]
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    x = np.maximum(x * weights["encoder.mlp.1.weight"] + weights["encoder.mlp.1.bias"], 0.0)
    return weights["policy_head.weight"] @ x + weights["policy_head.bias"]


def targets_of(module, episode):
    """Return for each step the mean of its n-step returns, weighted by lambda: each as far as the episode reaches."""
    best = [action_values(module, obs).max() for obs in episode.get_observations()]
    rewards, length = episode.get_rewards(), len(episode)

    def n_step(t, n):
        value = 0.0 if episode.is_terminated and t + n == length else best[t + n]
        return sum(GAMMA**k * float(rewards[t + k]) for k in range(n)) + GAMMA**n * value

    return [
        sum((1 - LAMBDA) * LAMBDA ** (n - 1) * n_step(t, n) for n in range(1, length - t))
        + LAMBDA ** (length - t - 1) * n_step(t, length - t)
        for t in range(length)
    ]


@pytest.mark.parametrize(
    ("terminated", "expected"),
    # the best action is worth 5 everywhere; gamma and lambda are 0.5
    [(True, [3.25, 4.0, 3.0]), (False, [3.40625, 4.625, 5.5])],
)
def test_targets_equal_numbers_worked_out_by_hand(terminated, expected):
    # ended: 3; 2 + 0.5 (0.5 * 3 + 0.5 * 5) = 4; 1 + 0.5 (0.5 * 4 + 0.5 * 5) = 3.25. Cut: 3 + 0.5 * 5 = 5.5; and so on.
    learner = learner_of(gamma=0.5, lambda_=0.5)
    with torch.no_grad():
        learner.module[MODULE].policy_head.weight.zero_()
        learner.module[MODULE].policy_head.bias.copy_(torch.tensor([2.0, 5.0, -1.0]))
    episode = SingleAgentEpisode(
        observations=np.arange(12).reshape(4, 3).astype(np.float32),
        actions=np.array([0, 1, 2]),
        rewards=np.array([1.0, 2.0, 3.0]),
        terminated=terminated,
        truncated=not terminated,
    )
    results = learner.update_from_episodes([episode])[MODULE]
    ((rows, _, loss),) = learner.seen
    order = rows[Columns.ACTIONS].argsort()
    assert rows[Columns.VALUE_TARGETS][order] == pytest.approx(expected)
    errors = np.array([2.0, 5.0, -1.0]) - expected
    assert loss == pytest.approx(0.5 * np.mean(errors**2))
    assert results["qf_loss"] == pytest.approx(loss)
    assert results["q_mean"] == pytest.approx(2.0)


def test_targets_are_means_of_n_step_returns_within_their_episode():
    learner, episodes = learner_of(), some_episodes()
    expected = [target for episode in episodes for target in targets_of(learner.module[MODULE], episode)]
    learner.update_from_episodes(episodes)
    ((rows, values, loss),) = learner.seen
    assert sorted(rows[Columns.VALUE_TARGETS]) == pytest.approx(sorted(expected))
    taken = values[np.arange(len(expected)), rows[Columns.ACTIONS].astype(int)]
    assert loss == pytest.approx(0.5 * np.mean((taken - rows[Columns.VALUE_TARGETS]) ** 2))


def test_targets_stay_as_they_are_while_an_update_changes_the_network():
    learner = learner_of(lr=0.1)
    learner.update_from_episodes(some_episodes(), num_epochs=3)
    targets = [sorted(rows[Columns.VALUE_TARGETS]) for rows, _, _ in learner.seen]
    assert targets[0] == targets[1] == targets[2]
    assert len({loss for _, _, loss in learner.seen}) == 3


def test_an_action_that_is_forbidden_next_is_worth_nothing_in_a_target():
    space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "obs": spaces.Box(-1.0, 1.0, (2,), np.float32)})
    config = NotingConfig().environment(observation_space=space, action_space=spaces.Discrete(3))
    learner = config.training(gamma=0.5).framework(dtype="float64").build_learner()
    with torch.no_grad():
        learner.module[MODULE].policy_head.weight.zero_()
        learner.module[MODULE].policy_head.bias.copy_(torch.tensor([2.0, 5.0, -1.0]))
    seen = [{"action_mask": np.array(mask, np.int8), "obs": np.zeros(2, np.float32)} for mask in ([1, 1, 1], [1, 0, 1])]
    learner.update_from_episodes(
        [SingleAgentEpisode(observations=seen, actions=[0], rewards=[1.0], truncated=True, observation_space=space)]
    )
    assert learner.seen[0][0][Columns.VALUE_TARGETS] == pytest.approx([1 + 0.5 * 2.0])


def test_there_is_no_target_network_and_no_replay():
    learner = learner_of()
    assert not [name for name in learner.registered if "target" in name]
    assert not PQNConfig.is_off_policy

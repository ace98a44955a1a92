"""Exploration: written-out numbers of the Ornstein-Uhlenbeck process, its autocorrelation, and the density of gSDE."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep.modules import (
    ActionDist,
    AddedNoise,
    DefaultActorCriticModule,
    DefaultSACModule,
    GaussianNoise,
    OrnsteinUhlenbeckNoise,
    StateDependentHead,
    StateDependentNoise,
    make_actor,
)
from lockstep.modules.exploration import check_exploration
from lockstep.modules.layers import noise_matrices

OBS, MOVES = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float32)
NOWHERE, EVERYWHERE = np.zeros(2, bool), np.ones(2, bool)


def generators(seed=0):
    made = [np.random.default_rng([seed, row]) for row in range(8)]
    return made.__getitem__


# -- Ornstein-Uhlenbeck ---


def test_the_noise_process_is_written_out_and_restarts_with_episodes():
    process = OrnsteinUhlenbeckNoise(1, sigma=0.2, theta=0.5, dt=0.25)
    state, drawn = process.initial_state(2), np.array([[1.0], [-2.0]], np.float32)
    x = process.advance(drawn, state, EVERYWHERE, generators())
    np.testing.assert_allclose(x, [[1.0], [-2.0]])
    x = process.advance(drawn, state, NOWHERE, generators())
    np.testing.assert_allclose(x, [[1.0 - 0.125 + 1.0], [-2.0 + 0.25 - 2.0]])
    x = process.advance(drawn, state, np.array([False, True]), generators())
    np.testing.assert_allclose(x, [[1.875 * 0.875 + 1.0], [-2.0]])
    # each step adds sigma * sqrt(dt) * N(0, 1)
    noise = process.draw_noise(np.random.default_rng(1), (5, 2), 0)
    np.testing.assert_allclose(noise, 0.1 * np.random.default_rng(1).standard_normal((5, 2, 1), np.float32), rtol=1e-6)


def test_its_autocorrelation_and_deviation_are_those_of_the_process():
    process, rng = OrnsteinUhlenbeckNoise(1, sigma=0.3, theta=0.2, dt=0.5), np.random.default_rng(0)
    state, seen = process.initial_state(2_000), []
    begins = np.zeros(2_000, bool)
    for step in process.draw_noise(rng, (120, 2_000), 0):
        x = process.advance(step, state, begins, generators())
        seen += [x.copy()]
    x = np.stack(seen)[60:, :, 0]  # [T, B], long after the start
    kept = 1.0 - 0.2 * 0.5
    assert x.std() == pytest.approx(0.3 * np.sqrt(0.5) / np.sqrt(1.0 - kept**2), rel=0.02)
    for lag in (1, 5, 10):
        assert (x[lag:] * x[:-lag]).mean() / (x * x).mean() == pytest.approx(kept**lag, abs=0.03)


def test_a_schedule_moves_the_deviation():
    process = OrnsteinUhlenbeckNoise(4, sigma=[[0, 1.0], [100, 0.0]])
    assert not process.draw_noise(np.random.default_rng(0), (3,), 100).any()
    first, half = (process.draw_noise(np.random.default_rng(0), (3,), step) for step in (0, 50))
    np.testing.assert_allclose(half, 0.5 * first)


def test_noise_has_a_mean_and_a_deviation_for_each_dimension():
    rng = np.random.default_rng
    plain = GaussianNoise(0.5, 2).draw_noise(rng(0), (1000,), 0)
    noise = GaussianNoise(0.5, 2, mean=[1.0, -1.0], weights=[1.0, 0.1])
    np.testing.assert_allclose(noise.draw_noise(rng(0), (1000,), 0), plain * [1.0, 0.1] + [1.0, -1.0], rtol=1e-4)
    on_device = noise.draw_on_device(2000, torch.tensor(0.5), torch.Generator().manual_seed(0))
    np.testing.assert_allclose(on_device.mean(0), [1.0, -1.0], atol=0.05)
    np.testing.assert_allclose(on_device.std(0), [0.5, 0.05], rtol=0.1)

    process = OrnsteinUhlenbeckNoise(2, sigma=1.0, theta=0.5, dt=0.25, mean=[8.0, 0.0], weights=[0.0, 1.0])
    state = process.initial_state(1)
    first, second = process.draw_noise(rng(0), (2, 1), 0)
    x = process.advance(first, state, np.ones(1, bool), generators()).copy()
    np.testing.assert_allclose(x[:, 0], 8.0 * 0.125)  # 0 + theta * (8 - 0) * dt, without a random part
    x = process.advance(second, state, np.zeros(1, bool), generators())
    np.testing.assert_allclose(x[:, 0], 1.0 + 0.125 * (8.0 - 1.0))


def test_added_noise_moves_drawn_actions_within_their_bounds():
    dist = ActionDist(MOVES, squashed=True)
    exploration = AddedNoise(dist, GaussianNoise(5.0, 2))
    noise = exploration.draw_noise(np.random.default_rng(0), (4,), 0)
    assert noise.shape == (4, 4)
    own = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
    taken = exploration.act(lambda obs, drawn: own + 0 * drawn, None, noise)
    np.testing.assert_allclose(taken, np.clip(own + noise[:, 2:], -1, 1))
    np.testing.assert_array_equal(exploration.act(lambda obs, drawn: own, None, None), own)


# -- gSDE ---


def head_of(seed=0, features=5, actions=2):
    torch.manual_seed(seed)
    head = StateDependentHead(features, actions, -1.0).double()
    with torch.no_grad():
        head.log_std.add_(torch.randn(features, actions, dtype=torch.float64) * 0.3)
    return head, torch.randn(4, features, dtype=torch.float64)


def test_mean_deviation_noise_and_density_are_the_written_out_ones():
    head = StateDependentHead(2, 1, 0.0).double()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, -1.0]]))
        head.bias.fill_(0.5)
        head.log_std.copy_(torch.tensor([[0.5], [2.0]]).log())
    features = torch.tensor([[3.0, 1.0]], dtype=torch.float64)
    inputs = head(features)  # 3 - 1 + 0.5, and the root of 9 * 0.25 + 1 * 4
    np.testing.assert_allclose(inputs.detach(), [[2.5, np.log(2.5)]], rtol=1e-6)
    with noise_matrices(torch.tensor([[[1.0], [-0.5]]])):  # 3 * 0.5 * 1 - 1 * 2 * 0.5
        np.testing.assert_allclose(head(features).detach()[:, :1], [[3.0]])
    logp = ActionDist(spaces.Box(-9.0, 9.0, (1,))).from_inputs(inputs).log_prob(torch.tensor([[3.0]]))
    np.testing.assert_allclose(logp.detach(), [-0.5 * 0.2**2 - np.log(2.5) - 0.5 * np.log(2 * np.pi)], rtol=1e-6)


def test_the_density_is_that_of_features_times_a_random_matrix():
    head, features = head_of()
    inputs = head(features)
    sigma = head.log_std.exp()
    actions = torch.randn(4, 2, dtype=torch.float64)
    dist = ActionDist(MOVES).from_inputs(inputs)
    for row in range(4):
        mean = torch.nn.functional.linear(features[row], head.weight, head.bias)
        # the noise features @ (sigma * E) has this covariance over standard normal E, written out entry by entry
        covariance = torch.zeros(2, 2, dtype=torch.float64)
        for i in range(5):
            for j in range(2):
                covariance[j, j] += features[row, i] ** 2 * sigma[i, j] ** 2
        expected = torch.distributions.MultivariateNormal(mean, covariance + 1e-6 * torch.eye(2))
        torch.testing.assert_close(dist.log_prob(actions)[row], expected.log_prob(actions[row]))
        torch.testing.assert_close(dist.entropy()[row], expected.entropy())


def test_action_noise_has_its_density_and_depends_on_the_features():
    head, features = head_of()
    mean, log_std = head(features).chunk(2, dim=-1)
    matrices = torch.randn(20_000, 5, 2, dtype=torch.float64)
    with torch.no_grad(), noise_matrices(matrices):
        moved = torch.stack([head(features[row].expand(20_000, 5))[:, :2] - mean[row] for row in range(4)])
    torch.testing.assert_close(moved.std(1), log_std.exp(), rtol=0.03, atol=0.0)
    assert moved.mean(1).abs().max() < 0.05
    one = matrices[:1].expand(4, 5, 2)
    with noise_matrices(one):
        first, again = head(features), head(features)
    assert torch.equal(first, again)
    torch.testing.assert_close(first[:, :2] - mean, features @ (head.log_std.exp() * matrices[0]))
    assert torch.equal(head(features)[:, :2], mean)  # nothing stays behind


def test_sigma_is_learned_and_its_gradient_does_not_reach_the_features():
    head, features = head_of()
    features.requires_grad_(True)
    log_std = head(features)[:, 2:]
    log_std.sum().backward()
    assert features.grad is None or not features.grad.any()
    assert (head.log_std.grad != 0).all()


@pytest.mark.parametrize("sample_freq", [None, 3])
def test_matrices_stay_for_some_steps_and_no_longer_than_an_episode(sample_freq):
    head, _ = head_of()
    noise = StateDependentNoise(head, sample_freq)
    state, seen = noise.initial_state(2), []
    rows = generators()
    for t in range(9):
        begins = np.array([t == 0, t in (0, 5)])
        drawn = noise.draw_noise(np.random.default_rng(0), (2,), 0)
        seen.append(noise.advance(drawn, state, begins, rows).copy())
    new = [[t == 0 or not np.array_equal(seen[t][b], seen[t - 1][b]) for t in range(9)] for b in range(2)]
    starts = ({0}, {0, 5}) if sample_freq is None else ({0, 3, 6}, {0, 3, 5, 8})
    assert [{t for t in range(9) if row[t]} for row in new] == list(starts)
    own = np.random.default_rng([0, 1]).standard_normal((5, 2), np.float32)
    np.testing.assert_array_equal(seen[0][1], own)  # of its own stream, whoever is beside it


@pytest.mark.parametrize("squashed", [False, True])
@pytest.mark.parametrize("recurrent", [None, "gru"])
def test_an_actor_acts_by_matrices_and_by_plain_noise(squashed, recurrent):
    from lockstep.modules import RecurrentActorCriticModule

    if squashed and recurrent:
        pytest.skip("another class")
    cls = DefaultSACModule if squashed else RecurrentActorCriticModule if recurrent else DefaultActorCriticModule
    config = {"hiddens": (4,), "gsde_log_std_init": -1.0, "recurrent": recurrent, "recurrent_size": 4}
    module = cls(OBS, MOVES, model_config=config)
    actor, rng = make_actor(module), np.random.default_rng(0)
    obs = rng.normal(size=(3, 3)).astype(np.float32)
    matrices = rng.normal(size=(3, 4, 2)).astype(np.float32)
    batch = {"obs": torch.from_numpy(obs)}

    def act(noise):
        if not recurrent:
            return actor.act(obs, noise)
        return actor.act_with_state(obs, noise, actor.get_initial_state(3))[0]

    with torch.no_grad():
        if recurrent:
            inputs = module.forward_inference({"obs": batch["obs"].unsqueeze(1)})
            features = module._run_memories({"obs": batch["obs"].unsqueeze(1)}, None)[0].squeeze(1)
            inputs = inputs["action_dist_inputs"].squeeze(1)
        else:
            inputs, features = (
                module.forward_inference(batch)["action_dist_inputs"],
                module.encoder(batch["obs"], torch.float32),
            )
        moved = torch.einsum("bf,bfa->ba", features, torch.from_numpy(matrices) * module.policy_head.log_std.exp())
    mean, log_std = inputs.chunk(2, dim=-1)
    plain = rng.normal(size=(3, 2)).astype(np.float32)
    squash = torch.tanh if squashed else lambda x: x
    for noise, expected in (
        (None, mean),
        (matrices, mean + moved),
        (plain, mean + log_std.exp() * torch.from_numpy(plain)),
    ):
        np.testing.assert_allclose(act(noise), squash(torch.as_tensor(expected).detach()).numpy(), rtol=1e-5, atol=1e-6)


# -- refusals ---


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ou", {"sigm": 1.0}, "did you mean 'sigma'"),
        ("ou", {"sigma": -0.1}, "at least 0"),
        ("ou", {"sigma": [[0, 0.1], [10, -1.0]]}, "at least 0"),
        ("ou", {"theta": 0.0}, "positive"),
        ("ou", {"theta": 2.0}, "theta"),
        ("ou", {"dt": "1"}, "positive"),
        ("normal", {"sigma": 0.1}, "scale"),
        ("epsilon", {"epsilon": 1.5}, "at most 1"),
        ("gsde", {"sample_freq": 0}, "sample_freq"),
        ("gsde", {"log_std_init": float("nan")}, "finite"),
        ("normal", {"scale": "much"}, "scale"),
    ],
)
def test_options_that_cannot_be_are_refused(name, options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        check_exploration(name, options)

"""PPO in one file (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

Run this file with Python: it trains on the environment in the settings below, prints returns as it learns, and ends
with an evaluation. It needs torch, numpy and gymnasium.

`lockstep train` trains the same agent with the same settings: both begin with the same weights, draw the same random
numbers and take the same minibatches. A test compares the parameters bit for bit, so some lines keep an order of
operations that is not the simplest; a comment says where.
"""

import hashlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

Schedule = Sequence[Sequence[float]]
"""Points `[environment step, value]`. Between two points a setting changes linearly, after the last it is constant."""

# -- settings ---

ENV = "CartPole-v1"
ENV_CONFIG: dict[str, Any] = {}  # keyword arguments of the environment
SEED = 0
TOTAL_STEPS = 100_000  # environment steps
NUM_ENVS = 8  # environments that are stepped together
NUM_STEPS = 125  # steps of each environment between two updates
EVALUATION_EPISODES = 20
NUM_THREADS = 1  # threads that torch uses
DTYPE = torch.float32

HIDDENS: Sequence[int] = (64, 64)  # widths of the hidden layers
ACTIVATION = "tanh"  # tanh, relu, gelu, silu or elu
ORTHOGONAL_INIT = True  # False: torch's default initialisation, without the three gains below
HIDDEN_GAIN = 1.4142135623730951  # gain of the weights of hidden layers, sqrt(2) by default
POLICY_GAIN = 0.01  # gain of the policy's last layer; small, so that the first actions are nearly random
VALUE_GAIN = 1.0  # gain of the value function's last layer
LOG_STD_INIT = 0.0  # first logarithm of the standard deviations of continuous actions

NORMALIZE_OBSERVATIONS = False  # shift and scale observations by running statistics
CLIP_OBSERVATIONS = 10.0  # bound of normalised observations
NORMALIZE_REWARDS = False  # scale rewards by the running deviation of the discounted return
CLIP_REWARDS: float | None = 10.0  # bound of normalised rewards; None: no bound

LEARNING_RATE: float | Schedule = [[0, 0.001], [100_000, 0.0]]
ADAM_EPSILON = 1e-05
GRAD_CLIP: float | None = 0.5  # largest norm of the gradient of all parameters; None: no clipping
NUM_EPOCHS = 10  # passes over each rollout
MINIBATCH_SIZE: int | None = 250  # None: the whole rollout is one minibatch
GAMMA = 0.99  # discount factor
LAMBDA = 0.95  # lambda of generalised advantage estimation
CLIP_PARAM: float | Schedule = 0.2  # epsilon of equation 7
VF_CLIP_PARAM: float | None = None  # largest change of a value in one update; None: no limit
VF_LOSS_COEFF = 0.5  # c1 of equation 9
ENTROPY_COEFF: float | Schedule = 0.0  # c2 of equation 9
NORMALIZE_ADVANTAGES: str | None = "minibatch"  # over the rows of a "minibatch", of the whole "batch", or None
TARGET_KL: float | None = None  # a pass with a larger mean KL is the last one over its rollout; None: no limit

# -- end of settings ---

NUM_UPDATES = -(-TOTAL_STEPS // (NUM_STEPS * NUM_ENVS))


# -- random numbers: an independent stream for each purpose, derived from one seed ---


def derive(key: bytes, kind: str, name: str, index: int = 0) -> bytes:
    """Derive the key for a kind of number, a name and an index from the key of a branch."""
    digest = hashlib.sha256(key)
    for part in (kind.encode(), name.encode(), str(index).encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def branch(*path: str) -> bytes:
    """Return the key of a branch in the tree of streams that grows from `SEED`."""
    key = hashlib.sha256(b"lockstep streams" + str(SEED).encode()).digest()
    for name in path:
        key = derive(key, "child", name)
    return key


def stream(*path: str) -> np.random.Generator:
    """Return the random generator at the end of a path of names."""
    *names, last = path
    key = derive(branch(*names), "numpy", last)
    return np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))


def seeds(*path: str, number: int = 1) -> list[int]:
    """Return seeds for generators that this file does not own, such as those of the environments."""
    *names, last = path
    digests = [derive(branch(*names), "seed", last, index) for index in range(number)]
    return [int.from_bytes(digest[:4], "little") >> 1 for digest in digests]


# -- networks ---

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
}


def to_tensor(array: np.ndarray) -> Tensor:
    """Return an array as a tensor: whole numbers keep their type, all others get the type of the weights."""
    dtype = None if array.dtype.kind == "i" else DTYPE
    return torch.as_tensor(array, dtype=dtype)


def make_linear(num_inputs: int, num_outputs: int, gain: float) -> nn.Linear:
    """Make a linear layer with orthogonal weights times `gain` (Saxe et al. 2014), or with torch's default weights."""
    layer = nn.Linear(num_inputs, num_outputs)
    if ORTHOGONAL_INIT:
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return layer


def make_network(num_inputs: int, num_outputs: int, gain: float) -> nn.Sequential:
    """Make a multi-layer perceptron. `gain`: gain of the weights of its last layer."""
    layers: list[nn.Module] = []
    for width in HIDDENS:
        layers += [make_linear(num_inputs, width, HIDDEN_GAIN), ACTIVATIONS[ACTIVATION]()]
        num_inputs = width
    return nn.Sequential(*layers, make_linear(num_inputs, num_outputs, gain))


class Categorical:
    """Categorical distributions over discrete actions. Actions are int64 `[N]`."""

    def __init__(self, logits: Tensor) -> None:
        """Make distributions from logits `[N, A]`, which need not be normalised."""
        self.logits = logits

    @cached_property
    def log_probs(self) -> Tensor:
        """Logarithms of the probabilities of all actions, `[N, A]`."""
        return torch.log_softmax(self.logits, dim=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of `actions`, `[N]`."""
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropies in nats, `[N]`."""
        return -torch.linalg.vecdot(self.log_probs.exp(), self.log_probs)

    def mode(self) -> Tensor:
        """Return the most likely actions."""
        return self.logits.argmax(-1)

    def sample(self, noise: Tensor) -> Tensor:
        """Return the actions that Gumbel noise `[N, A]` selects: the largest sum of logit and noise."""
        return (self.logits + noise).argmax(-1)


HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


class DiagGaussian:
    """Normal distributions over continuous actions with independent components. Actions are `[N, A]`."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """Make distributions from means and logarithms of standard deviations, both `[N, A]`."""
        self.mean = mean
        self.log_std = log_std

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the logarithms of the densities of `actions`, `[N]`."""
        scaled = (actions - self.mean) * torch.exp(-self.log_std)
        energy = torch.addcmul(self.log_std, scaled, scaled, value=0.5).sum(-1)
        return -self.mean.shape[-1] * HALF_LOG_2_PI - energy

    def entropy(self) -> Tensor:
        """Return the entropies in nats, `[N]`."""
        return self.log_std.sum(-1) + self.mean.shape[-1] * (0.5 + HALF_LOG_2_PI)

    def mode(self) -> Tensor:
        """Return the most likely actions."""
        return self.mean

    def sample(self, noise: Tensor) -> Tensor:
        """Return the actions that standard normal noise `[N, A]` selects."""
        return torch.addcmul(self.mean, self.log_std.exp(), noise)


class RunningMoments:
    """Mean and variance of all rows so far, computed without storing the rows (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        """Start without rows. `shape`: shape of a row."""
        self.count = 0
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)  # sums of squared distances from the mean

    @property
    def variance(self) -> np.ndarray:
        """Variance of the rows; 1 before the first row, so that nothing is scaled then."""
        if self.count == 0:
            return np.ones(self.mean.shape)
        return np.asarray(self.squares / self.count)

    def update(self, rows: np.ndarray) -> None:
        """Add rows `[N, *shape]`."""
        rows = rows.astype(np.float64)
        count = len(rows)
        mean = rows.mean(axis=0)
        squares = np.square(rows - mean).sum(axis=0)

        total = self.count + count
        delta = mean - self.mean
        self.mean = self.mean + delta * (count / total)
        self.squares = self.squares + squares + np.square(delta) * (self.count * (count / total))
        self.count = total


class Agent(nn.Module):
    """Policy and value function: two networks that share no layers."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__()
        assert isinstance(observation_space, gym.spaces.Box)
        (num_inputs,) = observation_space.shape
        self.is_discrete = isinstance(action_space, gym.spaces.Discrete)
        self.num_outputs = num_policy_outputs(action_space)

        # The order in which layers are made decides which random numbers they are initialised with.
        self.policy = make_network(num_inputs, self.num_outputs, POLICY_GAIN)
        if not self.is_discrete:
            self.log_std = nn.Parameter(torch.full((self.num_outputs,), float(LOG_STD_INIT)))
        self.value = make_network(num_inputs, 1, VALUE_GAIN)
        self.moments = RunningMoments(observation_space.shape)

    def preprocess(self, obs: np.ndarray) -> Tensor:
        """Return observations `[N, ...]` as inputs of the networks."""
        if not NORMALIZE_OBSERVATIONS:
            return to_tensor(obs)
        dtype = np.float32 if np.can_cast(obs.dtype, np.float32, "safe") else np.float64
        scale = 1.0 / np.sqrt(self.moments.variance + 1e-8)
        scaled = (obs.astype(dtype) - self.moments.mean.astype(dtype)) * scale.astype(dtype)
        return to_tensor(np.clip(scaled, -CLIP_OBSERVATIONS, CLIP_OBSERVATIONS))

    def distribution(self, inputs: Tensor) -> Categorical | DiagGaussian:
        """Return the policy's distributions over actions for preprocessed observations `[N, ...]`."""
        outputs = self.policy(inputs)
        if self.is_discrete:
            return Categorical(outputs)
        # Joined and split again as in the library, whose networks return both as one tensor. So the gradient of
        # `log_std` is summed in the same order.
        joined = torch.cat([outputs, self.log_std.expand_as(outputs)], -1)
        mean, log_std = joined.chunk(2, -1)
        return DiagGaussian(mean, log_std)

    def values(self, inputs: Tensor) -> Tensor:
        """Return the estimated returns from preprocessed observations `[N, ...]`, `[N]`."""
        return self.value(inputs).squeeze(-1)

    def draw_noise(self, rng: np.random.Generator) -> np.ndarray:
        """Return the random numbers for all actions of one rollout, `[T, B, A]`."""
        shape = (NUM_STEPS, NUM_ENVS, self.num_outputs)
        if not self.is_discrete:
            return rng.standard_normal(shape, dtype=np.float32)
        # Minus the logarithm of exponential numbers is Gumbel distributed; 0 would become infinity.
        exponential = rng.standard_exponential(shape).astype(np.float32)
        return -np.log(np.maximum(exponential, np.finfo(np.float32).tiny))

    @torch.no_grad()
    def act(self, obs: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
        """Return the actions that `noise` `[N, A]` selects for observations `[N, ...]`; without it the most likely."""
        dist = self.distribution(self.preprocess(obs))
        actions = dist.mode() if noise is None else dist.sample(to_tensor(noise))
        return actions.numpy()


def num_policy_outputs(action_space: gym.Space) -> int:
    """Return the number of actions to choose from, or the number of components of a continuous action."""
    if isinstance(action_space, gym.spaces.Discrete):
        return int(action_space.n)
    assert isinstance(action_space, gym.spaces.Box)
    return action_space.shape[0]


# -- environments ---


def make_envs() -> gym.vector.VectorEnv:
    """Make the environments. The step that ends an episode returns the first observation of the next one."""
    options = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    return gym.make_vec(ENV, NUM_ENVS, vectorization_mode="sync", vector_kwargs=options, **ENV_CONFIG)


def true_next_obs(obs: np.ndarray, dones: np.ndarray, infos: dict[str, Any]) -> np.ndarray:
    """Return the observations after a step: at the end of an episode its last one, not the first of the next one."""
    next_obs = obs.copy()
    for b in np.flatnonzero(dones):
        next_obs[b] = infos["final_obs"][b]
    return next_obs


def to_env(actions: np.ndarray, space: gym.Space) -> np.ndarray:
    """Return actions that the environment accepts: continuous ones are clipped to the bounds."""
    if not isinstance(space, gym.spaces.Box):
        return actions
    return np.clip(actions.astype(space.dtype), space.low, space.high)


def evaluate(agent: Agent) -> list[float]:
    """Play episodes with the most likely actions, and return their returns."""
    env = gym.make(ENV, **ENV_CONFIG)
    returns = []
    for seed in seeds("evaluation", number=EVALUATION_EPISODES):
        obs, _ = env.reset(seed=seed)
        total = 0.0
        done = False
        while not done:
            action = to_env(agent.act(obs[None]), env.action_space)[0]
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            done = terminated or truncated
        returns.append(total)
    env.close()
    return returns


# -- rollouts ---


@dataclass
class Rollout:
    """`NUM_STEPS` (T) steps of `NUM_ENVS` (B) environments; all arrays are `[T, B, ...]`."""

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_obs: np.ndarray
    terminateds: np.ndarray
    truncateds: np.ndarray

    @property
    def dones(self) -> np.ndarray:
        """Whether an episode ended with the step."""
        return self.terminateds | self.truncateds


class Collector:
    """Collector that plays the environments and keeps the returns of finished episodes."""

    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        self.envs = envs
        self.rng = stream("train_collector", "exploration")
        reset_seeds: Any = seeds("train_collector", "env_reset/0", number=NUM_ENVS)  # gymnasium annotates one seed only
        self.obs, _ = envs.reset(seed=reset_seeds)
        self.running_returns = np.zeros(NUM_ENVS)
        self.finished_returns: list[float] = []

    def collect(self, agent: Agent) -> Rollout:
        """Return the next rollout."""
        noise = agent.draw_noise(self.rng)
        steps = []
        for t in range(NUM_STEPS):
            actions = agent.act(self.obs, noise[t])
            env_actions = to_env(actions, self.envs.single_action_space)
            obs, rewards, terminateds, truncateds, infos = self.envs.step(env_actions)
            dones = terminateds | truncateds
            next_obs = true_next_obs(obs, dones, infos)
            # The actions before clipping are stored, since the policy gives log-probabilities of these only.
            steps.append((self.obs, actions, rewards.astype(np.float32), next_obs, terminateds, truncateds))

            self.running_returns += rewards
            self.finished_returns += self.running_returns[dones].tolist()
            self.running_returns[dones] = 0.0
            self.obs = obs
        return Rollout(*map(np.stack, zip(*steps)))


class RewardScaler:
    """Scaler that divides rewards by the standard deviation of the discounted returns so far (Engstrom et al. 2020)."""

    def __init__(self) -> None:
        self.moments = RunningMoments()
        self.discounted = np.zeros(NUM_ENVS)

    def scale(self, rewards: np.ndarray, dones: np.ndarray) -> np.ndarray:
        """Add the returns of a rollout to the deviation, and return its scaled rewards `[T, B]`."""
        returns = np.empty(rewards.shape)
        for t in range(NUM_STEPS):
            self.discounted = self.discounted * GAMMA + rewards[t]
            returns[t] = self.discounted
            self.discounted = self.discounted * ~dones[t]
        self.moments.update(returns.reshape(-1))

        scaled = rewards * np.float32(1.0 / np.sqrt(self.moments.variance + 1e-8))
        if CLIP_REWARDS is not None:
            scaled = np.clip(scaled, -CLIP_REWARDS, CLIP_REWARDS)
        return scaled


def gae(rollout: Rollout, rewards: np.ndarray, values: np.ndarray, next_values: np.ndarray) -> np.ndarray:
    """Return the advantages `[T, B]` of all steps (Schulman et al. 2016, https://arxiv.org/abs/1506.02438).

    `A[t] = delta[t] + gamma * lambda * A[t + 1]` (equation 16) with `delta[t] = r[t] + gamma * V(s[t + 1]) - V(s[t])`.
    After a termination the value is 0, and no advantage reaches over the end of an episode.
    """
    continues = ~rollout.dones
    deltas = rewards - values + GAMMA * (next_values * ~rollout.terminateds)
    advantages = np.empty_like(deltas)
    next_advantages = np.zeros(NUM_ENVS)
    for t in reversed(range(NUM_STEPS)):
        next_advantages = deltas[t] + GAMMA * LAMBDA * next_advantages * continues[t]
        advantages[t] = next_advantages
    return advantages


def rows(steps: np.ndarray) -> np.ndarray:
    """Return `[T, B, ...]` as `[T * B, ...]`."""
    return steps.reshape(-1, *steps.shape[2:])


@torch.no_grad()
def make_batch(agent: Agent, rollout: Rollout, rewards: np.ndarray) -> dict[str, Tensor]:
    """Return the columns `[T * B, ...]` that the loss needs, computed with the parameters that acted in the rollout."""
    inputs = agent.preprocess(rows(rollout.obs))
    actions = to_tensor(rows(rollout.actions))
    old_values = agent.values(inputs)
    old_logp = agent.distribution(inputs).log_prob(actions)

    # The value after a step is the value of the next row. Two kinds of steps have no such row, so that their next
    # observations are evaluated: the last step of the rollout, unless it ended an episode, and each step at which an
    # episode was truncated.
    values = old_values.numpy().reshape(rewards.shape)
    next_values = np.concatenate([values[1:], values[:1]])
    unfinished = np.flatnonzero(~rollout.dones[-1]) + (NUM_STEPS - 1) * NUM_ENVS
    truncated = np.flatnonzero(rollout.truncateds & ~rollout.terminateds)
    cuts = np.concatenate([unfinished, truncated])
    next_inputs = agent.preprocess(rows(rollout.next_obs)[cuts])
    next_values.reshape(-1)[cuts] = agent.values(next_inputs).numpy()

    values = values.astype(np.float64)
    advantages = gae(rollout, rewards, values, next_values.astype(np.float64))
    batch = {
        "inputs": inputs,
        "actions": actions,
        "old_values": old_values,
        "old_logp": old_logp,
        "advantages": to_tensor(advantages.reshape(-1)),
        "value_targets": to_tensor((advantages + values).reshape(-1)),
    }
    if NORMALIZE_ADVANTAGES == "batch":
        batch["advantages"] = normalized(batch["advantages"])
    return batch


def minibatches(batch: dict[str, Tensor], rng: np.random.Generator) -> Iterator[dict[str, Tensor]]:
    """Yield the minibatches of one pass in random order; rows that do not fill a minibatch are left out."""
    num_rows = NUM_STEPS * NUM_ENVS
    if MINIBATCH_SIZE is None or num_rows <= MINIBATCH_SIZE:
        yield batch
        return
    order = torch.from_numpy(rng.permutation(num_rows))
    for start in range(0, num_rows - MINIBATCH_SIZE + 1, MINIBATCH_SIZE):
        indices = order[start : start + MINIBATCH_SIZE]
        yield {name: column[indices] for name, column in batch.items()}


# -- learning ---


def scheduled(setting: float | Schedule, step: int) -> float:
    """Return the value of a setting, which may be a schedule, at an environment step."""
    if isinstance(setting, int | float):
        return setting
    steps, values = zip(*setting)
    return float(np.interp(step, steps, values))


def normalized(values: Tensor) -> Tensor:
    """Return `values` `[N]`, shifted and scaled to mean 0 and standard deviation 1."""
    variance, mean = torch.var_mean(values, correction=0)
    return (values - mean) / (variance.sqrt() + 1e-8)


def surrogate_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor, clip_param: float) -> Tensor:
    """Return the clipped objective of equation 7 with its sign changed, `[N]`.

    Equation 7 is `min(ratio * A, clip(ratio, 1 - epsilon, 1 + epsilon) * A)`. The second argument is never larger than
    `A + epsilon * |A|`, and equals it wherever it is the smaller one. So one bound is enough.
    """
    negated = -advantages
    bound = negated - clip_param * advantages.abs()
    return torch.clamp(torch.exp(logp - old_logp) * negated, min=bound)


def value_loss(values: Tensor, value_targets: Tensor, old_values: Tensor) -> Tensor:
    """Return half the squared errors of the values, `[N]`; with `VF_CLIP_PARAM` at least those of clipped values."""
    squared_errors = (values - value_targets).square()
    if VF_CLIP_PARAM is None:
        return 0.5 * squared_errors
    clipped = old_values + (values - old_values).clamp(-VF_CLIP_PARAM, VF_CLIP_PARAM)
    return 0.5 * torch.maximum(squared_errors, (clipped - value_targets).square())


def approximate_kl(logp: Tensor, old_logp: Tensor) -> Tensor:
    """Return estimates of `KL(old || new)` from the old policy's actions (Schulman 2020, "Approximating KL"), `[N]`."""
    log_ratio = logp - old_logp
    return torch.expm1(log_ratio) - log_ratio


def ppo_loss(agent: Agent, batch: dict[str, Tensor], step: int) -> tuple[Tensor, Tensor]:
    """Return equation 9 with its sign changed, and the log-probabilities of the actions `[N]`."""
    dist = agent.distribution(batch["inputs"])
    values = agent.values(batch["inputs"])
    logp = dist.log_prob(batch["actions"])
    advantages = batch["advantages"]
    if NORMALIZE_ADVANTAGES == "minibatch":
        advantages = normalized(advantages)

    policy_losses = surrogate_loss(logp, batch["old_logp"], advantages, scheduled(CLIP_PARAM, step))
    value_losses = value_loss(values, batch["value_targets"], batch["old_values"])
    loss = policy_losses.mean() + VF_LOSS_COEFF * value_losses.mean()
    if ENTROPY_COEFF:
        loss = loss - scheduled(ENTROPY_COEFF, step) * dist.entropy().mean()
    return loss, logp.detach()


def flatten(parameters: Iterable[nn.Parameter]) -> nn.Parameter:
    """Move parameters and their gradients into one vector and return it.

    The parameters become views of the vector, so Adam and clipping are one operation each for all of them.
    """
    parts = list(parameters)
    sizes = [part.numel() for part in parts]
    flat = nn.Parameter(torch.cat([part.detach().reshape(-1) for part in parts]))
    gradient = torch.zeros_like(flat)
    flat.grad = gradient
    for part, data, grad in zip(parts, flat.detach().split(sizes), gradient.split(sizes)):
        part.data = data.view(part.shape)
        part.grad = grad.view(part.shape)
    return flat


def clip_gradient(parameters: nn.Parameter) -> None:
    """Scale the gradient down to the norm `GRAD_CLIP` if it is longer."""
    assert parameters.grad is not None
    if GRAD_CLIP is not None:
        bound = parameters.grad.new_full((), GRAD_CLIP)
        norm = torch.linalg.vector_norm(parameters.grad)
        parameters.grad.mul_(bound / torch.fmax(norm + 1e-6, bound))


def learn(
    agent: Agent,
    parameters: nn.Parameter,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, Tensor],
    rng: np.random.Generator,
    step: int,
) -> None:
    """Update the agent by `NUM_EPOCHS` passes over a batch, or fewer if the policy moves too far."""
    optimizer.param_groups[0]["lr"] = scheduled(LEARNING_RATE, step)
    for _ in range(NUM_EPOCHS):
        divergences = []
        for minibatch in minibatches(batch, rng):
            loss, logp = ppo_loss(agent, minibatch, step)
            # The gradients are views of one vector. Setting them to None would separate them from it.
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            clip_gradient(parameters)
            optimizer.step()
            divergences.append(float(approximate_kl(logp, minibatch["old_logp"]).mean()))
        if TARGET_KL is not None and np.mean(divergences) > TARGET_KL:
            break


def train() -> Agent:
    """Train an agent and return it."""
    torch.set_num_threads(NUM_THREADS)
    envs = make_envs()
    torch.manual_seed(seeds("module")[0])
    agent = Agent(envs.single_observation_space, envs.single_action_space).to(DTYPE)
    parameters = flatten(agent.parameters())
    optimizer = torch.optim.Adam([parameters], scheduled(LEARNING_RATE, 0), eps=ADAM_EPSILON, fused=True)
    shuffling = stream("learner", "minibatches")
    collector = Collector(envs)
    scaler = RewardScaler()

    start_time = time.time()
    for update in range(1, NUM_UPDATES + 1):
        step = update * NUM_STEPS * NUM_ENVS
        rollout = collector.collect(agent)
        rewards = rollout.rewards
        if NORMALIZE_REWARDS:
            rewards = scaler.scale(rewards, rollout.dones)
        batch = make_batch(agent, rollout, rewards)
        learn(agent, parameters, optimizer, batch, shuffling, step)
        # Only after the update, which must learn from the same inputs that the policy acted on.
        agent.moments.update(rows(rollout.obs))

        if collector.finished_returns and update % max(1, NUM_UPDATES // 20) == 0:
            recent = np.mean(collector.finished_returns[-100:])
            print(f"step {step:,}: return {recent:.2f}, {step / (time.time() - start_time):,.0f} steps/s")
    envs.close()
    return agent


if __name__ == "__main__":
    returns = evaluate(train())
    print(f"evaluation: return {np.mean(returns):.2f} ± {np.std(returns):.2f} over {len(returns)} episodes")

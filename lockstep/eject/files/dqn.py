"""DQN in one file (Mnih et al. 2015, "Human-level control through deep reinforcement learning").

With the extensions that settings switch on: double Q-learning, dueling networks and returns of several steps.

Run this file with Python: it trains on the environment in the settings below, prints returns as it learns, and ends
with an evaluation. It needs torch, numpy and gymnasium.

`lockstep train` trains the same agent with the same settings: both begin with the same weights, draw the same random
numbers and take the same minibatches. A test compares the parameters bit for bit, so some lines keep an order of
operations that is not the simplest; a comment says where.
"""

import copy
import hashlib
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Schedule = Sequence[Sequence[float]]
"""Points `[environment step, value]`. Between two points a setting changes linearly, after the last it is constant."""

# -- settings ---

ENV = "CartPole-v1"
ENV_CONFIG: dict[str, Any] = {}  # keyword arguments of the environment
SEED = 0
TOTAL_STEPS = 50_000  # environment steps
NUM_ENVS = 8  # environments that are stepped together
NUM_STEPS = 25  # steps of each environment between two updates
EVALUATION_EPISODES = 20
NUM_THREADS = 1  # threads that torch uses
DTYPE = torch.float32

HIDDENS: Sequence[int] = (128, 128)  # widths of the hidden layers
ACTIVATION = "relu"  # tanh, relu, gelu, silu or elu
ORTHOGONAL_INIT = False  # False: torch's default initialisation, without the three gains below
HIDDEN_GAIN = 1.4142135623730951  # gain of the weights of hidden layers, sqrt(2) by default
POLICY_GAIN = 0.01  # gain of the last layer of the network of values, or of advantages
VALUE_GAIN = 1.0  # gain of the last layer of the state value in a dueling network
DUELING = True  # a network of advantages and one of the state value

CAPACITY = 100_000  # transitions that the replay buffer holds
BATCH_SIZE = 64  # transitions in a gradient step
LEARNING_STARTS = 1000  # environment steps with random actions, before the first gradient step
UPDATES_PER_STEP = 0.5  # gradient steps for each environment step
N_STEP = 3  # rewards that are summed before the value of the state after them is added
GAMMA = 0.99  # discount factor

EPSILON: float | Schedule = [[0, 1.0], [8000, 0.04]]  # probability of a random action
LEARNING_RATE: float | Schedule = [[0, 0.001], [50_000, 0.0]]
ADAM_EPSILON = 1e-08
GRAD_CLIP: float | None = 10.0  # largest norm of the gradient of all parameters; None: no clipping
DOUBLE_Q = True  # the learning network chooses the next action, the target network gives its value
HUBER_DELTA: float | None = 1.0  # larger errors count linearly, smaller ones squared; None: all squared
TARGET_UPDATE_INTERVAL = 1  # gradient steps between two updates of the target network
TAU = 0.01  # share of the learning network in an update of the target network; 1: a copy

# -- end of settings ---

STEPS_PER_ROUND = NUM_STEPS * NUM_ENVS
PRINT_EVERY = max(1, TOTAL_STEPS // 20)


# -- random numbers: an independent stream for each purpose, derived from one seed ---


def derive(key: bytes, kind: str, name: str, index: int = 0) -> bytes:
    """Derive the key for a kind of number, a name and an index from the key of a branch."""
    digest = hashlib.sha256(key)
    for part in (kind.encode(), name.encode(), str(index).encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def branch(*path: str, seed: int = SEED) -> bytes:
    """Return the key of a branch in the tree of streams that grows from a seed."""
    key = hashlib.sha256(b"lockstep streams" + str(seed).encode()).digest()
    for name in path:
        key = derive(key, "child", name)
    return key


def stream(*path: str, seed: int = SEED) -> np.random.Generator:
    """Return the random generator at the end of a path of names."""
    *names, last = path
    key = derive(branch(*names, seed=seed), "numpy", last)
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


class Agent(nn.Module):
    """Network of the values of all actions, or a dueling network (Wang et al. 2016, arXiv:1511.06581)."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__()
        assert isinstance(observation_space, gym.spaces.Box)
        assert isinstance(action_space, gym.spaces.Discrete)
        (num_inputs,) = observation_space.shape
        self.num_actions = int(action_space.n)
        if DUELING:
            self.advantages = make_network(num_inputs, self.num_actions, POLICY_GAIN)
            self.value = make_network(num_inputs, 1, VALUE_GAIN)
        else:
            self.values = make_network(num_inputs, self.num_actions, POLICY_GAIN)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the values `[N, A]` of all actions; in a dueling network `V + A - mean(A)` (equation 9)."""
        if not DUELING:
            return self.values(obs)
        advantages = self.advantages(obs)
        value = self.value(obs)
        return value + advantages - advantages.mean(-1, keepdim=True)

    @torch.no_grad()
    def act(self, obs: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
        """Return the best actions for observations `[N, ...]`, or the best after `noise` `[N, A]` has been added."""
        # The state value does not change the order of the actions, so a dueling network acts by its advantages.
        network = self.advantages if DUELING else self.values
        scores = network(to_tensor(obs))
        if noise is not None:
            scores = scores + to_tensor(noise)
        return scores.argmax(-1).numpy()


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


def evaluate(agent: Agent) -> list[float]:
    """Play episodes with the best actions, and return their returns."""
    env = gym.make(ENV, **ENV_CONFIG)
    returns = []
    for seed in seeds("evaluation", number=EVALUATION_EPISODES):
        obs, _ = env.reset(seed=seed)
        total = 0.0
        done = False
        while not done:
            action = agent.act(obs[None])[0]
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            done = terminated or truncated
        returns.append(total)
    env.close()
    return returns


# -- replay ---


class Replay:
    """Replay buffer with the newest transitions in a ring, one row for each environment and step."""

    def __init__(self) -> None:
        self.size = -(-CAPACITY // NUM_ENVS)  # in steps of all environments
        self.count = 0  # steps of all environments so far
        self.columns: dict[str, np.ndarray] = {}
        self.rng = stream("sample", seed=seeds("replay")[0])

    def add(self, **step: np.ndarray) -> None:
        """Add one step of all environments; in a full buffer it replaces the oldest one."""
        start = self.count % self.size * NUM_ENVS
        for name, rows in step.items():
            if name not in self.columns:
                self.columns[name] = np.empty((self.size * NUM_ENVS, *rows.shape[1:]), rows.dtype)
            self.columns[name][start : start + NUM_ENVS] = rows
        self.count += 1

    def sample(self) -> dict[str, Tensor]:
        """Return `BATCH_SIZE` transitions, all with the same probability."""
        num_rows = min(self.count, self.size) * NUM_ENVS
        # Rounding may make a product `num_rows` itself.
        rows = np.minimum((self.rng.random(BATCH_SIZE) * num_rows).astype(np.int64), num_rows - 1)
        batch = self._one_step(rows) if N_STEP == 1 else self._n_steps(rows)
        return {name: to_tensor(column) for name, column in batch.items()}

    def _one_step(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {name: column[rows] for name, column in self.columns.items() if name != "dones"}

    def _n_steps(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return transitions over up to `N_STEP` steps, fewer at the end of an episode and of the stored steps.

        `rewards` are discounted sums, `discounts` is the factor of the value after the last step.
        """
        newest = (self.count - 1) % self.size
        continues = np.ones(BATCH_SIZE, bool)
        last = rows
        rewards = self.columns["rewards"][rows].astype(np.float64)
        discounts = np.full(BATCH_SIZE, GAMMA)
        for _ in range(N_STEP - 1):
            continues &= ~self.columns["dones"][last] & (last // NUM_ENVS != newest)
            last = np.where(continues, (last + NUM_ENVS) % (self.size * NUM_ENVS), last)
            rewards += np.where(continues, discounts * self.columns["rewards"][last], 0.0)
            discounts = np.where(continues, discounts * GAMMA, discounts)
        return {
            "obs": self.columns["obs"][rows],
            "actions": self.columns["actions"][rows],
            "rewards": rewards.astype(np.float32),
            "discounts": discounts.astype(np.float32),
            "next_obs": self.columns["next_obs"][last],
            "terminateds": self.columns["terminateds"][last],
        }


# -- collecting ---


def epsilon_greedy(rng: np.random.Generator, num_actions: int, epsilon: float) -> np.ndarray:
    """Return noise `[T, B, A]` that makes actions epsilon-greedy when it is added to their values.

    With probability `epsilon` the noise is so large that it decides alone. Otherwise it is 0: the best action is taken.
    """
    noise = rng.random((NUM_STEPS, NUM_ENVS, num_actions), np.float32)
    is_random = rng.random((NUM_STEPS, NUM_ENVS, 1)) < epsilon
    return noise * (np.float32(1e8) * is_random)


class Collector:
    """Collector that plays the environments and keeps the returns of finished episodes."""

    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        self.envs = envs
        self.exploration = stream("train_collector", "exploration")
        self.random_actions = stream("train_collector", "random_actions")
        reset_seeds: Any = seeds("train_collector", "env_reset/0", number=NUM_ENVS)  # gymnasium annotates one seed only
        self.obs, _ = envs.reset(seed=reset_seeds)
        self.running_returns = np.zeros(NUM_ENVS)
        self.finished_returns: list[float] = []

    def collect(self, agent: Agent, replay: Replay, step: int) -> None:
        """Add `NUM_STEPS` steps of each environment to the buffer. `step`: environment step before them."""
        noise = None
        if step >= LEARNING_STARTS:
            noise = epsilon_greedy(self.exploration, agent.num_actions, scheduled(EPSILON, step))

        for t in range(NUM_STEPS):
            if noise is None:
                actions = self.random_actions.integers(0, agent.num_actions, NUM_ENVS)
            else:
                actions = agent.act(self.obs, noise[t])
            obs, rewards, terminateds, truncateds, infos = self.envs.step(actions)
            dones = terminateds | truncateds
            replay.add(
                obs=self.obs,
                actions=actions,
                rewards=rewards.astype(np.float32),
                next_obs=true_next_obs(obs, dones, infos),
                terminateds=terminateds,
                dones=dones,
            )

            self.running_returns += rewards
            self.finished_returns += self.running_returns[dones].tolist()
            self.running_returns[dones] = 0.0
            self.obs = obs


# -- learning ---


def scheduled(setting: float | Schedule, step: int) -> float:
    """Return the value of a setting, which may be a schedule, at an environment step."""
    if isinstance(setting, int | float):
        return setting
    steps, values = zip(*setting)
    return float(np.interp(step, steps, values))


def dqn_loss(agent: Agent, target: Agent, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean error of `Q(s, a)` against `r + gamma * Q'(s', a')`, where `Q'` is the target network.

    `a'` is the best action by `Q'`, or by `Q` in double Q-learning (van Hasselt et al. 2016, arXiv:1509.06461).
    """
    values = agent(batch["obs"]).gather(1, batch["actions"].unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        target_values = target(batch["next_obs"])
        selection_values = agent(batch["next_obs"]) if DOUBLE_Q else target_values
        best_actions = selection_values.argmax(-1, keepdim=True)
        next_values = target_values.gather(1, best_actions).squeeze(1)
        discounts = GAMMA if N_STEP == 1 else batch["discounts"]
        # After a termination there is no value. A truncated episode could have continued, so its value counts.
        targets = batch["rewards"] + (1.0 - batch["terminateds"]) * discounts * next_values
    if HUBER_DELTA is None:
        return (0.5 * (values - targets).square()).mean()
    return F.huber_loss(values, targets, reduction="none", delta=HUBER_DELTA).mean()


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


class Learner:
    """Learner of an agent: its target network, its optimizer and its gradient steps."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.target = copy.deepcopy(agent).requires_grad_(False)
        self.parameters = flatten(agent.parameters())
        self.target_parameters = flatten(self.target.parameters())
        learning_rate = scheduled(LEARNING_RATE, 0)
        self.optimizer = torch.optim.Adam([self.parameters], learning_rate, eps=ADAM_EPSILON, fused=True)
        self.gradient_steps = 0

    def update(self, batch: dict[str, Tensor], step: int) -> None:
        """Take one gradient step with a batch. `step`: environment step, for the schedules."""
        self.gradient_steps += 1
        self.optimizer.param_groups[0]["lr"] = scheduled(LEARNING_RATE, step)
        loss = dqn_loss(self.agent, self.target, batch)
        # The gradients are views of one vector. Setting them to None would separate them from it.
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        clip_gradient(self.parameters)
        self.optimizer.step()
        if self.gradient_steps % TARGET_UPDATE_INTERVAL == 0:
            self.target_parameters.data.lerp_(self.parameters.data, TAU)


def train() -> Agent:
    """Train an agent and return it."""
    torch.set_num_threads(NUM_THREADS)
    envs = make_envs()
    torch.manual_seed(seeds("module")[0])
    agent = Agent(envs.single_observation_space, envs.single_action_space).to(DTYPE)
    learner = Learner(agent)
    collector = Collector(envs)
    replay = Replay()

    start_time = time.time()
    steps_to_learn_from = 0
    for step in range(STEPS_PER_ROUND, TOTAL_STEPS + STEPS_PER_ROUND, STEPS_PER_ROUND):
        collector.collect(agent, replay, step - STEPS_PER_ROUND)
        if step - STEPS_PER_ROUND >= LEARNING_STARTS:
            steps_to_learn_from += STEPS_PER_ROUND

        # Without 1e-9 rounding could lose a gradient step: 0.29 * 100 is a little less than 29.
        due = math.floor(UPDATES_PER_STEP * steps_to_learn_from + 1e-9)
        while learner.gradient_steps < due:
            learner.update(replay.sample(), step)

        if collector.finished_returns and step % PRINT_EVERY < STEPS_PER_ROUND:
            recent = np.mean(collector.finished_returns[-100:])
            print(f"step {step:,}: return {recent:.2f}, {step / (time.time() - start_time):,.0f} steps/s")
    envs.close()
    return agent


if __name__ == "__main__":
    returns = evaluate(train())
    print(f"evaluation: return {np.mean(returns):.2f} ± {np.std(returns):.2f} over {len(returns)} episodes")

"""SAC in one file (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905).

Run this file with Python: it trains on the environment in the settings below, prints returns as it learns, and ends
with an evaluation. It needs torch, numpy and gymnasium.

`lockstep train` trains the same agent with the same settings: both begin with the same weights, draw the same random
numbers and take the same minibatches. A test compares the parameters bit for bit, so some lines keep an order of
operations that is not the simplest; a comment says where.
"""

import copy
import hashlib
import itertools
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Schedule = Sequence[Sequence[float]]
"""Points `[environment step, value]`. Between two points a setting changes linearly, after the last it is constant."""

# -- settings ---

ENV = "Pendulum-v1"
ENV_CONFIG: dict[str, Any] = {}  # keyword arguments of the environment
SEED = 0
TOTAL_STEPS = 20_000  # environment steps
NUM_ENVS = 4  # environments that are stepped together
NUM_STEPS = 1  # steps of each environment between two updates
EVALUATION_EPISODES = 20
NUM_THREADS = 1  # threads that torch uses
DTYPE = torch.float32

HIDDENS: Sequence[int] = (64, 64)  # widths of the hidden layers of the policy
CRITIC_HIDDENS: Sequence[int] = (64, 64)  # widths of the hidden layers of the critics
NUM_CRITICS = 2
ACTIVATION = "relu"  # tanh, relu, gelu, silu or elu
ORTHOGONAL_INIT = False  # False: torch's default initialisation, without the three gains below
HIDDEN_GAIN = 1.4142135623730951  # gain of the weights of hidden layers, sqrt(2) by default
POLICY_GAIN = 0.01  # gain of the policy's last layer
VALUE_GAIN = 1.0  # gain of the critics' last layers
LOG_STD_INIT = 0.0  # first bias of the outputs for the logarithms of the standard deviations
LOG_STD_BOUNDS: tuple[float, float] = (-20.0, 2.0)  # bounds of the logarithms of the standard deviations

CAPACITY = 20_000  # transitions that the replay buffer holds
BATCH_SIZE = 256  # transitions in a gradient step
LEARNING_STARTS = 400  # environment steps with random actions, before the first gradient step
UPDATES_PER_STEP = 1.0  # gradient steps for each environment step
N_STEP = 1  # rewards that are summed before the value of the state after them is added
GAMMA = 0.99  # discount factor

EXPLORATION: Literal["ou"] | None = None  # "ou": Ornstein-Uhlenbeck noise on actions (Lillicrap et al. 2016)
OU_SIGMA = 0.2
OU_THETA = 0.15
OU_DT = 1.0

ACTOR_LR: float | Schedule = 0.001
CRITIC_LR: float | Schedule = 0.001
ALPHA_LR: float | Schedule = 0.001
ADAM_EPSILON = 1e-08
GRAD_CLIP: float | None = None  # largest norm of each gradient: of policy, critics, temperature; None: no clipping
ALPHA: float | Literal["auto"] = "auto"  # temperature: how much entropy is worth; "auto": learned
INITIAL_ALPHA = 1.0  # first temperature if it is learned
TARGET_ENTROPY: float | Literal["auto"] = "auto"  # in nats, for a learned temperature; "auto": minus the action's size
TARGET_UPDATE_INTERVAL = 1  # gradient steps between two updates of the target critics
TAU = 0.005  # share of the learning critics in an update of the target critics; 1: a copy

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


HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)
LOG_2 = math.log(2.0)


class SquashedGaussian:
    """`tanh` of normal distributions with independent components (appendix C). Actions are `[N, A]` in [-1, 1]."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """Make distributions from means and logarithms of standard deviations before `tanh`, both `[N, A]`."""
        self.mean = mean
        self.log_std = log_std

    def mode(self) -> Tensor:
        """Return the actions at the means."""
        return self.mean.tanh()

    def sample(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the actions that standard normal noise `[N, A]` selects, and the logarithms of their densities `[N]`.

        Both carry gradients (the reparametrisation trick). The logarithm of a density is that of the normal
        distribution minus the sum of `log(1 - tanh(raw)^2)` over the components.
        """
        raw = torch.addcmul(self.mean, self.log_std.exp(), noise)
        # Before the density, as in the library: gradients are summed in the order of the operations on `raw`.
        actions = torch.tanh(raw)
        scaled = (raw - self.mean) * torch.exp(-self.log_std)
        energy = torch.addcmul(self.log_std, scaled, scaled, value=0.5).sum(-1)
        log_density = -self.mean.shape[-1] * HALF_LOG_2_PI - energy
        return actions, log_density - log_tanh_slope(raw).sum(-1)


def log_tanh_slope(raw: Tensor) -> Tensor:
    """Return `log(1 - tanh(raw)^2)`, stable for large `|raw|`."""
    # logsigmoid keeps the tiny term that softplus drops beyond its threshold, and its gradient.
    return 2.0 * (LOG_2 - raw + F.logsigmoid(2.0 * raw))


class Critics(nn.Module):
    """`NUM_CRITICS` (K) networks that estimate the values of actions. Each layer is one batched product for all."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        sizes = (num_inputs, *CRITIC_HIDDENS, 1)
        self.activation = ACTIVATIONS[ACTIVATION]()
        self.weights = nn.ParameterList(torch.empty(NUM_CRITICS, *pair) for pair in itertools.pairwise(sizes))
        self.biases = nn.ParameterList(torch.zeros(NUM_CRITICS, 1, size) for size in sizes[1:])
        for weights, biases in zip(self.weights, self.biases):
            _, num_inputs, num_outputs = weights.shape
            gain = VALUE_GAIN if num_outputs == 1 else HIDDEN_GAIN
            for k in range(NUM_CRITICS):
                layer = make_linear(num_inputs, num_outputs, gain)
                weights.data[k] = layer.weight.data.T
                biases.data[k, 0] = layer.bias.data

    def forward(self, obs: Tensor, actions: Tensor, *, frozen: bool = False) -> Tensor:
        """Return the values `[K, N]` of actions; with `frozen` the gradient goes to the actions only."""
        weights = list(self.weights)
        biases = list(self.biases)
        if frozen:
            weights = [each.detach() for each in weights]
            biases = [each.detach() for each in biases]

        x = torch.cat([obs, actions], -1).expand(NUM_CRITICS, -1, -1)
        for weight, bias in zip(weights[:-1], biases[:-1]):
            x = self.activation(torch.baddbmm(bias, x, weight))
        # For one output a sum of products is faster than a matrix product. The library does the same.
        outputs = (x * weights[-1].transpose(1, 2)).sum(-1, keepdim=True) + biases[-1]
        return outputs.squeeze(-1)


class Agent(nn.Module):
    """Policy whose standard deviations depend on the observation, and critics."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__()
        assert isinstance(observation_space, gym.spaces.Box)
        assert isinstance(action_space, gym.spaces.Box)
        (num_inputs,) = observation_space.shape
        (self.num_actions,) = action_space.shape
        self.policy = make_network(num_inputs, 2 * self.num_actions, POLICY_GAIN)
        last_layer: Any = self.policy[-1]
        nn.init.constant_(last_layer.bias[self.num_actions :], LOG_STD_INIT)
        # The library makes the last layer of a value network here, which SAC does not use. Making it draws as many
        # random numbers, so that the critics start with the same weights.
        make_linear(HIDDENS[-1], 1, VALUE_GAIN)
        self.critics = Critics(num_inputs + self.num_actions)

    def distribution(self, obs: Tensor) -> SquashedGaussian:
        """Return the policy's distributions over actions for observations `[N, ...]`."""
        mean, log_std = self.policy(obs).chunk(2, -1)
        # Joined and split again as in the library, whose networks return both as one tensor.
        joined = torch.cat([mean, log_std.clamp(*LOG_STD_BOUNDS)], -1)
        mean, log_std = joined.chunk(2, -1)
        return SquashedGaussian(mean, log_std)

    @torch.no_grad()
    def act(self, obs: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
        """Return the actions that `noise` `[N, A]` selects for observations `[N, ...]`; without noise the modes."""
        dist = self.distribution(to_tensor(obs))
        if noise is None:
            return dist.mode().numpy()
        actions, _ = dist.sample(to_tensor(noise))
        return actions.numpy()


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


def bounds(space: gym.Space) -> tuple[np.ndarray, np.ndarray]:
    """Return the centre of an action space and half of its width."""
    assert isinstance(space, gym.spaces.Box)
    return space.low / 2 + space.high / 2, space.high / 2 - space.low / 2


def to_env(actions: np.ndarray, space: gym.Space) -> np.ndarray:
    """Return actions in [-1, 1] scaled to the bounds of the environment."""
    assert isinstance(space, gym.spaces.Box)
    centre, half = bounds(space)
    return np.clip(actions.astype(space.dtype) * half + centre, space.low, space.high)


def evaluate(agent: Agent) -> list[float]:
    """Play episodes with the actions at the means of the policy, and return their returns."""
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


class OrnsteinUhlenbeck:
    """Noise that is correlated over the steps of an episode: `x += -theta * x * dt + sigma * sqrt(dt) * N(0, 1)`."""

    def __init__(self, num_actions: int) -> None:
        self.noise = np.zeros((NUM_ENVS, num_actions), np.float32)

    def step(self, normal: np.ndarray) -> np.ndarray:
        """Return the noise `[B, A]` of the next step. `normal`: standard normal numbers `[B, A]`."""
        change = normal * np.float32(OU_SIGMA) * np.float32(math.sqrt(OU_DT))
        self.noise = self.noise * np.float32(1.0 - OU_THETA * OU_DT) + change
        return self.noise

    def restart(self, dones: np.ndarray) -> None:
        """Set the noise of the environments whose episodes have ended to 0."""
        self.noise[dones] = 0.0


class Collector:
    """Collector that plays the environments and keeps the returns of finished episodes."""

    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        self.envs = envs
        (num_actions,) = bounds(envs.single_action_space)[0].shape
        self.shape = (NUM_STEPS, NUM_ENVS, num_actions)  # of the actions between two updates
        self.exploration = stream("train_collector", "exploration")
        self.random_actions = stream("train_collector", "random_actions")
        self.process = OrnsteinUhlenbeck(num_actions)
        reset_seeds: Any = seeds("train_collector", "env_reset/0", number=NUM_ENVS)  # gymnasium annotates one seed only
        self.obs, _ = envs.reset(seed=reset_seeds)
        self.running_returns = np.zeros(NUM_ENVS)
        self.finished_returns: list[float] = []

    def collect(self, agent: Agent, replay: Replay, step: int) -> None:
        """Add `NUM_STEPS` steps of each environment to the buffer. `step`: environment step before them."""
        noise = None
        process_noise = None
        if step >= LEARNING_STARTS:
            noise = self.exploration.standard_normal(self.shape, np.float32)
            if EXPLORATION == "ou":
                process_noise = self.exploration.standard_normal(self.shape, np.float32)

        for t in range(NUM_STEPS):
            if noise is None:
                actions = self.draw_actions()
            else:
                actions = agent.act(self.obs, noise[t])
            if process_noise is not None:
                actions = np.clip(actions + self.process.step(process_noise[t]), -1.0, 1.0, dtype=actions.dtype)
            env_actions = to_env(actions, self.envs.single_action_space)
            obs, rewards, terminateds, truncateds, infos = self.envs.step(env_actions)
            dones = terminateds | truncateds
            self.process.restart(dones)
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

    def draw_actions(self) -> np.ndarray:
        """Return random actions `[B, A]` in [-1, 1]."""
        space = self.envs.single_action_space
        assert isinstance(space, gym.spaces.Box)
        centre, half = bounds(space)
        actions = self.random_actions.uniform(space.low, space.high, self.shape[1:]).astype(space.dtype)
        return (actions - centre) / half


# -- learning ---


def scheduled(setting: float | Schedule, step: int) -> float:
    """Return the value of a setting, which may be a schedule, at an environment step."""
    if isinstance(setting, int | float):
        return setting
    steps, values = zip(*setting)
    return float(np.interp(step, steps, values))


def sac_loss(
    agent: Agent, target: Critics, log_alpha: Tensor, batch: dict[str, Tensor], noise: Tensor, next_noise: Tensor
) -> Tensor:
    """Return the sum of the losses of critics, policy and temperature. Each has gradients for its own parameters only.

    `noise` and `next_noise`, standard normal numbers `[N, A]`, select actions for `obs` and `next_obs`.
    """
    alpha = log_alpha.detach().exp()

    # Critics, equations 5 and 6: r + gamma * (min Q'(s', a') - alpha * log pi(a' | s')).
    with torch.no_grad():
        next_actions, next_logp = agent.distribution(batch["next_obs"]).sample(next_noise)
        next_values = target(batch["next_obs"], next_actions).amin(0) - alpha * next_logp
        discounts = GAMMA if N_STEP == 1 else batch["discounts"]
        # After a termination there is no value. A truncated episode could have continued, so its value counts.
        targets = batch["rewards"] + (1.0 - batch["terminateds"]) * discounts * next_values
    errors = agent.critics(batch["obs"], batch["actions"]) - targets
    loss = (0.5 * errors.square().sum(0)).mean()

    # Policy, equation 9, with the smallest critic.
    actions, logp = agent.distribution(batch["obs"]).sample(noise)
    values = agent.critics(batch["obs"], actions, frozen=True).amin(0)
    loss = loss + (alpha * logp - values).mean()

    # Temperature, equation 18, but with log(alpha) in place of the factor alpha.
    if ALPHA == "auto":
        target_entropy = -float(agent.num_actions) if TARGET_ENTROPY == "auto" else TARGET_ENTROPY
        loss = loss + (-log_alpha * (logp.detach() + target_entropy)).mean()
    return loss


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
    """Learner of an agent: its target critics, its temperature, and an optimizer for each of its parts."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.target = copy.deepcopy(agent.critics).requires_grad_(False)
        self.noise = stream("learner", "noise/default_policy")
        self.gradient_steps = 0

        first_alpha = INITIAL_ALPHA if ALPHA == "auto" else ALPHA
        self.log_alpha = nn.Parameter(torch.tensor(math.log(first_alpha), dtype=DTYPE))
        parts: list[Iterable[nn.Parameter]] = [agent.policy.parameters(), agent.critics.parameters()]
        self.rates = [ACTOR_LR, CRITIC_LR]
        if ALPHA == "auto":
            parts.append([self.log_alpha])
            self.rates.append(ALPHA_LR)
        self.parameters = [flatten(part) for part in parts]
        self.target_parameters = flatten(self.target.parameters())
        self.optimizers = [
            torch.optim.Adam([part], scheduled(rate, 0), eps=ADAM_EPSILON, fused=True)
            for part, rate in zip(self.parameters, self.rates)
        ]

    def update(self, batch: dict[str, Tensor], step: int) -> None:
        """Take one gradient step with a batch. `step`: environment step, for the schedules."""
        self.gradient_steps += 1
        normal = to_tensor(self.noise.standard_normal((BATCH_SIZE, 2 * self.agent.num_actions), np.float32))
        noise, next_noise = normal.chunk(2, -1)
        loss = sac_loss(self.agent, self.target, self.log_alpha, batch, noise, next_noise)

        for optimizer, rate in zip(self.optimizers, self.rates):
            optimizer.param_groups[0]["lr"] = scheduled(rate, step)
            # The gradients are views of one vector. Setting them to None would separate them from it.
            optimizer.zero_grad(set_to_none=False)
        loss.backward()
        for part in self.parameters:
            clip_gradient(part)
        for optimizer in self.optimizers:
            optimizer.step()
        if self.gradient_steps % TARGET_UPDATE_INTERVAL == 0:
            critics = self.parameters[1]
            self.target_parameters.data.lerp_(critics.data, TAU)


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

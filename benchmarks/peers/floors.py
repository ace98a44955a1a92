"""Time what a training step cannot do without, each part alone: ``start_speed.py`` shows the sum as the floor.

The parts are the environment's own steps, the matrix products of the networks (acting; forward and backward passes of a
gradient step), Adam, and target networks that follow. Losses, activations, autograd and replay buffers are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import protocol

w = protocol.read(__doc__)

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

STEPS = 1_000
SIZES = {"CartPole-v1": (4, 2), "Pendulum-v1": (3, 1)}
"""Sizes of the observation and of the policy's output (SAC's policy also has the deviation)."""

Product = tuple[Tensor, Tensor, Tensor]


def products(rows: int, sizes: Sequence[int], *, weights: bool = False, inputs: bool = False) -> list[Product]:
    """Return the products of a network's pass over `rows`: factors, and the place of the result.

    Args:
        rows: rows of the batch.
        sizes: of the input, of the hidden layers and of the output.
        weights: also those for the gradients of the weights.
        inputs: also that for the gradient of the input.
    """
    found: list[Product] = []
    for number, (wide, high) in enumerate(itertools.pairwise(sizes)):
        before, weight, after = torch.randn(rows, wide), torch.randn(wide, high), torch.randn(rows, high)
        found.append((before, weight, torch.empty_like(after)))
        if weights:
            found.append((before.T, after, torch.empty_like(weight)))
        if (weights and number > 0) or inputs:
            found.append((after, weight.T, torch.empty_like(before)))
    return found


def seconds_of_products(found: Sequence[Product]) -> float:
    """Return the processor's seconds of all the products."""

    def multiply() -> None:
        for left, right, place in found:
            torch.mm(left, right, out=place)

    return protocol.least_seconds(multiply)


def number_of_weights(sizes: Sequence[int]) -> int:
    """Return the number of parameters of a network."""
    return sum(wide * high + high for wide, high in itertools.pairwise(sizes))


def seconds_of_adam(number: int) -> float:
    """Return the processor's seconds of a step of Adam on so many parameters."""
    values, grads, means, squares = (torch.zeros(number) for _ in range(4))
    options: Any = {"amsgrad": False, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "maximize": False}
    step = torch.tensor(1.0)

    def update() -> None:
        torch._fused_adam_([values], [grads], [means], [squares], [], [step], lr=w.lr, eps=1e-8, **options)

    return protocol.least_seconds(update)


def seconds_of_following(number: int) -> float:
    """Return the processor's seconds in which so many parameters of target networks follow."""
    targets, values = torch.zeros(number), torch.zeros(number)
    return protocol.least_seconds(lambda: targets.lerp_(values, 0.005))


def seconds_of_environment() -> float:
    """Return the processor's seconds of one step of the environment itself, without wrappers, in a plain loop."""
    env = gymnasium.make(w.environment)
    limit, env = env.spec.max_episode_steps, env.unwrapped
    actions = [env.action_space.sample() for _ in range(STEPS)]
    env.reset(seed=w.seed)

    def play() -> None:
        length = 0
        for action in actions:
            length += 1
            if env.step(action)[2] or length == limit:
                env.reset()
                length = 0

    return protocol.least_seconds(play, calls=STEPS, budget=1.0)


def ppo() -> dict[str, float]:
    """Return seconds of PPO's parts for one environment step, and of one gradient step."""
    obs, actions = SIZES[w.environment]
    policy, value = (obs, *w.hiddens, actions), (obs, *w.hiddens, 1)
    step = [product for sizes in (policy, value) for product in products(w.minibatch, sizes, weights=True)]
    gradient_step = seconds_of_products(step) + seconds_of_adam(number_of_weights(policy) + number_of_weights(value))
    return {
        "acting": seconds_of_products(products(w.num_envs, policy)) / w.num_envs,
        "values": seconds_of_products(products(w.batch, value)) / w.batch,
        "gradient_step": gradient_step,
        "learning": gradient_step * w.num_epochs / w.minibatch,
    }


def dqn() -> dict[str, float]:
    """Return seconds of DQN's parts for one environment step, and of one gradient step."""
    obs, actions = SIZES[w.environment]
    q = (obs, *w.hiddens, actions)
    step = products(w.batch, q, weights=True) + products(w.batch, q)
    gradient_step = seconds_of_products(step) + seconds_of_adam(number_of_weights(q))
    return {
        "acting": seconds_of_products(products(w.num_envs, q)) / w.num_envs,
        "gradient_step": gradient_step,
        "learning": gradient_step * w.updates / w.round_steps,
    }


def sac() -> dict[str, float]:
    """Return seconds of SAC's parts for one environment step, which has one gradient step."""
    obs, actions = SIZES[w.environment]
    policy, critic = (obs, *w.hiddens, 2 * actions), (obs + actions, *w.hiddens, 1)
    step = products(w.batch, policy, weights=True) + products(w.batch, policy)
    for _ in range(2):
        of_targets, of_values = products(w.batch, critic), products(w.batch, critic, weights=True)
        of_policy = products(w.batch, critic, inputs=True)
        step += of_targets + of_values + of_policy
    gradient_step = seconds_of_products(step) + seconds_of_following(2 * number_of_weights(critic))
    gradient_step += seconds_of_adam(number_of_weights(policy)) + seconds_of_adam(2 * number_of_weights(critic))
    return {
        "acting": seconds_of_products(products(1, policy)),
        "gradient_step": gradient_step,
        "learning": gradient_step,
    }


PARTS: dict[str, Callable[[], dict[str, float]]] = {"ppo": ppo, "dqn": dqn, "sac": sac}


def main() -> None:
    """Time the parts, and print their seconds and the steps per second of their sum."""
    np.random.seed(w.seed)  # noqa: NPY002
    with torch.inference_mode():
        found = {"environment": seconds_of_environment(), **PARTS[w.algorithm]()}
    whole = sum(seconds for part, seconds in found.items() if part != "gradient_step")
    protocol.print_line("floor", torch.__version__, seconds=found, steps_per_s=round(1 / whole, 1))


main()

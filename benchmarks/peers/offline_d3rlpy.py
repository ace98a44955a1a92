"""Ten steps of d3rlpy's CQL and IQL on given rows, as the numbers that Lockstep's updates are compared with.

`tests/algorithms/test_algorithms_peer_updates.py` reads what this prints. It needs d3rlpy 2.8.1:

    python -m venv .bench/d3rlpy && .bench/d3rlpy/bin/pip install torch==2.13.0 d3rlpy==2.8.1
    .bench/d3rlpy/bin/python benchmarks/peers/offline_d3rlpy.py > tests/algorithms/offline_d3rlpy.json

d3rlpy steps the critics first and the policy after them, Lockstep takes all losses at the same parameters. So each part
learns alone here, with the others held: d3rlpy's own methods are called for one part only. All is computed in float64.
Random numbers come from the file instead of torch's generator. Weights are written layer by layer, `[weight, bias]`.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.torch_utility import TorchMiniBatch, hard_sync
from torch import Tensor, nn

STEPS, ROWS, OBS, ACTIONS, HIDDENS, SAMPLES = 10, 8, 3, 2, (8, 8), 3
SETTINGS = {"gamma": 0.9, "tau": 0.1, "lr": 3e-3, "alpha_lr": 1e-4, "alpha": 0.3, "min_q_weight": 2.0, "log_std": -1.5}
SETTINGS |= {"expectile": 0.7, "beta": 3.0, "exp_adv_max": 100.0}


# -- what goes in ---


def rounded(array: np.ndarray) -> Any:
    return np.round(array, 3).tolist()


def random_layers(rng: np.random.Generator, *widths: int) -> list[Any]:
    layers = []
    for num_inputs, num_outputs in itertools.pairwise(widths):
        weight = rng.normal(size=(num_outputs, num_inputs)) / np.sqrt(num_inputs)
        bias = 0.1 * rng.normal(size=num_outputs)
        layers.append([rounded(weight), rounded(bias)])
    return layers


def random_batch(rng: np.random.Generator) -> dict[str, Any]:
    """Rows, and the standard normal numbers that draw actions."""
    return {
        "obs": rounded(rng.normal(size=(ROWS, OBS))),
        "new_obs": rounded(rng.normal(size=(ROWS, OBS))),
        "actions": rounded(rng.uniform(-0.9, 0.9, (ROWS, ACTIONS))),
        "rewards": rounded(rng.normal(size=ROWS)),
        "terminateds": (np.arange(ROWS) % 4 == 0).tolist(),
        "action_noise": rounded(rng.normal(size=(ROWS, ACTIONS))),
        "next_action_noise": rounded(rng.normal(size=(ROWS, ACTIONS))),
        "cql_noise": rounded(rng.normal(size=(ROWS, 3, SAMPLES, ACTIONS))),
    }


def inputs() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "gaussian": random_layers(rng, OBS, *HIDDENS, ACTIONS),
        "squashed": random_layers(rng, OBS, *HIDDENS, 2 * ACTIONS),
        "critics": [random_layers(rng, OBS + ACTIONS, *HIDDENS, 1) for _ in range(2)],
        "value": random_layers(rng, OBS, *HIDDENS, 1),
        "batches": [random_batch(rng) for _ in range(STEPS)],
    }


# -- d3rlpy with given weights and random numbers ---


class Draws:
    """Stands in the place of torch's generator: the numbers that are drawn next, in their order."""

    def __init__(self) -> None:
        self.coming: list[Tensor] = []

    @contextmanager
    def used(self) -> Iterator[None]:
        kept = torch.distributions.Normal.rsample, torch.Tensor.uniform_

        def rsample(dist: Any, shape: tuple[int, ...] = ()) -> Tensor:
            noise = self.coming.pop(0)
            if shape:  # [rows, samples, actions] here, [samples, rows, actions] there
                noise = noise.transpose(0, 1)
            return dist.loc + dist.scale * noise

        def uniform_(tensor: Tensor, low: float, high: float) -> Tensor:
            assert (low, high) == (-1.0, 1.0)
            return tensor.copy_(torch.erf(self.coming.pop(0) / 2.0**0.5).reshape(tensor.shape))

        torch.distributions.Normal.rsample, torch.Tensor.uniform_ = rsample, uniform_
        try:
            yield
        finally:
            torch.distributions.Normal.rsample, torch.Tensor.uniform_ = kept


def layers_of(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def put(network: nn.Module, values: list[Any]) -> None:
    """Give the linear layers of a network their weights; a policy's deviations have a layer of their own."""
    layers = layers_of(network)
    with torch.no_grad():
        for layer, (weight, bias) in zip(layers, values):
            size = len(layer.bias)
            layer.weight.copy_(torch.tensor(weight[:size]))
            layer.bias.copy_(torch.tensor(bias[:size]))
        if len(layers) > len(values):
            weight, bias = values[-1]
            layers[-1].weight.copy_(torch.tensor(weight[ACTIONS:]))
            layers[-1].bias.copy_(torch.tensor(bias[ACTIONS:]))


def taken(network: nn.Module, num_layers: int) -> list[Any]:
    """Return the weights of a network's linear layers; those of a policy's deviations are put below the means'."""
    pairs = [[layer.weight.tolist(), layer.bias.tolist()] for layer in layers_of(network)]
    if len(pairs) > num_layers:
        last = pairs.pop()
        pairs[-1] = [pairs[-1][0] + last[0], pairs[-1][1] + last[1]]
    return pairs


def built(config: Any, given: dict[str, Any], policy: str) -> Any:
    """Return the implementation of an algorithm with the given weights, in float64."""
    algorithm = config.create(device="cpu:0")
    algorithm.create_impl((OBS,), ACTIONS)
    impl = algorithm.impl
    for part in vars(impl.modules).values():
        if isinstance(part, nn.Module):
            part.double()
    put(impl.modules.policy, given[policy])
    for network, values in zip(impl.modules.q_funcs, given["critics"]):
        put(network, values)
    hard_sync(impl.modules.targ_q_funcs, impl.modules.q_funcs)
    if hasattr(impl.modules, "value_func"):
        put(impl.modules.value_func, given["value"])
    return impl


def batch_of(rows: dict[str, Any]) -> TorchMiniBatch:
    column = {name: torch.tensor(value, dtype=torch.float64) for name, value in rows.items()}
    one_each = torch.ones(ROWS, 1)
    return TorchMiniBatch(
        observations=column["obs"],
        actions=column["actions"],
        rewards=column["rewards"][:, None],
        next_observations=column["new_obs"],
        next_actions=column["actions"],
        returns_to_go=torch.zeros(ROWS, 1),
        terminals=column["terminateds"][:, None],
        intervals=one_each,
        device="cpu:0",
    )


# -- the parts ---


def options() -> dict[str, Any]:
    encoder = VectorEncoderFactory(list(HIDDENS), activation="relu")
    return {
        "actor_encoder_factory": encoder,
        "critic_encoder_factory": encoder,
        "actor_learning_rate": SETTINGS["lr"],
        "critic_learning_rate": SETTINGS["lr"],
        "gamma": SETTINGS["gamma"],
        "tau": SETTINGS["tau"],
    }


def cql(given: dict[str, Any], temperature_rate: float = 0.0) -> Any:
    config = d3rlpy.algos.CQLConfig(
        **options(),
        temp_learning_rate=temperature_rate,
        alpha_learning_rate=0.0,
        initial_alpha=1.0,
        alpha_threshold=0.0,
        initial_temperature=SETTINGS["alpha"],
        conservative_weight=SETTINGS["min_q_weight"],
        n_action_samples=SAMPLES,
        soft_q_backup=True,
    )
    return built(config, given, "squashed")


def iql(given: dict[str, Any]) -> Any:
    config = d3rlpy.algos.IQLConfig(
        **options(),
        value_encoder_factory=VectorEncoderFactory(list(HIDDENS), activation="relu"),
        expectile=SETTINGS["expectile"],
        weight_temp=SETTINGS["beta"],
        max_weight=SETTINGS["exp_adv_max"],
    )
    return built(config, given, "gaussian")


def after_steps(given: dict[str, Any], step: Callable[[TorchMiniBatch], object], *drawn: str) -> None:
    """Take one step on each batch; `drawn` names the numbers that a step draws, in their order."""
    draws = Draws()
    with draws.used():
        for rows in given["batches"]:
            for name in drawn:
                column, _, index = name.partition("/")
                numbers = torch.tensor(rows[column], dtype=torch.float64)
                draws.coming.append(numbers[:, int(index)] if index else numbers)
            step(batch_of(rows))
            assert not draws.coming


def cql_critics(given: dict[str, Any]) -> Any:
    impl = cql(given)

    def step(batch: TorchMiniBatch) -> None:
        impl.update_critic(batch)
        impl.update_critic_target()

    after_steps(given, step, "next_action_noise", "cql_noise/1", "cql_noise/2", "cql_noise/0")
    return [taken(network, len(HIDDENS) + 1) for network in impl.modules.q_funcs]


def cql_policy(given: dict[str, Any]) -> Any:
    impl = cql(given)
    after_steps(given, impl.update_actor, "action_noise")
    return taken(impl.modules.policy, len(HIDDENS) + 1)


def cql_temperature(given: dict[str, Any]) -> float:
    """Return the logarithm of the temperature. d3rlpy's loss is `alpha` times ours, which Adam's steps hardly show."""
    impl = cql(given, SETTINGS["alpha_lr"])
    before = copy.deepcopy(impl.modules.policy.state_dict())

    def step(batch: TorchMiniBatch) -> None:
        impl.update_actor(batch)
        impl.modules.policy.load_state_dict(before)

    after_steps(given, step, "action_noise")
    return next(impl.modules.log_temp.parameters()).item()


def iql_critics_and_value(given: dict[str, Any]) -> tuple[Any, Any]:
    impl = iql(given)

    def step(batch: TorchMiniBatch) -> None:
        impl.update_critic(batch)
        impl.update_critic_target()

    after_steps(given, step)
    critics = [taken(network, len(HIDDENS) + 1) for network in impl.modules.q_funcs]
    return critics, taken(impl.modules.value_func, len(HIDDENS) + 1)


def iql_policy(given: dict[str, Any]) -> Any:
    """Return the network of the mean. The deviations are held: d3rlpy has them as sigmoids of its parameters."""
    impl = iql(given)
    deviations = impl.modules.policy._logstd

    def step(batch: TorchMiniBatch) -> None:
        impl.update_actor(batch)
        deviations.data.zero_()  # a logarithm of -5 + 7 sigmoid(0) = -1.5

    after_steps(given, step)
    return taken(impl.modules.policy, len(HIDDENS) + 1)


def main() -> None:
    """Print versions, settings, what went in, and the weights after ten steps."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    given = inputs()
    critics, value = iql_critics_and_value(given)
    found = {
        "versions": {"d3rlpy": d3rlpy.__version__, "torch": torch.__version__},
        "settings": SETTINGS,
        "given": given,
        "cql": {
            "critics": cql_critics(given),
            "policy": cql_policy(given),
            "log_alpha": cql_temperature(given),
        },
        "iql": {"critics": critics, "value": value, "policy": iql_policy(given)},
    }
    print(json.dumps(found, separators=(",", ":")))


if __name__ == "__main__":
    main()

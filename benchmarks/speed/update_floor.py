"""What one off-policy update call costs, beside its floor: the arithmetic alone and the sampling alone.

    python benchmarks/speed/update_floor.py            # some minutes; writes results/update_floor.json and .md
    python benchmarks/speed/update_floor.py --render

DQN on CartPole-v1, SAC and TD3 on Pendulum-v1, networks of 64x64, one environment, one gradient step for each call.
Three things are timed in turn, in one process for each algorithm, eager and compiled, in processor time:

- ``arithmetic``: forward, loss, gradient and Adam on prepared batches. Eager, these are written in plain PyTorch below;
  compiled, they are the compiled gradient step alone, called on prepared inputs.
- ``sampling``: drawing one batch from the replay buffer.
- ``update``: the whole call of ``Policy.update``.

A figure is the least of several stretches of calls. What is left of ``update`` after the other two is the cost of the
call itself.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ALGORITHMS = ("dqn", "sac", "td3")
ENVS = {"dqn": "CartPole-v1", "sac": "Pendulum-v1", "td3": "Pendulum-v1"}
PARTS = ("arithmetic", "sampling", "update")
STRETCHES, CALLS, WARM_UP = 15, 100, 50
GAMMA, TAU = 0.99, 0.005
Batch = dict[str, Tensor]


def network(inputs: int, outputs: int) -> nn.Module:
    """Return a network of two hidden layers of 64."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def adam(*modules: nn.Module) -> torch.optim.Optimizer:
    """Return PyTorch's fastest Adam over the parameters of all modules."""
    params = itertools.chain.from_iterable(module.parameters() for module in modules)
    return torch.optim.Adam(list(params), lr=3e-4, fused=True)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one step on a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.no_grad()
def follow(targets: nn.Module, networks: nn.Module) -> None:
    """Let target networks go a little way towards the networks."""
    theirs: Any = list(networks.parameters())
    ours: Any = list(targets.parameters())
    torch._foreach_lerp_(ours, theirs, TAU)


def plain_dqn(obs_size: int, num_actions: int) -> Callable[[Batch], None]:
    """Return one gradient step of double DQN."""
    q = network(obs_size, num_actions)
    target, optimizer = copy.deepcopy(q), adam(q)

    def update(batch: Batch) -> None:
        taken = q(batch["obs"]).gather(1, batch["actions"][:, None])[:, 0]
        with torch.no_grad():
            best = q(batch["new_obs"]).argmax(-1, keepdim=True)
            following = target(batch["new_obs"]).gather(1, best)[:, 0]
            targets = batch["rewards"] + GAMMA * ~batch["terminateds"] * following
        step(optimizer, F.huber_loss(taken, targets))

    return update


def plain_td3(obs_size: int, action_size: int) -> Callable[[Batch], None]:
    """Return one gradient step of TD3, whose policy is stepped every other time."""
    policy = nn.Sequential(network(obs_size, action_size), nn.Tanh())
    critics = nn.ModuleList(network(obs_size + action_size, 1) for _ in range(2))
    target_policy, target_critics = copy.deepcopy(policy), copy.deepcopy(critics)
    policy_optimizer, critic_optimizer = adam(policy), adam(critics)
    steps = itertools.count()

    def update(batch: Batch) -> None:
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(batch["actions"])).clamp(-0.5, 0.5)
            following = torch.cat([batch["new_obs"], (target_policy(batch["new_obs"]) + noise).clamp(-1, 1)], 1)
            value = torch.minimum(*(critic(following)[:, 0] for critic in target_critics))
            targets = batch["rewards"] + GAMMA * ~batch["terminateds"] * value
        taken = torch.cat([batch["obs"], batch["actions"]], 1)
        step(critic_optimizer, sum(F.mse_loss(critic(taken)[:, 0], targets) for critic in critics))
        if next(steps) % 2 == 0:
            step(policy_optimizer, -critics[0](torch.cat([batch["obs"], policy(batch["obs"])], 1)).mean())
            follow(target_policy, policy)
            follow(target_critics, critics)

    return update


def plain_sac(obs_size: int, action_size: int) -> Callable[[Batch], None]:
    """Return one gradient step of SAC with a temperature that is learned."""
    policy = network(obs_size, 2 * action_size)
    critics = nn.ModuleList(network(obs_size + action_size, 1) for _ in range(2))
    target_critics = copy.deepcopy(critics)
    log_alpha = nn.ParameterList([torch.zeros(())])
    policy_optimizer, critic_optimizer, alpha_optimizer = adam(policy), adam(critics), adam(log_alpha)

    def act(obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = policy(obs).chunk(2, -1)
        std = log_std.clamp(-20, 2).exp()
        noise = torch.randn_like(mean)
        before = mean + std * noise
        logp = -0.5 * noise.square() - std.log() - 0.919 - 2 * (0.693 - before - F.softplus(-2 * before))
        return before.tanh(), logp.sum(-1)

    def update(batch: Batch) -> None:
        alpha = log_alpha[0].exp().detach()
        with torch.no_grad():
            action, logp = act(batch["new_obs"])
            following = torch.cat([batch["new_obs"], action], 1)
            value = torch.minimum(*(critic(following)[:, 0] for critic in target_critics)) - alpha * logp
            targets = batch["rewards"] + GAMMA * ~batch["terminateds"] * value
        taken = torch.cat([batch["obs"], batch["actions"]], 1)
        step(critic_optimizer, sum(F.mse_loss(critic(taken)[:, 0], targets) for critic in critics))
        action, logp = act(batch["obs"])
        value = torch.minimum(*(critic(torch.cat([batch["obs"], action], 1))[:, 0] for critic in critics))
        step(policy_optimizer, (alpha * logp - value).mean())
        step(alpha_optimizer, -(log_alpha[0].exp() * (logp.detach() - action_size)).mean())
        follow(target_critics, critics)

    return update


PLAIN = {"dqn": plain_dqn, "sac": plain_sac, "td3": plain_td3}


def trained(algorithm: str, is_compiled: bool) -> Any:
    """Return a trainer after a short run, so that its buffer is filled and its code is compiled."""
    from lockstep import get_config

    config = get_config(algorithm).environment(ENVS[algorithm]).env_runners(num_envs_per_env_runner=1)
    config.rl_module(model_config={"hiddens": (64, 64), **({} if algorithm == "dqn" else {"critic_hiddens": (64, 64)})})
    config.framework(num_threads=1, compile=is_compiled, compile_after=0)
    config.reporting(loggers=[], total_steps=1500).evaluation(evaluation_interval=0).debugging(seed=0)
    trainer = config.build_trainer()
    trainer.run()
    return trainer


def arithmetic_of(algorithm: str, trainer: Any, is_compiled: bool) -> Callable[[], object]:
    """Return the arithmetic of one gradient step, on a batch that is drawn already."""
    if is_compiled:
        step = trainer.policy.learner_group._learner.compiled
        return lambda: step._last_step.code(step._last_inputs)
    drawn = trainer.buffer.sample(trainer.batch_size)
    batch = {name: torch.as_tensor(drawn[name]) for name in ("obs", "new_obs", "actions", "rewards", "terminateds")}
    size = 2 if algorithm == "dqn" else batch["actions"].shape[1]
    update = PLAIN[algorithm](batch["obs"].shape[1], size)
    return lambda: update(batch)


def measure_one(algorithm: str, is_compiled: bool) -> dict[str, float]:
    """Return microseconds of processor time of each part, the least of all stretches, which alternate."""
    from lockstep.policy import policy_within_training_step

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    trainer = trained(algorithm, is_compiled)
    policy, buffer, size = trainer.policy, trainer.buffer, trainer.batch_size
    least = dict.fromkeys(PARTS, float("inf"))
    with policy_within_training_step(policy):
        calls: dict[str, Callable[[], object]] = {
            "update": lambda: policy.update(size, buffer, repeat=1),
            "arithmetic": arithmetic_of(algorithm, trainer, is_compiled),
            "sampling": lambda: buffer.sample(size),
        }
        for call in calls.values():
            for _ in range(WARM_UP):
                call()
        for _ in range(STRETCHES):
            for name, call in calls.items():
                started = time.process_time()
                for _ in range(CALLS):
                    call()
                least[name] = min(least[name], (time.process_time() - started) / CALLS * 1e6)
    return least


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all in turn; each is a process of its own."""
    record: dict[str, Any] = {"machine": report.machine(), "rounds": options.rounds, "works": {}}
    for number in range(options.rounds):
        for algorithm in ALGORITHMS:
            for how in ("eager", "compiled"):
                found = report.run_json([sys.executable, __file__, "--one", algorithm, how])
                record["works"].setdefault(f"{algorithm} {how}", []).append(found)
                shown = ", ".join(f"{name} {found[name]:.0f}" for name in PARTS)
                print(f"round {number + 1}: {algorithm} {how}: {shown} microseconds", flush=True)
    return record


def render(record: dict[str, Any]) -> str:
    """Return the page: the least of all rounds, and what is left for the call."""
    rows = []
    for work, found in record["works"].items():
        least = {name: min(each[name] for each in found) for name in PARTS}
        floor = least["arithmetic"] + least["sampling"]
        left = least["update"] - floor
        cells = [*(least[name] for name in PARTS), left]
        rows.append([work, *(f"{cell:,.0f}" for cell in cells), f"{least['update'] / floor:.2f}"])
    header = ("work", *PARTS, "the call itself", "update / floor")
    return (
        "# The cost of one update call\n\n"
        "Microseconds of processor time, the least of all stretches; the floor is arithmetic and sampling. "
        "Made by `benchmarks/speed/update_floor.py`.\n\n"
        f"{report.table(header, rows)}\n{report.machine_line(record['machine'])}\n"
    )


def main() -> int:
    """Measure one in this process, or all and write the page."""
    parser = report.parser_of(__doc__)
    parser.add_argument("--one", nargs=2, metavar=("ALGORITHM", "HOW"), help="measure one, in this process")
    options, _ = parser.parse_known_args()
    if options.one:
        algorithm, how = options.one
        print(json.dumps(measure_one(algorithm, how == "compiled")))
        return 0
    return report.command(parser, "update_floor", measure, render, rounds=2)


if __name__ == "__main__":
    sys.exit(main())

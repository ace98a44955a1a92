"""SAC on many Pendulums on one device, as one file of plain PyTorch: what FastTD3 and LeanRL do, for SAC.

    python benchmarks/peers/fast_sac_plain.py --device cuda --seconds 20

Environments, replay and networks are tensors on the device; losses are compiled; a vector step is one CUDA graph and a
gradient step another. The host reads nothing but, when it is asked, the returns of episodes that ended. Twin critics
are one batched product. On the CPU there are neither graphs nor compiled code.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LIMIT, GAMMA, TAU = 200, 0.99, 0.005
Step = Callable[[], None]


class Critics(nn.Module):
    """Two networks of rectified layers, evaluated together."""

    def __init__(self, inputs: int, hiddens: tuple[int, ...]) -> None:
        super().__init__()
        sizes = [inputs, *hiddens, 1]
        layers = [[nn.Linear(a, b) for a, b in itertools.pairwise(sizes)] for _ in range(2)]
        pairs = list(zip(*layers))
        self.weights = nn.ParameterList(torch.stack([layer.weight.detach().T for layer in pair]) for pair in pairs)
        self.biases = nn.ParameterList(torch.stack([layer.bias.detach()[None] for layer in pair]) for pair in pairs)

    def forward(self, obs: Tensor, actions: Tensor, frozen: bool = False) -> Tensor:
        x = torch.cat([obs, actions], -1).expand(2, -1, -1)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            x = torch.baddbmm(bias.detach(), x, weight.detach()) if frozen else torch.baddbmm(bias, x, weight)
            x = x if i == len(self.weights) - 1 else F.relu(x)
        return x.squeeze(-1)


class FastSac:
    """`iterate(n)` takes n times a vector step and `updates` gradient steps."""

    def __init__(
        self,
        num_envs: int,
        batch: int,
        updates: int,
        device: str,
        hiddens: tuple[int, ...] = (256, 256),
        capacity: int = 1_000_000,
        lr: float = 3e-4,
        compiled: bool = True,
    ) -> None:
        self.num_envs, self.batch, self.updates, self.device = num_envs, batch, updates, torch.device(device)
        sizes = [3, *hiddens]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(sizes):
            layers += (nn.Linear(a, b), nn.ReLU())
        on_device: dict[str, Any] = {"device": self.device}
        self.actor = nn.Sequential(*layers, nn.Linear(hiddens[-1], 2)).to(**on_device)
        self.critics = Critics(4, hiddens).to(**on_device)
        self.targets = Critics(4, hiddens).to(**on_device)
        self.targets.load_state_dict(self.critics.state_dict())
        self.log_alpha = torch.zeros((), requires_grad=True, **on_device)
        is_cuda = self.device.type == "cuda"
        groups = (self.actor.parameters(), self.critics.parameters(), [self.log_alpha])
        self.optimizers = [torch.optim.Adam(group, lr=lr, fused=True, capturable=is_cuda) for group in groups]
        self.angle, self.speed = torch.zeros(num_envs, **on_device), torch.zeros(num_envs, **on_device)
        self.steps = torch.randint(0, LIMIT, (num_envs,), **on_device)
        self.sums, self.ended = torch.zeros(num_envs, **on_device), torch.zeros(2, **on_device)
        rows = capacity // num_envs
        self.memory = {
            name: torch.zeros(rows, num_envs, *shape, **on_device)
            for name, shape in {"obs": (3,), "actions": (1,), "rewards": (), "after": (3,)}.items()
        }
        self.rows, self.written = rows, torch.zeros(1, dtype=torch.int64, **on_device)
        compiler: Callable[[Any], Any] = torch.compile if compiled and is_cuda else lambda function: function
        self.critic_loss, self.actor_loss = compiler(self.critic_loss), compiler(self.actor_loss)  # type: ignore[method-assign]
        self.transition = compiler(self.transition)  # type: ignore[method-assign]
        self.vector_step: Step = graphed(self.take_vector_step, self.device)
        self.gradient_step: Step = graphed(self.take_gradient_step, self.device)

    # -- environments ---

    def observe(self, angle: Tensor, speed: Tensor) -> Tensor:
        return torch.stack((angle.cos(), angle.sin(), speed), 1)

    def transition(
        self, angle: Tensor, speed: Tensor, steps: Tensor, noise: Tensor, first: Tensor
    ) -> tuple[Tensor, ...]:
        obs = self.observe(angle, speed)
        actions = self.sample(obs, noise)[0]
        torque = 2.0 * actions.squeeze(1)
        upright = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        rewards = -(upright.square() + 0.1 * speed.square() + 0.001 * torque.square())
        speed = (speed + (15.0 * angle.sin() + 3.0 * torque) * 0.05).clamp(-8.0, 8.0)
        angle = angle + speed * 0.05
        after, steps = self.observe(angle, speed), steps + 1
        done = steps >= LIMIT
        angle = torch.where(done, first[:, 0] * math.pi, angle)
        return obs, actions, rewards, after, angle, torch.where(done, first[:, 1], speed), steps * ~done, done

    @torch.no_grad()
    def take_vector_step(self) -> None:
        noise = torch.randn(self.num_envs, 1, device=self.device)
        first = torch.rand(self.num_envs, 2, device=self.device) * 2 - 1
        *row, angle, speed, steps, done = self.transition(self.angle, self.speed, self.steps, noise, first)
        place = self.written % self.rows
        for column, value in zip(self.memory.values(), row):
            column.index_copy_(0, place, value[None])
        self.written += 1
        self.angle.copy_(angle)
        self.speed.copy_(speed)
        self.steps.copy_(steps)
        self.sums += row[2]
        self.ended += torch.stack([(self.sums * done).sum(), done.sum()])
        self.sums *= ~done

    # -- learning ---

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, -1)
        log_std = log_std.clamp(-20, 2)
        raw = mean + log_std.exp() * noise
        slope = 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        logp = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi) - slope
        return raw.tanh(), logp.sum(-1)

    def critic_loss(
        self, obs: Tensor, actions: Tensor, rewards: Tensor, after: Tensor, noise: Tensor, log_alpha: Tensor
    ) -> Tensor:
        with torch.no_grad():
            following, logp = self.sample(after, noise)
            value = self.targets(after, following).amin(0) - log_alpha.exp() * logp
            targets = rewards + GAMMA * value  # no task of Pendulum ends
        return 0.5 * (self.critics(obs, actions) - targets).square().sum(0).mean()

    def actor_loss(self, obs: Tensor, noise: Tensor, log_alpha: Tensor) -> Tensor:
        actions, logp = self.sample(obs, noise)
        alpha = log_alpha.exp().detach()
        loss = (alpha * logp - self.critics(obs, actions, frozen=True).amin(0)).mean()
        return loss - (log_alpha * (logp.detach() - 1.0)).mean()

    def take_gradient_step(self) -> None:
        filled = self.written.clamp(max=self.rows) * self.num_envs
        index = (torch.rand(self.batch, dtype=torch.float64, device=self.device) * filled).long()
        columns = [column.flatten(0, 1).index_select(0, index) for column in self.memory.values()]
        noise = torch.randn(2, self.batch, 1, device=self.device)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=False)
        loss = self.critic_loss(*columns, noise[0], self.log_alpha.detach())
        (loss + self.actor_loss(columns[0], noise[1], self.log_alpha)).backward()
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_([*self.targets.parameters()], [*self.critics.parameters()], TAU)

    def iterate(self, number: int) -> None:
        for _ in range(number):
            self.vector_step()
            for _ in range(self.updates):
                self.gradient_step()

    def mean_return(self) -> float:
        """Return that of the episodes that ended since the last time."""
        total, number = self.ended.tolist()
        self.ended.zero_()
        return total / number if number else math.nan


def graphed(step: Step, device: torch.device) -> Step:
    """Return `step` as one launch from its fourth call on, where there are graphs."""
    if device.type != "cuda":
        return step
    stream, graph, calls = torch.cuda.Stream(), torch.cuda.CUDAGraph(), 0

    def call() -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            graph.replay()
            return
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        if calls == 3:
            with torch.cuda.graph(graph, stream=stream):
                step()

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    agent = FastSac(given.num_envs, given.batch, given.updates, given.device)
    agent.iterate(5)
    begun = time.perf_counter()
    steps = 0
    while (seconds := time.perf_counter() - begun) < given.seconds:
        agent.iterate(100)
        steps += 100
        print(f"{seconds:7.2f} s, {steps * given.num_envs:,} steps, return {agent.mean_return():.0f}", flush=True)


if __name__ == "__main__":
    main()

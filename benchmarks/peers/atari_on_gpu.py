"""PPO on ALE/Pong-v5, the network on a CUDA device and 64 environments on the processor: Lockstep, or a plain file.

    python benchmarks/peers/atari_on_gpu.py lockstep 6     # six iterations of 64 x 128 steps; prints one line of JSON
    python benchmarks/peers/atari_on_gpu.py plain 6

The plain file does what LeanRL's PPO for Atari does, written here from what is known of it: acting and the update are
compiled and run as CUDA graphs (`mode="reduce-overhead"`), observations stay bytes until the first convolution, the
optimizer is fused. Both: the network of Mnih et al. 2015, float32, ale-py's own vector environment, 4 passes in 4
minibatches. The first two iterations, in which both compile, are left out.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

NUM_ENVS, STEPS, PASSES, MINIBATCHES, WARM = 64, 128, 4, 4, 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def report(name: str, seconds: list[float], parts: dict[str, float]) -> None:
    steady = sorted(seconds[WARM:])
    steps = NUM_ENVS * STEPS / steady[len(steady) // 2]
    print(json.dumps({"name": name, "steps_per_s": round(steps), "first_s": round(seconds[0], 1), **parts}), flush=True)


def lockstep(iterations: int, compiled: bool) -> None:
    from lockstep import PPOConfig

    batch = NUM_ENVS * STEPS
    config = PPOConfig().environment("ALE/Pong-v5", frame_stack=4).rl_module(model_config={"vf_share_layers": True})
    config.env_runners(num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=STEPS)
    config.training(train_batch_size=batch, minibatch_size=batch // MINIBATCHES, num_epochs=PASSES, lr=2.5e-4)
    config.training(clip_param=0.1, entropy_coeff=0.01)
    config.reporting(total_steps=10**9, steps_per_epoch=batch * 10**4).evaluation(evaluation_interval=0)
    trainer = config.framework(device=DEVICE, compile=compiled).build_trainer()
    seconds, before = [], {}
    for number in range(iterations + WARM):
        begun = time.perf_counter()
        if number == WARM:
            before = dict(trainer.seconds)
        trainer.training_step()
        seconds.append(time.perf_counter() - begun)
    parts = {name: round((value - before[name]) / iterations, 4) for name, value in trainer.seconds.items() if value}
    report("lockstep, compiled" if compiled else "lockstep, eager", seconds, parts)


class Agent(nn.Module):
    """The network of Mnih et al. 2015 with two heads."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(512, num_actions), nn.Linear(512, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(obs / 255.0)
        return self.actor(hidden), self.critic(hidden).squeeze(1)


def plain(iterations: int) -> None:
    from ale_py.vector_env import AtariVectorEnv

    Distribution.set_default_validate_args(False)
    envs = AtariVectorEnv("pong", num_envs=NUM_ENVS, repeat_action_probability=0.25, noop_max=0, use_fire_reset=False)
    agent = Agent(envs.single_action_space.n).to(DEVICE)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5, fused=True, capturable=DEVICE == "cuda")
    num_rows, size = NUM_ENVS * STEPS, NUM_ENVS * STEPS // MINIBATCHES

    def act(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, value = agent(obs)
        choice = Categorical(logits=logits)
        action = choice.sample()
        return action, choice.log_prob(action), value

    def update(obs: Tensor, action: Tensor, logp: Tensor, advantage: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        logits, value = agent(obs)
        choice = Categorical(logits=logits)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (choice.log_prob(action) - logp).exp()
        policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage).mean()
        loss = policy_loss + 0.5 * 0.5 * (value - target).square().mean() - 0.01 * choice.entropy().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    def advantages_of(last_value: Tensor, rewards: Tensor, values: Tensor, running: Tensor) -> tuple[Tensor, Tensor]:
        found, last, following = [], torch.zeros_like(last_value), last_value
        for t in range(STEPS - 1, -1, -1):
            last = rewards[t] + 0.99 * following * running[t] - values[t] + 0.99 * 0.95 * running[t] * last
            found.append(last)
            following = values[t]
        advantages = torch.stack(found[::-1])
        return advantages, advantages + values

    act_fast = torch.compile(act, mode="reduce-overhead") if DEVICE == "cuda" else act
    update_fast = torch.compile(update, mode="reduce-overhead") if DEVICE == "cuda" else update
    estimate = torch.compile(advantages_of) if DEVICE == "cuda" else advantages_of
    obs = torch.as_tensor(envs.reset(seed=1)[0]).to(DEVICE)
    seconds, parts = [], {"collect": 0.0, "env": 0.0, "update": 0.0}
    for number in range(iterations + WARM):
        begun = time.perf_counter()
        env_time, columns = 0.0, []
        with torch.no_grad():
            for _ in range(STEPS):
                torch.compiler.cudagraph_mark_step_begin()
                action, logp, value = (each.clone() for each in act_fast(obs))
                sent = action.cpu().numpy()
                started = time.perf_counter()
                observed, reward, terminated, truncated, _ = envs.step(sent)
                env_time += time.perf_counter() - started
                kept = torch.as_tensor(reward, dtype=torch.float32), torch.as_tensor(~(terminated | truncated)).float()
                columns.append((obs, action, logp, value, *(each.to(DEVICE, non_blocking=True) for each in kept)))
                obs = torch.as_tensor(np.asarray(observed)).to(DEVICE, non_blocking=True)
            stacked = [torch.stack(column) for column in zip(*columns)]
            last_value = agent(obs)[1]
            advantages, targets = estimate(last_value, stacked[4], stacked[3], stacked[5])
        collected = time.perf_counter()
        flat = [each.flatten(0, 1) for each in (*stacked[:3], advantages, targets)]
        for _ in range(PASSES):
            for rows in torch.randperm(num_rows, device=DEVICE).split(size):
                torch.compiler.cudagraph_mark_step_begin()
                loss = update_fast(*[column[rows] for column in flat]).clone()
        float(loss)
        seconds.append(time.perf_counter() - begun)
        if number >= WARM:
            parts["collect"] += collected - begun
            parts["env"] += env_time
            parts["update"] += time.perf_counter() - collected
    report("plain", seconds, {name: round(value / iterations, 4) for name, value in parts.items()})


if __name__ == "__main__":
    kind, number = sys.argv[1], int(sys.argv[2])
    plain(number) if kind == "plain" else lockstep(number, kind == "compiled")

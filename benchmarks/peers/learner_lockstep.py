"""Update Lockstep's PPO learner for ``learner_speed.py``, beside the same steps written by hand.

With ``remote`` for ``learner_speed.py --remote``: groups of 1 and 2 learners in Ray actors, and building one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import learner_work as lw
import protocol

w = protocol.read(__doc__)

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from lockstep import LearnerGroup, PPOConfig, RolloutStore, SampleBatch, __version__  # noqa: E402
from lockstep.data import SingleAgentEpisode  # noqa: E402
from lockstep.learner import learner as learner_file  # noqa: E402

WORK = lw.WORKS[w.work]
ROLLOUT = dict(np.load(w.rollout))
MODULE = "default_policy"
SHUFFLE = WORK.num_epochs > 1 or w.remote
PASSES = {"num_epochs": WORK.num_epochs, "minibatch_size": WORK.minibatch, "shuffle_batch_per_epoch": SHUFFLE}
COLUMNS = ("obs", "actions", "action_logp", "advantages", "value_targets")
SPACES = (gym.spaces.Box(-5.0, 5.0, (4,)), gym.spaces.Discrete(lw.NUM_ACTIONS))


def configured(**framework: Any) -> PPOConfig:
    """Return the common setting in Lockstep's words."""
    return (
        PPOConfig()
        .environment(lambda: None, observation_space=SPACES[0], action_space=SPACES[1])
        .training(
            lr=w.lr,
            gamma=w.gamma,
            lambda_=w.lambda_,
            clip_param=w.clip,
            entropy_coeff=w.entropy_coeff,
            vf_loss_coeff=w.value_coeff,
            grad_clip=w.max_grad_norm,
            train_batch_size=WORK.rows,
            minibatch_size=WORK.minibatch,
            num_epochs=WORK.num_epochs,
        )
        .rl_module(model_config={"hiddens": WORK.hiddens, "activation": "tanh"})
        .framework(**framework)
    )


def build(compiled: bool) -> Any:
    """Build a learner in this process."""
    return configured(compile=compiled, compile_after=0, device=w.device).build_learner()


def make_episodes() -> list[SingleAgentEpisode]:
    """Return episodes one after another, as a user hands them in."""
    return [
        SingleAgentEpisode(
            observations=piece.obs,
            actions=piece.actions,
            rewards=piece.rewards,
            terminated=piece.terminated,
            truncated=piece.truncated,
            extra_model_outputs={"action_dist_inputs": piece.inputs, "action_logp": piece.logp},
            observation_space=SPACES[0],
            action_space=SPACES[1],
        )
        for piece in lw.pieces_of(ROLLOUT)
    ]


def make_rollout_episodes() -> Any:
    """Return the same as views on one store, as the collector hands them out."""
    data = ROLLOUT
    store = RolloutStore(WORK.num_steps, WORK.num_envs, *SPACES)
    for t in range(WORK.num_steps):
        store.write_obs(t, data["obs"][t])
        ones = np.ones(WORK.num_envs, np.float32)
        store.write_step(t, data["actions"][t], ones, data["terminated"][t], data["truncated"][t])
    store.end(WORK.num_steps, data["obs"][-1])
    rows = np.flatnonzero(data["terminated"] | data["truncated"])
    for row, final in zip(rows, data["finals"]):
        store.final_index.append(np.array([row]))
        store.final_obs.append(final[None])
    return store.episodes()


def make_batch() -> dict[str, Tensor]:
    """Return the train batch as tensors."""
    return {name: torch.from_numpy(column).to(w.device) for name, column in lw.batch_of(ROLLOUT).items()}


def make_data(source: str) -> Any:
    """Return what an update takes: episodes, rollout, or a batch (of arrays where it goes to other processes)."""
    if source == "batch":
        return SampleBatch({name: ROLLOUT[f"batch/{name}"] for name in COLUMNS} if w.remote else make_batch())
    return make_episodes() if source == "episodes" else make_rollout_episodes()


def learner_entry(compiled: bool, source: str) -> Callable[[], protocol.Measured]:
    """Return updates of our learner from `source`: episodes, rollout or batch."""

    def make() -> protocol.Measured:
        learner = build(compiled)
        data = make_data(source)
        method = learner.update_from_batch if source == "batch" else learner.update_from_episodes

        def update(_: Any = None) -> Any:
            return method(data, **PASSES)

        return protocol.Measured(update, stages=None if compiled else lambda: stages_of(learner, update))

    return make


def stages_of(learner: Any, update: Callable[[], Any]) -> dict[str, float]:
    """Time the learner's hooks in one update; its pipeline tells its own time."""
    stages = {
        "prepare_batch": "pipeline",
        "forward_train": "forward",
        "compute_losses": "loss",
        "compute_gradients": "backward",
        "postprocess_gradients": "clip",
        "apply_gradients": "step",
    }
    hooks = [(learner, method, stage) for method, stage in stages.items()]
    hooks += [(learner.reducer, "sum_", "reduce"), (learner_file, "take_minibatch", "gather")]
    results: dict[str, Any] = {}
    found = lw.stages_of(lambda: results.update(update()), hooks)
    pipeline = 1e3 * float(results["__all_modules__"]["seconds_pipeline"])
    found["rest"] -= pipeline - found["pipeline"]
    found["pipeline"] = pipeline
    return found


# --------------------------------------------------------------------------------------------- written by hand


class Flat:
    """All parameters of a module, and their gradients, as views into one tensor each."""

    def __init__(self, module: nn.Module) -> None:
        params = list(module.parameters())
        sizes = [param.numel() for param in params]
        self.data = torch.cat([param.detach().reshape(-1) for param in params])
        self.grad = torch.zeros_like(self.data)
        for param, data, grad in zip(params, self.data.split(sizes), self.grad.split(sizes)):
            param.data, param.grad = data.view_as(param), grad.view_as(param)
        self.parameter = nn.Parameter(self.data)
        self.parameter.grad = self.grad


def tanh_network(outputs: int) -> nn.Sequential:
    """Return tanh layers and a linear head."""
    layers: list[nn.Module] = []
    inputs = 4
    for size in WORK.hiddens:
        layers += [nn.Linear(inputs, size), nn.Tanh()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs)).to(w.device)


def plain_loop() -> protocol.Measured:
    """Loop over plain torch: `nn.Sequential`, the loss spelled out, flat parameters, fused Adam."""
    actor, critic = tanh_network(lw.NUM_ACTIONS), tanh_network(1)
    flat = Flat(nn.ModuleList([actor, critic]))
    optimizer = torch.optim.Adam([flat.parameter], lr=w.lr, eps=1e-5, fused=True)
    columns = [make_batch()[name] for name in COLUMNS]
    rng = np.random.default_rng(0)

    def update(_: Any) -> list[float]:
        kept = []
        for rows in minibatches(rng):
            obs, actions, old_logp, advantages, targets = (column.index_select(0, rows) for column in columns)
            logits, values = actor(obs), critic(obs).squeeze(-1)
            all_logp = logits.log_softmax(-1)
            logp = all_logp.gather(1, actions[:, None]).squeeze(1)
            entropy = -(all_logp.exp() * all_logp).sum(-1).mean()
            variance, mean = torch.var_mean(advantages, correction=0)
            advantages = (advantages - mean) / (variance.sqrt() + 1e-8)
            log_ratio = logp - old_logp
            ratio = log_ratio.exp()
            surrogate = torch.min(advantages * ratio, advantages * ratio.clamp(1.0 - w.clip, 1.0 + w.clip))
            policy_loss, value_loss = -surrogate.mean(), 0.5 * (values - targets).square().mean()
            loss = policy_loss + w.value_coeff * value_loss - w.entropy_coeff * entropy
            with torch.no_grad():
                kl = (ratio - 1.0 - log_ratio).mean()
            flat.grad.zero_()
            loss.backward()
            norm = torch.linalg.vector_norm(flat.grad)
            flat.grad.mul_((w.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
            optimizer.step()
            kept.append((loss.detach(), policy_loss.detach(), value_loss.detach(), entropy.detach(), kl, norm))
        return torch.stack([torch.stack(step) for step in kept]).mean(0).tolist()

    return protocol.Measured(update)


def minibatches(rng: np.random.Generator) -> list[Tensor]:
    """Return the row numbers of all minibatches of one update."""
    found = []
    for _ in range(WORK.num_epochs):
        order = torch.from_numpy(rng.permutation(WORK.rows) if SHUFFLE else np.arange(WORK.rows)).to(w.device)
        found += [rows for rows in order.split(WORK.minibatch) if len(rows) == WORK.minibatch]
    return found


# --------------------------------------------------------------------------------------------- in Ray actors


def build_group(num_learners: int) -> LearnerGroup:
    """Build a group of remote learners."""
    return configured().learners(num_learners=num_learners).build_learner_group()


def group_entry(group: LearnerGroup, _: int, source: str) -> protocol.Measured:
    """Return updates of the group from `source`."""
    data = make_data(source)
    update = group.update_from_batch if source == "batch" else group.update_from_episodes
    return protocol.Measured(lambda _: update(data, **PASSES))


SOURCES = ("episodes", "rollout", "batch")
if w.remote:
    entries = lw.remote_entries("lockstep", SOURCES, build_group, group_entry)
else:
    modes = ("eager", "compiled") if w.compile else ("eager",)
    entries = {
        f"lockstep {mode}, {source}": learner_entry(mode == "compiled", source) for mode in modes for source in SOURCES
    }
    entries["by hand, plain torch"] = plain_loop
protocol.serve("lockstep", __version__, entries, w.device)

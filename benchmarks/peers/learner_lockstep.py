"""Update Lockstep's PPO learner for ``learner_speed.py``, beside the same gradient steps as two loops written by hand.

With ``remote`` for ``remote_learners.py``: groups of 1 and 2 learners in Ray actors, and building one.
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
from lockstep.learner.minibatches import gather  # noqa: E402
from lockstep.ops.fused_losses import ppo_loss  # noqa: E402

WORK = lw.WORKS[w.work]
ROLLOUT = dict(np.load(w.rollout))
MODULE = "default_policy"
SHUFFLE = WORK.num_epochs > 1 or w.remote
PASSES = {"num_epochs": WORK.num_epochs, "minibatch_size": WORK.minibatch, "shuffle_batch_per_epoch": SHUFFLE}
COLUMNS = ("obs", "actions", "action_logp", "advantages", "value_targets")


def spaces() -> tuple[gym.Space, gym.Space]:
    """Return the rollout's spaces."""
    image = gym.spaces.Box(0, 255, lw.IMAGE, np.uint8)
    return image if WORK.kind == "image" else gym.spaces.Box(-5.0, 5.0, (4,)), gym.spaces.Discrete(lw.NUM_ACTIONS)


def model_config() -> dict[str, Any]:
    """Return the network in our words."""
    if WORK.kind == "image":
        return {"conv_filters": lw.FILTERS, "image_hiddens": WORK.hiddens, "share_value_network": True}
    memory = {"recurrent": "lstm", "recurrent_size": lw.MEMORY, "max_seq_len": lw.SEQUENCE}
    return {"hiddens": WORK.hiddens, "activation": "tanh", **(memory if WORK.kind == "lstm" else {})}


def configured(**framework: Any) -> PPOConfig:
    """Return the common setting in Lockstep's words."""
    observation_space, action_space = spaces()
    return (
        PPOConfig()
        .environment(lambda: None, observation_space=observation_space, action_space=action_space)
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
        .rl_module(model_config=model_config())
        .framework(**framework)
    )


def build(compiled: bool) -> Any:
    """Build a learner in this process."""
    return configured(compile=compiled, device=w.device).build_learner()


def make_episodes() -> list[SingleAgentEpisode]:
    """Return episodes one after another, as a user hands them in."""
    observation_space, action_space = spaces()
    return [
        SingleAgentEpisode(
            observations=piece.obs,
            actions=piece.actions,
            rewards=piece.rewards,
            terminated=piece.terminated,
            truncated=piece.truncated,
            extra_model_outputs={"action_dist_inputs": piece.inputs, "action_logp": piece.logp},
            observation_space=observation_space,
            action_space=action_space,
        )
        for piece in lw.pieces_of(ROLLOUT)
    ]


def make_rollout_episodes() -> Any:
    """Return the same as views on one store, as the collector hands them out."""
    data = ROLLOUT
    store = RolloutStore(WORK.num_steps, WORK.num_envs, *spaces())
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


def learner_entry(compiled: bool, source: str) -> Callable[[], protocol.Measured]:
    """Return updates of our learner from `source`: episodes, rollout or batch."""

    def make() -> protocol.Measured:
        learner = build(compiled)
        make_data: dict[str, Callable[[], Any]] = {
            "episodes": make_episodes,
            "rollout": make_rollout_episodes,
            "batch": lambda: SampleBatch(make_batch()),
        }
        data = make_data[source]()
        method = learner.update_from_batch if source == "batch" else learner.update_from_episodes

        def update(_: Any = None) -> Any:
            return method(data, **PASSES)

        return protocol.Measured(update, stages=None if compiled else lambda: stages_of(learner, update))

    return make


def stages_of(learner: Any, update: Callable[[], Any]) -> dict[str, float]:
    """Time the learner's hooks in one update; the gathers, which lie between them, are timed by themselves."""
    watch = lw.Stopwatch()
    hooks = {
        "prepare_batch": "pipeline",
        "forward_train": "forward",
        "compute_losses": "loss",
        "compute_gradients": "backward",
        "postprocess_gradients": "clip",
        "apply_gradients": "step",
    }
    for method, stage in hooks.items():
        watch.wrap(learner, method, stage)
    watch.wrap(learner.reducer, "sum_", "reduce")
    results: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    prepare = learner.prepare_batch

    def prepare_and_look(*args: Any, **options: Any) -> Any:
        seen[MODULE] = prepare(*args, **options)
        return seen[MODULE]

    learner.prepare_batch = prepare_and_look
    try:
        found = watch.run(lambda: results.update(update()))
    finally:
        for method in hooks:
            delattr(learner, method)
        del learner.reducer.sum_
    pipeline = 1e3 * float(results["__all_modules__"]["seconds_pipeline"])
    found["rest"] -= pipeline - found["pipeline"]
    found["pipeline"] = pipeline
    columns = seen or {MODULE: make_batch()}
    count = len(columns[MODULE]["actions"])
    rows = {MODULE: torch.randperm(count)[: WORK.minibatch].to(w.device)}
    gathers = lw.Stopwatch()
    gathers.wrap(owner := type("Owner", (), {"gather": staticmethod(gather)})(), "gather", "gather")
    num_minibatches = int(results["__all_modules__"]["num_minibatches"])
    timed = gathers.run(lambda: [owner.gather(columns, rows) for _ in range(num_minibatches)])
    found["gather"] = timed["gather"]
    found["rest"] = max(0.0, found["rest"] - timed["gather"])
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


class ImageNetwork(nn.Module):
    """Convolutions under both heads."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels, size = lw.IMAGE[2], lw.IMAGE[0]
        for out_channels, kernel, stride in lw.FILTERS:
            layers += [nn.Conv2d(channels, out_channels, kernel, stride), nn.ReLU()]
            channels, size = out_channels, (size - kernel) // stride + 1
        self.body = nn.Sequential(*layers, nn.Flatten())
        flat = channels * size * size
        self.policy, self.value = nn.Linear(flat, lw.NUM_ACTIONS), nn.Linear(flat, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits `[N, A]` and values `[N]` of images `[N, H, W, C]`."""
        features = self.body(obs.permute(0, 3, 1, 2).float() * (1.0 / 255.0))
        return self.policy(features), self.value(features).squeeze(-1)


def plain_loop() -> protocol.Measured:
    """Loop over plain torch: `nn.Sequential`, the loss spelled out, flat parameters, fused Adam."""
    if WORK.kind == "image":
        network: Any = ImageNetwork().to(w.device)
        module, forward = network, network
    else:
        actor, critic = tanh_network(lw.NUM_ACTIONS), tanh_network(1)
        module = nn.ModuleList([actor, critic])

        def forward(obs: Tensor) -> tuple[Tensor, Tensor]:
            return actor(obs), critic(obs).squeeze(-1)

    flat = Flat(module)
    optimizer = torch.optim.Adam([flat.parameter], lr=w.lr, eps=1e-5, fused=True)
    columns = [make_batch()[name] for name in COLUMNS]
    rng = np.random.default_rng(0)

    def update(_: Any) -> list[float]:
        kept = []
        for rows in minibatches(rng):
            obs, actions, old_logp, advantages, targets = (column.index_select(0, rows) for column in columns)
            logits, values = forward(obs)
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


def same_operations_loop() -> protocol.Measured:
    """Call the library's own operations (network, fused loss, Adam's kernel) by hand, one after another."""
    module: Any = build(False).module[MODULE]
    flat = Flat(module)
    averages = torch.zeros_like(flat.data), torch.zeros_like(flat.data), torch.zeros(())
    columns = [make_batch()[name] for name in COLUMNS]
    rng = np.random.default_rng(0)
    clip_param, entropy_coeff = torch.tensor(w.clip), torch.tensor(w.entropy_coeff)

    def update(_: Any) -> list[float]:
        kept = []
        for rows in minibatches(rng):
            obs, actions, old_logp, advantages, targets = (column.index_select(0, rows) for column in columns)
            out = module.forward_train({"obs": obs})
            loss, terms = ppo_loss(
                module.action_dist_cls.dist_class,
                out["action_dist_inputs"],
                out["vf_preds"],
                (actions, old_logp, advantages, targets),
                coefficients=(clip_param, w.value_coeff, entropy_coeff),
                normalize=True,
            )
            flat.grad.zero_()
            loss.backward()
            norm = torch.linalg.vector_norm(flat.grad)
            flat.grad.mul_((w.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
            fused_adam_(flat, *averages)
            kept.append((loss.detach(), norm, terms))
        losses, norms, terms = [torch.stack(values).mean(0) for values in zip(*kept)]
        return [losses.item(), norms.item(), *terms.tolist()]

    return protocol.Measured(update)


def fused_adam_(flat: Flat, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor) -> None:
    """Call Adam's kernel without `Optimizer.step` around it."""
    step.add_(1.0)
    lists: Any = ([flat.data], [flat.grad], [exp_avg], [exp_avg_sq], [], [step])
    numbers: Any = {"lr": w.lr, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-5}
    torch._fused_adam_(*lists, **numbers, amsgrad=False, maximize=False)


def minibatches(rng: np.random.Generator) -> list[Tensor]:
    """Return the row numbers of all minibatches of one update."""
    found = []
    for _ in range(WORK.num_epochs):
        order = torch.from_numpy(rng.permutation(WORK.rows) if SHUFFLE else np.arange(WORK.rows)).to(w.device)
        found += [rows for rows in order.split(WORK.minibatch) if len(rows) == WORK.minibatch]
    return found


# --------------------------------------------------------------------------------------------- in Ray actors

GROUPS: dict[int, LearnerGroup] = {}


def build_group(num_learners: int) -> LearnerGroup:
    """Build a group of remote learners."""
    return configured().learners(num_learners=num_learners).build_learner_group()


def group_entry(num_learners: int, source: str) -> Callable[[], protocol.Measured]:
    """Return updates of the group of so many learners from `source`."""

    def make() -> protocol.Measured:
        if num_learners not in GROUPS:
            GROUPS[num_learners] = build_group(num_learners)
        group = GROUPS[num_learners]
        make_data: dict[str, Callable[[], Any]] = {
            "episodes": make_episodes,
            "rollout": make_rollout_episodes,
            "batch": lambda: SampleBatch({name: ROLLOUT[f"batch/{name}"] for name in COLUMNS}),
        }
        data = make_data[source]()
        update = group.update_from_batch if source == "batch" else group.update_from_episodes
        return protocol.Measured(lambda _: update(data, **PASSES))

    return make


SOURCES = ("episodes", "rollout", "batch")
ENTRIES: dict[str, Callable[[], protocol.Measured]]
if w.remote:
    import ray

    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    ENTRIES = {
        f"lockstep, {number} learner{'s' * (number > 1)}, {source}": group_entry(number, source)
        for number in (1, 2)
        for source in SOURCES
    }
    ENTRIES["lockstep, building 2"] = lambda: protocol.Measured(*lw.building(lambda: build_group(2)))
elif WORK.kind == "lstm":  # not compiled; from episodes only, where the sequences come from
    ENTRIES = {f"lockstep eager, {source}": learner_entry(False, source) for source in SOURCES[:2]}
else:
    ENTRIES = {
        f"lockstep {mode}, {source}": learner_entry(mode == "compiled", source)
        for mode in ("eager", *(("compiled",) if w.compile else ()))
        for source in SOURCES
    }
    ENTRIES |= {"by hand, plain torch": plain_loop, "by hand, same operations": same_operations_loop}
protocol.serve("lockstep", __version__, ENTRIES, w.device)

"""Lockstep's PPO learner for ``learner_speed.py``, and the same gradient steps as two loops written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import learner_work as w

OPTIONS = w.worker_options("Lockstep's side of learner_speed.py")

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from lockstep import PPOConfig, RolloutStore, SampleBatch, __version__  # noqa: E402
from lockstep.data import SingleAgentEpisode  # noqa: E402
from lockstep.learner.minibatches import gather  # noqa: E402
from lockstep.ops.fused_losses import ppo_loss  # noqa: E402

WORK = w.WORKS[OPTIONS.work]
MODULE = "default_policy"
SHUFFLE = WORK.num_epochs > 1
PASSES = {"num_epochs": WORK.num_epochs, "minibatch_size": WORK.minibatch, "shuffle_batch_per_epoch": SHUFFLE}
COLUMNS = ("obs", "actions", "action_logp", "advantages", "value_targets")


def spaces() -> tuple[gym.Space, gym.Space]:
    """Of the rollout."""
    image = gym.spaces.Box(0, 255, w.IMAGE, np.uint8)
    return image if WORK.kind == "image" else gym.spaces.Box(-5.0, 5.0, (4,)), gym.spaces.Discrete(w.NUM_ACTIONS)


def model_config() -> dict[str, Any]:
    """The network in our words."""
    if WORK.kind == "image":
        return {"conv_filters": w.FILTERS, "image_hiddens": WORK.hiddens, "share_value_network": True}
    memory = {"recurrent": "lstm", "recurrent_size": w.MEMORY, "max_seq_len": w.SEQUENCE}
    return {"hiddens": WORK.hiddens, "activation": "tanh", **(memory if WORK.kind == "lstm" else {})}


def build(compiled: bool) -> Any:
    """A built learner."""
    observation_space, action_space = spaces()
    config = (
        PPOConfig()
        .environment(lambda: None, observation_space=observation_space, action_space=action_space)
        .training(
            lr=w.LEARNING_RATE,
            gamma=w.GAMMA,
            lambda_=w.LAMBDA,
            clip_param=w.CLIP,
            entropy_coeff=w.ENTROPY_COEFFICIENT,
            vf_loss_coeff=w.VALUE_COEFFICIENT,
            grad_clip=w.MAX_GRAD_NORM,
            train_batch_size=WORK.rows,
            minibatch_size=WORK.minibatch,
            num_epochs=WORK.num_epochs,
        )
        .rl_module(model_config=model_config())
        .framework(compile=compiled, device=OPTIONS.device)
    )
    return config.build_learner()


def make_episodes() -> list[SingleAgentEpisode]:
    """One after another, as a user hands them in."""
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
        for piece in w.pieces_of(OPTIONS.rollout)
    ]


def make_rollout_episodes() -> Any:
    """The same as views on one store, as the collector hands them out."""
    data = OPTIONS.rollout
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


def make_batch(names: tuple[str, ...] | None = None) -> dict[str, Tensor]:
    """The train batch as tensors."""
    columns = {key.removeprefix("batch/"): v for key, v in OPTIONS.rollout.items() if key.startswith("batch/")}
    return {name: torch.from_numpy(v).to(OPTIONS.device) for name, v in columns.items() if not names or name in names}


def learner_entry(compiled: bool, source: str) -> Callable[[], w.Entry]:
    """Updates of our learner from `source`: episodes, rollout or batch."""

    def make() -> w.Entry:
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

        return w.Entry(update, stages=None if compiled else lambda: stages_of(learner, update))

    return make


def stages_of(learner: Any, update: Callable[[], Any]) -> dict[str, float]:
    """Times the learner's hooks in one update; the gathers, which lie between them, are timed by themselves."""
    watch = w.Stopwatch()
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
    rows = {MODULE: torch.randperm(count)[: WORK.minibatch].to(OPTIONS.device)}
    gathers = w.Stopwatch()
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
    """Vector observations: tanh layers and a linear head."""
    layers: list[nn.Module] = []
    inputs = 4
    for size in WORK.hiddens:
        layers += [nn.Linear(inputs, size), nn.Tanh()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs)).to(OPTIONS.device)


class ImageNetwork(nn.Module):
    """Convolutions under both heads."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels, size = w.IMAGE[2], w.IMAGE[0]
        for out_channels, kernel, stride in w.FILTERS:
            layers += [nn.Conv2d(channels, out_channels, kernel, stride), nn.ReLU()]
            channels, size = out_channels, (size - kernel) // stride + 1
        self.body = nn.Sequential(*layers, nn.Flatten())
        flat = channels * size * size
        self.policy, self.value = nn.Linear(flat, w.NUM_ACTIONS), nn.Linear(flat, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `[N, A]` and values `[N]` of images `[N, H, W, C]`."""
        features = self.body(obs.permute(0, 3, 1, 2).float() * (1.0 / 255.0))
        return self.policy(features), self.value(features).squeeze(-1)


def plain_loop() -> w.Entry:
    """Plain torch: `nn.Sequential`, the loss spelled out, flat parameters, fused Adam. What is reported is kept."""
    if WORK.kind == "image":
        network: Any = ImageNetwork().to(OPTIONS.device)
        module, forward = network, network
    else:
        actor, critic = tanh_network(w.NUM_ACTIONS), tanh_network(1)
        module = nn.ModuleList([actor, critic])

        def forward(obs: Tensor) -> tuple[Tensor, Tensor]:
            return actor(obs), critic(obs).squeeze(-1)

    flat = Flat(module)
    optimizer = torch.optim.Adam([flat.parameter], lr=w.LEARNING_RATE, eps=1e-5, fused=True)
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
            surrogate = torch.min(advantages * ratio, advantages * ratio.clamp(1.0 - w.CLIP, 1.0 + w.CLIP))
            policy_loss, value_loss = -surrogate.mean(), 0.5 * (values - targets).square().mean()
            loss = policy_loss + w.VALUE_COEFFICIENT * value_loss - w.ENTROPY_COEFFICIENT * entropy
            with torch.no_grad():
                kl = (ratio - 1.0 - log_ratio).mean()
            flat.grad.zero_()
            loss.backward()
            norm = torch.linalg.vector_norm(flat.grad)
            flat.grad.mul_((w.MAX_GRAD_NORM / (norm + 1e-6)).clamp_(max=1.0))
            optimizer.step()
            kept.append((loss.detach(), policy_loss.detach(), value_loss.detach(), entropy.detach(), kl, norm))
        return torch.stack([torch.stack(step) for step in kept]).mean(0).tolist()

    return w.Entry(update)


def same_operations_loop() -> w.Entry:
    """The library's own operations (network, fused loss, Adam's kernel) called by hand, one after another."""
    module: Any = build(False).module[MODULE]
    flat = Flat(module)
    averages = torch.zeros_like(flat.data), torch.zeros_like(flat.data), torch.zeros(())
    columns = [make_batch()[name] for name in COLUMNS]
    rng = np.random.default_rng(0)
    clip_param, entropy_coeff = torch.tensor(w.CLIP), torch.tensor(w.ENTROPY_COEFFICIENT)

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
                coefficients=(clip_param, w.VALUE_COEFFICIENT, entropy_coeff),
                normalize=True,
            )
            flat.grad.zero_()
            loss.backward()
            norm = torch.linalg.vector_norm(flat.grad)
            flat.grad.mul_((w.MAX_GRAD_NORM / (norm + 1e-6)).clamp_(max=1.0))
            fused_adam_(flat, *averages)
            kept.append((loss.detach(), norm, terms))
        losses, norms, terms = [torch.stack(values).mean(0) for values in zip(*kept)]
        return [losses.item(), norms.item(), *terms.tolist()]

    return w.Entry(update)


def fused_adam_(flat: Flat, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor) -> None:
    """Adam's kernel without `Optimizer.step` around it."""
    step.add_(1.0)
    lists: Any = ([flat.data], [flat.grad], [exp_avg], [exp_avg_sq], [], [step])
    numbers: Any = {"lr": w.LEARNING_RATE, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-5}
    torch._fused_adam_(*lists, **numbers, amsgrad=False, maximize=False)


def minibatches(rng: np.random.Generator) -> list[Tensor]:
    """Row numbers of all minibatches of one update."""
    found = []
    for _ in range(WORK.num_epochs):
        order = torch.from_numpy(rng.permutation(WORK.rows) if SHUFFLE else np.arange(WORK.rows)).to(OPTIONS.device)
        found += [rows for rows in order.split(WORK.minibatch) if len(rows) == WORK.minibatch]
    return found


ENTRIES: dict[str, Callable[[], w.Entry]] = {
    f"lockstep {mode}, {source}": learner_entry(mode == "compiled", source)
    for mode in ("eager", *(("compiled",) if OPTIONS.compile else ()))
    for source in ("episodes", "rollout", "batch")
}
ENTRIES["by hand, plain torch"] = plain_loop
ENTRIES["by hand, same operations"] = same_operations_loop
if WORK.kind == "lstm":  # not compiled; from episodes only, where the sequences come from
    ENTRIES = {name: ENTRIES[name] for name in ("lockstep eager, episodes", "lockstep eager, rollout")}
w.serve("lockstep", __version__, ENTRIES, OPTIONS.device)

"""The same gradient steps in Lockstep's PPO learner and in its peers': losses, gradients and parameters compared.

    python benchmarks/peers/setup_peers.py rllib sb3
    python benchmarks/numerics/compare_learner_peers.py                # about a minute; exit status 1 above 1e-5
    python benchmarks/numerics/compare_learner_peers.py --no-compile   # leaves out Lockstep's compiled gradient step

RLlib's learner (new API stack) and Stable-Baselines3's PPO start from given weights, take the given batch of 4,000 rows
in minibatches of 256, and write down which rows each of their first 50 updates took, its losses, and gradients and
parameters of updates 1 and 50. Lockstep is then fed the same rows in the same order, in float32. Where the libraries
differ on purpose the difference is switched off, and listed in the result.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from runner import Entry, check_installed

os.environ.update(report.thread_environment(1))
sys.path[:0] = [str(report.ROOT), str(report.HERE / "peers")]

import gymnasium as gym  # noqa: E402
import numerics as n  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from lockstep import PPOConfig, SampleBatch, __version__  # noqa: E402
from lockstep.algorithms.ppo import PPOLearner  # noqa: E402

TOLERANCE = 1e-5
MODULE = "default_policy"
NAMES = {
    "policy.0": "encoder.mlp.0",
    "policy.1": "encoder.mlp.2",
    "policy.2": "policy_head",
    "value.0": "value_encoder.mlp.0",
    "value.1": "value_encoder.mlp.2",
    "value.2": "value_head",
    "log_std": "log_std",
}
EVERYWHERE = (
    "Value loss: ours is half the squared error, theirs the whole; our `vf_loss_coeff` is twice theirs, and `vf_loss` "
    "is compared doubled.",
    "Value clipping: ours limits how far a value moves, RLlib's cuts off the squared error, Stable-Baselines3's has "
    "no maximum of both errors; off in all (`vf_clip_param=None`, `inf`, `clip_range_vf=None`).",
    "Advantages: ours are normalised by minibatch (deviation over N), RLlib's in its pipeline by batch, "
    "Stable-Baselines3's by minibatch (deviation over N - 1); off in all, the batch brings the advantages.",
    "Adam: RLlib's epsilon is fixed at 1e-8 and Stable-Baselines3's default 1e-5; ours is set to the same.",
)
PEERS: dict[str, tuple[str, str, dict[str, n.Case], tuple[str, ...]]] = {
    "RLlib": (
        "rllib",
        "numerics_rllib.py",
        n.RLLIB_CASES,
        (
            "KL penalty: RLlib multiplies the coefficient by 1.5 above twice the target, we double it above 1.5 times "
            "the target, and its 50 updates are one call; the coefficient stands still on both sides.",
            "Minibatches: RLlib's run over the end of the batch, where they start again with the reshuffled rows (62 "
            "in four passes, ours 60); we take the rows that it took.",
        ),
    ),
    "Stable-Baselines3": (
        "sb3",
        "numerics_sb3.py",
        n.SB3_CASES,
        ("Minibatches: the last one of a pass is shorter there; both sides are given the same rows of 256.",),
    ),
}


class SteadyLearner(PPOLearner):
    """The KL coefficient stands still."""

    def after_gradient_based_update(self, *, timesteps: Any) -> None:
        """Do not adapt."""


class RecordingLearner(SteadyLearner):
    """Our learner, looked at through its own hooks."""

    recording: n.Recording

    def keep(self, kind: str, gradients: Any) -> Any:
        """Record gradients under their neutral names; return them."""
        named = {name: gradients[param].detach().numpy() for name, param in named_parameters(self).items()}
        self.recording.keep(kind, named)
        return gradients

    def postprocess_gradients(self, gradients: Any) -> Any:
        """Look before and after clipping."""
        return self.keep("clipped gradient", super().postprocess_gradients(self.keep("gradient", gradients)))


def named_parameters(learner: PPOLearner) -> dict[str, Any]:
    """Return the parameters by their neutral names."""
    return n.by_neutral_name(dict(learner.module[MODULE].named_parameters()), NAMES)


def our_learner(case: n.Case, weights: n.Weights, compiled: bool) -> PPOLearner:
    """Build a learner with the given weights and the peers' conventions."""
    actions = gym.spaces.Discrete(n.NUM_ACTIONS) if case.discrete else gym.spaces.Box(-1, 1, (n.NUM_ACTIONS,))
    spaces = (gym.spaces.Box(-10.0, 10.0, (n.OBS_SIZE,), np.float32), actions)
    config = (
        PPOConfig()
        .environment(lambda: None, observation_space=spaces[0], action_space=spaces[1])
        .training(
            learner_class=SteadyLearner if compiled else RecordingLearner,
            lr=n.LEARNING_RATE,
            clip_param=n.CLIP,
            entropy_coeff=n.ENTROPY_COEFFICIENT,
            vf_loss_coeff=2.0 * n.VALUE_COEFFICIENT,
            vf_clip_param=None,
            normalize_advantages=None,
            kl_coeff=case.kl_coeff,
            grad_clip=case.grad_clip,
            grad_clip_by=case.grad_clip_by,
            adam_epsilon=case.adam_epsilon,
        )
        .rl_module(model_config={"hiddens": n.HIDDENS, "activation": "tanh"})
        .framework(compile=compiled, compile_after=0)
    )
    learner: Any = config.build_learner()
    with torch.no_grad():
        for name, param in named_parameters(learner).items():
            param.copy_(torch.from_numpy(weights[name]))
    return learner


def our_recording(case: n.Case, order: list[np.ndarray], compiled: bool) -> n.Recording:
    """Make the updates on the given rows, in the given order."""
    weights = n.initial_weights(case)
    batch, learner, recording = n.make_batch(case, weights), our_learner(case, weights, compiled), n.Recording()
    if isinstance(learner, RecordingLearner):
        learner.recording = recording
    for rows in order:
        recording.rows.append(rows)
        results = learner.update_from_batch(SampleBatch({name: column[rows] for name, column in batch.items()}))
        losses = {name: float(results[MODULE][name]) for name in ("total_loss", "policy_loss", "entropy")}
        losses.update(vf_loss=2.0 * results[MODULE]["vf_loss"], mean_kl_loss=results[MODULE]["mean_kl_loss"])
        recording.losses.append(losses)
        parameters = {name: param.detach().numpy() for name, param in named_parameters(learner).items()}
        recording.keep("parameter", parameters)
    return recording


@dataclass(frozen=True)
class Difference:
    """The largest |ours - theirs| / max(1, |theirs|) of one quantity."""

    quantity: str
    largest: float
    where: str
    scale: float  # the largest |theirs|


def difference(quantity: str, pairs: Iterator[tuple[str, Any, Any]]) -> Difference:
    """Return it over all `(name, ours, theirs)`."""
    largest, where, scale = 0.0, "-", 0.0
    for name, ours, theirs in pairs:
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        distance = float(np.max(np.abs(ours - theirs) / np.maximum(1.0, np.abs(theirs))))
        scale = max(scale, float(np.max(np.abs(theirs))))
        if not distance <= largest:  # a NaN counts too
            largest, where = distance, name
    return Difference(quantity, largest, where, scale)


def compare(ours: n.Recording, theirs: Any, losses: Sequence[str], kinds: Sequence[str]) -> list[Difference]:
    """Return the difference of each loss over all updates, and of gradients and parameters after the watched ones.

    Target networks are told apart from the other parameters; what the compiled step does not show is left out.
    """
    found = []
    for name in losses:
        steps = zip(ours.losses, theirs[f"loss/{name}"], strict=True)
        pairs = ((f"update {k}", step[name], value) for k, (step, value) in enumerate(steps, start=1))
        found.append(difference(f"{name}, updates 1 to {n.NUM_UPDATES}", pairs))
    for kind in kinds:
        for update in n.WATCHED:
            start = f"{'parameter' if kind == 'target' else kind}/{update}/"
            keys = [key for key in theirs.files if key.startswith(start)]
            keys = [key for key in keys if (kind == "target") == key.startswith(f"{start}target")]
            if "gradient" in kind and not any(key in ours.arrays for key in keys):
                continue
            both = [(key.removeprefix(start), ours.arrays[key], theirs[key]) for key in keys]
            pairs = ((name, mine, other.reshape(mine.shape)) for name, mine, other in both)
            found.append(difference(f"{kind}s, update {update}", pairs))
    return found


def entry_of(peer: str, version: str, compiled: bool, found: Sequence[Difference], **more: str) -> dict[str, Any]:
    """Return what the raw results keep of one comparison, and tell its largest difference."""
    names = {"peer": peer, "peer_version": version, **more, "lockstep": "compiled" if compiled else "eager"}
    print(f"{', '.join(names.values())}: {max(item.largest for item in found):.1e}", flush=True)
    return {**names, "differences": [vars(item) for item in found]}


def run_peer(peer: str, folder: Path, compiled: bool) -> list[dict[str, Any]]:
    """Compare all cases of one peer, ours eager and compiled."""
    environment, script, cases, _ = PEERS[peer]
    print(f"{peer}: its {len(cases)} cases ...", flush=True)
    line = report.run_json(Entry(script, environment).command({"folder": str(folder)}), timeout=300)
    entries = []
    for number, (name, case) in enumerate(cases.items()):
        theirs = np.load(folder / f"{number}.npz")
        order = [theirs[f"rows/{update}"] for update in range(1, n.NUM_UPDATES + 1)]
        for mode in (False, True) if compiled else (False,):
            with_kl = peer != "RLlib" or case.kl_coeff > 0
            losses = ("total_loss", "policy_loss", "vf_loss", "entropy", *(("mean_kl_loss",) if with_kl else ()))
            kinds = ("gradient", "clipped gradient", "parameter")
            found = compare(our_recording(case, order, mode), theirs, losses, kinds)
            entries.append(entry_of(peer, line["version"], mode, found, case=name))
    return entries


def worst_of(entry: dict[str, Any], kinds: Sequence[str]) -> list[str]:
    """Return the cells of a table's row: the largest difference of the losses, and of each kind after each update."""
    worst: dict[str, float] = {}
    for item in entry["differences"]:
        kind, _, update = item["quantity"].partition(",")
        label = f"{kind} {update.split()[-1]}" if update.startswith(" update ") else "losses"
        worst[label] = max(worst.get(label, 0.0), item["largest"])
    columns = ["losses", *(f"{kind} {k}" for kind in kinds for k in n.WATCHED)]
    return [f"{worst[column]:.1e}" if column in worst else "-" for column in columns]


def page(record: dict[str, Any], title: str, table: str, about: str, notes: Sequence[str]) -> str:
    """Return the markdown page of a record."""
    largest = max(item["largest"] for entry in record["entries"] for item in entry["differences"])
    head = [f"# {title}", "", f"Largest difference of all: **{largest:.1e}** (allowed {TOLERANCE:.0e}).", "", table]
    head += [f"{about} Each cell: the largest |ours - theirs| / max(1, |theirs|).", ""]
    head += ["Switched off or set alike for the comparison:", "", *(f"- {text}" for text in notes), ""]
    foot = f"Lockstep {record['lockstep']}, PyTorch {record['torch']}. {report.machine_line(record['machine'])}"
    return "\n".join([*head, foot, ""])


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    kinds = ("gradients", "parameters")
    lines = [
        [f"{entry['peer']} {entry['peer_version']}", entry["case"], entry["lockstep"], *worst_of(entry, kinds)]
        for entry in record["entries"]
    ]
    first, last = n.WATCHED
    columns = [f"{kind} {k}" for kind in kinds for k in n.WATCHED]
    table = report.table(["peer", "case", "Lockstep", f"losses 1-{last}", *columns], lines)
    about = (
        f"PPO, two 64x64 tanh networks, {n.NUM_ROWS:,} rows in minibatches of {n.MINIBATCH}, float32, one thread; the "
        f"same weights, rows and order. Losses: total, policy, value, entropy, KL of each of the {last} updates; "
        f"gradients before clipping and parameters of updates {first} and {last} (clipped gradients are in the raw "
        "results)."
    )
    notes = [*EVERYWHERE, *(f"{peer}: {text}" for peer, (*_, texts) in PEERS.items() for text in texts)]
    return page(record, "The gradient step beside the peers'", table, about, notes)


def main(
    text: str | None,
    peers: Mapping[str, tuple[Any, ...]],
    run_peer: Callable[[str, Path, bool], list[dict[str, Any]]],
    render: Callable[[dict[str, Any]], str],
    name: str,
) -> int:
    """Run the command of this comparison, or of SAC's. `peers`: of each its environment and its program, first."""

    def measure(options: Any) -> dict[str, Any]:
        chosen = options.only or list(peers)
        check_installed([Entry(peers[peer][1], peers[peer][0]) for peer in chosen])
        record = {"machine": report.machine(), "lockstep": __version__, "torch": torch.__version__, "entries": []}
        for peer in chosen:
            with tempfile.TemporaryDirectory() as folder:
                record["entries"] += run_peer(peer, Path(folder), not options.no_compile)
        largest = [item["largest"] for entry in record["entries"] for item in entry["differences"]]
        if not all(value <= TOLERANCE for value in largest):
            record["runs"] = [{"error": f"a difference above {TOLERANCE}"}]
        return record

    parser = report.parser_of(text)
    parser.add_argument("--no-compile", action="store_true", help="only Lockstep's eager gradient step")
    parser.add_argument("--only", nargs="+", choices=list(peers), help="some of the peers")
    return report.command(parser, name, measure, render)


if __name__ == "__main__":
    raise SystemExit(main(__doc__, PEERS, run_peer, render, "learner_numerics"))

"""Write the tables of committed results, and of what works on a device, into the pages: `python docs/tables.py`.

A table stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
"""

from __future__ import annotations

import json
import re
import statistics
import textwrap
from collections.abc import Callable, Mapping
from inspect import getdoc, getmodule
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGES = ("README.md", "docs/results.md", "docs/speed.md", "docs/gpu.md")


def cells_of(file: str) -> list[list[str]]:
    """Return the cells of the first table of a results file, without its head."""
    rows = [line for line in (RESULTS / file).read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def speed() -> str:
    """Return how fast training is beside other libraries: the first row of each work."""
    lines = ["| work | Lockstep | compared with | times as fast |", "|---|---:|---:|---:|"]
    shown = set[str]()
    for work, ours, other, ratio, *_ in cells_of("start_speed.md"):
        if work not in shown:
            shown.add(work)
            lines.append(f"| {work} | {ours} | {other} | {ratio.partition(' ')[0]} |")
    return "\n".join(lines)


def speed_parts() -> str:
    """Return the microseconds of an environment step: of its parts alone, and of whole training."""
    parts, ways = ("environment", "acting", "values", "learning"), ("second", "eager", "sb3")
    lines = ["| microseconds for one step | environment | networks: acting | networks and Adam: gradient steps "
             "| floor | Lockstep by default | eager | Stable-Baselines3 |", "|---|" + "---:|" * 7]  # fmt: skip
    record = json.loads((RESULTS / "start_speed.json").read_text(encoding="utf-8"))
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in record["runs"]:
        runs.setdefault((run["part"], run["way"]), []).append(run)
    titles = {"ppo": "PPO CartPole", "dqn": "DQN CartPole", "sac": "SAC Pendulum"}
    for name, title in titles.items():
        alone = [run["seconds"] for run in runs[name, "floor"]]
        environment, acting, values, learning = (min(each.get(part, 0.0) for each in alone) for part in parts)
        whole = [
            statistics.median(run["rest"]["processor_seconds"] / run["rest"]["steps"] for run in runs[name, way])
            for way in ways
        ]
        floor = environment + acting + values + learning
        cells = [environment, acting + values, learning, floor, *whole]
        lines.append(f"| {title} | " + " | ".join(f"{1e6 * cell:,.1f}" for cell in cells) + " |")
    return "\n".join(lines)


def learner_speed() -> str:
    """Return the milliseconds of one update of the learner alone, and of its stages where they can be told apart."""
    found = json.loads((RESULTS / "start_speed.json").read_text(encoding="utf-8"))["learner"]
    stages = [stage for stage in next(iter(found["stages"].values())) if stage != "reduce"]
    lines = ["| one update, ms | whole | " + " | ".join(stages) + " |", "|---|---:|" + "---:|" * len(stages)]
    for name, runs in found["runs"].items():
        whole = statistics.median(1e3 * value for values in runs["processor_seconds"] for value in values)
        by_stage = found["stages"].get(name)
        cells = [f"{by_stage[stage]:.1f}" for stage in stages] if by_stage else [""] * len(stages)
        lines.append(f"| {name} | {whole:.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def workers_speed() -> str:
    """Return the rates of environments in worker processes, and how they compare with other libraries."""
    lines = ["| a step, environments | steps/s | times as fast | in processor time |", "|---|---:|---:|---:|"]
    for where, entry, _, rate, _, ratio, by_processor in cells_of("workers_speed.md"):
        if entry == "lockstep async":
            lines.append(f"| {where} | {rate} | {ratio} | {by_processor} |")
    return "\n".join([*lines, "", measured_on("workers_speed.md")])


def pong_floor() -> str:
    """Return the rates on Pong beside Stable-Baselines3, and the floor."""
    rates, *_, floors = tables_in("ppo_pong_floor.md")
    floor_of = {row[0]: row[3] for row in floors}
    lines = ["| PPO on ALE/Pong-v5 | steps/s | x Stable-Baselines3 | floor, steps/s |", "|---|---:|---:|---:|"]
    for name, _, _, _, rate, ratio, _ in rates:
        lines.append(f"| {name} | {rate} | {ratio} | {floor_of.get(name, '')} |")
    return "\n".join([*lines, "", measured_on("ppo_pong_floor.md")])


def tables_in(file: str) -> list[list[list[str]]]:
    """Return the cells of every table of a results file, without the heads."""
    tables: list[list[list[str]]] = []
    for block in (RESULTS / file).read_text(encoding="utf-8").split("\n\n"):
        rows = [line.strip("|").split("|") for line in block.splitlines() if line.startswith("|")]
        if rows:
            tables.append([[cell.strip() for cell in row] for row in rows[2:]])
    return tables


def measured_on(file: str) -> str:
    """Return the machine, date, revision and load of a results file."""
    machine: dict[str, Any] = json.loads((RESULTS / file).with_suffix(".json").read_text(encoding="utf-8"))["machine"]
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['date'][:10]}, revision {machine['revision']}, "
        f"load before the first run {machine['load_average']}."
    )


def page_of(file: str) -> str:
    """Return a results file without its title."""
    return (RESULTS / file).read_text(encoding="utf-8").partition("\n")[2].strip()


def learning() -> str:
    """Return for each environment the recipe whose worst seed is the best (of equal ones the shortest), among those of
    three seeds or more where there are any."""
    best: dict[str, list[str]] = {}
    for row in cells_of("bench/README.md"):
        algorithm, _, env = row[0].partition(" ")
        number = [algorithm, env, *row[1:]]
        if env not in best or order(number) > order(best[env]):
            best[env] = number
    lines = ["| environment | algorithm | steps | seeds | mean (IQM) | worst seed | published |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for env, row in best.items():
        lines.append(f"| {env} | {row[0]} | {row[2]} | {row[3]} | {row[4]} | {row[6]} | {row[9].partition(' (')[0]} |")
    return "\n".join(lines)


def order(row: list[str]) -> tuple[bool, float, int]:
    """Return what a recipe is judged by: has it three seeds, its worst one, how few steps it takes."""
    return int(row[3]) >= 3, float(row[6].replace(",", "")), -int(row[2].replace(",", ""))


def gpu_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a part of `benchmarks/gpu/measure.py`."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"gpu_{name}.json").read_text(encoding="utf-8"))["rows"]
    return rows


def clipped_rewards(*_: object) -> Any:
    """Return a connector of train columns that is written in torch."""
    from lockstep.connectors import ClipRewards

    return ClipRewards()


def in_mirror(observations: Any, actions: Any) -> tuple[Any, Any]:
    """Return an image of observations and actions: all signs changed, or the other one of two choices."""
    return -observations, -actions if actions.is_floating_point() else 1 - actions


def plain_environments() -> list[Any]:
    """Return an environment for algorithms that act in a Box, and one for algorithms that need choices."""
    return ["tensor/Pendulum-v1", "tensor/CartPole-v1"]


def environments_with_goals() -> list[Any]:
    """Return the same environments with goals: classes of tensor environments, with a Dict of observations."""
    import torch
    from gymnasium import spaces

    from lockstep.envs.tensor import CartPole, Pendulum, TensorEnv

    def with_goals(base: Any) -> type[TensorEnv]:
        goal = spaces.Box(-1e3, 1e3, (1,))
        entries = {"observation": base.single_observation_space, "achieved_goal": goal, "desired_goal": goal}

        class WithGoals(base):  # type: ignore[misc]
            single_observation_space = spaces.Dict(entries)

            def observe(self, state: Any) -> Any:
                numbers = super().observe(state)
                achieved = numbers[:, -1:]
                return {"observation": numbers, "achieved_goal": achieved, "desired_goal": torch.zeros_like(achieved)}

            def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
                return -(achieved_goal - desired_goal).abs().squeeze(-1)

        return WithGoals

    return [with_goals(base) for base in (Pendulum, CartPole)]


def environments_of_parts() -> list[Any]:
    """Return an environment whose actions are a Dict."""
    from gymnasium import spaces

    from lockstep.envs.tensor import Pendulum

    class ActsInParts(Pendulum):
        single_action_space: Any = spaces.Dict(torque=Pendulum.single_action_space, gear=spaces.Discrete(2))

    return [ActsInParts]


def place_of_steps(config: Any, policy: Any) -> str:
    """Return "yes" if the collector keeps steps on the device, "host" if it needs `allow_host=True`."""
    from lockstep.rollout import TensorCollector

    try:
        collector = config.build_collector(policy)
    except ValueError as error:
        if "allow_host=True" not in str(error):
            raise
        return "host"
    assert isinstance(collector, TensorCollector)
    return "yes"


def place_of_ranks(config: Any, policy: Any) -> str:
    """Return "yes" if the collector of one of two ranks keeps the steps of its share on the device."""
    from lockstep.builder.tensor_collectors import TensorCollectorBuilder
    from lockstep.learner.many.reduction import Reducer

    class OneOfTwo(Reducer):
        """The reducer of rank 0, for a collector that is built and never collects."""

        world_size = 2

    TensorCollectorBuilder(config, policy).build_share(OneOfTwo())
    return "yes"


def place_of_evaluation(config: Any, policy: Any) -> str:
    """Return "yes" if the collector of evaluation keeps steps on the device, "copied" if not."""
    from lockstep.rollout import TensorCollector

    return "yes" if isinstance(config.build_test_collector(policy), TensorCollector) else "copied"


class DeviceRow(NamedTuple):
    """Row of the table of what works on a device: how a configuration with the row's feature is tried."""

    options: Mapping[str, Any] = {}
    """Options by their paths."""
    later: Mapping[str, Any] = {}
    """Options that are set when the policy has been built, because they matter for the collector only."""
    environments: Callable[[], list[Any]] = plain_environments
    """Function that returns the environments. The first one that an algorithm can act in is taken."""
    place: Callable[[Any, Any], str] = place_of_steps
    """Function from a configuration and its policy to the cell."""


GOALS = environments_with_goals
ACTOR = {"policy": ["observation"]}
CRITIC = {"critic": ["observation", "desired_goal"]}
ON_DEVICE: dict[str, DeviceRow] = {
    "default options": DeviceRow(),
    "a learning rate on a schedule": DeviceRow({"training.lr": [[0, 1e-3], [10_000, 1e-4]]}),
    "a KL limit that stops passes": DeviceRow({"training.target_kl": 0.01}),
    "`environment(normalize_observations=True)`": DeviceRow({"environment.normalize_observations": True}),
    "`environment(normalize_rewards=True)`": DeviceRow({"environment.normalize_rewards": True}),
    "`environment(frame_stack=4)`": DeviceRow({"environment.frame_stack": 4}),
    "a network with a memory": DeviceRow({"rl_module.model_config": {"recurrent": "gru"}}),
    "an observation group for the policy": DeviceRow({"rl_module.observation_groups": ACTOR}, environments=GOALS),
    "an observation group for the critic": DeviceRow({"rl_module.observation_groups": CRITIC}, environments=GOALS),
    "`training(symmetry=f)`": DeviceRow({"training.symmetry": in_mirror}),
    "a symmetric network": DeviceRow(
        {"training.symmetry": in_mirror, "rl_module.model_config": {"symmetric": True}},
    ),
    "actions of a Dict or Tuple space": DeviceRow(environments=environments_of_parts),
    "Ornstein-Uhlenbeck noise": DeviceRow({"env_runners.exploration": "ou"}),
    "gSDE": DeviceRow({"env_runners.exploration": "gsde"}),
    "noisy weights": DeviceRow({"env_runners.exploration": "noisy"}),
    "Gaussian noise": DeviceRow({"env_runners.exploration": "normal"}),
    "connectors of train columns in torch": DeviceRow({"training.learner_connector": clipped_rewards}),
    '`training(intrinsic_reward="rnd")`': DeviceRow({"training.intrinsic_reward": "rnd"}),
    '`env_runners(batch_mode="complete_episodes")`': DeviceRow({"env_runners.batch_mode": "complete_episodes"}),
    '`env_runners(vectorize_mode="sync")`': DeviceRow({"env_runners.vectorize_mode": "sync"}),
    "`replay(n_step=3)`": DeviceRow({"replay.n_step": 3}),
    "`replay(prioritized=True)`": DeviceRow({"replay.prioritized": True}),
    "`replay(her=True)`": DeviceRow({"replay.her": True}, environments=GOALS),
    "`replay(ignore_obs_next=True)`": DeviceRow({"replay.ignore_obs_next": True}),
    '`replay(storage="memmap")`': DeviceRow({"replay.storage": "memmap"}),
    "`framework(compile=True)`": DeviceRow({"framework.compile": True}),
    "`framework(mixed_precision=True)`": DeviceRow({"framework.mixed_precision": True}),
    "`torchrun`, one rank for each device": DeviceRow(place=place_of_ranks),
    "`torchrun`, `replay(prioritized=True)`": DeviceRow({"replay.prioritized": True}, place=place_of_ranks),
    "several learners": DeviceRow(later={"learners.num_learners": 2}),
    "several env runners": DeviceRow(later={"env_runners.num_env_runners": 2}),
    "evaluation": DeviceRow(place=place_of_evaluation),
}
"""Rows of the table of what works on a device."""


def device_algorithms() -> dict[str, type[Any]]:
    """Return the configurations of the algorithms that learn from tensors, by their titles in the table."""
    from lockstep.algorithms import ALGORITHMS

    found = [config for config in ALGORITHMS if config.learns_from_tensors]
    return {(getdoc(getmodule(config)) or "").partition(":")[0]: config for config in found}


def on_device() -> str:
    """Return the table of what works on a device and the reasons for the host, as the configurations decide it."""
    columns = {title: device_column(config) for title, config in device_algorithms().items()}
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for row, title in enumerate(ON_DEVICE):
        lines.append(f"| {title} | " + " | ".join(column[row] for column in columns.values()) + " |")
    return "\n".join([*lines, "", *host_rules()])


def host_rules() -> list[str]:
    """Return a paragraph and a list: which algorithms and features need the host, and why."""
    from lockstep.algorithms import ALGORITHMS
    from lockstep.builder.tensor_collectors import HOST_RULES

    needed = [config for config in ALGORITHMS if not config.learns_from_tensors and not config.is_offline]
    names = ", ".join(f"`{config.algorithm}`" for config in needed)
    lines = [f"These algorithms need the host with any options: {names}. The others need it with:", ""]
    for rule in HOST_RULES[1:]:  # the first one is about algorithms
        lines += textwrap.wrap(f"- `{rule.feature}`: {rule.reason}.", 120, subsequent_indent="  ")
    return lines


def device_column(algorithm: type[Any]) -> list[str]:
    """Return the column of an algorithm, a cell for each row of `ON_DEVICE`."""
    return [_cell(algorithm, row) for row in ON_DEVICE.values()]


def _cell(algorithm: type[Any], row: DeviceRow) -> str:
    """Return what the row's function says of this algorithm, or "–" where its options are refused."""
    model = {"hiddens": (4,), "critic_hiddens": (4,), **row.options.get("rl_module.model_config", {})}
    for env in row.environments():
        config = algorithm().environment(env).env_runners(num_envs_per_env_runner=2)
        if config.is_off_policy:
            config.replay(capacity=1_000)
        try:
            for path, value in {**row.options, "rl_module.model_config": model}.items():
                config.set_path(path, value)
            policy = config.build_policy()
            for path, value in row.later.items():
                config.set_path(path, value)
            return row.place(config, policy)
        except (AttributeError, KeyError, TypeError, ValueError):  # of this environment's actions or of any
            continue
    return "–"


def gpu() -> str:
    """Return steps per second of PPO on tensor environments, and what an iteration is made of."""
    about = json.loads((RESULTS / "gpu_ppo.json").read_text(encoding="utf-8"))["about"]
    lines = ["| environments | network | | steps/s | ms an iteration | device | arithmetic | kernels |"]
    lines.append("|---:|---|---|---:|---:|---:|---:|---:|")
    for row in gpu_rows("ppo"):
        ways = [way for way in ("compile", "mixed_precision") if row.get(way)]
        floor = row["gflop"] / (990 if "mixed_precision" in ways else 67)
        times = f"{1e3 * row['seconds']:.1f} | {1e3 * row['device_busy_s']:.1f} | {floor:.1f}"
        network = "x".join(map(str, row["hiddens"]))
        how = ", ".join("bfloat16" if way == "mixed_precision" else "compiled" for way in ways) or "eager"
        lines.append(
            f"| {row['num_envs']:,} | {network} | {how} | {row['steps_per_s']:,} | {times} | {row['kernels']:,} |"
        )
    return "\n".join([*lines, "", f"PPO on `tensor/CartPole-v1`, {about['device']}, PyTorch {about['torch']}."])


def gpu_learning() -> str:
    """Return the mean return of each precision along training, over its seeds."""
    rows = gpu_rows("learning")
    places = [9, 19, 39, 59, 79]
    lines = ["| | " + " | ".join(f"iteration {place + 1}" for place in places) + " |", "|---|" + "---:|" * len(places)]
    for precision in ("float32", "bfloat16"):
        curves = [row["returns"] for row in rows if row["precision"] == precision]
        means = [statistics.mean(curve[place] or 0.0 for curve in curves) for place in places]
        lines.append(f"| {precision} | " + " | ".join(f"{mean:.0f}" for mean in means) + " |")
    seeds = len({row["seed"] for row in rows})
    return "\n".join(
        [*lines, "", f"Mean return of the episodes that end in an iteration, {seeds} seeds, 1,024 environments."]
    )


def gpu_sac() -> str:
    """Return steps per second of SAC on tensor environments beside a plain file."""
    lines = ["| vector steps at a time | gradient steps in each | | Lockstep, steps/s | plain file | ratio |"]
    lines.append("|---:|---:|---|---:|---:|---:|")
    for row in gpu_rows("sac"):
        how, ratio = "compiled" if row["compile"] else "eager", f"{row['ratio']:.2f}"
        speeds = f"{row['lockstep']:,} | {row['plain']:,} | {ratio}"
        lines.append(f"| {row['fragment']} | {row['updates_per_step']} | {how} | {speeds} |")
    return "\n".join(lines)


def gpu_minatar() -> str:
    """Return what PPO reaches in MinAtar's Breakout on the device, seed by seed."""
    rows = gpu_rows("minatar")
    means = ", ".join(f"{row['evaluated']:.1f}" for row in rows)
    seconds = statistics.median(row["seconds"] for row in rows)
    return f"Mean return of 128 episodes after 2,000,000 frames, by seed: {means}; {seconds:.0f} seconds a seed."


def gpu_atari() -> str:
    """Return steps per second of PPO on Atari beside a plain file."""
    speeds: dict[str, list[float]] = {}
    for row in gpu_rows("atari"):
        speeds.setdefault(row["name"], []).append(row["steps_per_s"])
    plain = statistics.median(speeds["plain"])
    lines = ["| PPO on ALE/Pong-v5, 64 environments | steps/s | x the plain file |", "|---|---:|---:|"]
    for name, found in speeds.items():
        lines.append(f"| {name} | {statistics.median(found):,.0f} | {statistics.median(found) / plain:.2f} |")
    return "\n".join(lines)


TABLES = {
    "gpu": gpu,
    "gpu-learning": gpu_learning,
    "gpu-sac": gpu_sac,
    "gpu-minatar": gpu_minatar,
    "gpu-atari": gpu_atari,
    "speed": speed,
    "best": learning,
    "bench": lambda: (RESULTS / "bench/README.md").read_text(encoding="utf-8").strip(),
    "all-speeds": lambda: page_of("start_speed.md"),
    "speed-parts": speed_parts,
    "learner-speed": learner_speed,
    "update-floor": lambda: page_of("update_floor.md"),
    "workers-speed": workers_speed,
    "pong-floor": pong_floor,
    "command-speed": lambda: page_of("command_speed.md"),
}


FROM_CODE = {"on-device": on_device}
"""Tables that are no results: they say what the code does."""


def filled(text: str, tables: Mapping[str, Callable[[], str]] = TABLES) -> str:
    """Return a page with its tables as the results, or the code, are now."""
    for name, table in tables.items():
        place = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text = place.sub(lambda found, table=table: f"{found[1]}\n{table()}\n\n{found[2]}", text)
    return text


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        text = filled(path.read_text(encoding="utf-8"), {**TABLES, **FROM_CODE})
        path.write_text(text, encoding="utf-8")
        print(f"wrote {page}")

"""What the recipes reach: each seed in a process of its own, one thread each, one after another.

    python benchmarks/learning.py ppo CartPole-v1              # 5 seeds
    python benchmarks/learning.py ppo Pendulum-v1 --seeds 3 --compile
    python benchmarks/learning.py ppo Pendulum-v1 --add --first-seed 3 --seeds 2 --compile    # two more
    python benchmarks/learning.py --all
    python benchmarks/learning.py --render                     # results/learning.md, from the results there are
    python benchmarks/learning.py ppo CartPole-v1 --set training.lr=5e-4 --name trial    # results/trial.json

Writes ``results/learning_<algorithm>_<environment>.json``: of each seed the final evaluation (most likely actions, new
episodes on environments of their own), the curve of the evaluations on the way and of the mean return of the training
episodes that ended between them, seconds, steps per second of training (without evaluation), revision, and of all the
median and the worst. The file is replaced after every seed. `--add` keeps the seeds that are in it already, if they
were made with the same settings; a seed that is run again takes the place of its older run.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from typing import Any

import report

FINAL_EPISODES = 50


def recipe_config(options: argparse.Namespace) -> Any:
    """Return the recipe's settings, or those of a MinAtar game."""
    if options.env.startswith("MinAtar/"):
        from minatar_dqn import minatar_dqn

        return minatar_dqn(options.env)
    from lockstep.recipes import find_recipe

    recipe = find_recipe(options.algorithm, options.env)
    if recipe is None:
        raise SystemExit(f"there is no recipe of {options.algorithm!r} for {options.env!r}; see `lockstep list`")
    return recipe.config()


def train_one(options: argparse.Namespace, config: Any) -> dict[str, Any]:
    """Train one seed in this process; progress lines go to standard error."""
    import lockstep

    config.debugging(seed=options.seed).framework(compile=options.compile)
    for setting in options.set:
        path, _, text = setting.partition("=")
        config.set_path(path, json.loads(text))
    trainer = config.build_trainer()
    label = f"{options.algorithm} {options.env} seed {options.seed}"
    curve: list[list[float]] = []
    training: list[list[float]] = []
    started = time.perf_counter()
    for epoch in trainer:
        score = statistics.fmean(trainer.last_test.returns)
        curve.append([trainer.position, round(score, 3)])
        if epoch.train_collect_stat.returns_stat is not None:
            training.append([trainer.position, round(epoch.train_collect_stat.returns_stat.mean, 3)])
        losses = {name: round(value, 4) for name, value in epoch.training_stat.get_loss_stats_dict().items()}
        seconds = time.perf_counter() - started
        print(f"{label}: {trainer.position:,} steps, {seconds:.0f} s, return {score:.1f}", file=sys.stderr, flush=True)
        if options.verbose:
            print(f"    {losses}", file=sys.stderr, flush=True)
    final = trainer.test_collector.collect(n_episode=options.episodes)
    timing = trainer.info().timing
    return {
        "seed": options.seed,
        "final_return": round(statistics.fmean(final.returns), 3),
        "final_return_std": round(statistics.pstdev(final.returns), 3),
        "final_episodes": len(final.returns),
        "steps": trainer.position,
        "gradient_steps": trainer.gradient_step,
        "seconds": round(time.perf_counter() - started, 2),
        "seconds_collect": round(timing.train_time_collect, 2),
        "seconds_update": round(timing.train_time_update, 2),
        "steps_per_second": round(timing.update_speed, 1),
        "curve": curve,
        "training_curve": training,
        "versions": {name: versions(name) for name in ("torch", "numpy", "gymnasium", "numba")},
        "lockstep": lockstep.__version__,
        "config": config.to_dict(),
    }


def versions(package: str) -> str:
    """Return the installed version."""
    from importlib.metadata import version

    return version(package)


def run_seed(options: argparse.Namespace, algorithm: str, env: str, seed: int) -> dict[str, Any]:
    """Train one seed in a process of its own."""
    command = [report.lockstep_python(), __file__, algorithm, env, "--one", "--seed", str(seed)]
    command += ["--episodes", str(options.episodes)]
    command += [flag for flag, on in (("--compile", options.compile), ("--verbose", options.verbose)) if on]
    command += [word for setting in options.set for word in ("--set", setting)]
    done = subprocess.run(
        command, cwd=report.ROOT, env=report.thread_environment(1), stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise report.RunFailed(f"{algorithm} {env} seed {seed}: exit status {done.returncode}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run_seeds(options: argparse.Namespace, algorithm: str, env: str) -> None:
    """Train all seeds of a recipe; write the file after each."""
    name = options.name or result_name(algorithm, env)
    facts, before, runs = report.machine(), earlier_record(options, name), []
    if before:
        facts = before["machine"]
        runs = [{"compile": before["compile"], "revision": facts["revision"], **run} for run in before["runs"]]
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        moment = {"date": report.machine()["date"], "revision": report.revision()}
        run = {**run_seed(options, algorithm, env, seed), "compile": options.compile, **moment}
        config, library, installed = run.pop("config"), run.pop("lockstep"), run.pop("versions")
        del config["debugging"]
        if before:
            check_same_settings(name, before["config"], config)
        runs = sorted([kept for kept in runs if kept["seed"] != seed] + [run], key=lambda kept: kept["seed"])
        finals = [run["final_return"] for run in runs]
        summary = {
            "median": statistics.median(finals),
            "worst": min(finals),
            "best": max(finals),
            "seeds": len(finals),
            "median_steps_per_second": statistics.median(run["steps_per_second"] for run in runs),
            "median_seconds": statistics.median(run["seconds"] for run in runs),
        }
        record = {
            "algorithm": algorithm,
            "environment": env,
            "compile": all(kept["compile"] for kept in runs),
            "threads": 1,
            "machine": facts,
            "lockstep": library,
            "versions": installed,
            **summary,
            "runs": runs,
            "config": config,
        }
        report.write(name, record)
    print(
        f"{algorithm} {env}: median {summary['median']:.1f}, worst {summary['worst']:.1f} of {len(finals)} seeds "
        f"({', '.join(f'{value:.1f}' for value in finals)}); {summary['median_steps_per_second']:,.0f} steps/s, "
        f"{summary['median_seconds']:.0f} s a seed",
        flush=True,
    )


def earlier_record(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return, with ``--add``, what the result's file says by now; empty without it, or where there is no file."""
    file = report.RESULTS / f"{name}.json"
    return dict(json.loads(file.read_text())) if options.add and file.exists() else {}


def check_same_settings(name: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    """End the program where seeds would stand beside others that learned with other settings.

    Whether updates were compiled may differ (each run says it); options that came later stand at their defaults.
    """
    changed = [
        f"{section}.{option}: {value!r}, now {now[section][option]!r}"
        for section, options in before.items()
        if isinstance(options, dict)
        for option, value in options.items()
        if f"{section}.{option}" != "framework.compile" and not agrees(value, now[section][option])
    ]
    if changed:
        raise SystemExit(f"{name}.json was made with other settings ({'; '.join(changed)}): run all seeds again")


def agrees(value: Any, now: Any) -> bool:
    """Return whether both are equal, apart from what a dictionary has more by now."""
    if isinstance(value, dict) and isinstance(now, dict):
        return all(key in now and now[key] == part for key, part in value.items())
    return bool(value == now)


def render() -> str:
    """Write the table of all committed results beside them, and return it."""
    sys.path.insert(0, str(report.ROOT))
    from lockstep.recipes import RECIPES

    rows = []
    for recipe in RECIPES:
        file = report.RESULTS / f"{result_name(recipe.algorithm, recipe.env)}.json"
        if not file.exists():
            continue
        record = json.loads(file.read_text())
        rows.append(
            [
                f"{recipe.algorithm.upper()} {recipe.env}",
                f"{recipe.total_steps:,}",
                str(record["seeds"]),
                f"{record['median']:,.1f}",
                f"{record['worst']:,.1f}",
                f"{record['best']:,.1f}",
                "" if recipe.promise is None else f"{recipe.promise:,g}",
                f"{recipe.reference_return:,.1f} ({recipe.reference_source})",
                f"{record['median_seconds']:.0f}{' (compiled)' if record['compile'] else ''}",
            ]
        )
    header = ["recipe", "steps", "seeds", "median", "worst", "best", "promised", "others", "seconds a seed"]
    text = "Mean return of 50 new episodes after training, most likely actions; one thread, evaluations included.\n\n"
    text += report.table(header, rows)
    (report.RESULTS / "learning.md").write_text(text, encoding="utf-8")
    return text


def result_name(algorithm: str, env: str) -> str:
    """Return the name of a recipe's result without its ending."""
    return "learning_{}_{}".format(algorithm, re.sub(r"[^\w-]+", "-", env))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", nargs="?")
    parser.add_argument("env", nargs="?")
    parser.add_argument("--all", action="store_true", help="every recipe")
    parser.add_argument("--render", action="store_true", help="the table only")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--add", action="store_true", help="keep the seeds that the result's file has")
    parser.add_argument("--episodes", type=int, default=FINAL_EPISODES, help="of the final evaluation")
    parser.add_argument("--compile", action="store_true", help="framework.compile=True")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.OPTION=JSON")
    parser.add_argument("--name", help="name of the result's file")
    parser.add_argument("--verbose", action="store_true", help="losses too")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.all and not options.render and (options.algorithm is None or options.env is None):
        parser.error("say which recipe (algorithm and environment), or --all")
    return options


def main() -> None:
    """Run what the command line says."""
    options = parse()
    if options.one:
        print(json.dumps(train_one(options, recipe_config(options))))
        return
    if options.render:
        print(render())
        return
    recipes = [(options.algorithm, options.env)]
    if options.all:
        sys.path.insert(0, str(report.ROOT))
        from lockstep.recipes import RECIPES

        recipes = [(recipe.algorithm, recipe.env) for recipe in RECIPES]
    for algorithm, env in recipes:
        run_seeds(options, algorithm, env)


if __name__ == "__main__":
    main()

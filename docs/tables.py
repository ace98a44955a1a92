"""Write the tables of committed results into the pages: `python docs/tables.py`.

A table stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGES = ("README.md", "docs/results.md", "docs/speed.md")
LIBRARIES = {
    "lockstep-compiled": "Lockstep, `compile=True`",
    "lockstep": "Lockstep",
    "leanrl-style-compiled": "a file in LeanRL's style, compiled",
    "leanrl-style": "the same, eager",
    "sb3": "Stable-Baselines3",
    "tianshou": "Tianshou",
    "torchrl": "TorchRL",
    "rllib": "RLlib",
}


def cells_of(file: str) -> list[list[str]]:
    """Return the cells of the first table of a results file, without its head."""
    rows = [line for line in (RESULTS / file).read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def speed() -> str:
    """Return PPO's steps per second in each library, and how they relate to Stable-Baselines3."""
    found = {row[0]: row for row in cells_of("ppo_cartpole.md")}
    steady = {name: float(row[4].split()[0].replace(",", "")) for name, row in found.items()}
    lines = ["| PPO on CartPole-v1 | version | steps/s | x Stable-Baselines3 |", "|---|---:|---:|---:|"]
    for name, title in LIBRARIES.items():
        version = found[name][1].removesuffix("+cpu")
        lines.append(f"| {title} | {version} | {steady[name]:,.0f} | {steady[name] / steady['sb3']:.1f} |")
    return "\n".join(lines)


def learning() -> str:
    """Return for each environment the recipe whose worst seed is the best (of equal ones the shortest)."""
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


def order(row: list[str]) -> tuple[float, int]:
    """Return what a recipe is judged by: its worst seed, then how few steps it takes."""
    return float(row[6].replace(",", "")), -int(row[2].replace(",", ""))


TABLES = {
    "speed": speed,
    "best": learning,
    "bench": lambda: (RESULTS / "bench/README.md").read_text(encoding="utf-8").strip(),
    "learning": lambda: (RESULTS / "learning.md").read_text(encoding="utf-8").strip(),
    "all-speeds": lambda: (RESULTS / "ppo_cartpole.md").read_text(encoding="utf-8").partition("\n")[2].strip(),
}


def filled(text: str) -> str:
    """Return a page with its tables as the results are now."""
    for name, table in TABLES.items():
        place = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text = place.sub(lambda found, table=table: f"{found[1]}\n{table()}\n\n{found[2]}", text)
    return text


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {page}")

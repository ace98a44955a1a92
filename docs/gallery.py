"""Train recipes and show what each has learned: `python docs/gallery.py` writes `docs/gallery.md` and its pictures.

Every recipe of which a run took less than ten minutes in `benchmarks/results/bench` is trained once, the fastest first.
The command may be stopped and started again: recipes that are in the gallery are kept, and a run that was interrupted
continues. `python docs/gallery.py --page` trains nothing and writes the page again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np

from lockstep.recipes import RECIPES, Recipe
from lockstep.state.markup import number_text
from lockstep.trainer.display import clock_text

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "benchmarks/results/bench/README.md"
PAGE = ROOT / "docs/gallery.md"
IMAGES = ROOT / "docs/images/gallery"
RESULTS = IMAGES / "results.json"
RUNS = ROOT / "runs/gallery"
MAX_SECONDS = 600
"""Recipes that take longer are not in the gallery."""

CURVE_SIZE = (4.0, 2.6)
"""Size of a learning curve in inches; it has `CURVE_DPI` pixels per inch."""
CURVE_DPI = 80
VIDEO_WIDTH = 200
"""Width of a video in pixels."""
MAX_VIDEO_BYTES = 50_000
VIDEO_FRAMES = (80, 60, 45, 30, 20)
"""Numbers of frames that are tried, until the video is small enough."""
VIDEO_COLOURS = 32
FRAME_MS = 60
"""Milliseconds for which a frame is shown."""


INTRODUCTION = """# Gallery

What the recipes learn in less than ten minutes. Each was trained once, by the command that is shown. Returns are those
of the last evaluation. A curve has all evaluations, with the deviation over their episodes. The video shows some frames
of an episode of the best policy. Times are from the results page, with one thread.

`python docs/gallery.py` makes this page. Several seeds of every recipe: [results](results.md)."""


class Result(TypedDict):
    """What a recipe has reached in its run."""

    seed: int
    steps: int
    final_return: float
    final_return_std: float
    best_return: float
    """Mean return of the best evaluation."""
    has_video: bool
    """Whether the environment could be filmed."""


# -- recipes ---


def measured_seconds() -> dict[tuple[str, str], int]:
    """Return the seconds that a run of each recipe took, by algorithm and environment, from the benchmark's table."""
    seconds = {}
    for line in MEASURED.read_text(encoding="utf-8").splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        algorithm, _, env = cells[0].partition(" ")
        seconds[algorithm.lower(), env] = int(cells[-1])
    return seconds


def gallery_recipes() -> list[Recipe]:
    """Return the recipes that take less than `MAX_SECONDS`, in the order of the list of recipes."""
    seconds = measured_seconds()
    return [each for each in RECIPES if seconds.get((each.algorithm, each.env), MAX_SECONDS) < MAX_SECONDS]


def name_of(recipe: Recipe) -> str:
    """Return the name of a recipe in file names and in the results, such as `"ppo_CartPole-v1"`."""
    return f"{recipe.algorithm}_{recipe.env.replace('/', '-')}"


def command_of(recipe: Recipe, seed: int) -> list[str]:
    """Return the command that trains a recipe, without the folder of its run."""
    return ["lockstep", "train", recipe.algorithm, recipe.env, "--seed", str(seed)]


def read_results() -> dict[str, Result]:
    """Return the results of the recipes that have been trained, by name."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


# -- training ---


def train_missing(seed: int) -> None:
    """Train the recipes that are not in the gallery, the fastest first, and write the page after each."""
    results = read_results()
    seconds = measured_seconds()
    recipes = sorted(gallery_recipes(), key=lambda each: seconds[each.algorithm, each.env])
    for recipe in recipes:
        name = name_of(recipe)
        if name in results:
            continue
        print(f"{name}: about {seconds[recipe.algorithm, recipe.env]} seconds", flush=True)
        try:
            results[name] = show_recipe(recipe, seed)
        except subprocess.CalledProcessError as error:
            print(f"{name} is left out: {error}\n{error.stderr[-2000:]}", flush=True)
            continue
        IMAGES.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        write_page()


def show_recipe(recipe: Recipe, seed: int) -> Result:
    """Train a recipe, write its pictures, and return its result."""
    from lockstep.tracking import RunFolder

    run = trained_run(recipe, seed)
    summary = RunFolder.open(run).read_summary()
    name = name_of(recipe)
    draw_curve(run, IMAGES / f"{name}.png")
    return Result(
        seed=seed,
        steps=summary["train_step"] or summary["gradient_step"],
        final_return=summary["final_return"],
        final_return_std=summary["final_return_std"],
        best_return=summary["best_score"],
        has_video=film(run, IMAGES / f"{name}.gif"),
    )


def trained_run(recipe: Recipe, seed: int) -> Path:
    """Return the folder of a recipe's run, which is trained now, or to its end if it was interrupted."""
    root = RUNS / name_of(recipe)
    found = sorted(root.glob("*/config.json"))
    if found and (found[-1].parent / "summary.json").exists():
        return found[-1].parent
    if found and any((found[-1].parent / "checkpoints").glob("*/manifest.json")):
        run_command(["lockstep", "resume", str(found[-1].parent)])
    else:
        run_command([*command_of(recipe, seed), "--root", str(root)])
    return sorted(root.glob("*/config.json"))[-1].parent


def run_command(words: list[str]) -> None:
    """Run the command `lockstep` with this Python."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "lockstep.cli", *words[1:]], env=environment, capture_output=True, text=True, check=True
    )


# -- pictures ---


def draw_curve(run: Path, path: Path) -> None:
    """Draw the evaluation returns of a run, as `lockstep plot` does, in a small picture."""
    from lockstep.analysis.plots import draw_runs

    figure = draw_runs([run])
    figure.set_size_inches(*CURVE_SIZE)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=CURVE_DPI, pil_kwargs={"optimize": True})
    reduce_colours(path)


def reduce_colours(path: Path) -> None:
    """Write a picture again with 64 colours, which halves its size."""
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(64)
    small.save(path, optimize=True)


def film(run: Path, path: Path) -> bool:
    """Film an episode of the best policy as a small GIF. Return False if the environment cannot be filmed."""
    from lockstep import load_policy
    from lockstep.runs import record_video

    large = run / "gallery.gif"
    try:
        record_video(load_policy(run), large)
    except ValueError as error:
        print(f"no video: {error}", flush=True)
        return False
    write_small_gif(large, path)
    large.unlink()
    return True


def write_small_gif(source: Path, path: Path) -> None:
    """Write a GIF with fewer, smaller frames and fewer colours, of at most `MAX_VIDEO_BYTES` if that is possible."""
    from imageio import v3 as imageio
    from PIL import Image

    frames = imageio.imread(source, index=None, mode="RGB")
    height = round(VIDEO_WIDTH * frames.shape[1] / frames.shape[2])
    for count in VIDEO_FRAMES:
        chosen = np.unique(np.linspace(0, len(frames) - 1, count).astype(int))
        small = [Image.fromarray(frames[index]).resize((VIDEO_WIDTH, height)) for index in chosen]
        palette = small[len(small) // 2].quantize(VIDEO_COLOURS)
        pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in small]
        pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=FRAME_MS, loop=0, optimize=True)
        if path.stat().st_size <= MAX_VIDEO_BYTES:
            return


# -- page ---


def page_text(results: Mapping[str, Result]) -> str:
    """Return the text of the page."""
    return "\n".join(page_lines(results)) + "\n"


def page_lines(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield the lines of the page: a section for each environment, and the recipes that are missing."""
    recipes = gallery_recipes()
    yield INTRODUCTION
    env = ""
    for recipe in recipes:
        name = name_of(recipe)
        if name not in results:
            continue
        if recipe.env != env:
            env = recipe.env
            yield from ("", f"## {env}")
        yield from recipe_lines(recipe, results[name])

    missing = [recipe for recipe in recipes if name_of(recipe) not in results]
    if missing:
        yield from ("", "## Not trained yet", "", "These recipes take less than ten minutes as well:", "")
        yield from (f"- {recipe.algorithm.upper()} on {recipe.env}" for recipe in missing)


def recipe_lines(recipe: Recipe, result: Result) -> Iterator[str]:
    """Yield the lines about one recipe."""
    name = name_of(recipe)
    minutes = clock_text(measured_seconds()[recipe.algorithm, recipe.env])
    title = f"{recipe.algorithm.upper()} on {recipe.env}"
    reached = f"{number_text(result['final_return'])} ± {number_text(result['final_return_std'], 3)}"
    needs = f" It needs the extra `{recipe.requires}`." if recipe.requires else ""
    best = ""
    if result["best_return"] > result["final_return"]:
        best = f" (best evaluation: {number_text(result['best_return'])})"
    yield from (
        "",
        f"### {title}",
        "",
        f"`{' '.join(command_of(recipe, result['seed']))}`",
        "",
        f"Return {reached} after {result['steps']:,} steps{best}, in about {minutes} minutes.{needs}",
        "",
        f"![Evaluation returns of {title}](images/gallery/{name}.png)",
    )
    if result["has_video"]:
        yield f"![An episode of {title}](images/gallery/{name}.gif)"


def write_page() -> None:
    """Write the page from the results."""
    PAGE.write_text(page_text(read_results()), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--seed", type=int, default=1, help="seed of the runs (default: 1)")
    arguments = parser.parse_args()
    if not arguments.page:
        train_missing(arguments.seed)
    write_page()

"""Figures and messages in the pages are those of the committed results and of the code."""

import importlib.util
import re
import tomllib

import pytest
from parts import one_in
from test_docs_pages import ROOT

from lockstep import PPOConfig
from lockstep.recipes import RECIPES

README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs/results.md").read_text()
GPU = (ROOT / "docs/gpu.md").read_text()
BEGIN = (ROOT / "docs/getting-started.md").read_text()
RESULTS = ROOT / "benchmarks/results"


def load_tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs/tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLES = load_tables()


def rows_of(text):
    return [line for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("page", TABLES.PAGES)
def test_the_tables_of_the_pages_are_those_of_the_results(page):
    text = (ROOT / page).read_text()
    assert TABLES.filled(text) == text, "results have changed: make pages"


@pytest.mark.parametrize("title", one_in(5, TABLES.device_algorithms()))
def test_the_table_of_the_device_says_what_configurations_decide(title):
    part = GPU.partition("<!-- on-device:begin -->")[2].partition("<!-- on-device:end -->")[0]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows_of(part)]
    assert head[1:] == list(TABLES.device_algorithms())
    assert [row[0] for row in rows] == list(TABLES.ON_DEVICE)
    column = head.index(title)
    decided = TABLES.device_column(TABLES.device_algorithms()[title])
    assert [row[column] for row in rows] == decided, "the code has changed: make pages"


def test_the_page_of_the_device_lists_all_that_needs_the_host():
    assert "\n".join(TABLES.host_rules()) in GPU, "the code has changed: make pages"


@pytest.mark.parametrize(
    "page, marker, result",
    [
        ("speed", "all-speeds", "start_speed.md"),
        ("results", "bench", "bench/README.md"),
    ],
)
def test_the_whole_tables_stand_on_the_pages(page, marker, result):
    text = (ROOT / f"docs/{page}.md").read_text()
    part = text.split(f"<!-- {marker}:begin -->")[1].split(f"<!-- {marker}:end -->")[0]
    assert rows_of(part) == rows_of((RESULTS / result).read_text())


def test_the_readme_shows_the_best_recipe_of_each_environment():
    part = README.partition("<!-- best:begin -->")[2].partition("<!-- best:end -->")[0]
    shown = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in rows_of(part)[2:]}
    assert (shown["CartPole-v1"], shown["Pendulum-v1"]) == ("DQN", "TQC")  # of 500s the shortest; of ten seeds, -160
    assert set(shown) == {row[0].partition(" ")[2] for row in TABLES.cells_of("bench/README.md")}


def test_the_tables_of_what_scaling_costs_are_those_of_the_results():
    page, rows = (ROOT / "docs/scaling.md").read_text(), rows_of((RESULTS / "scaling_cost.md").read_text())
    assert len(rows) == 10
    assert [row for row in rows if row not in page] == []


def test_what_a_recipe_promises_is_told_to_the_digit():
    promised = {row.split("|")[1].strip().lower(): row.split("|")[7].strip() for row in rows_of(PAGE) if "-v" in row}
    online = [recipe for recipe in RECIPES if recipe.config().input_ is None and recipe.promise is not None]
    told = {f"{recipe.algorithm} {recipe.env.lower()}": f"{recipe.promise:,g}" for recipe in online}
    assert {recipe: promised.get(recipe) for recipe in told} == told


def test_the_message_in_the_readme_is_the_one_that_is_raised():
    (message, option) = re.search(r"`(training has no option '(\w+)'.*?)`", README, re.DOTALL).groups()
    with pytest.raises(ValueError) as error:
        PPOConfig().training(**{option: 1})
    assert str(error.value) == message


def test_getting_started_names_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.search(r"Videos need the extra .*?`all` of them", BEGIN, re.DOTALL)[0]
    assert set(re.findall(r"`([a-z0-9]+)`", named)) == set(extras) - {"test", "dev", "docs"}

"""The files that a hosting platform reads: forms for issues, the workflow, and what contributors are told."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORMS = ROOT / ".github/ISSUE_TEMPLATE"
CHECKER = Path(sys.executable).with_name("check-jsonschema")
SCHEMAS = {
    "vendor.github-issue-forms": [path for path in sorted(FORMS.glob("*.yml")) if path.name != "config.yml"],
    "vendor.github-issue-config": [FORMS / "config.yml"],
    "vendor.github-workflows": sorted((ROOT / ".github/workflows").glob("*.yml")),
}
"""Schemas of the tool `check-jsonschema`, which needs no network for them, with the files that they describe."""


@pytest.mark.parametrize("schema, files", SCHEMAS.items(), ids=SCHEMAS)
def test_files_for_the_hosting_platform_fit_its_schema(schema, files):
    if not CHECKER.exists():
        pytest.skip("check-jsonschema is not installed: make setup-dev")
    assert files
    done = subprocess.run([CHECKER, "--builtin-schema", schema, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_refuses_a_form_with_an_unknown_kind_of_field(tmp_path):
    if not CHECKER.exists():
        pytest.skip("check-jsonschema is not installed: make setup-dev")
    form = tmp_path / "form.yml"
    form.write_text((FORMS / "fault.yml").read_text().replace("type: checkboxes", "type: checkbox"))
    done = subprocess.run([CHECKER, "--builtin-schema", "vendor.github-issue-forms", form], capture_output=True)
    assert done.returncode == 1


def test_contributing_orders_the_targets_that_ci_runs():
    """Each target of `.ci/run` is a row of the table with "yes" or a part, and each row is a target of the Makefile."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rows = {}
    for line in re.findall(r"^\| (`make .*) \|$", page, re.MULTILINE):
        targets, *_, in_ci = line.split(" | ")
        rows |= dict.fromkeys(re.findall(r"`make ([a-z-]+)`", targets), in_ci)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(rows) <= targets
    assert {name for name in targets if name.startswith(("test", "lint"))} <= set(rows)
    run_by_ci = set(re.findall(r"^.*make VENV=\.venv-ci ([a-z-]+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE))
    assert run_by_ci
    assert {name: rows[name] for name in run_by_ci if not re.search("yes|part", rows[name])} == {}


def test_private_reports_go_through_the_platform():
    for name in ("SECURITY.md", "CODE_OF_CONDUCT.md"):
        text = (ROOT / name).read_text()
        assert "Report a\nvulnerability" in text or "Report a vulnerability" in text
        assert "@" not in text, f"{name} names an address"
    assert "(SECURITY.md)" in (ROOT / "CONTRIBUTING.md").read_text()
    assert "`SECURITY.md`" in (FORMS / "fault.yml").read_text()

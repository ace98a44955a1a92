"""`write_report`: what stands on the page, and what a browser makes of it without a network."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tracked_runs import make_run

from lockstep.analysis import write_report
from lockstep.tracking import JsonlLogger, RunFolder

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
in_a_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser is installed: {', '.join(BROWSERS)}")
OFFLINE = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *(
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--virtual-time-budget=4000",
        "--window-size=1200,1600",
    ),
)


@pytest.fixture
def runs(tmp_path: Path) -> list[RunFolder]:
    """Two learning rates with two seeds, and one run in another environment that has not ended."""
    found = [
        make_run(tmp_path / "runs", seed=seed, scale=lr + seed, lr=lr, ended=True)
        for lr in (1.0, 4.0)
        for seed in (0, 1)
    ]
    found.append(make_run(tmp_path / "runs", env="Pole-v0", lr=1.0))
    for run in found:
        with JsonlLogger(run.metrics_path, resume=True) as logger:
            logger.save_data(1, 4000, 800)
            logger.log_update_data({"entropy": 0.5}, 400)
    return found


def paths(runs: list[RunFolder]) -> list[Path]:
    return [run.path for run in runs]


def data_of(page: Path) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)[1])


def text_of(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", markup))


def section_of(page: Path, heading: str) -> str:
    return page.read_text().partition(f"<h2>{heading}</h2>")[2].partition("<h2>")[0].partition("<script")[0]


def test_the_page_holds_the_curves_of_each_group(runs: list[RunFolder], tmp_path: Path) -> None:
    page = write_report(paths(runs), tmp_path / "new" / "report.html", metrics=["update/entropy"])
    data = data_of(page)
    assert [group["label"] for group in data["groups"]] == ["PPO lr=1", "PPO lr=4"]
    assert [record["name"] for record in data["records"]] == [
        *("evaluation return", "evaluation episode length", "training return", "update/entropy")
    ]
    axes = data["records"][0]["axes"]
    assert list(axes) == ["steps", "seconds", "gradient_steps"]
    first, second = axes["steps"]
    assert [first["title"], second["title"]] == ["CartPole-v1", "Pole-v0"]
    fast = first["groups"][1]
    assert fast["x"] == [0, 1000, 2000, 3000, 4000]
    assert (fast["y"][-1], fast["low"][-1], fast["high"][-1]) == (18000, 16000, 20000)
    assert [run["y"][-1] for run in fast["runs"]] == [16000, 20000]
    assert axes["gradient_steps"][0]["groups"][0]["x"] == [0, 200, 400, 600, 800]
    assert (second["groups"][0]["low"][-1], second["groups"][0]["high"][-1]) == (3999, 4001)  # one run: ± std


def test_the_page_has_differences_ends_of_runs_and_times(runs: list[RunFolder], tmp_path: Path) -> None:
    runs[2].info["versions"]["torch"] = "0.1"
    (runs[2].path / "config.json").write_text(json.dumps(runs[2].info))
    page = write_report(paths(runs), tmp_path / "report.html", title="<Rates>")
    text = page.read_text()
    assert "<h1>&lt;Rates&gt;</h1>" in text
    assert "5 runs on CartPole-v1, Pole-v0." in text
    differs = text_of(section_of(page, "Differences")).split()
    assert differs[differs.index("training.lr") :][:3] == ["training.lr", "1", "4"]
    assert "version: torch" in section_of(page, "Differences")
    finals = " ".join(text_of(section_of(page, "Final evaluations")).split())
    assert "CartPole-v1 PPO lr=4 2 18,000 16,000 to 20,000 18,000 18,000 16,000 20,000" in finals
    assert "not ended" in finals
    assert f"{runs[0].path.name} PPO lr=1 CartPole-v1 0 4,000 4,000 ± 1 4,000 400 10 s all steps done" in finals
    times = section_of(page, "Time by stage")
    assert times.count('class="bar"') == 4
    assert "width:50.00%" in times
    assert 'title="environment: 5.0 s, 50%"' in times
    assert 'title="checkpoints, logs: 1.0 s, 10%"' in times
    assert "There are none" in section_of(page, "Videos")


def test_names_are_text_and_never_markup(runs: list[RunFolder], tmp_path: Path) -> None:
    page = write_report(paths(runs), tmp_path / "report.html", labels=["</script><b>a", "<i>b"])
    assert [group["label"] for group in data_of(page)["groups"]] == ["</script><b>a", "<i>b"]
    assert not re.search("<b>a|<i>b", page.read_text())


HOSTILE = '"><script>alert(1)</script><!--data-->'


def every_text_replaced(value: object) -> object:
    """Return a tree of JSON with markup in the place of each text and at the end of each key."""
    if isinstance(value, dict):
        return {
            name + HOSTILE if name in ("lr", "environment", "torch") else name: every_text_replaced(part)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [every_text_replaced(part) for part in value]
    return HOSTILE if value is None or isinstance(value, str) else value


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
def test_no_text_of_a_runs_files_is_markup(name: str, runs: list[RunFolder], tmp_path: Path) -> None:
    for run in runs[:4]:
        file = run.path / name
        content = every_text_replaced(json.loads(file.read_text()))
        if name == "config.json":
            content["seed"] = HOSTILE + str(run.seed)
        file.write_text(json.dumps(content))
    page = write_report(paths(runs[:4]), tmp_path / "report.html").read_text()
    clean = write_report(paths([make_run(tmp_path / "clean", ended=True)]), tmp_path / "clean.html").read_text()
    assert "alert(1)" in page
    assert page.count("<script") == clean.count("<script")
    assert not re.search(r"<script>alert|=\"\">", page)


def test_a_video_is_a_file_of_the_run_and_its_link_a_path(runs: list[RunFolder], tmp_path: Path) -> None:
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    (runs[0].path / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    odd = runs[1].path.rename(tmp_path / "javascript:alert(1)")
    (odd / "video.mp4").write_bytes(b"v")
    (odd / "older.mp4").write_bytes(b"v")
    os.utime(odd / "older.mp4", (0, 0))
    page = write_report([runs[0].path, odd], tmp_path / "report.html").read_text()
    assert "link.mp4" not in page
    assert 'href="javascript%3Aalert' in page


def test_equal_runs_differ_in_nothing(runs: list[RunFolder], tmp_path: Path) -> None:
    page = write_report(paths(runs[:2]), tmp_path / "report.html")
    assert "Nothing but seeds." in section_of(page, "Differences")


def test_small_videos_are_embedded_and_others_linked(
    runs: list[RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.analysis.report.MAX_EMBEDDED_BYTES", 10)
    for number, (name, size) in enumerate([("old.mp4", 5), ("new.mp4", 10)]):
        file = runs[0].path / "videos" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"v" * size)
        os.utime(file, (number, number))
    (runs[1].path / "large.gif").write_bytes(b"v" * 11)
    page = write_report(paths(runs), tmp_path / "pages" / "report.html")
    videos = section_of(page, "Videos")
    assert videos.count("<video") == 1
    assert "videos/new.mp4 (embedded)" in videos
    links = re.findall(r'href="([^"]+)"', videos)
    assert [link.rpartition("/")[2] for link in links] == ["old.mp4", "large.gif"]
    assert all((page.parent / link).exists() for link in links)
    assert "Linked: these play while the files stay" in videos


def test_the_page_refers_to_no_other_host(runs: list[RunFolder], tmp_path: Path) -> None:
    text = write_report(paths(runs), tmp_path / "report.html").read_text()
    assert set(re.findall(r"\w+://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert not re.search(r"<link|<script src|@import|url\(", text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["entropy"]}, "has no scope; write it as update/entropy"),
        ({"metrics": ["update/nothing"]}, "has no record of update/nothing"),
        ({"group_by": ["lr"]}, "did you mean 'training.lr'?"),
        ({"labels": ["a"]}, "1 labels for 2 groups"),
    ],
)
def test_reports_that_cannot_be_written_are_refused(runs, tmp_path: Path, options, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        write_report(paths(runs), tmp_path / "report.html", **options)
    assert not list(tmp_path.glob("*.html*"))


def test_damaged_runs_are_named(runs: list[RunFolder], tmp_path: Path) -> None:
    runs[0].summary_path.write_text("{")
    with pytest.raises(ValueError, match=r"cannot read .*summary\.json"):
        write_report(paths(runs), tmp_path / "report.html")
    runs[1].metrics_path.write_text("")
    with pytest.raises(ValueError, match="has no evaluation in its records"):
        write_report(paths(runs[1:]), tmp_path / "report.html")


# -- in a browser ---


def shown(page: Path, script: str, folder: Path) -> str:
    """Return the document as a browser has it after the page's own script and another one."""
    acted = folder / "acted.html"
    acted.write_text(page.read_text() + f"<script>\n{script}\n</script>")
    done = subprocess.run(
        [BROWSER, *OFFLINE, f"--user-data-dir={folder / 'browser'}", "--dump-dom", acted.as_uri()],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


REPORT = """
window.addEventListener("error", event => document.title = event.message);
const say = (name, value) => document.body.setAttribute(`data-${name}`, JSON.stringify(value));
const count = kind => document.querySelectorAll(`svg path.${kind}`).length;
const legend = () => [...document.querySelectorAll("#legend button")];
function point(panel, share) {
  const picture = document.querySelectorAll("svg")[panel], place = picture.getBoundingClientRect();
  const where = {clientX: place.left + share * place.width, clientY: place.top + 99};
  picture.dispatchEvent(new MouseEvent("mousemove", where));
  return [...document.querySelectorAll(".tip")].filter(tip => !tip.hidden).map(tip => tip.innerText.split("\\n"));
}
function choose(id, text) {
  const select = document.getElementById(id);
  select.value = [...select.options].find(option => option.text === text).value;
  select.dispatchEvent(new Event("change"));
}
"""


def said(document: str, name: str):
    found = re.search(rf'<body[^>]* data-{name}="([^"]*)"', document)
    assert found, f"the script said no {name}: {re.search('<title>(.*?)</title>', document)[1]}"
    return json.loads(html.unescape(found[1]))


@in_a_browser
def test_curves_are_drawn_read_and_hidden(runs: list[RunFolder], tmp_path: Path) -> None:
    page = write_report(paths(runs), tmp_path / "report.html", metrics=["update/entropy"])
    script = (
        REPORT
        + """
say("panels", [...document.querySelectorAll(".panel h3")].map(title => title.textContent));
say("drawn", [count("line"), count("band"), count("single")]);
say("pointed", point(0, 1));
document.querySelectorAll("svg")[0].dispatchEvent(new MouseEvent("mouseleave"));
say("left", [...document.querySelectorAll(".tip")].filter(tip => !tip.hidden).length);
legend()[1].click();
say("hidden", [count("line"), legend().map(button => button.getAttribute("aria-pressed")), point(0, 1)]);
legend()[1].click();
document.getElementById("single").click();
say("shown", [count("line"), count("single")]);
choose("axis", "gradient steps");
say("gradient", point(0, 0.55));
choose("record", "update/entropy");
say("entropy", [document.querySelector("svg").textContent.includes("update/entropy"), point(1, 0.5)]);
legend()[0].click(); legend()[1].click();
say("none", [count("line"), point(0, 0.5).length]);
"""
    )
    document = shown(page, script, tmp_path)
    assert said(document, "panels") == ["CartPole-v1", "Pole-v0"]
    assert said(document, "drawn") == [3, 3, 4]
    ((where, slow, fast),) = said(document, "pointed")
    assert where == "4,000 environment steps"
    assert (slow, fast) == ("PPO lr=1: 6000 (4000 to 8000)", "PPO lr=4: 18k (16k to 20k)")
    assert said(document, "left") == 0
    assert said(document, "hidden") == [2, ["true", "false"], [[where, slow]]]
    assert said(document, "shown") == [3, 0]
    assert said(document, "gradient")[0][0] == "400 gradient steps"
    assert said(document, "entropy") == [True, [["400 gradient steps", "PPO lr=1: 0.5"]]]
    assert said(document, "none") == [0, 0]


@in_a_browser
@pytest.mark.long
def test_the_page_asks_nothing_of_a_network(runs: list[RunFolder], tmp_path: Path) -> None:
    """Every request goes to a proxy of ours, which notes it; a page that asks shows that it would."""
    asked: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    page = write_report(paths(runs), tmp_path / "report.html")
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        flags = (*OFFLINE, f"--proxy-server=http://127.0.0.1:{proxy.server_port}", "--disable-background-networking")
        for number, text in enumerate((page.read_text(), '<img src="http://elsewhere.example/a.png">')):
            place = tmp_path / f"{number}.html"
            place.write_text(text)
            command = [
                BROWSER,
                *flags,
                f"--user-data-dir={tmp_path / f'browser{number}'}",
                "--dump-dom",
                place.as_uri(),
            ]
            assert subprocess.run(command, capture_output=True, timeout=100).returncode == 0
            mine = [path for path in asked if "google" not in path]  # the browser's own questions
            assert mine == (["http://elsewhere.example/a.png"] if number else [])
        proxy.shutdown()

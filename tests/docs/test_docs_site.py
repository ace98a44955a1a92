"""The site: every page is in its navigation, every public name in its reference, and a browser needs nothing else."""

from __future__ import annotations

import functools
import html
import importlib.util
import json
import os
import pkgutil
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from urllib.parse import unquote

import pytest
from test_docs_pages import ROOT

import lockstep

mkdocs = pytest.importorskip("mkdocs", reason="the extra docs is not installed")
SITE = ROOT / "site"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


def load_hook():
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs/site_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOK = load_hook()


def test_every_page_is_in_the_navigation():
    from mkdocs.config import load_config

    def places(nav):
        for entry in nav:
            for value in entry.values() if isinstance(entry, dict) else [entry]:
                yield from places(value) if isinstance(value, list) else [value]

    listed = list(places(load_config(str(ROOT / "mkdocs.yml")).nav))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    made = {*HOOK.START.values(), "api/index.md", *(f"api/{package}.md" for package in HOOK.PACKAGES)}
    assert sorted(listed) == sorted(written | made), "add new pages to `nav` in mkdocs.yml"


def test_every_package_with_public_names_is_in_the_reference():
    packages = {f"lockstep.{info.name}" for info in pkgutil.iter_modules(lockstep.__path__) if info.ispkg}
    public = {name for name in packages if getattr(import_module(name), "__all__", ())}
    assert set(HOOK.PACKAGES) == (public | {"lockstep", "lockstep_sb3"}) - {"lockstep.cli"}


def test_links_of_pages_lead_to_copies_of_the_files():
    assert HOOK.place_of(ROOT / "README.md") == "index.md"
    assert HOOK.place_of(ROOT / "docs/algorithms/dqn.md") == "algorithms/dqn.md"
    assert HOOK.place_of(ROOT / "lockstep/algorithms/ppo.py") == "source/lockstep/algorithms/ppo.py.html"
    assert HOOK.origin_of("source/benchmarks/README.md") == ROOT / "benchmarks/README.md"
    source = HOOK.source_page(ROOT / "lockstep/algorithms/ppo.py")
    assert 'id="L12"' in source


def test_every_algorithm_has_a_page_with_its_results():
    pages = {path.stem: path.read_text() for path in (ROOT / "docs/algorithms").glob("*.md")}
    for config_class in lockstep.ALGORITHMS:
        page = pages[config_class.algorithm]
        assert f"<!-- results {config_class.algorithm} -->" in page
        for heading in ("When to use it", "Options", "Differences from other libraries"):
            assert f"\n## {heading}\n" in page, config_class.algorithm
        assert f"({config_class.algorithm}.md)" in pages["index"]
    assert "| CartPole-v1 | 100,000 | 10 | 500.0 |" in HOOK.results_of("ppo")
    assert "images/bench_ppo.png" in HOOK.results_of("ppo")
    assert "| Pendulum-v1 | 5,000 | -200 | -158.2 |" in HOOK.results_of("bc")


def built(name: str) -> str:
    path = SITE / name
    assert path.exists(), f"there is no {path.relative_to(ROOT)}: make docs"
    return path.read_text(encoding="utf-8")


@pytest.mark.site
@pytest.mark.parametrize("package", HOOK.PACKAGES)
def test_every_public_name_is_described(package):
    text = built(f"api/{package}.html")
    for name in HOOK.public_names(package):
        home = HOOK.homes()[f"{package}.{name}"]
        assert f"{home}.html#{home}.{name}" in text or f'id="{package}.{name}"' in text, name
        assert f'id="{home}.{name}"' in built(f"api/{home}.html"), name


def words_of(markup: str) -> list[str]:
    return re.findall(r"\w+", html.unescape(re.sub(r"<[^>]+>", " ", markup)))


@pytest.mark.site
def test_the_search_index_has_every_option():
    entries = json.loads(built("search/search_index.json"))["docs"]
    found = {word for entry in entries for word in words_of(entry["title"] + " " + entry["text"])}
    options = {
        option
        for config_class in lockstep.ALGORITHMS
        for section in config_class().sections.values()
        for option in vars(section)
        if not option.startswith("_")
    }
    assert "minibatch_size" in options
    assert options - found == set()
    assert not any(entry["location"].startswith("source/") for entry in entries)


LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*?\ssrc="?([^"\s>]+)|<link\b[^>]*?\shref="?([^"\s>]+)""")
STYLED = re.compile(r"""(?:@import\s+["']|url\(["']?)([^"')]+)""")


@pytest.mark.site
def test_no_page_loads_anything_from_elsewhere():
    pages, styles = list(SITE.rglob("*.html")), list(SITE.rglob("*.css"))
    assert len(pages) > 100
    loaded = {url for path in pages for urls in LOADED.findall(path.read_text()) for url in urls}
    loaded |= {url for path in styles for url in STYLED.findall(path.read_text())}
    assert any(url.endswith(".js") for url in loaded)
    assert sorted(url for url in loaded if re.match(r"(https?:)?//", url)) == []


@pytest.mark.site
@pytest.mark.skipif(BROWSER is None, reason=f"no browser is installed: {', '.join(BROWSERS)}")
@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "docs/algorithms").glob("*.md")))
def test_equations_are_drawn_without_a_server(name, tmp_path):
    written = (ROOT / f"docs/algorithms/{name}.md").read_text().count("\n```math\n")
    assert written or name == "index"
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom")
    command = [BROWSER, *options, (SITE / f"algorithms/{name}.html").as_uri()]
    page = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert page.count('class="katex-display"') == written
    assert "katex-error" not in page


SEARCH = """
<iframe src="index.html?q=minibatch_size" width="1200" height="900"></iframe>
<script>
const frame = document.querySelector("iframe");
setInterval(() => {
  const links = [...frame.contentDocument.querySelectorAll("a.md-search-result__link")].map(link => link.href);
  const loaded = frame.contentWindow.performance.getEntriesByType("resource").map(entry => entry.name);
  if (links.length > 3) fetch("/found?" + encodeURIComponent(JSON.stringify({links, loaded})));
}, 500);
</script>
"""
"""searches as a reader does, and tells the server what was found and what the page has loaded"""


@dataclass
class Served:
    """The site behind an address of this machine, and what was asked of it."""

    address: str
    asked: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    is_found: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def served() -> Iterator[Served]:
    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.path)
            if self.path.startswith("/found?"):
                told = json.loads(unquote(self.path.partition("?")[2]))
                site.links, site.loaded = told["links"], told["loaded"]
                site.is_found.set()
            if self.path == "/check.html" or self.path.startswith("/found?"):
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(SEARCH.encode())
            else:
                super().do_GET()

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=SITE))
    site = Served(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.site
@pytest.mark.skipif(BROWSER is None, reason=f"no browser is installed: {', '.join(BROWSERS)}")
def test_minibatch_size_is_readable_and_other_machines_are_not_asked(served, tmp_path):
    options = (
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
        *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-port=0"),
        f"--user-data-dir={tmp_path / 'profile'}",
    )
    command = [BROWSER, *options, f"{served.address}/check.html"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as browser:
        was_found = served.is_found.wait(90)
        browser.terminate()
        browser.wait(30)
    assert was_found, served.asked
    assert any(link.endswith("#lockstep.learner.TrainingSection.minibatch_size") for link in served.links)
    assert "/search/search_index.json" in served.asked
    assert len(served.loaded) >= 5
    assert [url for url in served.loaded if not url.startswith(served.address)] == []

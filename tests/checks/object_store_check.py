#!/usr/bin/env python3
"""Checks that traces and runs in an object store give the same bytes as files, also if requests fail.

    object_store_check.py --bin target/debug/aggregator [--seed N]

moto serves S3 on this machine and verifies signatures. The aggregator reaches it through a proxy that lets one request in
twenty fail, in turns by a status of 503, by a reset connection and by a body that ends early. Wrong credentials, a missing
bucket and objects that are cut must be errors that name them, and no message may show a secret.
"""

import argparse
import contextlib
import filecmp
import http.client
import http.server
import logging
import os
import pathlib
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import ROOT  # noqa: E402

import boto3  # noqa: E402
from moto.moto_server.threaded_moto_server import ThreadedMotoServer  # noqa: E402

BUCKET = "traces"
TRACES = ROOT / "examples/traces/gloo8_slow5"
FAULTS = ["status", "reset", "cut"]


class Proxy(http.server.BaseHTTPRequestHandler):
    """Forwards requests to the store; the server's `share` of them fails."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        with server.lock:
            server.requests += 1
            fault = server.random.choice(FAULTS) if server.random.random() < server.share else None
            if fault:
                server.faults[fault] += 1
        if fault == "reset":
            # With this option, closing sends a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        if fault == "status":
            self.answer(503, {"Content-Type": "application/xml"}, b"<Error><Code>SlowDown</Code></Error>")
            return
        if self.path.startswith("/web/"):
            self.serve_file()
            return
        store = http.client.HTTPConnection("127.0.0.1", server.store_port, timeout=60)
        store.request(self.command, self.path, headers=dict(self.headers))
        reply = store.getresponse()
        body = reply.read()
        headers = {name: value for name, value in reply.getheaders() if name.lower() not in ("connection", "transfer-encoding")}
        store.close()
        if self.command != "HEAD":
            headers["Content-Length"] = str(len(body))
        self.answer(reply.status, headers, body[: len(body) // 2] if fault == "cut" else body)
        if fault == "cut":
            self.close_connection = True

    do_HEAD = do_GET

    def serve_file(self):
        """A plain web server: files of the traces by name, whole or in ranges."""
        path = TRACES / pathlib.PurePosixPath(self.path).name
        if not path.is_file():
            self.answer(404, {}, b"")
            return
        content, wanted = path.read_bytes(), self.headers.get("Range")
        if not wanted or self.command == "HEAD":
            self.answer(200, {"Content-Length": str(len(content))}, content)
            return
        first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        part = content[first : last + 1]
        self.answer(206, {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(content)}"}, part)

    def answer(self, status, headers, body):
        self.send_response_only(status)
        headers.setdefault("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, store_port, seed):
        super().__init__(("127.0.0.1", 0), Proxy)
        self.store_port, self.share, self.random = store_port, 0.0, random.Random(seed)
        self.lock, self.requests, self.faults = threading.Lock(), 0, dict.fromkeys(FAULTS, 0)

    def handle_error(self, *_):
        # A client that aborts is expected.
        pass


class Check:
    def __init__(self, binary, server, keys, place):
        self.binary, self.server, self.keys, self.place = binary, server, keys, place
        self.errors = 0
        self.secrets = list(keys) + ["signature-of-mine", "password-of-mine"]

    def run(self, *arguments, expect=0, **environment):
        """Runs the aggregator, and returns its output and its messages."""
        keys = {"AWS_ACCESS_KEY_ID": self.keys[0], "AWS_SECRET_ACCESS_KEY": self.keys[1]}
        endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.server_port}", "AWS_REGION": "us-east-1"}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        done = subprocess.run([self.binary, *arguments], env={**clean, **endpoint, **keys, **environment}, capture_output=True, timeout=300)
        said = done.stderr.decode()
        assert done.returncode == expect, f"{arguments} ended with {done.returncode}, not {expect}:\n{said}"
        shown = [secret for secret in self.secrets if secret in said or secret.encode() in done.stdout]
        assert not shown, f"{arguments} shows a secret:\n{said}"
        return done.stdout, said

    def same(self, local, url):
        """The analysis and the run of traces, or the analysis of a run, are the same bytes from both places."""
        assert self.run("analyze", local, "--json")[0] == self.run("analyze", url, "--json")[0], f"{url} differs from {local}"

    def same_run(self, local, url, name):
        out = [self.place / f"{name}-{at}" for at in ("local", "url")]
        for source, to in zip((local, url), out):
            self.run("ingest", source, "--out", to)
        files = [sorted(path.relative_to(to) for path in to.rglob("*") if path.is_file()) for to in out]
        assert files[0] == files[1] and files[0], files
        # The manifest has the time of ingestion.
        different = [path for path in files[0] if path.suffix == ".parquet" and not filecmp.cmp(out[0] / path, out[1] / path, False)]
        assert not different, f"{url} is another run than {local}: {different}"
        shutil.rmtree(out[1])
        return out[0]

    def error(self, *arguments, has, expect=1, **environment):
        output, said = self.run(*arguments, expect=expect, **environment)
        text = said + output.decode()
        self.errors += 1
        missing = [part for part in has if part not in text]
        assert not missing, f"{arguments} does not say {missing}:\n{text}"


def upload(s3, directory, prefix):
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            s3.upload_file(str(path), BUCKET, f"{prefix}/{path.relative_to(directory)}")


def check_same(check, s3):
    """Traces by directory, pattern and name, and a run, without and with failing requests."""
    check.same(TRACES, f"s3://{BUCKET}/jobs/traces")
    run = check.same_run(TRACES, f"s3://{BUCKET}/jobs/traces/*.json.gz", "run")
    upload(s3, run, "jobs/run")
    check.same(run, f"s3://{BUCKET}/jobs/run")
    check.server.share = 0.05
    before = check.server.requests
    for _ in range(3):
        check.same(TRACES, f"s3://{BUCKET}/job?/traces/")
        check.same_run(TRACES, f"s3://{BUCKET}/jobs/traces", "faulty")
        check.same(run, f"s3://{BUCKET}/jobs/run")
        shutil.rmtree(check.place / "faulty-local")
    check.server.share = 0.0
    faults = check.server.faults
    assert all(faults.values()), f"not every fault was played: {faults}"
    return check.server.requests - before, sum(faults.values()), run


def check_errors(check, s3, run):
    """What is missing, refused or damaged is named."""
    url = f"s3://{BUCKET}/jobs/traces"
    check.error("analyze", "s3://no-such-bucket/a", has=["no bucket no-such-bucket"])
    check.error("analyze", f"s3://{BUCKET}/nothing", has=[f"s3://{BUCKET}/nothing", "no such object"])
    check.error("analyze", f"s3://{BUCKET}/jobs/traces/*.txt", has=["no file or directory matches"])
    check.error("analyze", url, AWS_ACCESS_KEY_ID="AKIAWRONG", has=["traces refuses the credentials"])
    check.error("analyze", url, AWS_SECRET_ACCESS_KEY="wrong", has=["traces refuses the credentials"])
    check.error("ingest", TRACES, "--out", f"s3://{BUCKET}/out", has=["nothing is written to a URL"])
    check.error("analyze", "https://me:password-of-mine@host/a.json", has=["https://host/a.json", "password"])
    check.error("analyze", "https://host/a.json?X-Amz-Signature=signature-of-mine", has=["https://host/a.json", "query"])

    # A trace and a shard that are cut: the rest is read, and the loss is named.
    first = sorted(TRACES.glob("*.json.gz"))[0]
    cut = first.read_bytes()[: first.stat().st_size // 2]
    upload(s3, TRACES, "cut")
    s3.put_object(Bucket=BUCKET, Key=f"cut/{first.name}", Body=cut)
    check.error("analyze", f"s3://{BUCKET}/cut", "--full", expect=3, has=[first.name])
    upload(s3, run, "cut-run")
    shard = next(path.relative_to(run) for path in sorted((run / "events").iterdir()))
    content = (run / shard).read_bytes()
    s3.put_object(Bucket=BUCKET, Key=f"cut-run/{shard}", Body=content[: len(content) // 2])
    check.error("analyze", f"s3://{BUCKET}/cut-run", "--full", expect=3, has=[str(shard)])


def check_web(check):
    """A web server serves files by name, and lists none."""
    first = sorted(TRACES.glob("*.json.gz"))[0]
    web = f"http://127.0.0.1:{check.server.server_port}/web"
    check.same(first, f"{web}/{first.name}")
    check.error("analyze", f"{web}/nothing.json", has=["no such object"])
    check.error("analyze", f"{web}/*.json.gz", has=["a web server lists no directories"])


@contextlib.contextmanager
def store():
    """A server of S3 that verifies signatures, a client of it, and the keys of a user who may read the bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    port = server.get_host_and_port()[1]
    options = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}
    anyone = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
    iam = boto3.client("iam", **options, **anyone)
    iam.create_user(UserName="reader")
    policy = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
    iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=policy)
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    keys = key["AccessKeyId"], key["SecretAccessKey"]
    client = boto3.client("s3", **options, aws_access_key_id=keys[0], aws_secret_access_key=keys[1])
    client.create_bucket(Bucket=BUCKET)
    # From now on, every request needs a valid signature.
    reset = http.client.HTTPConnection("127.0.0.1", port)
    reset.request("POST", "/moto-api/reset-auth", body="0")
    assert reset.getresponse().status == 200
    try:
        yield port, client, keys
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ.pop("AWS_PROFILE", None)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with store() as (port, client, keys), tempfile.TemporaryDirectory() as place:
        server = Server(port, options.seed)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        check = Check(options.bin.resolve(), server, keys, pathlib.Path(place))
        upload(client, TRACES, "jobs/traces")
        requests, faults, run = check_same(check, client)
        check_errors(check, client, run)
        check_web(check)
        server.shutdown()
        print(
            f"the same bytes as from files; {faults} of {requests} requests failed and were repeated; "
            f"{check.errors} errors name their cause"
        )


if __name__ == "__main__":
    main()

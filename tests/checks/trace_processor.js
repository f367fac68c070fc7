// Runs Perfetto's trace processor, the WebAssembly of its web page, over pipes instead of a message port.
//
//   node tests/checks/trace_processor.js DIRECTORY      DIRECTORY contains engine_bundle.js and trace_processor.wasm
//
// Input and output are messages of Perfetto's TraceProcessorRpcStream. A length of 4 bytes, little-endian, precedes each.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const directory = process.argv[2];

// The engine loads its WebAssembly synchronously, as web workers may.
class XMLHttpRequest {
  open(_method, name) {
    this.name = path.basename(String(name));
  }
  send() {
    this.response = Uint8Array.from(fs.readFileSync(path.join(directory, this.name))).buffer;
  }
}

// The global scope of a web worker.
const silent = () => {};
const scope = {
  XMLHttpRequest, performance, setTimeout, clearTimeout, TextDecoder, TextEncoder, URL, crypto,
  console: { log: silent, info: silent, debug: silent, warn: silent, error: silent },
  location: { href: "http://localhost/engine_bundle.js", protocol: "http:", host: "localhost" },
  navigator: { userAgent: "node" },
  importScripts: silent,
  WorkerGlobalScope: silent,
};
scope.self = scope;
const engine = path.join(directory, "engine_bundle.js");
vm.runInNewContext(fs.readFileSync(engine, "utf8"), vm.createContext(scope), { filename: engine });

function write(bytes) {
  for (let sent = 0; sent < bytes.length; ) {
    try {
      sent += fs.writeSync(1, bytes, sent);
    } catch (error) {
      // The pipe is full: try again until the reader has read.
      if (error.code !== "EAGAIN") throw error;
    }
  }
}

const port = {
  postMessage(bytes) {
    const length = Buffer.alloc(4);
    length.writeUInt32LE(bytes.length);
    write(length);
    write(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength));
  },
};
scope.onmessage({ data: port });

// The engine tests `instanceof` with the class of its own realm.
const Bytes = vm.runInContext("Uint8Array", scope);
let pending = Buffer.alloc(0);
function take(chunk) {
  pending = Buffer.concat([pending, chunk]);
  while (pending.length >= 4 && pending.length >= 4 + pending.readUInt32LE(0)) {
    const end = 4 + pending.readUInt32LE(0);
    port.onmessage({ data: Bytes.from(pending.subarray(4, end)) });
    pending = pending.subarray(end);
  }
}
process.stdin.on("data", take);

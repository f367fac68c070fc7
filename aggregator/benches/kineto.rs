//! Speed of reading traces: GB of JSON and events per second, plain and gzip, for parsing into columns, for the whole
//! load, and for the load with the analysis.
//!
//! ```console
//! $ cargo bench -p aggregator --bench kineto -- [TRACE] [MB]
//! ```
//!
//! The trace (by default the largest of the real traces and of `examples/traces`) is repeated with later times
//! until a temporary file holds at least `MB` (500) of JSON. Every figure is the median of five runs. The file is in the
//! page cache.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use fixtures::bench::{median_of, peak_memory_mib};
use fixtures::data::places;
use flate2::read::MultiGzDecoder;
use formats::kineto::KinetoSource;
use kineto::{load, parse_only, plan};
use model::options::Options;
use pipeline::analyze;

const REPEATS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo bench` adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let original = match arguments.first() {
        Some(path) => PathBuf::from(path),
        None => largest().ok_or("no trace found; pass the path of one")?,
    };
    let megabytes: usize = arguments.get(1).map_or(Ok(500), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let plain = dir.path().join("rank0.json");
    let gzip = dir.path().join("rank0.json.gz");
    let bytes = repeat(&original, &plain, megabytes << 20)?;
    compress(&plain, &gzip)?;
    println!(
        "{}: repeated to {:.0} MB, {} threads",
        original.display(),
        bytes as f64 / 1e6,
        rayon::current_num_threads()
    );
    println!("{:26} {:>8} {:>8} {:>12} {:>12}", "", "s", "GB/s", "M events/s", "M rows/s");
    let read = median(|| Ok(std::io::copy(&mut File::open(&plain)?, &mut std::io::sink())? as usize))?;
    line("read the file (floor)", read, bytes, 0, 0);
    let inflated = median(|| {
        let mut block = vec![0; 1 << 20];
        let mut reader = MultiGzDecoder::new(std::io::BufReader::with_capacity(256 << 10, File::open(&gzip)?));
        let mut sum = 0;
        loop {
            match reader.read(&mut block)? {
                0 => return Ok(sum),
                n => sum += n,
            }
        }
    })?;
    line("inflate (floor)", inflated, bytes, 0, 0);
    for path in [&plain, &gzip] {
        let kind = if path == &gzip { "gzip" } else { "plain" };
        let (mut events, mut rows) = (0, 0);
        let parse = median(|| {
            let parsed = parse_only(path)?;
            (events, rows) = (parsed.events, parsed.rows);
            Ok(0)
        })?;
        line(&format!("parse, {kind}"), parse, bytes, events, rows);
        let file = plan(std::slice::from_ref(path), kineto::PlanOptions::default())?.files.remove(0);
        let whole = median(|| Ok(load(&file)?.events.len()))?;
        line(&format!("load, {kind}"), whole, bytes, events, rows);
        let source = KinetoSource::open(std::slice::from_ref(path))?;
        let all = median(|| Ok(analyze(&source, &Options::default(), &|_, _| ())?.facts.events as usize))?;
        line(&format!("load and analyze, {kind}"), all, bytes, events, rows);
    }
    println!("peak memory: {:.0} kB", 1024.0 * peak_memory_mib());
    Ok(())
}

fn line(what: &str, seconds: f64, bytes: usize, events: u64, rows: u64) {
    let rate = |n: u64| if n == 0 { String::new() } else { format!("{:.2}", n as f64 / seconds / 1e6) };
    println!("{what:26} {seconds:8.3} {:8.2} {:>12} {:>12}", bytes as f64 / seconds / 1e9, rate(events), rate(rows));
}

fn median(run: impl FnMut() -> Result<usize, Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    median_of(REPEATS, run)
}

fn largest() -> Option<PathBuf> {
    let list = |path: &PathBuf| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let files = places().into_iter().flat_map(|place| list(&place)).flat_map(|folder| list(&folder));
    files.filter(|path| path.is_file()).max_by_key(|path| path.metadata().map_or(0, |m| m.len()))
}

/// Repeats the trace's events, each copy 10 s later, until there are `least` bytes.
fn repeat(original: &Path, target: &Path, least: usize) -> Result<usize, Box<dyn Error>> {
    let mut raw = Vec::new();
    File::open(original)?.read_to_end(&mut raw)?;
    let mut text = Vec::new();
    if raw.starts_with(&[0x1f, 0x8b]) {
        MultiGzDecoder::new(raw.as_slice()).read_to_end(&mut text)?;
    } else {
        text = raw;
    }
    let list = memchr::memmem::find(&text, b"\"traceEvents\"").ok_or("no traceEvents")?;
    let open = list + memchr::memchr(b'[', &text[list..]).ok_or("no list")? + 1;
    let close = memchr::memrchr(b']', &text).ok_or("no end of the list")?;
    let mut out = BufWriter::with_capacity(1 << 20, File::create(target)?);
    let mut written = open;
    out.write_all(&text[..open])?;
    for copy in 0.. {
        if copy > 0 {
            out.write_all(b",")?;
        }
        written += 1 + write_later(&text[open..close], copy * 10_000_000, &mut out)?;
        if written >= least {
            break;
        }
    }
    out.write_all(&text[close..])?;
    out.flush()?;
    Ok(std::fs::metadata(target)?.len() as usize)
}

/// Writes events with `later_us` added to the integer part of each `ts`.
fn write_later(events: &[u8], later_us: u64, out: &mut impl Write) -> Result<usize, Box<dyn Error>> {
    const KEY: &[u8] = b"\"ts\": ";
    let (mut from, mut written) = (0, 0);
    for at in memchr::memmem::find_iter(events, KEY) {
        let digits = at + KEY.len();
        let end = digits + events[digits..].iter().position(|b| !b.is_ascii_digit()).unwrap_or(0);
        let Ok(ts) = std::str::from_utf8(&events[digits..end])?.parse::<u64>() else { continue };
        let later = (ts + later_us).to_string();
        out.write_all(&events[from..digits])?;
        out.write_all(later.as_bytes())?;
        written += digits - from + later.len();
        from = end;
    }
    out.write_all(&events[from..])?;
    Ok(written + events.len() - from)
}

fn compress(plain: &Path, target: &Path) -> Result<(), Box<dyn Error>> {
    let mut encoder = flate2::write::GzEncoder::new(BufWriter::new(File::create(target)?), flate2::Compression::new(6));
    std::io::copy(&mut File::open(plain)?, &mut encoder)?;
    encoder.finish()?.flush()?;
    Ok(())
}

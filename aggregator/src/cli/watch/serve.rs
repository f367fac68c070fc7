//! Serves metrics over HTTP/1.1: one path, a bound on everything that a client decides.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::Error;
use report_text::watch::metrics::Format;
use trace::lock;

/// Longest request.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// Time for a whole request, and for the answer to be taken.
const PATIENCE: Duration = Duration::from_secs(2);
/// Connections that are served at once. Further ones are closed.
const MAX_CONNECTIONS: usize = 8;

/// The metrics in both formats.
#[derive(Debug, Default)]
struct Texts {
    open_metrics: String,
    text: String,
}

/// A server of metrics.
#[derive(Debug)]
pub(super) struct Served(Arc<Mutex<Texts>>);

impl Served {
    /// Listens at an address.
    ///
    /// # Errors
    /// [`Error::Option`] if it cannot.
    pub(super) fn start(address: SocketAddr) -> Result<Self, Error> {
        let error = |why: std::io::Error| Error::Option {
            option: "metrics",
            value: address.to_string(),
            why: format!("the address cannot be listened at: {why}"),
        };
        let listener = TcpListener::bind(address).map_err(error)?;
        let texts = Arc::new(Mutex::new(Texts::default()));
        let shared = texts.clone();
        let spawned = std::thread::Builder::new().name("metrics".into()).spawn(move || accept(&listener, &shared));
        spawned.map_err(error)?;
        Ok(Self(texts))
    }

    /// Replaces the metrics.
    pub(super) fn set(&self, open_metrics: String, text: String) {
        *lock(&self.0) = Texts { open_metrics, text };
    }
}

fn accept(listener: &TcpListener, texts: &Arc<Mutex<Texts>>) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors: others may be closed meanwhile.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if open.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
            continue;
        }
        open.fetch_add(1, Ordering::Relaxed);
        let (texts, counted) = (texts.clone(), open.clone());
        let serve = move || {
            // A client that breaks the connection harms only itself.
            let _ = answer(stream, &texts);
            counted.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("metrics client".into()).spawn(serve).is_err() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn answer(mut stream: TcpStream, texts: &Mutex<Texts>) -> std::io::Result<()> {
    let request = read_request(&mut stream)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (status, kind, body) = respond(&request, texts);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if !request.starts_with("HEAD ") {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}

/// Reads the head of a request; what is longer or later than the limits is cut.
fn read_request(stream: &mut TcpStream) -> std::io::Result<String> {
    let begin = Instant::now();
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while request.len() < MAX_REQUEST_BYTES && !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let left = PATIENCE.saturating_sub(begin.elapsed());
        if left.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => break,
            read => request.extend_from_slice(&buffer[..read]),
        }
    }
    Ok(String::from_utf8_lossy(&request).into_owned())
}

fn respond(request: &str, texts: &Mutex<Texts>) -> (&'static str, &'static str, String) {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let mut words = request.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_whole = request.contains("\r\n\r\n") && words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    match (method, path.split('?').next()) {
        _ if !is_whole => ("400 Bad Request", PLAIN, "This is not an HTTP/1.1 request.\n".into()),
        ("GET" | "HEAD", Some("/metrics")) => {
            let accepts = |line: &str| {
                let line = line.to_ascii_lowercase();
                line.starts_with("accept:") && line.contains("application/openmetrics-text")
            };
            let format = if request.lines().any(accepts) { Format::OpenMetrics } else { Format::Text };
            let texts = lock(texts);
            let body = if format == Format::OpenMetrics { &texts.open_metrics } else { &texts.text };
            ("200 OK", format.content_type(), body.clone())
        }
        ("GET" | "HEAD", _) => ("404 Not Found", PLAIN, "The metrics are at /metrics.\n".into()),
        _ => ("405 Method Not Allowed", PLAIN, "Only GET is answered.\n".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts() -> Mutex<Texts> {
        Mutex::new(Texts { open_metrics: "new # EOF\n".into(), text: "old\n".into() })
    }

    #[test]
    fn a_scrape_gets_the_format_that_it_accepts() {
        let get = |head: &str| {
            let (status, kind, body) = respond(&format!("{head}\r\n\r\n"), &texts());
            (status, kind.split(';').next().unwrap_or_default(), body)
        };
        let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        let new = ("200 OK", "application/openmetrics-text", "new # EOF\n".to_string());
        assert_eq!(get(&format!("GET /metrics HTTP/1.1\r\n{accept}")), new);
        assert_eq!(get("GET /metrics?x=1 HTTP/1.0"), ("200 OK", "text/plain", "old\n".into()));
        assert_eq!(get("GET / HTTP/1.1").0, "404 Not Found");
        assert_eq!(get("POST /metrics HTTP/1.1").0, "405 Method Not Allowed");
        assert_eq!(get("GET /metrics").0, "400 Bad Request");
        assert_eq!(respond("GET /metrics HTTP/1.1\r\nHost", &texts()).0, "400 Bad Request");
    }

    /// Invariant (watch): Clients of the metrics of `watch` are bounded.
    ///
    /// Clients that send nothing, bytes without end, or garbage leave room for a scrape.
    #[test]
    fn hostile_clients_are_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let texts = Arc::new(texts());
        std::thread::spawn(move || accept(&listener, &texts));
        let silent: Vec<TcpStream> = (0..2 * MAX_CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
        for garbage in [&b"\xff\x00\r\n\r\n"[..], &[b'x'; 1 << 16]] {
            if let Ok(mut stream) = TcpStream::connect(address) {
                // The server may close it at any time.
                let _ = stream.write_all(garbage);
            }
        }
        drop(silent);
        let begin = Instant::now();
        loop {
            let mut answer = String::new();
            let mut stream = TcpStream::connect(address).unwrap();
            let sent = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
            let read = sent.and_then(|()| stream.read_to_string(&mut answer));
            if read.is_ok() && answer.ends_with("\r\n\r\nold\n") {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "{answer:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

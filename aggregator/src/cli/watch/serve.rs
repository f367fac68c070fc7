//! Serves metrics over HTTP/1.1: one path, a bound on everything that a client decides.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use model::Error;
use report_text::watch::metrics::Format;
use trace::lock;

/// Longest request.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// Time for a whole request, and for the answer to be taken.
const PATIENCE: Duration = Duration::from_secs(2);
/// Connections that are served at once. One more closes the one that has been open for the longest time: a scrape takes a millisecond,
/// and a slow client must not keep it out.
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
    // A browser on this machine can be led to a local address by another site's name. An address that the network reaches hides
    // nothing from those who reach it.
    let is_local = listener.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
    let mut open: VecDeque<Weak<TcpStream>> = VecDeque::new();
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors: others may be closed meanwhile.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        open.retain(|stream| stream.strong_count() > 0);
        if open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front().and_then(|oldest| oldest.upgrade())
        {
            // Its thread gets an error or the end of the request, and ends.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        let stream = Arc::new(stream);
        open.push_back(Arc::downgrade(&stream));
        let texts = texts.clone();
        // A client that breaks the connection harms only itself. Without a thread, the connection is closed.
        let serve = move || drop(answer(&stream, &texts, is_local));
        let _ = std::thread::Builder::new().name("metrics client".into()).spawn(serve);
    }
}

fn answer(mut stream: &TcpStream, texts: &Mutex<Texts>, is_local: bool) -> std::io::Result<()> {
    let request = read_request(stream)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (status, kind, body) = respond(&request, texts, is_local);
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
fn read_request(mut stream: &TcpStream) -> std::io::Result<String> {
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

/// Whether a `Host` is an address or `localhost`, which no other site can be.
fn is_own_host(host: &str) -> bool {
    let is_address = |host: &str| host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let name = host.rsplit_once(':').map_or(host, |(name, _port)| name);
    is_address(host) || is_address(name) || name.eq_ignore_ascii_case("localhost")
}

/// The answer to a request. At a local address, requests for another site's name are refused.
fn respond(request: &str, texts: &Mutex<Texts>, is_local: bool) -> (&'static str, &'static str, String) {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let mut words = request.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_whole = request.contains("\r\n\r\n") && words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    let field = |line: &str, name| {
        line.split_once(':')
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_string())
    };
    let is_foreign = is_local && request.lines().filter_map(|line| field(line, "host")).any(|host| !is_own_host(&host));
    match (method, path.split('?').next()) {
        _ if !is_whole => ("400 Bad Request", PLAIN, "This is not an HTTP/1.1 request.\n".into()),
        _ if is_foreign => {
            ("421 Misdirected Request", PLAIN, "The metrics are served under localhost or an IP address only.\n".into())
        }
        ("GET" | "HEAD", Some("/metrics")) => {
            let accepts = |line: &str| {
                field(line, "accept")
                    .is_some_and(|types| types.to_ascii_lowercase().contains("application/openmetrics-text"))
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
            let (status, kind, body) = respond(&format!("{head}\r\n\r\n"), &texts(), true);
            (status, kind.split(';').next().unwrap_or_default(), body)
        };
        let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        let new = ("200 OK", "application/openmetrics-text", "new # EOF\n".to_string());
        assert_eq!(get(&format!("GET /metrics HTTP/1.1\r\n{accept}")), new);
        assert_eq!(get("GET /metrics?x=1 HTTP/1.0"), ("200 OK", "text/plain", "old\n".into()));
        assert_eq!(get("GET / HTTP/1.1").0, "404 Not Found");
        assert_eq!(get("POST /metrics HTTP/1.1").0, "405 Method Not Allowed");
        assert_eq!(get("GET /metrics").0, "400 Bad Request");
        assert_eq!(respond("GET /metrics HTTP/1.1\r\nHost", &texts(), true).0, "400 Bad Request");
    }

    /// Invariant (watch): At a local address, `watch` serves no metrics to a browser that another site's name led there.
    #[test]
    fn a_local_address_refuses_the_names_of_other_sites() {
        let status = |host: &str, is_local| {
            respond(&format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\n\r\n"), &texts(), is_local).0
        };
        for own in ["localhost", "LocalHost:9000", "127.0.0.1:9000", "127.0.0.1", "[::1]:9000", "[::1]", "::1"] {
            assert_eq!(status(own, true), "200 OK", "{own}");
        }
        for foreign in
            ["evil.example", "evil.example:9000", "localhost.evil.example:9000", "127.0.0.1.evil.example", ""]
        {
            assert_eq!(status(foreign, true), "421 Misdirected Request", "{foreign}");
            assert_eq!(status(foreign, false), "200 OK", "{foreign}: the network reaches the address anyway");
        }
        let two = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n";
        assert_eq!(respond(two, &texts(), true).0, "421 Misdirected Request");
    }

    /// Invariant (watch): Clients of the metrics of `watch` are bounded.
    ///
    /// 50 clients send nothing, parts of a request, bytes without end, or garbage, and stay; each scrape beside them is answered.
    #[test]
    fn slow_clients_keep_no_scrape_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let texts = Arc::new(texts());
        std::thread::spawn(move || accept(&listener, &texts));
        let mut slow = Vec::new();
        for bytes in
            [&b""[..], b"GET /metr", b"\xff\x00\r\n\r\n", &[b'x'; 1 << 16], b"GET /metrics HTTP/1.1\r\n"].repeat(10)
        {
            let mut stream = TcpStream::connect(address).unwrap();
            // The server may close it at any time.
            let _ = stream.write_all(bytes);
            slow.push(stream);
            let mut answer = String::new();
            let mut scrape = TcpStream::connect(address).unwrap();
            scrape.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            scrape.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("\r\n\r\nold\n"), "{answer:?}");
        }
    }
}

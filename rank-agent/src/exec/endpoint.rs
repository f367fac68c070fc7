//! The socket at which `rank-agent ctl` talks to a running `rank-agent exec`, and where it is found.
//!
//! ```text
//! $XDG_RUNTIME_DIR/rankscope/, else /tmp/rankscope-UID/     the user's alone
//!     exec-PID-TIME.sock                                    one for each rank of this host
//!     exec-PID-TIME.page                                    the page that its program's processes follow
//! ```
//!
//! One request is one line of JSON of at most [`MAX_REQUEST_BYTES`], one answer likewise; a peer has [`PATIENCE`] for it
//! and must be the same user. What a killed process left is swept away by the next who looks.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest request.
pub const MAX_REQUEST_BYTES: usize = 512;
/// Longest answer.
pub const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Time for a whole request, and for a whole answer.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// A socket of nobody's is swept away after this: one that was made this moment may not listen yet.
const STALE_AFTER: Duration = Duration::from_secs(10);

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// How does it stand?
    Status {},
    /// Record from now on.
    Start {
        /// `coll`, `channels` or `proxy`; else as before.
        nccl_detail: Option<String>,
        /// For so long; else until the end.
        duration_s: Option<f64>,
    },
    /// Record nothing from now on.
    Stop {},
}

/// How one rank stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The run's directory.
    pub run: PathBuf,
    /// Its id.
    pub run_id: String,
    /// Global rank.
    pub rank: i32,
    /// Ranks in the job.
    pub world_size: i32,
    /// The process that answers.
    pub pid: u32,
    /// Whether rows are made.
    pub recording: bool,
    /// How much of NCCL.
    pub nccl_detail: String,
    /// Time since the program started, in s; `None`: not yet.
    pub running_s: Option<f64>,
    /// Of that, time without recording, in s.
    pub off_s: f64,
    /// Time until the schedule switches, in s.
    pub switches_in_s: Option<f64>,
}

/// The answer to any request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It was done; this is how it stands now.
    Status(Status),
    /// It was not understood.
    Error(String),
}

/// Where endpoints may be: where the user's session keeps such things, and where every process of the user looks.
pub fn directories() -> Vec<PathBuf> {
    let session = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let session = session.filter(|dir| dir.is_absolute()).map(|dir| dir.join("rankscope"));
    session.into_iter().chain([PathBuf::from(format!("/tmp/rankscope-{}", geteuid().as_raw()))]).collect()
}

/// The first directory that can be made, or is there and this user's alone. `Err`: why none.
pub fn own_directory(candidates: &[PathBuf]) -> Result<PathBuf, String> {
    let mut whys = Vec::new();
    for candidate in candidates {
        match own(candidate) {
            Ok(()) => return Ok(candidate.clone()),
            Err(why) => whys.push(format!("{}: {why}", candidate.display())),
        }
    }
    Err(whys.join("; "))
}

fn own(directory: &Path) -> Result<(), String> {
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.to_string()),
        _ => {}
    }
    // In a directory that anybody may write to, somebody else may have been first.
    let found = std::fs::symlink_metadata(directory).map_err(|error| error.to_string())?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() {
        return Err("it is not a directory of this user's".into());
    }
    if found.mode() & 0o077 != 0 {
        return Err(format!("others may use it (mode {:o}, not 700)", found.mode() & 0o777));
    }
    Ok(())
}

/// Names of the two files of a process, without their endings: another process of the same number, in another
/// container, has another time.
pub fn stem(directory: &Path) -> PathBuf {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    directory.join(format!("exec-{}-{:x}", std::process::id(), since.as_nanos()))
}

/// Answers requests until it is dropped, and takes its files along.
#[derive(Debug)]
pub struct Endpoint {
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Endpoint {
    /// Listens at `STEM.sock`.
    ///
    /// # Errors
    /// The system's.
    pub fn start(stem: &Path, answer: impl Fn(Request) -> Answer + Send + 'static) -> std::io::Result<Self> {
        let socket = stem.with_extension("sock");
        let listener = UnixListener::bind(&socket)?;
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600))?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let serve = move || {
            for stream in listener.incoming() {
                if told.load(Ordering::Acquire) {
                    return;
                }
                match stream {
                    // Who hangs up early has only itself to answer to.
                    Ok(stream) => drop(serve(stream, &answer)),
                    // No descriptor is left, say: not as fast as it can.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        let thread = std::thread::Builder::new().name("rankscope-ctl".into()).spawn(serve)?;
        Ok(Self { socket, stop, thread: Some(thread) })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // It wakes from waiting for somebody; if it cannot be reached it is not waited for either.
        if UnixStream::connect(&self.socket).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn serve(stream: UnixStream, answer: &impl Fn(Request) -> Answer) -> std::io::Result<()> {
    if socket_peercred(&stream)?.uid != geteuid() {
        return Ok(());
    }
    let request = read_line(&stream, MAX_REQUEST_BYTES, PATIENCE)?;
    let said = match serde_json::from_slice::<Request>(&request) {
        Ok(request) => answer(request),
        Err(error) => Answer::Error(format!("not a request: {error}")),
    };
    write_line(&stream, &said)
}

fn write_line(mut stream: &UnixStream, value: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&line)
}

/// A line without its end, of at most `limit` bytes, that comes within `patience`.
fn read_line(mut stream: &UnixStream, limit: usize, patience: Duration) -> std::io::Result<Vec<u8>> {
    let until = Instant::now() + patience;
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let read = stream.read(&mut buffer)?;
        let part = buffer.get(..read).unwrap_or_default();
        let end = part.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&part[..end.unwrap_or(read)]);
        if line.len() > limit {
            return Err(ErrorKind::InvalidData.into());
        }
        if end.is_some() || read == 0 {
            return Ok(line);
        }
    }
}

/// Asks the process behind a socket.
///
/// # Errors
/// The system's, or an answer that is none.
pub fn ask(socket: &Path, request: &Request) -> std::io::Result<Answer> {
    let stream = UnixStream::connect(socket)?;
    if socket_peercred(&stream)?.uid != geteuid() {
        return Err(std::io::Error::new(ErrorKind::PermissionDenied, "another user listens there"));
    }
    write_line(&stream, request)?;
    // A rank that is busy with another's request answers after that one's time.
    let answer: Answer = parse(&read_line(&stream, MAX_ANSWER_BYTES, 3 * PATIENCE)?)?;
    Ok(answer)
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> std::io::Result<T> {
    serde_json::from_slice(line).map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))
}

/// The sockets of all running `rank-agent exec` of this user on this host, by name. What a killed one has left is
/// removed.
pub fn sockets(candidates: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for directory in candidates {
        // Never looked into, and nothing removed, if it is somebody else's.
        if std::fs::symlink_metadata(directory).is_err() || own(directory).is_err() {
            continue;
        }
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
            if path.extension().is_some_and(|ending| ending == "sock") && is_socket && !swept(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Removes what nobody listens at.
fn swept(socket: &Path) -> bool {
    let refused = UnixStream::connect(socket).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    let made = std::fs::symlink_metadata(socket).and_then(|found| found.modified());
    let old = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > STALE_AFTER));
    if refused && old {
        // Somebody else may sweep at the same time.
        let _ = std::fs::remove_file(socket.with_extension("page"));
        let _ = std::fs::remove_file(socket);
    }
    refused
}

#[cfg(test)]
mod tests;

//! The socket between `ctl` and a running `exec`, and the directory that holds it.
//!
//! ```text
//! $XDG_RUNTIME_DIR/rankscope/, else /tmp/rankscope-UID/,    accessible to this user only
//! else /tmp/rankscope-UID-RANDOM/                           if another user has taken that name
//!     exec-PID-TIME.sock                                    one for each rank of this host
//!     exec-PID-TIME.page                                    the page that its program's processes follow
//! ```
//!
//! A request is one line of JSON of at most [`MAX_REQUEST_BYTES`], and so is an answer. The peer must be the same user and
//! has [`PATIENCE`] for its line. The next search removes the files of killed processes.

use std::fs::Metadata;
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

use crate::Error;
use crate::fabric::sockets::random;

/// Longest request.
pub(super) const MAX_REQUEST_BYTES: usize = 512;
/// Longest answer.
pub(super) const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Time for a whole request, and for a whole answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Age at which a socket without a listener is removed: a newer one may not listen yet.
const STALE_AFTER: Duration = Duration::from_secs(10);

/// A request of `ctl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
    /// Report the status.
    Status {},
    /// Record from now on.
    Start {
        /// `coll`, `channels` or `proxy`; `None`: as before.
        nccl_detail: Option<String>,
        /// Time after which recording stops again; `None`: never.
        duration_s: Option<f64>,
    },
    /// Record nothing from now on.
    Stop {},
}

/// The status of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Status {
    /// The run's directory.
    pub(super) run: PathBuf,
    /// Id of the run.
    pub(super) run_id: String,
    /// Global rank.
    pub(super) rank: i32,
    /// Ranks in the job.
    pub(super) world_size: i32,
    /// Process id of `exec`.
    pub(super) pid: u32,
    /// Whether the program is recorded now.
    pub(super) recording: bool,
    /// NCCL events to record.
    pub(super) nccl_detail: String,
    /// Time since the program started, in s; `None`: it has not started.
    pub(super) running_s: Option<f64>,
    /// Part of that time without recording, in s.
    pub(super) off_s: f64,
    /// Time until the next planned switch, in s.
    pub(super) switches_in_s: Option<f64>,
}

/// The answer to any request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// The request was carried out; the status after it.
    Status(Status),
    /// The request was refused.
    Error(String),
}

/// Where every process of a user finds endpoints.
const SHARED: &str = "/tmp";

/// Directories that may hold endpoints: that of the user's session, and those that every process of the user can find.
pub(super) fn directories() -> Vec<PathBuf> {
    let session = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let session = session.filter(|dir| dir.is_absolute()).map(|dir| dir.join("rankscope"));
    session.into_iter().chain(in_shared(Path::new(SHARED))).collect()
}

/// The directory of the user's name in `shared`, and those with further names that the user owns.
fn in_shared(shared: &Path) -> Vec<PathBuf> {
    let named = format!("rankscope-{}", geteuid().as_raw());
    let further = format!("{named}-");
    let entries = std::fs::read_dir(shared).into_iter().flatten().flatten();
    let is_further =
        |entry: &std::fs::DirEntry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&further));
    let found = entries.filter(is_further).map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        found.filter(|path| std::fs::symlink_metadata(path).is_ok_and(|found| check_owner(&found).is_ok())).collect();
    found.sort();
    [shared.join(named)].into_iter().chain(found).collect()
}

/// The directory for this process's endpoint. `Err`: the reasons why there is none.
pub(super) fn home() -> Result<PathBuf, String> {
    home_in(&directories(), Path::new(SHARED))
}

fn home_in(candidates: &[PathBuf], shared: &Path) -> Result<PathBuf, String> {
    own_directory(candidates).or_else(|whys| {
        // Another user can take a name that is known, but no random one.
        let random = random().map(u64::from_le_bytes).map_err(|error| error.to_string())?;
        let path = shared.join(format!("rankscope-{}-{random:016x}", geteuid().as_raw()));
        own(&path).map(|()| path.clone()).map_err(|why| format!("{whys}; {}: {why}", path.display()))
    })
}

/// The first candidate that can be created, or exists and is accessible to this user only. `Err`: the reasons why not.
fn own_directory(candidates: &[PathBuf]) -> Result<PathBuf, String> {
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
    // /tmp is writable for all users, so another user may have created this path.
    check_owner(&std::fs::symlink_metadata(directory).map_err(|error| error.to_string())?)
}

fn check_owner(found: &Metadata) -> Result<(), String> {
    if !found.is_dir() || found.uid() != geteuid().as_raw() {
        return Err("it is not a directory that this user owns".into());
    }
    if found.mode() & 0o077 != 0 {
        return Err(format!("other users have access (mode {:o} instead of 700)", found.mode() & 0o777));
    }
    Ok(())
}

/// Path of this process's two files without their extensions. The time keeps processes with the same id in different
/// containers apart.
pub(super) fn stem(directory: &Path) -> PathBuf {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    directory.join(format!("exec-{}-{:x}", std::process::id(), since.as_nanos()))
}

/// Answers requests until it is dropped; then removes its socket.
#[derive(Debug)]
pub(super) struct Endpoint {
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Endpoint {
    /// Listens at `STEM.sock`.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn start(stem: &Path, answer: impl Fn(Request) -> Answer + Send + 'static) -> std::io::Result<Self> {
        let socket = stem.with_extension("sock");
        let listener = UnixListener::bind(&socket)?;
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600))?;
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = stop.clone();
        let serve = move || {
            for stream in listener.incoming() {
                if is_stopped.load(Ordering::Acquire) {
                    return;
                }
                match stream {
                    // An error means that the client closed the connection early.
                    Ok(stream) => drop(serve(stream, &answer)),
                    // For example, no file descriptor is free: retry slowly.
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
        // The connection wakes the thread. If the socket cannot be reached, the thread is left alone.
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
    write_line(&stream, &answered(&request, answer))
}

/// The answer to a line.
pub(super) fn answered(line: &[u8], answer: &impl Fn(Request) -> Answer) -> Answer {
    match serde_json::from_slice::<Request>(line) {
        Ok(request) => answer(request),
        Err(error) => Answer::Error(format!("not a request: {error}")),
    }
}

fn write_line(mut stream: &UnixStream, value: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&line)
}

/// Reads a line of at most `limit` bytes within `patience`; returns it without its end.
fn read_line(mut stream: &UnixStream, limit: usize, patience: Duration) -> std::io::Result<Vec<u8>> {
    let until = Instant::now() + patience;
    line_of(limit, |buffer| {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        stream.read(buffer)
    })
}

/// A line of at most `limit` bytes in the pieces that `read` gives; without its end.
pub(super) fn line_of(
    limit: usize,
    mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>,
) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = read(&mut buffer)?;
        let part = buffer.get(..read).unwrap_or_default();
        let end = part.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&part[..end.unwrap_or(part.len())]);
        if line.len() > limit {
            return Err(ErrorKind::InvalidData.into());
        }
        if end.is_some() || read == 0 {
            return Ok(line);
        }
    }
}

/// Sends a request to the process behind a socket and returns its answer.
///
/// # Errors
/// The system's error, or a malformed answer.
pub(super) fn ask(socket: &Path, request: &Request) -> std::io::Result<Answer> {
    let stream = UnixStream::connect(socket)?;
    if socket_peercred(&stream)?.uid != geteuid() {
        return Err(std::io::Error::new(ErrorKind::PermissionDenied, "another user owns the socket"));
    }
    write_line(&stream, request)?;
    // The rank may first serve another client, which has its own time.
    let answer: Answer = parse(&read_line(&stream, MAX_ANSWER_BYTES, 3 * PATIENCE)?)?;
    Ok(answer)
}

pub(super) fn parse<T: DeserializeOwned>(line: &[u8]) -> std::io::Result<T> {
    serde_json::from_slice(line).map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))
}

/// The sockets of all running `exec` of this user on this host, sorted by name. Removes the files of killed processes.
///
/// # Errors
/// [`Error::Io`] if a directory cannot be read: a running `exec` would be missing.
pub(super) fn sockets(candidates: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for directory in candidates {
        let io = |source| Error::Io { path: directory.clone(), source };
        match std::fs::symlink_metadata(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            // Another user's directory is neither read nor changed.
            Ok(metadata) if check_owner(&metadata).is_err() => continue,
            examined => examined.map_err(io)?,
        };
        for entry in std::fs::read_dir(directory).map_err(io)? {
            let entry = entry.map_err(io)?;
            let path = entry.path();
            let is_socket = entry.file_type().map_err(io)?.is_socket();
            if path.extension().is_some_and(|ending| ending == "sock") && is_socket && !swept(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Removes a socket without a listener; returns whether there is none.
fn swept(socket: &Path) -> bool {
    let refused = UnixStream::connect(socket).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    let made = std::fs::symlink_metadata(socket).and_then(|found| found.modified());
    let old = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > STALE_AFTER));
    if refused && old {
        // Another process may remove the files at the same time.
        let _ = std::fs::remove_file(socket.with_extension("page"));
        let _ = std::fs::remove_file(socket);
    }
    refused
}

#[cfg(test)]
mod tests;

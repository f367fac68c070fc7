//! The program: started, told of signals, waited for.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::exfiltrator::WithOrigin;

use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::Cause;

use crate::Error;
use crate::fabric::Stop;

/// Signals that are passed on. Those that stop or resume a job come to all of its processes by themselves.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Where signals go: to the program while it lives, to this rank's own ending after it.
#[derive(Clone, Debug, Default)]
pub struct Target(Arc<Mutex<Receiver>>);

#[derive(Debug, Default)]
struct Receiver {
    program: Option<Pid>,
    /// A signal that came while there was no program.
    pending: Option<i32>,
    /// What such a signal ends.
    waiting: Option<Stop>,
}

impl Target {
    fn with<R>(&self, body: impl FnOnce(&mut Receiver) -> R) -> R {
        body(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The signal that came before the program began or after it ended.
    pub fn pending(&self) -> Option<i32> {
        self.with(|receiver| receiver.pending)
    }

    /// What ends at the next signal that finds no program; `None`: nothing.
    pub fn interrupt(&self, waiting: Option<Stop>) {
        self.with(|receiver| receiver.waiting = waiting);
    }

    /// `by_kernel`: a terminal's signals are sent by the kernel to the whole group, the program included.
    fn deliver(&self, signal: i32, by_kernel: bool) {
        self.with(|receiver| match (receiver.program, Signal::from_named_raw(signal)) {
            (Some(_), _) if by_kernel => {}
            // It may have ended this moment, which is as good.
            (Some(program), Some(signal)) => drop(kill_process(program, signal)),
            _ => {
                receiver.pending = Some(signal);
                if let Some(waiting) = &receiver.waiting {
                    waiting.raise(signal);
                }
            }
        });
    }
}

/// Signals that this process ignores, as bits: `nohup` and shells' background jobs have it so, and the program shall
/// inherit it. (proc(5): `SigIgn`; where that cannot be read, none.)
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Listens for signals until it is dropped.
#[derive(Debug)]
pub struct Forwarder {
    handle: Handle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Forwarder {
    /// Begins to pass signals on.
    ///
    /// # Errors
    /// [`Error::Signals`].
    pub fn start(target: Target) -> Result<Self, Error> {
        let ignored = ignored();
        let passed_on = FORWARDED.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let mut signals = SignalsInfo::<WithOrigin>::new(passed_on).map_err(Error::Signals)?;
        let handle = signals.handle();
        let forward = move || {
            for origin in &mut signals {
                target.deliver(origin.signal, matches!(origin.cause, Cause::Kernel));
            }
        };
        let thread =
            std::thread::Builder::new().name("rankscope-signals".into()).spawn(forward).map_err(Error::Spawn)?;
        Ok(Self { handle, thread: Some(thread) })
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It ends with the handle; a panic in it has nothing to say here.
            let _ = thread.join();
        }
    }
}

/// Starts the program.
///
/// # Errors
/// [`Error::Program`].
pub fn start(program: &[OsString], variables: &[(&str, OsString)], target: &Target) -> Result<Child, Error> {
    let Some((name, arguments)) = program.split_first() else {
        return Err(Error::Usage("exec: there is no program after --".into()));
    };
    let mut command = Command::new(name);
    command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
    let child = command.spawn().map_err(|source| {
        // As env and timeout have it.
        let code = if source.kind() == ErrorKind::NotFound { 127 } else { 126 };
        Error::Program { program: name.to_string_lossy().into_owned(), code, source }
    })?;
    target.with(|receiver| {
        receiver.program = Some(Pid::from_child(&child));
        if let Some(signal) = receiver.pending.take().and_then(Signal::from_named_raw) {
            let _ = kill_process(Pid::from_child(&child), signal);
        }
    });
    Ok(child)
}

/// Waits for the program's end.
///
/// # Errors
/// [`Error::Io`] under the program's name, if it is not this process's to wait for.
pub fn wait(mut child: Child, target: &Target) -> Result<ExitStatus, Error> {
    let pid = Pid::from_child(&child);
    // Until it is reaped its number is nobody else's: only then is it taken from those who send signals.
    let ended = loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other,
        }
    };
    target.with(|receiver| receiver.program = None);
    let status = ended.map_err(std::io::Error::from).and_then(|_| child.wait());
    status.map_err(|source| Error::Io { path: "the program".into(), source })
}

/// The exit code that a shell would give.
pub fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128_u8.wrapping_add(signal as u8),
        (None, None) => 1,
    }
}

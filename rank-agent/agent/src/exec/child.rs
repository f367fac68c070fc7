//! Starts the program, forwards signals to it, and waits for it.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::Cause;
use trace::lock;

use crate::Error;
use crate::fabric::{Stop, outlive_file_size_limit};

/// Signals to forward. Signals that stop or resume a job reach all of its processes anyway.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// The receiver of signals: the program while it runs, and this rank's own waits before and after it.
#[derive(Clone, Debug, Default)]
pub(super) struct Target(Arc<Mutex<Receiver>>);

#[derive(Debug, Default)]
struct Receiver {
    program: Option<Pid>,
    /// A signal that arrived while no program was running.
    pending: Option<i32>,
    /// The wait that such a signal ends.
    waiting: Option<Stop>,
}

impl Target {
    fn with<R>(&self, body: impl FnOnce(&mut Receiver) -> R) -> R {
        body(&mut lock(&self.0))
    }

    /// The signal that arrived before the program started or after it ended.
    pub(super) fn pending(&self) -> Option<i32> {
        self.with(|receiver| receiver.pending)
    }

    /// Sets the wait that a signal without a program ends. A signal that has already arrived ends it at once.
    pub(super) fn interrupt(&self, waiting: Option<Stop>) {
        self.with(|receiver| {
            if let (Some(signal), Some(waiting)) = (receiver.pending, &waiting) {
                waiting.raise(signal);
            }
            receiver.waiting = waiting;
        });
    }

    /// `by_kernel`: the kernel sends a terminal's signals to the whole process group, which includes the program.
    fn deliver(&self, signal: i32, by_kernel: bool) {
        self.with(|receiver| match (receiver.program, Signal::from_named_raw(signal)) {
            (Some(_), _) if by_kernel => {}
            // An error means that the program has just ended.
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

/// Signals that this process ignores, as bits. `nohup` and shells set this for background jobs, and the program must
/// inherit it. (proc(5): `SigIgn`; 0 if it cannot be read.)
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Forwards signals until it is dropped.
#[derive(Debug)]
pub(super) struct Forwarder {
    handle: Handle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Forwarder {
    /// Starts to forward signals.
    ///
    /// # Errors
    /// [`Error::Signals`].
    pub(super) fn start(target: Target) -> Result<Self, Error> {
        let ignored = ignored();
        // The program must inherit an ignored signal, and a handler would reset it.
        if ignored >> (SIGXFSZ - 1) & 1 == 0 {
            outlive_file_size_limit().map_err(Error::Signals)?;
        }
        let forwarded = FORWARDED.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let mut signals = SignalsInfo::<WithOrigin>::new(forwarded).map_err(Error::Signals)?;
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
            // The thread ends with the handle and has no result.
            let _ = thread.join();
        }
    }
}

/// Starts the program.
///
/// # Errors
/// [`Error::Program`].
pub(super) fn start(program: &[OsString], variables: &[(&str, OsString)], target: &Target) -> Result<Child, Error> {
    let Some((name, arguments)) = program.split_first() else {
        return Err(Error::Usage("exec: there is no program after --".into()));
    };
    let mut command = Command::new(name);
    command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
    let child = command.spawn().map_err(|source| {
        // The codes of env(1) and timeout(1).
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

/// Waits for the program to end.
///
/// # Errors
/// [`Error::Io`] if the program is not a child of this process.
pub(super) fn wait(mut child: Child, target: &Target) -> Result<ExitStatus, Error> {
    let pid = Pid::from_child(&child);
    // The process id stays valid until the program is reaped. Signals stop before that, so that they never reach another
    // process with the same id.
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

/// The exit code as a shell reports it.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128_u8.wrapping_add(signal as u8),
        (None, None) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_a_wait_that_begins_after_it() {
        let (target, stop) = (Target::default(), Stop::default());
        target.deliver(15, false);
        target.interrupt(Some(stop.clone()));
        assert!(matches!(stop.check(), Err(Error::Stopped(15))));
    }
}

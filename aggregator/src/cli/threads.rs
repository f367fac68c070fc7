//! The threads of a command: rayon's number of them, or only the calling one where the system refuses to make them.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle, available_parallelism};

use rayon::{ThreadBuilder, ThreadPoolBuilder};

/// A thread that waits for its part of the pool. It ends if its part is dropped.
type Waiting = (Sender<ThreadBuilder>, JoinHandle<()>);

/// Starts rayon's pool. rayon panics if it cannot make its threads (`ulimit -u`, pids.max of a cgroup), so the threads
/// are made first, and without all of them the calling thread is the pool. Those that were made end then, which frees
/// the memory of their stacks.
pub fn start() {
    let pool = match make(number()) {
        Ok(mut threads) => ThreadPoolBuilder::new()
            .num_threads(threads.len())
            .spawn_handler(move |part| {
                let gone = || io::Error::other("a thread ended before its work began");
                let (thread, _) = threads.pop().ok_or_else(gone)?;
                thread.send(part).map_err(|_| gone())
            })
            .build_global(),
        Err(_) => ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global(),
    };
    // An error means that this process has a pool already, which is used then.
    drop(pool);
}

/// The number of threads, as rayon chooses it.
fn number() -> usize {
    let chosen =
        std::env::var("RAYON_NUM_THREADS").ok().and_then(|text| text.parse().ok()).filter(|number| *number > 0);
    let number = chosen.unwrap_or_else(|| available_parallelism().map_or(1, usize::from));
    number.min(rayon::max_num_threads())
}

/// Makes all threads, or none.
fn make(number: usize) -> io::Result<Vec<Waiting>> {
    let mut threads: Vec<Waiting> = Vec::new();
    for _ in 0..number {
        let (sender, parts) = channel::<ThreadBuilder>();
        let run = move || parts.into_iter().for_each(ThreadBuilder::run);
        match Builder::new().spawn(run) {
            Ok(thread) => threads.push((sender, thread)),
            Err(error) => {
                for (sender, thread) in threads {
                    drop(sender);
                    // The thread had no work, so it cannot have failed.
                    let _ = thread.join();
                }
                return Err(error);
            }
        }
    }
    Ok(threads)
}

//! Follows what `rank-agent exec` says while the program runs: whether to record, and how much of NCCL.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{CUDA, nccl};
use crate::control::{ControlPage, Order};
use crate::{Options, Recorder};

/// Longest sleep: an order that was lost between two threads is carried out by then.
const SLEEP: Duration = Duration::from_secs(1);

static PAGE: OnceLock<ControlPage> = OnceLock::new();
static OVER: AtomicBool = AtomicBool::new(false);

/// What is to be done now; `None`: nobody says.
pub(super) fn order() -> Option<Order> {
    PAGE.get().map(ControlPage::load)
}

/// Begins to follow. Without a page, or if it cannot be read, which is said, everything is recorded.
pub(super) fn start(recorder: &Recorder, options: &Options) {
    let active = match &options.control {
        None => true,
        Some(path) => match follow(path, recorder) {
            Ok(order) => order.record,
            Err(error) => {
                let path = path.display();
                eprintln!("rankscope: {path}: {error}; process {} records all the time", std::process::id());
                true
            }
        },
    };
    // With a schedule nothing is recorded before a step says so.
    recorder.set_active(active && options.schedule.is_none());
}

fn follow(path: &Path, recorder: &Recorder) -> std::io::Result<Order> {
    let page = ControlPage::open(path)?;
    let order = page.load();
    let page = PAGE.get_or_init(|| page);
    let recorder = recorder.clone();
    // It sleeps in the kernel, and ends with the process.
    std::thread::Builder::new().name("rankscope-control".into()).spawn(move || run(page, &recorder, order))?;
    Ok(order)
}

/// A source has started, and what it was told meanwhile may be old.
pub(super) fn look_again() {
    if let Some(page) = PAGE.get() {
        page.wake();
    }
}

/// Nothing is carried out any more.
pub(super) fn finish() {
    OVER.store(true, Ordering::Release);
    look_again();
}

fn run(page: &ControlPage, recorder: &Recorder, mut known: Order) {
    while !OVER.load(Ordering::Acquire) {
        page.wait(known, SLEEP);
        let order = page.load();
        carry_out(order, order.record != known.record, recorder);
        known = order;
    }
}

/// Only this thread switches sources, and all of this may be repeated: a source that starts at the same moment begins
/// as the page said, and is looked at again.
fn carry_out(order: Order, switched: bool, recorder: &Recorder) {
    let cupti = CUDA.get().and_then(Option::as_ref);
    // CUPTI first on the way in: what is launched from then on is kept. Last on the way out: what was launched until
    // then still comes.
    if let Some(cupti) = cupti.filter(|_| order.record) {
        cupti.resume();
    }
    if switched && !(order.record && super::schedule().is_some()) {
        recorder.set_active(order.record);
    }
    if let Some(cupti) = cupti.filter(|_| !order.record) {
        cupti.pause();
    }
    if let Some(source) = nccl() {
        source.set_detail(order.detail);
    }
}

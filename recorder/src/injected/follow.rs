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
    // With a schedule nothing is recorded before a step says so.
    let begin = |record: bool| recorder.set_active(record && options.schedule.is_none());
    let Some(path) = &options.control else { return begin(true) };
    if let Err(error) = follow(path, recorder, begin) {
        let path = path.display();
        eprintln!("rankscope: {path}: {error}; process {} records all the time", std::process::id());
        begin(true);
    }
}

fn follow(path: &Path, recorder: &Recorder, begin: impl Fn(bool)) -> std::io::Result<()> {
    let page = ControlPage::open(path)?;
    let order = page.load();
    // Before the thread, which may have something newer to say at once.
    begin(order.record);
    let page = PAGE.get_or_init(|| page);
    let recorder = recorder.clone();
    // It sleeps in the kernel, and ends with the process.
    let thread = std::thread::Builder::new().name("rankscope-control".into());
    thread.spawn(move || run(page, &recorder, order)).map(drop)
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
    // The detail before anything is asked for by it.
    if let Some(source) = nccl() {
        source.set_detail(order.detail);
    }
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
        source.ask();
    }
}

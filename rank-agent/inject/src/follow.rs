//! Follows the orders of `rank-agent exec` while the program runs: whether to record, and in which detail.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use recorder::{ControlPage, Options, Order, Recorder, report};

/// Longest sleep. An order whose wake-up was missed is carried out by then.
const SLEEP: Duration = Duration::from_secs(1);

static PAGE: OnceLock<ControlPage> = OnceLock::new();
static OVER: AtomicBool = AtomicBool::new(false);

/// Carries out an order; the flag is set if `record` has changed.
type CarryOut = fn(Order, bool, &Recorder);

/// The current order; `None` without a control page.
pub(crate) fn order() -> Option<Order> {
    PAGE.get().map(ControlPage::load)
}

/// Begins to follow the control page. Without a page, or if it cannot be read, recording is always on.
pub(crate) fn start(recorder: &Recorder, options: &Options, carry_out: CarryOut) {
    // With a schedule, recording is inactive until a step begins.
    let begin = |record: bool| recorder.set_active(record && options.schedule.is_none());
    let Some(path) = &options.control else { return begin(true) };
    if let Err(error) = follow(path, recorder, begin, carry_out) {
        report(format_args!("{}: {error}; process {} records all the time", path.display(), std::process::id()));
        begin(true);
    }
}

fn follow(path: &Path, recorder: &Recorder, begin: impl Fn(bool), carry_out: CarryOut) -> std::io::Result<()> {
    let page = ControlPage::open(path)?;
    let order = page.load();
    // Before the thread starts, which may carry out a newer order at once.
    begin(order.record);
    let page = PAGE.get_or_init(|| page);
    let recorder = recorder.clone();
    // The thread sleeps in the kernel and ends with the process.
    recorder::spawn("rankscope-control", move || run(page, &recorder, order, carry_out)).map(drop)
}

/// Wakes the control thread, because a source has started and may have missed an order.
pub(crate) fn look_again() {
    if let Some(page) = PAGE.get() {
        page.wake();
    }
}

/// Stops carrying out orders.
pub(crate) fn finish() {
    OVER.store(true, Ordering::Release);
    look_again();
}

fn run(page: &ControlPage, recorder: &Recorder, mut known: Order, carry_out: CarryOut) {
    while !OVER.load(Ordering::Acquire) {
        page.wait(known, SLEEP);
        let order = page.load();
        carry_out(order, order.record != known.record, recorder);
        known = order;
    }
}

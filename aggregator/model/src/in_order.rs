//! Processes several items in parallel and writes their output in the order of the items, in bounded memory.
//!
//! ```text
//!  item 0  [#### ####]                          each thread takes the next item; its output waits in a queue of the item
//!  item 1  [## ##....wait....]                  until all items before it are written. A full queue blocks its thread,
//!  out     0000 0000 1111 1111                  which bounds the waiting output by threads × queue.
//! ```

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use trace::lock;

/// Maximum number of pieces of an item in its queue.
const QUEUE: usize = 4;

/// The reader of the output is gone, so further output is useless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

enum Message<R> {
    Piece(Vec<u8>),
    Done(R),
}

/// The output queue of one item.
pub struct Sink<'a> {
    send: &'a mut dyn FnMut(Vec<u8>) -> Result<(), Closed>,
}

impl Sink<'_> {
    /// Queues a piece; blocks while the queue is full.
    ///
    /// # Errors
    /// [`Closed`]: the reader is gone, and the work may end early.
    pub fn push(&mut self, piece: Vec<u8>) -> Result<(), Closed> {
        (self.send)(piece)
    }
}

/// Runs `make` on every item, on several threads where the system makes them. Calls `write` with the pieces and `done` with the results, in the
/// order of the items. Items start in order, so the item that is written next is always running.
///
/// # Errors
/// The first error of `write`. The work then ends soon, and nothing more is written.
pub fn in_order<T: Sync, R: Send, E>(
    items: &[T],
    make: impl Fn(&T, &mut Sink<'_>) -> R + Sync,
    mut write: impl FnMut(Vec<u8>) -> Result<(), E>,
    mut done: impl FnMut(&T, R),
) -> Result<(), E> {
    type Queue<R> = (Mutex<Option<SyncSender<Message<R>>>>, Receiver<Message<R>>);
    let (senders, receivers): (Vec<_>, Vec<_>) = items
        .iter()
        .map(|_| -> Queue<R> {
            let (sender, receiver) = sync_channel(QUEUE);
            (Mutex::new(Some(sender)), receiver)
        })
        .unzip();
    let (next, closed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let (Some(item), Some(sender)) = (items.get(at), senders.get(at)) else { return };
            let sender = lock(sender).take();
            let Some(sender) = sender.filter(|_| !closed.load(Ordering::Relaxed)) else { return };
            let mut send = |piece| sender.send(Message::Piece(piece)).map_err(|_| Closed);
            let result = make(item, &mut Sink { send: &mut send });
            // Sending fails only if the writer has returned an error, which the caller receives.
            let _ = sender.send(Message::Done(result));
        }
    };
    thread::scope(|scope| {
        // A pool of one thread may be the calling thread, which could not help a thread that waits for the pool.
        let threads = if rayon::current_num_threads() == 1 { 0 } else { rayon::current_num_threads().min(items.len()) };
        let started = (0..threads).take_while(|_| thread::Builder::new().spawn_scoped(scope, work).is_ok()).count();
        if started == 0 {
            return in_turn(items, &make, write, done);
        }
        for (item, receiver) in items.iter().zip(receivers) {
            for message in receiver {
                match message {
                    Message::Piece(piece) => {
                        let written = write(piece);
                        if written.is_err() {
                            // Returning drops the receivers, so that threads blocked in a send wake up with an error.
                            closed.store(true, Ordering::Relaxed);
                            return written;
                        }
                    }
                    Message::Done(result) => done(item, result),
                }
            }
        }
        Ok(())
    })
}

/// [`in_order`] on the calling thread alone.
fn in_turn<T, R, E>(
    items: &[T],
    make: impl Fn(&T, &mut Sink<'_>) -> R,
    mut write: impl FnMut(Vec<u8>) -> Result<(), E>,
    mut done: impl FnMut(&T, R),
) -> Result<(), E> {
    for item in items {
        let mut written = Ok(());
        let mut send = |piece| match write(piece) {
            Ok(()) => Ok(()),
            Err(error) => {
                written = Err(error);
                Err(Closed)
            }
        };
        let result = make(item, &mut Sink { send: &mut send });
        written?;
        done(item, result);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Item n makes n pieces with the content n. Later items finish long before the first.
    fn pieces(item: &u8, sink: &mut Sink<'_>) -> u8 {
        if *item == 7 {
            thread::sleep(std::time::Duration::from_millis(20));
        }
        for _ in 0..*item {
            if sink.push(vec![*item]).is_err() {
                break;
            }
        }
        *item
    }

    /// Runs a test with rayon's threads, and with one thread.
    fn with_many_threads_and_one(test: impl Fn() + Send + Sync) {
        test();
        rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap().install(test);
    }

    /// Invariant (same): The number of threads and the order of ranks change no byte.
    #[test]
    fn pieces_keep_the_order_of_their_items() {
        let items: Vec<u8> = [7, 1, 0, 40, 3].into_iter().chain(0..90).collect();
        with_many_threads_and_one(|| {
            let (mut out, mut results) = (Vec::new(), Vec::new());
            let written = in_order(
                &items,
                pieces,
                |mut piece| {
                    out.append(&mut piece);
                    Ok::<(), ()>(())
                },
                |item, result| results.push((*item, result)),
            );
            assert_eq!(written, Ok(()));
            let expected: Vec<u8> = items.iter().flat_map(|item| vec![*item; usize::from(*item)]).collect();
            assert_eq!(out, expected);
            assert_eq!(results, items.iter().map(|item| (*item, *item)).collect::<Vec<_>>());
        });
    }

    #[test]
    fn a_failing_output_ends_the_work() {
        let items: Vec<u8> = (1..200).collect();
        with_many_threads_and_one(|| {
            let made = AtomicUsize::new(0);
            let make = |item: &u8, sink: &mut Sink<'_>| {
                made.fetch_add(1, Ordering::Relaxed);
                pieces(item, sink)
            };
            let mut pieces_written = 0;
            let write = |_| {
                pieces_written += 1;
                if pieces_written == 10 { Err("full") } else { Ok(()) }
            };
            assert_eq!(in_order(&items, make, write, |_, _| ()), Err("full"));
            assert_eq!(pieces_written, 10);
            assert!(made.load(Ordering::Relaxed) < items.len(), "the remaining items are not made");
        });
    }

    #[test]
    fn no_items_are_no_error() {
        let none: [u8; 0] = [];
        assert_eq!(in_order(&none, pieces, |_| Err("never"), |_, _| ()), Ok(()));
    }
}

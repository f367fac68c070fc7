//! The order of device work over streams, as programs usually have it. It is a guess, because traces do not say what an event recorded.
//!
//! * A collective follows the last computation that was launched before it. It also follows the collectives for which that computation
//!   was told to wait, if nothing else explains its start in most steps.
//! * Computation follows collectives if calls before its launch let a stream wait. Each call stands for one stream of collectives, and
//!   the computation follows the last collective that was launched on it.
//!
//! The recording contradicts a guess if the work began before the followed work ended. The guess is then wrong at this place of the
//! program in all steps, and the launch before the followed one is tried. If there are more streams than calls, the streams count whose
//! work ends right before the start in most steps. Otherwise those count whose work ended first, because they delay the start least.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use super::calls::{CallKind, Work};
use super::input::Input;
use super::nodes::NEAR_NS;

/// Work that was launched so many earlier on a stream may be what is followed.
const MOST_EARLIER: usize = 8;
/// The share of the steps in which a guess is possible where it is right: a step may have more or less of a kernel than the others.
const MOST_STEPS: f64 = 0.9;
/// All computation of a device counts as one stream.
const COMPUTATION: u32 = u32::MAX;

/// For each piece of work, the work that it follows.
#[derive(Debug, Default)]
pub(super) struct Order {
    of_work: Vec<u32>,
    ends: Vec<u32>,
}

impl Order {
    /// The positions of the work that a piece of work follows.
    pub(super) fn before(&self, work: usize) -> &[u32] {
        let end = |at: usize| self.ends.get(at).map_or(0, |end| *end as usize);
        &self.of_work[work.checked_sub(1).map_or(0, end)..end(work)]
    }

    pub(super) fn of(input: &Input) -> Self {
        if !input.has_device {
            return Self::default();
        }
        let places = places(input);
        let has_waits = input.calls.calls.iter().any(|call| call.kind == CallKind::LetWait);
        let mut streams = Streams { input, has_waits, launched: FxHashMap::default() };
        let guesses = streams.guesses();
        let mut of_place: FxHashMap<(u32, u32), Fits> = FxHashMap::default();
        for guess in &guesses {
            of_place.entry((places[guess.work as usize], guess.stream)).or_default().add(&streams, guess);
        }
        let mut order = Self { of_work: Vec::new(), ends: Vec::with_capacity(input.works.len()) };
        let mut rest = guesses.as_slice();
        for work in 0..input.works.len() as u32 {
            let count = rest.partition_point(|guess| guess.work <= work);
            let (of_work, others) = rest.split_at(count);
            rest = others;
            let is_comm = input.works[work as usize].is_comm;
            let known = |guess: &Guess| {
                let fits = &of_place[&(places[guess.work as usize], guess.stream)];
                let earlier = fits.earlier()?;
                let follows = fits.follows[earlier];
                let is_known = !is_comm || guess.stream == COMPUTATION || 2 * follows >= fits.all;
                let is_other = is_comm && guess.stream != COMPUTATION;
                let before = streams.at(guess, earlier)?;
                is_known.then_some((is_other, Reverse(follows), input.works[before as usize].end_ns, before))
            };
            let mut known: Vec<_> = of_work.iter().filter_map(known).collect();
            known.sort_unstable();
            known.truncate(of_work.first().map_or(0, |guess| guess.waits as usize));
            order.of_work.extend(known.into_iter().map(|(.., before)| before));
            order.ends.push(order.of_work.len() as u32);
        }
        order
    }
}

/// The place of each piece of work in the program: its number among the work of the same name on its stream in its step.
fn places(input: &Input) -> Vec<u32> {
    let mut counts: FxHashMap<(u32, u32), (usize, u32)> = FxHashMap::default();
    let mut places: FxHashMap<(u32, u32, u32), u32> = FxHashMap::default();
    let of_work = |work: &Work| {
        let called_ns = work.called_ns.unwrap_or(work.start_ns);
        let step = input.step_begins_ns.partition_point(|begin_ns| *begin_ns <= called_ns);
        let count = counts.entry((work.name, work.stream)).or_default();
        *count = (step, if count.0 == step { count.1 + 1 } else { 0 });
        let next = places.len() as u32;
        *places.entry((work.name, work.stream, count.1)).or_insert(next)
    };
    input.works.iter().map(of_work).collect()
}

/// A piece of work that may follow the last ones of a stream.
struct Guess {
    work: u32,
    /// The stream; [`COMPUTATION`] for all that compute.
    stream: u32,
    device: i64,
    /// How many had been launched on it.
    launched: u32,
    /// How many streams it follows.
    waits: u32,
    /// The end of all other work that it follows.
    ready_ns: i64,
}

/// How many guesses of a place the recording allows, by how much earlier the followed work was launched.
#[derive(Default)]
struct Fits {
    all: u32,
    fits: [u32; MOST_EARLIER],
    follows: [u32; MOST_EARLIER],
}

impl Fits {
    fn add(&mut self, streams: &Streams<'_>, guess: &Guess) {
        self.all += 1;
        let start_ns = streams.input.works[guess.work as usize].start_ns;
        for earlier in 0..MOST_EARLIER {
            let Some(before) = streams.at(guess, earlier) else { break };
            let end_ns = streams.input.works[before as usize].end_ns;
            self.fits[earlier] += u32::from(end_ns <= start_ns + 2 * NEAR_NS);
            let across_ns = streams.input.usual.across_ns;
            let follows = (end_ns - start_ns).abs() <= across_ns && end_ns - guess.ready_ns > across_ns;
            self.follows[earlier] += u32::from(follows);
        }
    }

    /// How much earlier the followed work was launched.
    fn earlier(&self) -> Option<usize> {
        self.fits.iter().position(|fits| f64::from(*fits) >= MOST_STEPS * f64::from(self.all))
    }
}

/// The positions of the work that was launched on each stream of each device.
struct Streams<'a> {
    input: &'a Input,
    /// Whether the calls that let streams wait were recorded.
    has_waits: bool,
    launched: FxHashMap<i64, FxHashMap<u32, Vec<u32>>>,
}

impl Streams<'_> {
    fn at(&self, guess: &Guess, earlier: usize) -> Option<u32> {
        let at = (guess.launched as usize).checked_sub(earlier + 1)?;
        self.launched.get(&guess.device)?.get(&guess.stream)?.get(at).copied()
    }

    /// The guesses of all work, by its position.
    fn guesses(&mut self) -> Vec<Guess> {
        let (mut guesses, mut waits, mut next) = (Vec::new(), 0, 0);
        for (at, call) in (0..).zip(&self.input.calls.calls) {
            waits += u32::from(call.kind == CallKind::LetWait);
            while self.input.works.get(next).is_some_and(|work| work.call.is_none_or(|of| of <= at)) {
                waits = self.add(next as u32, waits, &mut guesses);
                next += 1;
            }
        }
        (next..self.input.works.len()).for_each(|work| _ = self.add(work as u32, 0, &mut guesses));
        guesses
    }

    /// Adds the guesses of a piece of work. `waits` is how many calls let streams wait before it, and are still open; returns how many
    /// then are.
    fn add(&mut self, work: u32, waits: u32, guesses: &mut Vec<Guess>) -> u32 {
        let Work { is_comm, stream, called_ns, .. } = self.input.works[work as usize];
        let (device, _) = self.input.streams[stream as usize];
        let on_device = self.launched.entry(device).or_default();
        let followed = on_device.iter().filter(|(other, _)| **other != stream && (is_comm || **other != COMPUTATION));
        let streams = if is_comm && !self.has_waits { 1 } else { waits };
        let ended_ns = |stream: u32| {
            let last = on_device.get(&stream).and_then(|launched| launched.last());
            last.map_or(i64::MIN, |last| self.input.works[*last as usize].end_ns)
        };
        // A collective follows another one only if nothing else explains its start.
        let called_ns = called_ns.map_or(i64::MIN, |called_ns| called_ns + self.input.usual.launch_ns[0]);
        let other_ns = if is_comm { called_ns.max(ended_ns(stream)).max(ended_ns(COMPUTATION)) } else { i64::MIN / 2 };
        if streams > 0 {
            guesses.extend(followed.map(|(stream, launched)| Guess {
                work,
                stream: *stream,
                device,
                launched: launched.len() as u32,
                waits: streams,
                ready_ns: if *stream == COMPUTATION { i64::MIN / 2 } else { other_ns },
            }));
        }
        let own = if is_comm { stream } else { COMPUTATION };
        on_device.entry(own).or_default().push(work);
        // One of the calls is that of the collective.
        if is_comm { waits.saturating_sub(1) } else { 0 }
    }
}

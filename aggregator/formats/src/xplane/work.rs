//! What a device did: the streams of a GPU, the operations of a TPU.
//!
//! | plane and line | rows |
//! |---|---|
//! | GPU, `Stream #16(Kernel)` | `kernel`, `gpu_memcpy`, `gpu_memset`, by what is stated of an event, else by its name |
//! | TPU, `XLA Ops` | `kernel`; copies and the waits for them `gpu_memcpy`; a loop around other operations `gpu_user_annotation` |
//! | TPU, `Async XLA Ops` | `kernel` for collectives, `gpu_memcpy` for others |
//! | `XLA Modules`, `Steps`, `XLA TraceMe` | `gpu_user_annotation` |
//!
//! Other lines are derived of these, and are counted.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::rows::{Added, sides_of};
use crate::xplane::collectives::{Found, Origin};
use crate::xplane::hlo::{Instruction, instruction, name_in};
use crate::xplane::load::{Loader, description};
use crate::xplane::space::{Described, Event, Line, Plane};
use crate::xplane::stats::{Facts, MAX_DETAILS, Stat, detail};
use model::{KernelUse, Kind};
use trace::rank::mark_rows;

/// Lines of a device whose events are ranges: they hold work.
const RANGES: [&[u8]; 4] = [b"XLA Modules", b"XLA TraceMe", b"Sparse Core Modules", b"Sparse Core Steps"];
const STEPS: &[u8] = b"Steps";

/// A kind of events of a device, as rows.
#[derive(Clone)]
struct Known {
    name: u32,
    instruction: Rc<Instruction>,
    kind: Kind,
    /// The name of the instruction.
    hlo: Rc<str>,
    is_nameless: bool,
}

/// The kinds of a plane that were looked at.
type Kinds = FxHashMap<i64, Known>;

impl<'a> Loader<'a> {
    /// Reads the planes of the rank's device.
    pub(super) fn device(&mut self) {
        let Some(device) = self.claimed.device else { return };
        for message in self.claimed.profile.planes_of(device, &self.content.bytes) {
            let plane = self.plane(message);
            if self.description.is_none() {
                self.description = Some(description(self.claimed.rank, device, &plane.stats));
            }
            let (mut kinds, mut ranges) = (Kinds::default(), Kinds::default());
            for line in self.lines(&plane) {
                let base = Added { device: Some(device.number), stream: Some(line.id), ..Added::default() };
                match line.name {
                    STEPS => self.steps(&plane, &line, base),
                    name if RANGES.contains(&name) => self.ranges(&plane, &line, base, &mut ranges),
                    b"XLA Ops" | b"Sparse Core Ops" if device.is_tpu => {
                        self.operations(&plane, &line, base, (Origin::Line, &mut kinds));
                    }
                    b"Async XLA Ops" if device.is_tpu => {
                        self.operations(&plane, &line, base, (Origin::Async, &mut kinds));
                    }
                    name if !device.is_tpu && name.starts_with(b"Stream #") => {
                        let base = Added { stream: Some(stream(name).unwrap_or(line.id)), ..base };
                        self.stream(&plane, &line, base, &mut kinds);
                    }
                    _ => self.derived(&line),
                }
            }
        }
    }

    fn times_in(&self, line: &Line<'_>, event: &Event<'_>, base: Added) -> Added {
        let times = self.times(line, event);
        Added { start: times.start, end: times.end, ..base }
    }

    fn ranges(&mut self, plane: &Plane<'a>, line: &Line<'a>, base: Added, kinds: &mut Kinds) {
        for event in line.events() {
            let Some(event) = self.event(plane, event) else { continue };
            let known = self.known(plane, event.kind, kinds, true);
            let row = self.times_in(line, &event, base);
            self.rows.add_named(Kind::GpuUserAnnotation, known.name, row);
        }
    }

    /// The line of steps: each is named by its number.
    fn steps(&mut self, plane: &Plane<'a>, line: &Line<'a>, base: Added) {
        for (at, event) in line.events().enumerate() {
            let Some(event) = self.event(plane, event) else { continue };
            let kind = plane.kinds.get(&event.kind).copied().unwrap_or_default();
            let named = [kind.name, kind.display].into_iter().find_map(|name| Stat::Text(name).integer());
            let facts = plane.facts(&event);
            let number = named.or(facts.step).or(facts.group).unwrap_or(at as i64);
            let row = self.times_in(line, &event, base);
            let mark = self.mark(number, row);
            self.marks.device.extend(mark);
            let name = self.rows.name(&format!("Step {number}"));
            self.rows.add_named(Kind::GpuUserAnnotation, name, row);
        }
    }

    /// A stream of a GPU.
    fn stream(&mut self, plane: &Plane<'a>, line: &Line<'a>, base: Added, kinds: &mut Kinds) {
        for event in line.events() {
            let Some(event) = self.event(plane, event) else { continue };
            let facts = plane.facts(&event);
            let known = self.known(plane, event.kind, kinds, false);
            let kind = kind_of(&facts, known.kind);
            let details = facts.copy.or(facts.fill).filter(|_| kind != Kind::Kernel);
            let bytes = details.and_then(|details| detail(details, "size")?.parse().ok());
            let row = Added { correlation: facts.correlation, bytes, ..self.times_in(line, &event, base) };
            let Some(id) = self.rows.add_named(kind, known.name, row) else { continue };
            self.group(&facts, row);
            if kind == Kind::Kernel {
                self.rows.raw.kernel_use.extend(facts.kernel.map(|details| used(id, details)));
                self.collective_of_operator(id, &facts);
            }
        }
    }

    /// A kernel whose HLO operation is a collective communicates, whatever its name is.
    fn collective_of_operator(&mut self, id: i64, facts: &Facts<'a>) {
        let hlo = facts.hlo_op.filter(|name| name.len() <= MAX_DETAILS);
        let Some(hlo) = hlo.and_then(|name| std::str::from_utf8(name).ok()) else { return };
        if let Instruction::Collective(collective) = instruction("", hlo, "") {
            self.found_collective(id, Origin::Kernel, Rc::new(Instruction::Collective(collective)), hlo.into());
        }
    }

    fn found_collective(&mut self, id: i64, origin: Origin, instruction: Rc<Instruction>, name: Rc<str>) {
        mark_rows(&mut self.rows.raw.events, [id as usize]);
        self.found.push(Found { id, origin, instruction, name });
    }

    fn group(&mut self, facts: &Facts<'_>, row: Added) {
        let Some(group) = facts.group else { return };
        if let Some((group, start_ns, end_ns)) = self.mark(group, row) {
            let span = self.marks.groups.entry(group).or_insert((start_ns, end_ns));
            *span = (span.0.min(start_ns), span.1.max(end_ns));
        }
    }

    /// A line of HLO operations.
    fn operations(&mut self, plane: &Plane<'a>, line: &Line<'a>, base: Added, (origin, kinds): (Origin, &mut Kinds)) {
        let mut events: Vec<Event<'a>> = Vec::new();
        for event in line.events() {
            let Some(event) = self.event(plane, event) else { continue };
            if self.rows.has_room_beside(events.len()) {
                events.push(event);
            }
        }
        events.sort_by_key(|event| (event.offset_ps, std::cmp::Reverse(event.duration_ps)));
        let end_ps = |event: &Event<'_>| event.offset_ps.saturating_add(event.duration_ps);
        for at in 0..events.len() {
            let event = events[at];
            let facts = plane.facts(&event);
            let known = self.known(plane, event.kind, kinds, true);
            let next = events.get(at + 1);
            let holds_next = next.is_some_and(|next| next.offset_ps < end_ps(&event) && end_ps(next) <= end_ps(&event));
            let is_collective = matches!(*known.instruction, Instruction::Collective(_));
            let kind = match known.kind {
                Kind::Kernel if holds_next && *known.instruction == Instruction::Control => Kind::GpuUserAnnotation,
                Kind::Kernel if origin == Origin::Async && !is_collective => Kind::GpuMemcpy,
                kind => kind,
            };
            let row = self.times_in(line, &event, base);
            let Some(id) = self.rows.add_named(kind, known.name, row) else { continue };
            self.group(&facts, row);
            if is_collective {
                self.found_collective(id, origin, known.instruction, known.hlo);
            }
        }
    }

    /// What is known of a kind of events. Only operations have the text of an instruction.
    fn known(&mut self, plane: &Plane<'a>, kind: i64, kinds: &mut Kinds, are_operations: bool) -> Known {
        if let Some(known) = kinds.get(&kind) {
            self.counts.nameless += i64::from(known.is_nameless);
            return known.clone();
        }
        let described = plane.kinds.get(&kind).copied().unwrap_or_default();
        let known = if are_operations { self.operation(described) } else { self.kernel(described) };
        self.counts.nameless += i64::from(known.is_nameless);
        kinds.insert(kind, known.clone());
        known
    }

    fn kernel(&mut self, described: Described<'a>) -> Known {
        let name = if described.name.is_empty() { described.display } else { described.name };
        let kind = kind_of_name(name);
        let number = self.name(copy_name(name), "unknown kernel");
        let instruction = Rc::new(Instruction::Compute);
        Known { name: number, instruction, kind, hlo: "".into(), is_nameless: name.is_empty() }
    }

    /// An operation. Its text is longer than a name should be.
    fn operation(&mut self, described: Described<'a>) -> Known {
        let text = String::from_utf8_lossy(described.name);
        let hlo = name_in(&text);
        let name = if described.display.is_empty() { hlo.as_bytes() } else { described.display };
        let category = String::from_utf8_lossy(described.facts.category.unwrap_or_default());
        let instruction = instruction(&text, &String::from_utf8_lossy(name), &category);
        let kind = if instruction == Instruction::Copy { Kind::GpuMemcpy } else { Kind::Kernel };
        let number = self.name(name, "unknown operation");
        let hlo = trace::shortened(hlo).into();
        Known { name: number, instruction: Rc::new(instruction), kind, hlo, is_nameless: name.is_empty() }
    }
}

/// The number of a stream: `Stream #16(Kernel)`.
fn stream(name: &[u8]) -> Option<i64> {
    let digits = std::str::from_utf8(name).ok()?.strip_prefix("Stream #")?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

fn kind_of_name(name: &[u8]) -> Kind {
    match name.get(..6).unwrap_or_default().to_ascii_lowercase().as_slice() {
        b"memcpy" => Kind::GpuMemcpy,
        b"memset" => Kind::GpuMemset,
        _ => Kind::Kernel,
    }
}

/// The name of a copy or a fill as other formats have it.
fn copy_name(name: &[u8]) -> &[u8] {
    match name {
        b"MemcpyH2D" => b"Memcpy HtoD",
        b"MemcpyD2H" => b"Memcpy DtoH",
        b"MemcpyD2D" => b"Memcpy DtoD",
        b"MemcpyH2H" => b"Memcpy HtoH",
        b"MemcpyP2P" => b"Memcpy PtoP",
        b"MemcpyOther" => b"Memcpy",
        b"Memset" => b"Memset (Device)",
        _ => name,
    }
}

fn kind_of(facts: &Facts<'_>, by_name: Kind) -> Kind {
    match () {
        () if facts.is_allocation => Kind::Other,
        () if facts.kernel.is_some() => Kind::Kernel,
        () if facts.copy.is_some() => Kind::GpuMemcpy,
        () if facts.fill.is_some() => Kind::GpuMemset,
        () => by_name,
    }
}

/// ` regs:32 static_shared:0 dynamic_shared:1024 grid:4,2,1 block:256,1,1 occ_pct:62.5`.
fn used(id: i64, details: &[u8]) -> KernelUse {
    let sides = |key: &str| {
        let mut sides = detail(details, key).unwrap_or_default().split(',').map(|side| side.parse::<i64>().ok());
        // A plane or a line of blocks may have fewer sides.
        let mut next = || sides.next().unwrap_or(Some(1));
        [next(), next(), next()]
    };
    let number = |key: &str| detail(details, key).and_then(|text| text.parse::<i64>().ok());
    let shared = number("static_shared").zip(number("dynamic_shared")).and_then(|(a, b)| a.checked_add(b));
    KernelUse {
        grid: sides_of(sides("grid")).unwrap_or_default(),
        block: sides_of(sides("block")).unwrap_or_default(),
        registers: number("regs").and_then(|registers| registers.try_into().ok()),
        shared_mem_bytes: shared.and_then(|bytes| bytes.try_into().ok()),
        occupancy_pct: detail(details, "occ_pct")
            .and_then(|text| text.parse().ok())
            .filter(|pct: &f32| pct.is_finite() && *pct > 0.0),
        ..KernelUse::unknown(id)
    }
}

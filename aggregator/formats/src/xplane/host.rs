//! What the threads of the host did, and for which of its devices.
//!
//! ```text
//!  thread 1   launch 7, launch 8         both for device 0: all of the thread is of its rank
//!  thread 2   launch 9 … launch 10       for devices 0 and 1: each launch is of its own rank, the rest of both
//!  thread 3   no launch                  of all ranks
//! ```
//!
//! A launch and its work have one `correlation_id`. With a single device, all threads are its.

use rustc_hash::FxHashMap;

use crate::rows::Added;
use crate::xplane::load::Loader;
use crate::xplane::profile::{Device, Owners};
use crate::xplane::space::{Event, Plane};
use model::{Kind, NONE};

/// The device of a launch or of a thread; `None`: of several.
fn add(owners: &mut Owners, id: i64, owner: Option<Device>) {
    let known = owners.entry(id).or_insert(owner);
    *known = known.filter(|known| Some(*known) == owner);
}

impl<'a> Loader<'a> {
    /// Reads the planes with threads.
    pub(super) fn host(&mut self) {
        let profile = &self.claimed.profile;
        let messages = profile.planes_with_threads(&self.content.bytes);
        let is_divided = profile.devices.len() > 1 && !messages.is_empty();
        let none = Owners::default();
        // All ranks of the file ask the same.
        let launches = if is_divided { self.content.launches.get_or_init(|| self.owners_of_launches()) } else { &none };
        let planes: Vec<Plane<'a>> = messages.into_iter().map(|message| self.plane(message)).collect();
        let threads = if is_divided { self.owners_of_threads(&planes, launches) } else { Owners::default() };
        for plane in &planes {
            let mut names: FxHashMap<i64, (u32, Kind)> = FxHashMap::default();
            for line in self.lines(plane) {
                let of_thread = threads.get(&line.id).copied();
                for event in line.events() {
                    let Some(event) = self.event(plane, event) else { continue };
                    let facts = plane.facts(&event);
                    let owner = match (of_thread, facts.correlation.and_then(|id| launches.get(&id).copied())) {
                        (Some(Some(thread)), _) => Some(thread),
                        (_, launch) => launch.flatten(),
                    };
                    if owner.is_some_and(|owner| Some(owner) != self.claimed.device) {
                        continue;
                    }
                    self.thread_row(
                        plane,
                        &event,
                        Added { thread: Some(line.id.max(NONE + 1)), ..self.times(&line, &event) },
                        &mut names,
                    );
                }
            }
        }
    }

    fn thread_row(
        &mut self,
        plane: &Plane<'a>,
        event: &Event<'a>,
        row: Added,
        names: &mut FxHashMap<i64, (u32, Kind)>,
    ) {
        let facts = plane.facts(event);
        let (name, by_name) = match names.get(&event.kind) {
            Some(known) => *known,
            None => {
                let described = plane.kinds.get(&event.kind).copied().unwrap_or_default();
                let name = if described.name.is_empty() { described.display } else { described.name };
                self.counts.nameless += i64::from(name.is_empty());
                let known = (self.name(name, "unknown event"), kind_of(&String::from_utf8_lossy(name)));
                names.insert(event.kind, known);
                known
            }
        };
        let kind = match by_name {
            _ if facts.step.is_some() => Kind::UserAnnotation,
            Kind::UserAnnotation if facts.correlation.is_some() => Kind::Runtime,
            Kind::UserAnnotation if facts.is_framework => Kind::CpuOp,
            kind => kind,
        };
        self.rows.add_named(kind, name, Added { correlation: facts.correlation, ..row });
        if let Some(number) = facts.step {
            let mark = self.mark(number, row);
            self.marks.host.extend(mark);
        }
    }

    /// The device of each launch of the file.
    fn owners_of_launches(&self) -> Owners {
        let mut owners = Owners::default();
        for device in &self.claimed.profile.devices {
            for message in self.claimed.profile.planes_of(*device, &self.content.bytes) {
                // The load of its own rank counts what is damaged.
                let plane = Plane::of(message, self.max_kind_bytes());
                for line in plane.lines().flatten() {
                    let events = line.events().flatten().filter_map(|event| Event::of(event, &plane.keys).ok());
                    for id in events.filter_map(|event| plane.facts(&event).correlation) {
                        add(&mut owners, id, Some(*device));
                    }
                }
            }
        }
        owners
    }

    /// The device of each thread that launched work.
    fn owners_of_threads(&self, planes: &[Plane<'a>], launches: &Owners) -> Owners {
        let mut owners = Owners::default();
        for plane in planes {
            for line in plane.lines().flatten() {
                let events = line.events().flatten().filter_map(|event| Event::of(event, &plane.keys).ok());
                for id in events.filter_map(|event| plane.facts(&event).correlation) {
                    if let Some(owner) = launches.get(&id) {
                        add(&mut owners, line.id, *owner);
                    }
                }
            }
        }
        owners
    }
}

/// What a row is by its name.
fn kind_of(name: &str) -> Kind {
    let call = |prefix: &str| name.strip_prefix(prefix)?.bytes().next().filter(u8::is_ascii_uppercase);
    match () {
        () if call("cuda").is_some() || call("hip").is_some() => Kind::Runtime,
        () if call("cu").is_some() => Kind::Driver,
        // The tracer of Python writes `$file.py:12 function`.
        () if name.starts_with('$') => Kind::PythonFunction,
        () if name.contains("::") || is_operator(name) => Kind::CpuOp,
        () => Kind::UserAnnotation,
    }
}

/// Whether a name is one of TensorFlow's operators: `model/dense/MatMul:MatMul`.
fn is_operator(name: &str) -> bool {
    let is_word = |text: &str| !text.is_empty() && !text.contains([' ', ':', '(']);
    let of_type = |text: &str| text.starts_with(|c: char| c.is_ascii_uppercase());
    name.split_once(':').is_some_and(|(name, class)| is_word(name) && is_word(class) && of_type(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rows_say_what_they_are() {
        let kinds = [
            ("cudaLaunchKernel", Kind::Runtime),
            ("hipModuleLaunchKernel", Kind::Runtime),
            ("cuLaunchKernel", Kind::Driver),
            ("custom", Kind::UserAnnotation),
            ("$profiler.py:101 start_trace", Kind::PythonFunction),
            ("PjRtStreamExecutorLoadedExecutable::ExecuteHelper", Kind::CpuOp),
            ("model/MatMul:MatMul", Kind::CpuOp),
            ("train", Kind::UserAnnotation),
            ("loss: 3", Kind::UserAnnotation),
        ];
        for (name, kind) in kinds {
            assert_eq!(kind_of(name), kind, "{name}");
        }
    }

    #[test]
    fn work_of_two_devices_has_no_single_owner() {
        let device = |number| Some(Device { is_tpu: false, number });
        let mut owners = Owners::default();
        for (id, owner) in [(1, device(0)), (1, device(0)), (2, device(0)), (2, device(1)), (2, device(0))] {
            add(&mut owners, id, owner);
        }
        assert_eq!((owners[&1], owners[&2]), (device(0), None));
    }
}

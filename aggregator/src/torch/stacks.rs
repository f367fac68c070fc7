//! Folded stacks, the input of flame graphs. One line per stack: the frames from the outermost to the innermost, then
//! the self time.
//!
//! ```text
//! rank 0;thread 1;ProfilerStep*;forward;aten::linear;aten::addmm 81234
//! ```
//!
//! The frames are all host rows that enclose each other by torch's rules: ranges, Python functions, operators, runtime
//! calls. A host stack has the self time of its innermost frame, so the lines of a thread sum to the time in which
//! anything ran on it. On a device the innermost frame is a kernel or a copy, below the frames of the operator that
//! launched it, and the line has its whole duration. Times are in ns.

use rustc_hash::FxHashMap;
use trace::Text;

use crate::model::{Kind, NO_PARENT, NONE, RankData};
use crate::torch::table::{Functions, Role, fold};

/// The side whose time the stacks show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum On {
    /// Threads of the host.
    #[default]
    Host,
    /// Devices, below the operators that launched the work.
    Device,
}

/// One node of the tree of frames.
#[derive(Clone, Debug)]
struct Frame {
    parent: u32,
    name: u32,
    self_ns: i64,
}

/// The stacks of any number of ranks, merged.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    frames: Vec<Frame>,
    numbers: FxHashMap<(u32, u32), u32>,
    names: Vec<Text>,
    name_numbers: FxHashMap<Text, u32>,
}

impl Stacks {
    /// Adds the rows of a rank for which `keep` returns true.
    pub fn add(&mut self, data: &RankData, on: On, keep: &dyn Fn(usize) -> bool) {
        let functions = Functions::of(data);
        let events = &data.events;
        let rank = self.frame(NO_PARENT, &format!("rank {}", data.outline.info.rank));
        let mut frame_of: Vec<u32> = vec![NO_PARENT; events.len()];
        let names: Vec<u32> = data.names.iter().map(|name| self.name(&frame_text(fold(name)))).collect();
        for row in 0..events.len() {
            // A parent precedes its children, so its frame exists.
            let own = match functions.role[row] {
                Role::Host => {
                    let parent = functions.parent[row];
                    let above = if parent == NO_PARENT {
                        self.thread(rank, events.thread[row])
                    } else {
                        frame_of[parent as usize]
                    };
                    frame_of[row] = self.numbered(above, names[events.name[row] as usize]);
                    functions.self_ns[row]
                }
                Role::Device => continue,
                Role::Async | Role::Absent => continue,
            };
            if on == On::Host && keep(row) {
                self.frames[frame_of[row] as usize].self_ns += own;
            }
        }
        if on == On::Device {
            for row in (0..events.len()).filter(|row| events.kind[*row].is_device_work() && keep(*row)) {
                debug_assert!(events.kind[row] != Kind::GpuUserAnnotation, "ranges are not device work");
                let operator = functions.operator[row];
                let above = if operator == NO_PARENT {
                    self.frame(rank, "(launch not recorded)")
                } else {
                    frame_of[operator as usize]
                };
                let frame = self.numbered(above, names[events.name[row] as usize]);
                self.frames[frame as usize].self_ns += events.dur_ns[row];
            }
        }
    }

    fn thread(&mut self, rank: u32, thread: i64) -> u32 {
        let text = if thread == NONE { "no thread".to_string() } else { format!("thread {thread}") };
        self.frame(rank, &text)
    }

    fn frame(&mut self, parent: u32, text: &str) -> u32 {
        let name = self.name(text);
        self.numbered(parent, name)
    }

    fn name(&mut self, text: &str) -> u32 {
        if let Some(number) = self.name_numbers.get(text) {
            return *number;
        }
        let number = self.names.len() as u32;
        self.names.push(text.into());
        self.name_numbers.insert(text.into(), number);
        number
    }

    fn numbered(&mut self, parent: u32, name: u32) -> u32 {
        *self.numbers.entry((parent, name)).or_insert_with(|| {
            self.frames.push(Frame { parent, name, self_ns: 0 });
            self.frames.len() as u32 - 1
        })
    }

    /// The lines, sorted. Stacks without self time are left out.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = (0..self.frames.len())
            .filter(|at| self.frames[*at].self_ns > 0)
            .map(|at| {
                let chain = std::iter::successors(Some(at as u32), |at| {
                    Some(self.frames[*at as usize].parent).filter(|parent| *parent != NO_PARENT)
                });
                let mut names: Vec<&str> =
                    chain.map(|at| &*self.names[self.frames[at as usize].name as usize]).collect();
                names.reverse();
                format!("{} {}", names.join(";"), self.frames[at].self_ns)
            })
            .collect();
        lines.sort_unstable();
        lines
    }
}

/// Replaces the separators of the format and control characters by `_`, as torch's `export_stacks` does.
fn frame_text(name: &str) -> String {
    name.chars().map(|c| if c == ';' || c.is_control() { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::drawn::Drawn;

    fn lines(data: &RankData, on: On) -> Vec<String> {
        let mut stacks = Stacks::default();
        stacks.add(data, on, &|_| true);
        stacks.lines()
    }

    #[test]
    fn host_stacks_have_self_times() {
        let data = Drawn::rank(3)
            .host(Kind::UserAnnotation, "ProfilerStep#1", 1, "##########....")
            .host(Kind::UserAnnotation, "ProfilerStep#2", 1, "..........####")
            .host(Kind::CpuOp, "a;b\n", 1, ".####.....##..")
            .host(Kind::CpuOp, "gemm", 1, "..##..........")
            .host(Kind::CpuOp, "load", 2, "#####.........")
            .data();
        let expected = [
            "rank 3;thread 1;ProfilerStep* 8",
            "rank 3;thread 1;ProfilerStep*;a_b_ 4",
            "rank 3;thread 1;ProfilerStep*;a_b_;gemm 2",
            "rank 3;thread 2;load 5",
        ];
        assert_eq!(lines(&data, On::Host), expected);
    }

    #[test]
    fn device_work_is_below_its_launching_operator() {
        let data = Drawn::rank(0)
            .host(Kind::CpuOp, "linear", 1, "#####......")
            .launches(1, ".#.........")
            .device(Kind::Kernel, "sgemm", (0, 7), 1, "....####...")
            .device(Kind::Kernel, "orphan", (0, 7), 9, "........##.")
            .device(Kind::GpuUserAnnotation, "range", (0, 7), 20, "....######.")
            .data();
        let expected = ["rank 0;(launch not recorded);orphan 2", "rank 0;thread 1;linear;sgemm 4"];
        assert_eq!(lines(&data, On::Device), expected);
    }

    #[test]
    fn ranks_are_merged_into_one_file() {
        let mut stacks = Stacks::default();
        for rank in [0, 1] {
            let data = Drawn::rank(rank).host(Kind::CpuOp, "gemm", 1, "###").data();
            stacks.add(&data, On::Host, &|_| true);
        }
        assert_eq!(stacks.lines(), ["rank 0;thread 1;gemm 3", "rank 1;thread 1;gemm 3"]);
    }
}

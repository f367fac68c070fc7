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

use std::io::Write;

use rustc_hash::FxHashMap;
use trace::{OmissionRow, Text, terminal};

use crate::table::{Functions, Role, fold};
use model::{Kind, NO_PARENT, NONE, RankData};

/// The side whose time the stacks show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum On {
    /// Threads of the host.
    #[default]
    Host,
    /// Devices, below the operators that launched the work.
    Device,
}

/// The most frames of a host stack. Each line repeats all frames, so that the text grows with the square of the depth.
/// Python ends a program that calls deeper, unless told otherwise.
pub(crate) const MAX_FRAMES: u32 = 1_024;

/// One node of the tree of frames.
#[derive(Clone, Debug)]
struct Frame {
    parent: u32,
    name: u32,
    /// Frames from the rank to this one.
    depth: u32,
    self_ns: i64,
}

/// The stacks of any number of ranks, merged.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    frames: Vec<Frame>,
    numbers: FxHashMap<(u32, u32), u32>,
    names: Vec<Text>,
    name_numbers: FxHashMap<Text, u32>,
    /// Rows with more than [`MAX_FRAMES`] frames. Their time counts for the frame at the limit.
    cut: i64,
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
                    frame_of[row] = self.nested(above, names[events.name[row] as usize]);
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

    /// A frame of the host, or its parent if the stack has all frames that it may have.
    fn nested(&mut self, parent: u32, name: u32) -> u32 {
        if self.frames[parent as usize].depth >= MAX_FRAMES {
            self.cut += 1;
            return parent;
        }
        self.numbered(parent, name)
    }

    fn numbered(&mut self, parent: u32, name: u32) -> u32 {
        let depth = self.frames.get(parent as usize).map_or(0, |parent| parent.depth) + 1;
        *self.numbers.entry((parent, name)).or_insert_with(|| {
            self.frames.push(Frame { parent, name, depth, self_ns: 0 });
            self.frames.len() as u32 - 1
        })
    }

    /// Whether no stack has self time.
    pub fn is_empty(&self) -> bool {
        self.frames.iter().all(|frame| frame.self_ns <= 0)
    }

    /// The omission of the frames beyond the limit; `None` if there are none.
    pub fn omission(&self) -> Option<OmissionRow> {
        let why = format!("they lie more than {MAX_FRAMES} frames deep; their time is that of the frame above");
        (self.cut > 0).then(|| OmissionRow::left_out("frames of stacks", why).amount(self.cut))
    }

    /// Writes the lines in the order of their bytes. Stacks without self time are left out. Returns the number of lines.
    ///
    /// The text of all lines may be many times as large as the frames, so that only one line is in memory.
    ///
    /// # Errors
    /// As the writer.
    pub fn write(&self, out: &mut dyn Write) -> std::io::Result<u64> {
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); self.frames.len()];
        let mut roots = Vec::new();
        for (at, frame) in (0..).zip(&self.frames) {
            children.get_mut(frame.parent as usize).unwrap_or(&mut roots).push(at);
        }
        let (mut line, mut lines) = (String::new(), 0);
        let mut due = self.items(&roots, &children, 0);
        while let Some(Item { frame, start, key, is_line }) = due.pop() {
            line.truncate(start);
            line.push_str(&key);
            if is_line {
                line.push('\n');
                out.write_all(line.as_bytes())?;
                lines += 1;
            } else {
                due.append(&mut self.items(&children[frame as usize], &children, line.len()));
            }
        }
        Ok(lines)
    }

    /// The lines of some frames with one parent, and the stacks below them; the last one comes first in the order of the
    /// lines. No name has a separator, so that all lines of a stack come together: `a 5`, `a b 7`, `a;…`.
    fn items(&self, frames: &[u32], children: &[Vec<u32>], start: usize) -> Vec<Item> {
        let mut items = Vec::with_capacity(frames.len());
        for at in frames {
            let Frame { name, self_ns, .. } = &self.frames[*at as usize];
            let name = &self.names[*name as usize];
            if *self_ns > 0 {
                items.push(Item { frame: *at, start, key: format!("{name} {self_ns}"), is_line: true });
            }
            if !children[*at as usize].is_empty() {
                items.push(Item { frame: *at, start, key: format!("{name};"), is_line: false });
            }
        }
        items.sort_unstable_by(|a, b| b.key.cmp(&a.key));
        items
    }
}

/// A part of the text: one line, or all lines below a frame.
struct Item {
    frame: u32,
    /// The length of the text of the frames above.
    start: usize,
    /// The end of the line, or the part of all lines that names the frame.
    key: String,
    is_line: bool,
}

/// Replaces the separators of the format and control characters by `_`, as torch's `export_stacks` does.
fn frame_text(name: &str) -> String {
    name.chars().map(|c| if c == ';' || terminal::is_control(c) { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use drawn::Drawn;
    use model::Events;

    fn lines(data: &RankData, on: On) -> Vec<String> {
        let mut stacks = Stacks::default();
        stacks.add(data, on, &|_| true);
        written(&stacks)
    }

    fn written(stacks: &Stacks) -> Vec<String> {
        let mut text = Vec::new();
        let lines = stacks.write(&mut text).unwrap();
        let text: Vec<String> = String::from_utf8(text).unwrap().lines().map(String::from).collect();
        assert_eq!((text.len() as u64, text.is_empty()), (lines, stacks.is_empty()));
        assert!(text.is_sorted(), "{text:?}");
        text
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
        assert_eq!(written(&stacks), ["rank 0;thread 1;gemm 3", "rank 1;thread 1;gemm 3"]);
    }

    /// A name that begins as another one, with characters before and after the separator.
    #[test]
    fn lines_are_in_the_order_of_their_bytes() {
        let data = Drawn::rank(0)
            .host(Kind::CpuOp, "a", 1, "######..........")
            .host(Kind::CpuOp, "x", 1, ".####...........")
            .host(Kind::CpuOp, "a b", 1, "......###.......")
            .host(Kind::CpuOp, "a~", 1, ".........###....")
            .host(Kind::CpuOp, "a<", 1, "............###.")
            .data();
        let found = lines(&data, On::Host);
        let expected = ["a 2", "a b 3", "a;x 4", "a< 3", "a~ 3"].map(|line| format!("rank 0;thread 1;{line}"));
        assert_eq!(found, expected);
    }

    /// Without the limit, the text would have 2 · 10¹⁰ frames.
    #[test]
    fn deep_rows_are_cut_and_counted() {
        const ROWS: u32 = 200_000;
        let names = (0..ROWS).map(|row| format!("f{row}").into()).collect();
        let mut data = RankData { names, ..RankData::default() };
        let rows = ROWS as usize;
        let starts: Vec<i64> = (0..i64::from(ROWS)).collect();
        data.events = Events {
            kind: vec![Kind::CpuOp; rows],
            name: (0..ROWS).collect(),
            dur_ns: starts.iter().map(|start| 2 * (i64::from(ROWS) - start)).collect(),
            ts_ns: starts,
            id: vec![0; rows],
            step: vec![0; rows],
            thread: vec![1; rows],
            device: vec![NONE; rows],
            stream: vec![NONE; rows],
            correlation: vec![NONE; rows],
            external: vec![NONE; rows],
            parent: vec![NO_PARENT; rows],
            is_comm: vec![false; rows],
            bytes: vec![NONE; rows],
            flops: vec![NONE; rows],
        };
        let mut stacks = Stacks::default();
        stacks.add(&data, On::Host, &|_| true);
        // Of the frames, the first two are the rank and the thread.
        let (lines, kept) = (written(&stacks), MAX_FRAMES as usize - 2);
        assert_eq!(lines.len(), kept);
        let total: i64 = lines.iter().map(|line| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap()).sum();
        assert_eq!(total, 2 * i64::from(ROWS), "the time of all rows is kept");
        assert_eq!(stacks.omission().unwrap().amount, Some((rows - kept) as i64));
    }
}

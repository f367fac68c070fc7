//! The commands that read and write files, and the state of their files afterwards.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use fixtures::planted::{self, Plan};
use trace::Run;

use crate::commands::subcommands;
use crate::support::{AGGREGATOR, Finished, RANK_AGENT, aggregator, copy_directory, finish, scratch, shared};

/// A command in a directory of its own, which is written as `@`. It holds the inputs in `in`, the outputs of an earlier
/// command in `out`, and temporary files in `tmp`.
pub(super) struct Case {
    program: &'static str,
    arguments: &'static str,
    /// The file that standard input reads.
    stdin: Option<&'static str>,
    /// Each is replaced as a whole, or stays.
    outputs: &'static [(&'static str, Form)],
    /// An output that exists is not replaced.
    pub(super) is_once: bool,
}

/// Forms of output.
#[derive(Clone, Copy)]
enum Form {
    Analysis,
    Run,
    Html,
    Perfetto,
    Chrome,
    Stacks,
    /// A directory, each of whose files is replaced by itself.
    Pages,
    /// A directory with a list of its files. Files that it does not name are left over from a failed command.
    Parts,
}

const fn case(arguments: &'static str, outputs: &'static [(&'static str, Form)]) -> Case {
    Case { program: AGGREGATOR, arguments, stdin: None, outputs, is_once: false }
}

const fn agent(arguments: &'static str, outputs: &'static [(&'static str, Form)]) -> Case {
    Case { program: RANK_AGENT, ..case(arguments, outputs) }
}

impl Case {
    pub(super) fn writes(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Whether it is a command of the aggregator.
    pub(super) fn is_of_aggregator(&self) -> bool {
        self.program == AGGREGATOR
    }

    /// The command line.
    pub(super) fn words(&self) -> String {
        format!("{} {}", if self.program == RANK_AGENT { "rank-agent" } else { "aggregator" }, self.arguments)
    }
}

/// Every command, but those that record.
pub(super) const CASES: &[Case] = &[
    case("analyze @/in/run", &[("in/run/analysis", Form::Analysis)]),
    case("analyze @/in/traces --out @/out", &[("out/analysis", Form::Analysis)]),
    case("analyze @/in/traces --json", &[]),
    case("map @/in/run --part 0/2 -o @/out/parts", &[("out/parts", Form::Parts)]),
    case("reduce @/in/parts -o @/out", &[("out/analysis", Form::Analysis)]),
    case("analyze @/in/all.tar", &[]),
    case("analyze @/in/all.zip", &[]),
    case("analyze @/in/snapshots", &[]),
    case("analyze @/in/others/xplane", &[]),
    case("analyze @/in/others/rocprof", &[]),
    case("analyze @/in/others/inspector", &[]),
    case("analyze @/in/others/nsys", &[]),
    Case { stdin: Some("in/traces/rank0.json.gz"), ..case("analyze -", &[]) },
    Case { is_once: true, ..case("ingest @/in/traces --out @/out/run", &[("out/run", Form::Run)]) },
    Case { is_once: true, ..case("ingest @/in/traces --out @/out/empty", &[("out/empty", Form::Run)]) },
    case("export @/in/run -o @/out/x.pftrace", &[("out/x.pftrace", Form::Perfetto)]),
    case("export @/in/traces -o @/out/x.pftrace", &[("out/x.pftrace", Form::Perfetto)]),
    case(
        "export @/in/run --format chrome -o @/out/chrome",
        &[("out/chrome/rank0.json.gz", Form::Chrome), ("out/chrome/rank1.json.gz", Form::Chrome)],
    ),
    case("report @/in/run -o @/out/x.html", &[("out/x.html", Form::Html)]),
    case("report @/in/traces -o @/out/x.html", &[("out/x.html", Form::Html)]),
    case("report @/in/slow @/in/run -o @/out/x.html", &[("out/x.html", Form::Html)]),
    case("stacks @/in/run -o @/out/x.txt", &[("out/x.txt", Form::Stacks)]),
    case("stacks @/in/traces", &[]),
    case("table @/in/run --ranks all", &[]),
    case("table @/in/traces --ranks all", &[]),
    case("diff @/in/slow @/in/run", &[]),
    case("diff @/in/traces @/in/run --json", &[]),
    case("what-if @/in/run", &[]),
    case("what-if @/in/traces --role-median --json", &[]),
    case("hang @/in/dumps", &[]),
    case("hang @/in/run --json", &[]),
    case("schema", &[]),
    case("schema events --json", &[]),
    case("completions bash", &[]),
    case("man", &[]),
    case("man @/out/man", &[("out/man", Form::Pages)]),
    case("--help", &[]),
    agent("completions bash", &[]),
    agent("man", &[]),
    agent("man @/out/man", &[("out/man", Form::Pages)]),
    agent("--help", &[]),
    #[cfg(feature = "cuda")]
    agent("selftest --backend cpu --large 8", &[]),
];

/// Invariant (files): Each command has a case in the test of the failing disk.
///
/// Recording is `recorder_faults`, and `ctl` is `ctl_faults`. `watch` waits for what it cannot read and prints the time of day;
/// its damaged shards are in `crate::watch`.
#[test]
fn every_command_has_a_case() {
    for (program, others) in [(AGGREGATOR, &["watch"][..]), (RANK_AGENT, &["exec", "ctl"][..])] {
        let mut missing = subcommands(program);
        missing.retain(|name| {
            let is_here =
                |case: &Case| case.program == program && case.arguments.split(' ').next() == Some(name.as_str());
            !CASES.iter().any(is_here) && !others.contains(&name.as_str())
        });
        assert!(missing.is_empty(), "{program}: {missing:?}");
    }
}

/// The job whose runs and traces the commands read.
#[derive(Clone, Copy)]
pub(super) enum Job {
    /// Few calls on files.
    Short,
    /// Long enough to be killed while the command works.
    Long,
}

impl Job {
    fn plan(self) -> Plan {
        let (steps, ops, part_rows) = match self {
            Self::Short => (3, 4, 100),
            Self::Long => (50, 100, 2_000),
        };
        Plan { ranks: 2, steps, ops, part_rows, ..Plan::default() }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Long => "long",
        }
    }
}

/// Files with their bytes and directories, by their paths below the directory of the case.
pub(super) type State = BTreeMap<PathBuf, Option<Vec<u8>>>;

fn state(directory: &Path) -> State {
    let mut state = State::new();
    let mut pending = vec![directory.to_path_buf()];
    while let Some(next) = pending.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let content = (!path.is_dir()).then(|| fs::read(&path).unwrap());
            if content.is_none() {
                pending.push(path.clone());
            }
            state.insert(path.strip_prefix(directory).unwrap().into(), content);
        }
    }
    state
}

fn is_temporary(path: &Path) -> bool {
    path.iter().any(|name| name.to_string_lossy().contains("rankscope"))
}

/// The part of a state at a path and below it.
fn below<'a>(state: &'a State, path: &'a str) -> impl Iterator<Item = (&'a PathBuf, &'a Option<Vec<u8>>)> {
    state.iter().filter(move |(at, _)| at.starts_with(path))
}

/// Small files of other profilers: their places among the corpora of the fuzz targets, and their names.
const OTHERS: [(&str, &str); 4] = [
    ("xplane/gpus", "xplane/a.xplane.pb"),
    ("rocprof/one", "rocprof/0_results.json"),
    ("inspector/verbose", "inspector/host-pid1.log"),
    ("nsys/mpi", "nsys/rank0.sqlite"),
];

/// The inputs, and outputs of another run, which all cases copy.
fn template(job: Job) -> &'static Path {
    static TEMPLATES: [OnceLock<PathBuf>; 2] = [OnceLock::new(), OnceLock::new()];
    let make = |place: &Path| {
        let plan = job.plan();
        let (input, old) = (place.join("in"), place.join("out"));
        planted::write(&plan, &input.join("run")).unwrap();
        planted::write(&Plan { slow: vec![(1, 900_000)], ..plan }, &input.join("slow")).unwrap();
        let run = |words: &str| aggregator(&with_place(words, place)).expect_code(0);
        run("analyze @/in/slow --out @/out");
        run("export @/in/slow --format chrome -o @/out/chrome");
        run("export @/in/run --format chrome -o @/in/traces");
        run("map @/in/run -o @/in/parts");
        for name in ["x.pftrace", "x.html", "x.txt", "man/aggregator.1", "man/rank-agent-exec.1", "man/other.1"] {
            fs::create_dir_all(old.join(name).parent().unwrap()).unwrap();
            fs::write(old.join(name), "old\n").unwrap();
        }
        copy_directory(&old.join("analysis"), &input.join("run/analysis"));
        let snapshots = Path::new(env!("CARGO_MANIFEST_DIR")).join("../aggregator/tests/data/snapshot");
        fs::create_dir(input.join("snapshots")).unwrap();
        for name in ["rank0.pickle", "rank3.pickle"] {
            fs::copy(snapshots.join(name), input.join("snapshots").join(name)).unwrap();
        }
        fs::create_dir(input.join("dumps")).unwrap();
        for (corpus, name) in OTHERS {
            let (from, to) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus"), input.join("others"));
            fs::create_dir_all(to.join(name).parent().unwrap()).unwrap();
            fs::copy(from.join(corpus), to.join(name)).unwrap();
        }
        for (rank, called) in [(0, 4), (1, 3)] {
            let position = format!(r#"{{"last_enqueued_collective": {called}, "last_completed_collective": 3}}"#);
            let dump = format!(
                r#"{{"version": "2.10", "pg_config": {{"0": {{"desc": "", "ranks": "[0, 1]"}}}},
                "pg_status": {{"0": {position}}}, "entries": []}}"#
            );
            fs::write(input.join(format!("dumps/nccl_trace_rank_{rank}")), dump).unwrap();
        }
        write_archives(&input);
        for empty in ["out/empty", "tmp"] {
            fs::create_dir(place.join(empty)).unwrap();
        }
    };
    TEMPLATES[job as usize].get_or_init(|| shared(&format!("disk_{}", job.name()), make))
}

/// The traces as archives.
fn write_archives(input: &Path) {
    let names = ["rank0.json.gz", "rank1.json.gz"];
    let mut tar = Command::new("tar");
    finish(tar.arg("-cf").arg(input.join("all.tar")).arg("-C").arg(input.join("traces")).args(names)).expect_code(0);
    let mut zip = zip::ZipWriter::new(File::create(input.join("all.zip")).unwrap());
    for name in names {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(&fs::read(input.join("traces").join(name)).unwrap()).unwrap();
    }
    zip.finish().unwrap();
}

fn with_place(words: &str, place: &Path) -> Vec<String> {
    words.split(' ').map(|word| word.replace('@', place.to_str().unwrap())).collect()
}

/// A case with its directory, and the result of its command without a fault.
pub(super) struct Prepared {
    pub(super) case: &'static Case,
    pub(super) place: PathBuf,
    before: State,
    sound: Finished,
    sound_state: State,
}

impl Prepared {
    pub(super) fn new(case: &'static Case, job: Job, name: &str) -> Self {
        let place = scratch(name);
        copy_directory(template(job), &place);
        // The library that fails calls compares paths without links.
        let place = place.canonicalize().unwrap();
        let before = state(&place);
        let mut prepared = Self { case, place, before, sound: Finished::default(), sound_state: State::new() };
        prepared.sound = prepared.finish(&mut prepared.command(&[])).expect_code(0);
        prepared.sound_state = prepared.state();
        prepared.restore();
        prepared
    }

    /// The files, but those of parts that no list names.
    fn state(&self) -> State {
        let mut all = state(&self.place);
        for (path, _) in self.case.outputs.iter().filter(|(_, form)| matches!(form, Form::Parts)) {
            let named = named_files(&self.place.join(path));
            let is_part = |at: &Path| at.starts_with(path) && at.components().count() > 3;
            let is_directory = |at: &Path, content: &Option<Vec<u8>>| at.starts_with(path) && content.is_none();
            all.retain(|at, content| {
                is_temporary(at) || !is_directory(at, content) && (!is_part(at) || named.contains(&self.place.join(at)))
            });
        }
        all
    }

    /// The command, behind another one that starts it.
    pub(super) fn command(&self, starter: &[&str]) -> Command {
        let mut words: Vec<String> = starter.iter().map(ToString::to_string).collect();
        words.push(self.case.program.into());
        words.extend(with_place(self.case.arguments, &self.place));
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env("NO_COLOR", "1")
            .env("RAYON_NUM_THREADS", "2")
            .env("TMPDIR", self.place.join("tmp"));
        command
    }

    /// Standard input of the command.
    pub(super) fn stdin(&self) -> Stdio {
        self.case.stdin.map_or_else(Stdio::null, |path| File::open(self.place.join(path)).unwrap().into())
    }

    /// Runs the command to its end, with a file on the disk as its standard output.
    pub(super) fn finish(&self, command: &mut Command) -> Finished {
        let path = self.place.join("stdout");
        command.stdin(self.stdin()).stdout(File::create(&path).unwrap());
        let finished = Finished::of(command.output().unwrap());
        let stdout = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        fs::remove_file(&path).unwrap();
        Finished { stdout, ..finished }
    }

    /// What is half written.
    pub(super) fn temporaries(&self) -> Vec<PathBuf> {
        state(&self.place).into_keys().filter(|path| is_temporary(path)).collect()
    }

    /// Whether the command has changed its directory.
    pub(super) fn has_changed(&self) -> bool {
        self.state() != self.before
    }

    /// Gives the directory the content that it had before the command.
    pub(super) fn restore(&self) {
        let now = state(&self.place);
        for path in now.keys().filter(|path| !self.before.contains_key(*path)) {
            let path = self.place.join(path);
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            assert!(removed.is_ok() || !path.exists(), "{}: {removed:?}", path.display());
        }
        for (path, content) in self.before.iter().filter(|(path, content)| now.get(*path) != Some(content)) {
            let path = self.place.join(path);
            match content {
                Some(bytes) => fs::write(path, bytes).unwrap(),
                None => fs::create_dir_all(path).unwrap(),
            }
        }
    }

    /// Checks the files and the words of a command that met a fault, and that the command then succeeds. `code` is
    /// `None` for a command that was killed.
    ///
    /// # Errors
    /// Checks that the command lost, destroyed and left nothing unsaid.
    pub(super) fn check(&self, finished: &Finished) -> Result<(), String> {
        let after = self.state();
        self.check_inputs(&after)?;
        let mut all_are_new = true;
        for (path, form) in self.case.outputs {
            // The next command removes the temporary files that this one could not remove.
            let now = || below(&after, path).filter(|(at, _)| !is_temporary(at));
            let is_new = now().eq(below(&self.sound_state, path));
            all_are_new &= is_new;
            let is_partial = match form {
                Form::Pages => self.is_old_or_new(&after, path),
                Form::Parts if finished.code.is_none() => self.is_old_or_new(&after, path),
                _ => finished.code == Some(3) && form.is_whole(&self.place.join(path)),
            };
            if !is_new && !is_partial && !now().eq(below(&self.before, path)) {
                return Err(format!("{path} is neither the old output nor the new one"));
            }
        }
        // The summary is wrapped.
        let said = finished.said().split_whitespace().collect::<Vec<_>>().join(" ");
        match finished.code {
            _ if said.contains("panicked at") => return Err("it panicked".into()),
            None => {}
            Some(0) if !all_are_new => return Err("it ended with 0 without its output".into()),
            Some(0) if finished.stdout != self.sound.stdout => {
                return Err("it ended with 0 and printed something else".into());
            }
            Some(0) => {}
            Some(1) if !finished.stderr.is_empty() => {}
            Some(3) if said.to_lowercase().contains("lost") => {}
            Some(code) => return Err(format!("it ended with {code} and does not say why")),
        }
        match after == self.before {
            true => Ok(()),
            false => self.check_again(all_are_new || finished.code == Some(3)),
        }
    }

    /// Each file below a path is the old one or the new one.
    fn is_old_or_new(&self, after: &State, path: &str) -> bool {
        let is_known =
            |(at, content)| [&self.before, &self.sound_state].iter().any(|state| state.get(at) == Some(content));
        below(after, path).filter(|(at, _)| !is_temporary(at)).all(is_known)
            && below(&self.before, path).all(|(at, _)| after.contains_key(at))
    }

    /// Checks that a command which failed once left all of its outputs old or all of them new.
    ///
    /// # Errors
    /// If there are both.
    pub(super) fn check_together(&self, finished: &Finished) -> Result<(), String> {
        let mut after = self.state();
        // The next command removes what a failed one left of a file.
        after.retain(|at, _| !is_temporary(at));
        let equals = |other: &State| {
            let same = |(path, _): &&(&str, Form)| below(&after, path).eq(below(other, path));
            self.case.outputs.iter().filter(same).count() == self.case.outputs.len()
        };
        match finished.code {
            Some(1) if !equals(&self.before) && !equals(&self.sound_state) => {
                Err("some outputs are old and some are new".into())
            }
            _ => Ok(()),
        }
    }

    /// Only outputs and temporary files are new, and nothing else has changed.
    fn check_inputs(&self, after: &State) -> Result<(), String> {
        let is_output = |path: &Path| self.case.outputs.iter().any(|(output, _)| path.starts_with(output));
        let changed = |path: &PathBuf| !is_output(path) && after.get(path) != self.before.get(path);
        let lost = self.before.keys().find(|path| changed(path));
        let new = after.keys().find(|path| !self.before.contains_key(*path) && changed(path) && !is_temporary(path));
        match lost.or(new) {
            Some(path) => Err(format!("{} is no output and has changed", path.display())),
            None => Ok(()),
        }
    }

    /// The command succeeds after the fault, and leaves nothing of it. `is_written` says whether its output is there.
    fn check_again(&self, is_written: bool) -> Result<(), String> {
        let again = self.finish(&mut self.command(&[]));
        if self.case.is_once && is_written {
            return if again.code == Some(1) {
                Ok(())
            } else {
                Err(format!("the next one replaced it: {}", again.said()))
            };
        }
        if again.code != Some(0) || again.stdout != self.sound.stdout {
            return Err(format!("the next one ended with {:?}: {}", again.code, again.said()));
        }
        let now = self.state();
        let differs = |path: &&PathBuf| now.get(*path) != self.sound_state.get(*path);
        match now.keys().chain(self.sound_state.keys()).find(differs) {
            Some(path) => Err(format!("after the next one, {} is not what it should be", path.display())),
            None => Ok(()),
        }
    }
}

impl Form {
    /// Whether a partial output is complete in itself.
    fn is_whole(self, path: &Path) -> bool {
        let text = || fs::read_to_string(path).unwrap_or_default();
        match self {
            Self::Analysis => fs::read_dir(path).is_ok_and(|entries| {
                let files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
                let is_table = |path: &&PathBuf| path.extension().is_some_and(|end| end == "parquet");
                path.join("views.sql").is_file()
                    && files.iter().filter(is_table).all(|path| trace::is_written_by_rankscope(path).unwrap())
            }),
            Self::Run => Run::open(path).is_ok_and(|run| run.problems.iter().all(|problem| problem.path.is_none())),
            Self::Html => text().ends_with("</html>"),
            Self::Perfetto => fs::read(path).is_ok_and(|bytes| are_packets(&bytes)),
            Self::Chrome => {
                let mut text = String::new();
                let read =
                    File::open(path).and_then(|file| flate2::read::GzDecoder::new(file).read_to_string(&mut text));
                read.is_ok() && serde_json::from_str::<serde_json::Value>(&text).is_ok()
            }
            // None of its files is ever partial.
            Self::Pages => true,
            Self::Parts => {
                let lists = fs::read_dir(path).is_ok_and(|mut entries| entries.any(|e| e.unwrap().path().is_file()));
                lists && named_files(path).iter().all(|file| trace::is_written_by_rankscope(file).unwrap())
            }
            Self::Stacks => {
                text().ends_with('\n')
                    && text().lines().all(|line| line.rsplit_once(' ').is_some_and(|(_, ns)| ns.parse::<u64>().is_ok()))
            }
        }
    }
}

/// The files that the lists of shares in a directory name.
fn named_files(parts: &Path) -> Vec<PathBuf> {
    let mut named = Vec::new();
    for entry in fs::read_dir(parts).into_iter().flatten() {
        let path = entry.unwrap().path();
        if !path.is_file() || is_temporary(&path) {
            continue;
        }
        let list: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let files = list["chunks"].as_array().unwrap().iter().flat_map(|chunk| chunk["files"].as_array().unwrap());
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_string();
        named.extend(files.map(|f| parts.join(text(&f["table"])).join(format!("{}.parquet", text(&f["xxh3"])))));
    }
    named
}

/// Whether the bytes are packets of Perfetto up to the end: field 1, a length, and so many bytes.
fn are_packets(mut bytes: &[u8]) -> bool {
    while let [0x0a, rest @ ..] = bytes {
        let size = rest.iter().take_while(|byte| **byte >= 0x80).count() + 1;
        let Some((length, rest)) = rest.split_at_checked(size) else { return false };
        let length = length.iter().rev().fold(0, |length, byte| length << 7 | usize::from(byte & 0x7f));
        let Some(rest) = rest.get(length..) else { return false };
        bytes = rest;
    }
    bytes.is_empty()
}

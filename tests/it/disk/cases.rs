//! The commands that read and write files, and the state of their files afterwards.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use fixtures::planted::{self, Plan};
use trace::Run;

use crate::support::{AGGREGATOR, Finished, aggregator, copy_directory, finish, scratch};

/// A command in a directory of its own, which is written as `@`. It holds the inputs in `in`, the outputs of an earlier
/// command in `out`, and temporary files in `tmp`.
pub(super) struct Case {
    pub(super) arguments: &'static str,
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
}

const fn case(arguments: &'static str, outputs: &'static [(&'static str, Form)]) -> Case {
    Case { arguments, stdin: None, outputs, is_once: false }
}

impl Case {
    pub(super) fn writes(&self) -> bool {
        !self.outputs.is_empty()
    }
}

/// Every command that reads or writes files.
pub(super) const CASES: &[Case] = &[
    case("analyze @/in/run", &[("in/run/analysis", Form::Analysis)]),
    case("analyze @/in/traces --out @/out", &[("out/analysis", Form::Analysis)]),
    case("analyze @/in/traces --json", &[]),
    case("analyze @/in/all.tar", &[]),
    case("analyze @/in/snapshots", &[]),
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
    case("table @/in/run --ranks all", &[]),
    case("table @/in/traces --ranks all", &[]),
    case("diff @/in/slow @/in/run", &[]),
];

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

/// The part of a state at a path and below it.
fn below<'a>(state: &'a State, path: &'a str) -> impl Iterator<Item = (&'a PathBuf, &'a Option<Vec<u8>>)> {
    state.iter().filter(move |(at, _)| at.starts_with(path))
}

/// The inputs, and outputs of another run, which all cases copy.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let place = scratch("disk").join("template");
        let plan = Plan { ranks: 2, steps: 3, ops: 4, part_rows: 100, ..Plan::default() };
        let (input, old) = (place.join("in"), place.join("out"));
        planted::write(&plan, &input.join("run")).unwrap();
        planted::write(&Plan { slow: vec![(1, 900_000)], ..plan }, &input.join("slow")).unwrap();
        let run = |words: &str| aggregator(&with_place(words, &place)).expect_code(0);
        run("analyze @/in/slow --out @/out");
        run("export @/in/slow --format chrome -o @/out/chrome");
        run("export @/in/run --format chrome -o @/in/traces");
        for name in ["x.pftrace", "x.html", "x.txt"] {
            fs::write(old.join(name), "old\n").unwrap();
        }
        copy_directory(&old.join("analysis"), &input.join("run/analysis"));
        let snapshots = Path::new(env!("CARGO_MANIFEST_DIR")).join("../aggregator/tests/data/snapshot");
        fs::create_dir(input.join("snapshots")).unwrap();
        for name in ["rank0.pickle", "rank3.pickle"] {
            fs::copy(snapshots.join(name), input.join("snapshots").join(name)).unwrap();
        }
        let mut tar = Command::new("tar");
        tar.arg("-cf")
            .arg(input.join("all.tar"))
            .arg("-C")
            .arg(input.join("traces"))
            .args(["rank0.json.gz", "rank1.json.gz"]);
        finish(&mut tar).expect_code(0);
        for empty in ["out/empty", "tmp"] {
            fs::create_dir(place.join(empty)).unwrap();
        }
        place
    })
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
    pub(super) fn new(case: &'static Case, name: &str) -> Self {
        let place = scratch(name);
        copy_directory(template(), &place);
        // The library that fails calls compares paths without links.
        let place = place.canonicalize().unwrap();
        let before = state(&place);
        let mut prepared = Self { case, place, before, sound: Finished::default(), sound_state: State::new() };
        prepared.sound = prepared.finish(&mut prepared.command(&[])).expect_code(0);
        prepared.sound_state = state(&prepared.place);
        prepared.restore();
        prepared
    }

    /// The command, behind another one that starts it.
    pub(super) fn command(&self, starter: &[&str]) -> Command {
        let mut words: Vec<String> = starter.iter().map(ToString::to_string).collect();
        words.push(AGGREGATOR.into());
        words.extend(with_place(self.case.arguments, &self.place));
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env("NO_COLOR", "1")
            .env("RAYON_NUM_THREADS", "2")
            .env("TMPDIR", self.place.join("tmp"));
        command
    }

    /// Runs the command to its end.
    pub(super) fn finish(&self, command: &mut Command) -> Finished {
        let stdin = self.case.stdin.map_or_else(Stdio::null, |path| File::open(self.place.join(path)).unwrap().into());
        Finished::of(command.stdin(stdin).output().unwrap())
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
        let after = state(&self.place);
        self.check_inputs(&after)?;
        let mut all_are_new = true;
        for (path, form) in self.case.outputs {
            let now = || below(&after, path);
            let is_new = now().eq(below(&self.sound_state, path));
            all_are_new &= is_new;
            let is_partial = finished.code == Some(3) && form.is_whole(&self.place.join(path));
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

    /// Only outputs and temporary files are new, and nothing else has changed.
    fn check_inputs(&self, after: &State) -> Result<(), String> {
        let is_output = |path: &Path| self.case.outputs.iter().any(|(output, _)| path.starts_with(output));
        let changed = |path: &PathBuf| !is_output(path) && after.get(path) != self.before.get(path);
        let lost = self.before.keys().find(|path| changed(path));
        let is_temporary = |path: &Path| path.iter().any(|name| name.to_string_lossy().contains("rankscope"));
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
        let now = state(&self.place);
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
                    && files.iter().filter(is_table).all(|path| trace::is_written_by_rankscope(path))
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
            Self::Stacks => {
                text().ends_with('\n')
                    && text().lines().all(|line| line.rsplit_once(' ').is_some_and(|(_, ns)| ns.parse::<u64>().is_ok()))
            }
        }
    }
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

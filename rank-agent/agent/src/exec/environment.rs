//! The environment variables of the program: where to record to, and the library that records.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::switch::NcclDetail;

/// The library that CUDA and NCCL load.
const LIBRARY: &str = "librankscope_inject.so";

/// Variables for the program, and the problems found while choosing them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Environment {
    /// Variables to set, in this order.
    pub(super) variables: Vec<(&'static str, OsString)>,
    /// Reasons why something will not be recorded.
    pub(super) problems: Vec<String>,
}

/// Everything that the variables are made from.
pub(super) struct ExecContext<'a> {
    /// Recorder options of the program's processes.
    pub(super) recording: &'a recorder::Options,
    /// NCCL events to record.
    pub(super) detail: NcclDetail,
    /// The library's path, or the paths that were tried.
    pub(super) library: &'a Result<PathBuf, Vec<PathBuf>>,
}

impl Environment {
    /// Chooses the variables. `present` looks up the environment that the program would have without `exec`. Existing
    /// tools keep working: another profiler of CUDA goes before this one, and another NCCL plugin is called as well.
    pub(super) fn new(context: &ExecContext<'_>, present: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let ExecContext { recording, detail, library } = context;
        let present = |name: &str| present(name).filter(|value| !value.is_empty());
        let mut environment = Self { variables: recording.variables(), ..Self::default() };
        environment.variables.push(("RANKSCOPE_NCCL_DETAIL", detail.as_str().into()));
        let library = match library {
            Ok(path) => path,
            Err(tried) => {
                let places: Vec<String> = tried.iter().map(|path| path.display().to_string()).collect();
                environment.problems.push(format!(
                    "{LIBRARY} was not found (tried {}): CUDA and NCCL are not recorded; set RANKSCOPE_INJECT_LIB to \
                     its path",
                    places.join(", ")
                ));
                return environment;
            }
        };
        match present(CUDA_INJECTION) {
            Some(other) if Path::new(&other) != library => environment.problems.push(format!(
                "{CUDA_INJECTION} is already set ({}): that tool records CUDA, rankscope does not",
                other.display()
            )),
            _ => environment.variables.push((CUDA_INJECTION, library.into())),
        }
        match present(NVTX_INJECTION) {
            Some(other) if Path::new(&other) != library => environment.note_other_nvtx_tool(&other, recording.schedule),
            _ => environment.variables.push((NVTX_INJECTION, library.into())),
        }
        match present(NCCL_PLUGIN) {
            Some(other) if Path::new(&other) != library => {
                environment.variables.push(("RANKSCOPE_NCCL_CHAIN", other));
            }
            _ => {}
        }
        environment.variables.push((NCCL_PLUGIN, library.into()));
        environment
    }

    /// Another tool receives the NVTX calls. A schedule needs them for its steps; without one only ranges are lost.
    fn note_other_nvtx_tool(&mut self, other: &OsString, schedule: Option<recorder::Schedule>) {
        if schedule.is_some() {
            let other = other.display();
            self.problems.push(format!(
                "{NVTX_INJECTION} is already set ({other}): the program's steps are not seen, so --schedule records nothing"
            ));
        }
    }
}

const CUDA_INJECTION: &str = "CUDA_INJECTION64_PATH";
const NVTX_INJECTION: &str = "NVTX_INJECTION64_PATH";
const NCCL_PLUGIN: &str = "NCCL_PROFILER_PLUGIN";

/// Folders of the library, relative to this executable: beside it; where packages put libraries; where Cargo leaves it when
/// only tests have requested it.
const PLACES: [&str; 3] = ["", "../lib/rankscope", "deps"];

/// The library: at `given`, which the user set, else in one of [`PLACES`] beside `program`. `Err`: the paths tried.
pub(super) fn find_library(given: Option<OsString>, program: Option<&Path>) -> Result<PathBuf, Vec<PathBuf>> {
    let places: Vec<PathBuf> = match given.filter(|path| !path.is_empty()) {
        Some(path) => vec![path.into()],
        None => program
            .and_then(Path::parent)
            .map(|beside| PLACES.iter().map(|place| beside.join(place).join(LIBRARY)).collect())
            .unwrap_or_default(),
    };
    // The program may have another working directory, so the path must be absolute.
    let found = places.iter().find(|path| path.is_file()).and_then(|path| std::fs::canonicalize(path).ok());
    found.ok_or(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(present: &[(&str, &str)], library: &Result<PathBuf, Vec<PathBuf>>) -> Environment {
        let recording = recorder::Options { max_bytes: Some(9), ..recorder::Options::new("/runs/a", "id", 3, 8) };
        let context = ExecContext { recording: &recording, detail: NcclDetail::Coll, library };
        Environment::new(&context, &|name| present.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    fn value<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
        environment.variables.iter().find(|(n, _)| *n == name).and_then(|(_, value)| value.to_str())
    }

    #[test]
    fn existing_tools_keep_their_variables() {
        let library = Ok(PathBuf::from("/opt/librankscope_inject.so"));
        let plain = environment(&[], &library);
        assert_eq!(value(&plain, "RANKSCOPE_RANK"), Some("3"));
        assert_eq!(value(&plain, CUDA_INJECTION), Some("/opt/librankscope_inject.so"));
        assert_eq!(value(&plain, "RANKSCOPE_NCCL_CHAIN"), None);
        assert_eq!(value(&plain, "RANKSCOPE_MAX_BYTES"), Some("9"));
        assert_eq!(plain.problems, [""; 0]);

        let both = environment(&[(CUDA_INJECTION, "/nsys.so"), (NCCL_PLUGIN, "inspector")], &library);
        assert_eq!(value(&both, CUDA_INJECTION), None, "the other tool stays");
        assert!(both.problems[0].contains("/nsys.so"), "{:?}", both.problems);
        assert_eq!(value(&both, NCCL_PLUGIN), Some("/opt/librankscope_inject.so"));
        assert_eq!(value(&both, "RANKSCOPE_NCCL_CHAIN"), Some("inspector"));

        // An exec within an exec finds its own library.
        let own = environment(&[(CUDA_INJECTION, "/opt/librankscope_inject.so")], &library);
        assert_eq!(own.problems, [""; 0]);
    }

    #[test]
    fn a_missing_library_is_reported_and_the_rest_is_set() {
        let dir = tempfile::tempdir().unwrap();
        let missing = find_library(None, Some(&dir.path().join("rank-agent")));
        let without = environment(&[], &missing);
        assert!(without.problems[0].contains("RANKSCOPE_INJECT_LIB"), "{:?}", without.problems);
        assert_eq!((value(&without, CUDA_INJECTION), value(&without, "RANKSCOPE_RANK")), (None, Some("3")));
        for place in ["deps", "."] {
            std::fs::create_dir_all(dir.path().join(place)).unwrap();
            let library = dir.path().join(place).join(LIBRARY);
            std::fs::write(&library, "").unwrap();
            let found = find_library(None, Some(&dir.path().join("rank-agent"))).unwrap();
            assert_eq!(found, library.canonicalize().unwrap(), "the library beside the program comes first");
        }
        assert!(find_library(Some("/nowhere/x.so".into()), Some(&dir.path().join("rank-agent"))).is_err());
    }
}

//! What the program finds in its environment: where to record to, and the library that does it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::cli::NcclDetail;

/// The library that CUDA and NCCL load.
pub const LIBRARY: &str = "librankscope_inject.so";

/// Variables for the program, and what is to be said of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// To be set, in this order.
    pub variables: Vec<(&'static str, OsString)>,
    /// Why something will not be recorded.
    pub remarks: Vec<String>,
    /// Whether the program will find the library.
    pub has_library: bool,
}

/// What there is to say.
pub struct Told<'a> {
    /// What the program's processes record, and where to.
    pub recording: &'a recorder::Options,
    /// How much of NCCL.
    pub detail: NcclDetail,
    /// The library, or where it was looked for.
    pub library: &'a Result<PathBuf, Vec<PathBuf>>,
}

impl Environment {
    /// The variables for a program that would otherwise see what `was` looks up. What was there is kept: a profiler that
    /// somebody else has set up goes before this one, and another plugin of NCCL is called as well.
    pub fn new(told: &Told<'_>, was: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let Told { recording, detail, library } = told;
        let was = |name: &str| was(name).filter(|value| !value.is_empty());
        let mut environment = Self { variables: recording.variables(), ..Self::default() };
        environment.variables.push(("RANKSCOPE_NCCL_DETAIL", detail.as_str().into()));
        let library = match library {
            Ok(path) => path,
            Err(looked) => {
                let places: Vec<String> = looked.iter().map(|path| path.display().to_string()).collect();
                environment.remarks.push(format!(
                    "{LIBRARY} was not found (looked for {}): CUDA and NCCL are not recorded; RANKSCOPE_INJECT_LIB says \
                     where it is",
                    places.join(", ")
                ));
                return environment;
            }
        };
        environment.has_library = true;
        match was(CUDA_INJECTION) {
            Some(other) if Path::new(&other) != library => environment.remarks.push(format!(
                "{CUDA_INJECTION} is set already ({}): that tool records CUDA, this one does not",
                other.display()
            )),
            _ => environment.variables.push((CUDA_INJECTION, library.into())),
        }
        match was(NVTX_INJECTION) {
            Some(other) if Path::new(&other) != library => environment.remarks_of_nvtx(&other, recording.schedule),
            _ => environment.variables.push((NVTX_INJECTION, library.into())),
        }
        match was(NCCL_PLUGIN) {
            Some(other) if Path::new(&other) != library => {
                environment.variables.push(("RANKSCOPE_NCCL_CHAIN", other));
            }
            _ => {}
        }
        environment.variables.push((NCCL_PLUGIN, library.into()));
        environment
    }

    /// Somebody else listens to NVTX: that costs a schedule, and else only ranges.
    fn remarks_of_nvtx(&mut self, other: &OsString, schedule: Option<recorder::Schedule>) {
        if schedule.is_some() {
            let other = other.display();
            self.remarks.push(format!(
                "{NVTX_INJECTION} is set already ({other}): steps are not seen, and --schedule records nothing"
            ));
        }
    }
}

const CUDA_INJECTION: &str = "CUDA_INJECTION64_PATH";
const NVTX_INJECTION: &str = "NVTX_INJECTION64_PATH";
const NCCL_PLUGIN: &str = "NCCL_PROFILER_PLUGIN";

/// Where the library may be, as seen from the program: beside it; where packages put libraries; where Cargo leaves it when
/// only tests have asked for it.
const PLACES: [&str; 3] = ["", "../lib/rankscope", "deps"];

/// The library: where the user says, else in one of `PLACES` beside `program`. `Err`: where it was looked for.
pub fn find_library(told: Option<OsString>, program: Option<&Path>) -> Result<PathBuf, Vec<PathBuf>> {
    let places: Vec<PathBuf> = match told.filter(|path| !path.is_empty()) {
        Some(path) => vec![path.into()],
        None => program
            .and_then(Path::parent)
            .map(|beside| PLACES.iter().map(|place| beside.join(place).join(LIBRARY)).collect())
            .unwrap_or_default(),
    };
    // NCCL loads it from the program's directory, so the path must not depend on this one's.
    let found = places.iter().find(|path| path.is_file()).and_then(|path| std::fs::canonicalize(path).ok());
    found.ok_or(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(was: &[(&str, &str)], library: &Result<PathBuf, Vec<PathBuf>>) -> Environment {
        let recording = recorder::Options { max_bytes: Some(9), ..recorder::Options::new("/runs/a", "id", 3, 8) };
        let told = Told { recording: &recording, detail: NcclDetail::Coll, library };
        Environment::new(&told, &|name| was.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    fn value<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
        environment.variables.iter().find(|(n, _)| *n == name).and_then(|(_, value)| value.to_str())
    }

    #[test]
    fn what_was_there_is_kept() {
        let library = Ok(PathBuf::from("/opt/librankscope_inject.so"));
        let plain = environment(&[], &library);
        assert_eq!(value(&plain, "RANKSCOPE_RANK"), Some("3"));
        assert_eq!(value(&plain, CUDA_INJECTION), Some("/opt/librankscope_inject.so"));
        assert_eq!(value(&plain, "RANKSCOPE_NCCL_CHAIN"), None);
        assert_eq!(value(&plain, "RANKSCOPE_MAX_BYTES"), Some("9"));
        assert_eq!(plain.remarks, [""; 0]);

        let both = environment(&[(CUDA_INJECTION, "/nsys.so"), (NCCL_PLUGIN, "inspector")], &library);
        assert_eq!(value(&both, CUDA_INJECTION), None, "the other tool stays");
        assert!(both.remarks[0].contains("/nsys.so"), "{:?}", both.remarks);
        assert_eq!(value(&both, NCCL_PLUGIN), Some("/opt/librankscope_inject.so"));
        assert_eq!(value(&both, "RANKSCOPE_NCCL_CHAIN"), Some("inspector"));

        // An exec within an exec is no other tool.
        let own = environment(&[(CUDA_INJECTION, "/opt/librankscope_inject.so")], &library);
        assert_eq!(own.remarks, [""; 0]);
    }

    #[test]
    fn a_library_that_is_not_there_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let missing = find_library(None, Some(&dir.path().join("rank-agent")));
        let without = environment(&[], &missing);
        assert!(!without.has_library && without.remarks[0].contains("RANKSCOPE_INJECT_LIB"), "{:?}", without.remarks);
        assert_eq!((value(&without, CUDA_INJECTION), value(&without, "RANKSCOPE_RANK")), (None, Some("3")));
        for place in ["deps", "."] {
            std::fs::create_dir_all(dir.path().join(place)).unwrap();
            let library = dir.path().join(place).join(LIBRARY);
            std::fs::write(&library, "").unwrap();
            let found = find_library(None, Some(&dir.path().join("rank-agent"))).unwrap();
            assert_eq!(found, library.canonicalize().unwrap(), "what is beside the program comes first");
        }
        assert!(find_library(Some("/nowhere/x.so".into()), Some(&dir.path().join("rank-agent"))).is_err());
    }
}

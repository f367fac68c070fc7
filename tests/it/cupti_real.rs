//! NVIDIA's own libcupti, if its wheels are installed: its iterator must agree with the tables of record sizes, and without
//! a driver a session must end with one clear error.
//!
//! `tests/all` installs one for CUDA 12 and one for CUDA 13 in `.venv`. `RANKSCOPE_CUPTI_LIBRARIES` can name more, separated
//! by colons.

use std::path::{Path, PathBuf};
use std::process::Command;

use sources::cupti::layout::Version;
use sources::cupti::record::Walk;
use stand_in_cupti::records::size_of_kind;

use crate::support::{finish, scratch, skipped};

const DRIVER: &str = env!("CARGO_BIN_EXE_cupti-driver");

/// The kinds in the order of the driver's records.
const KINDS: [u32; 16] = [10, 1, 22, 2, 5, 4, 39, 17, 38, 12, 13, 49, 8, 9, 37, 11];

/// `CUPTI_ERROR_MAX_LIMIT_REACHED`: the end of a buffer.
const END: &str = "12";

fn libraries() -> Vec<PathBuf> {
    let named = std::env::var_os("RANKSCOPE_CUPTI_LIBRARIES");
    let mut found: Vec<PathBuf> = named.iter().flat_map(std::env::split_paths).collect();
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(".venv/lib");
    for python in std::fs::read_dir(venv).into_iter().flatten().flatten() {
        let nvidia = python.path().join("site-packages/nvidia");
        let wheels = ["cuda_cupti/lib/libcupti.so.12", "cu13/lib/libcupti.so.13"];
        found.extend(wheels.iter().map(|wheel| nvidia.join(wheel)).filter(|library| library.is_file()));
    }
    found
}

/// The value after a word in the output of the driver.
fn word<'s>(output: &'s str, word: &str) -> &'s str {
    let line = output.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {word}: {output}"))
}

/// Invariant (recorder): The layouts of CUPTI's records are those of its releases.
#[test]
fn the_real_iterator_agrees_with_the_tables() {
    let libraries = libraries();
    if libraries.is_empty() {
        return skipped("records against NVIDIA's libcupti", "no wheel of it in .venv; tests/all installs two");
    }
    for library in libraries {
        let done = finish(Command::new(DRIVER).arg("iterate").arg(&library));
        if done.code.is_none() {
            // 13.2 fails this way without a driver.
            skipped(&format!("records against {}", library.display()), "its iterator crashes without a GPU driver");
            continue;
        }
        let output = done.expect_code(0).stdout;
        let version: u32 = word(&output, "version").parse().unwrap();
        if word(&output, "status") != END {
            // 13.3 and later fail this way without a driver.
            let why = format!("its iterator says {} without a GPU driver", word(&output, "status"));
            skipped(&format!("records against {}", library.display()), &why);
            continue;
        }
        let starts: Vec<usize> = word(&output, "starts").split(',').map(|start| start.parse().unwrap()).collect();
        let mut buffer = Vec::new();
        for kind in KINDS.iter().chain(&KINDS) {
            let at = buffer.len();
            buffer.extend(kind.to_ne_bytes());
            buffer.resize(at + size_of_kind(*kind, version).unwrap(), 0);
        }
        let ours: Vec<usize> = Walk::new(&buffer, Version(version)).map(|(at, _)| at).collect();
        assert_eq!(starts, ours, "{} says version {version}", library.display());
        assert_eq!(starts.len(), 2 * KINDS.len());
    }
}

#[test]
fn without_a_driver_the_real_library_is_refused_with_one_clear_error() {
    if Path::new("/dev/nvidia0").exists() {
        return skipped("the real libcupti without a GPU driver", "there is a GPU");
    }
    let libraries = libraries();
    if libraries.is_empty() {
        return skipped("the real libcupti without a GPU driver", "no wheel of it in .venv; tests/all installs two");
    }
    for (index, library) in libraries.iter().enumerate() {
        let run = scratch(&format!("cupti_real_{index}"));
        // A library that is found in its usual place is not called without a driver.
        let mut command = Command::new(DRIVER);
        let directory = library.parent().unwrap();
        command.arg(&run).arg("train").env_remove("RANKSCOPE_CUPTI").env("LD_LIBRARY_PATH", directory);
        let done = finish(&mut command).expect_code(0);
        let expected = "needs the NVIDIA driver, whose libcuda.so.1 was not found: there is no GPU to record";
        assert!(word(&done.stdout, "error").ends_with(expected), "{}", done.said());
        assert_eq!(word(&done.stdout, "closed"), "true", "the host is recorded all the same");
        // A library that the variable names is called.
        let run = scratch(&format!("cupti_real_named_{index}"));
        let done = finish(Command::new(DRIVER).arg(&run).arg("train").env("RANKSCOPE_CUPTI", library));
        if done.code.is_none() {
            skipped(&format!("a session of {}", library.display()), "it crashes without a GPU driver");
            continue;
        }
        let done = done.expect_code(0);
        let error = word(&done.stdout, "error");
        assert!(error.starts_with("CUPTI refused cupti"), "{}: {error}", library.display());
        assert!(error.ends_with("; the devices are not recorded"), "{error}");
    }
}

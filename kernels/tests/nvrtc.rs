//! Compiles the kernels with the real NVRTC, which needs no driver; `tests/all` installs it into `.venv`.
#![cfg(feature = "cuda")]

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use kernels::cuda::libraries::{self, EnvironmentLookup, NVRTC, ProcessEnvironment, Surroundings};
use kernels::cuda::program::{self, SOURCES};

/// The process's environment with `.venv` as its virtual environment.
#[derive(Debug)]
struct InVenv;

impl EnvironmentLookup for InVenv {
    fn get(&self, name: &str) -> Option<OsString> {
        if name == "VIRTUAL_ENV" {
            return Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv").into_os_string());
        }
        ProcessEnvironment.get(name)
    }
}

#[test]
fn every_source_compiles_for_ampere_and_hopper() {
    let surroundings = Surroundings { env: &InVenv, toolkits: Path::new("/usr/local") };
    if let Err(error) = libraries::open_in(&NVRTC, &surroundings) {
        writeln!(std::io::stderr(), "\nskipped: kernels compiled by the real NVRTC: {error}").unwrap();
        return;
    }
    let cache = std::env::temp_dir().join(format!("rankscope-nvrtc-{}", std::process::id()));
    for source in &SOURCES {
        for architecture in [80, 90] {
            let image = program::image(source, (architecture, false), Some(&cache)).unwrap_or_else(|e| panic!("{e}"));
            // A cubin is an ELF file, and names its kernels.
            assert_eq!(image.code.get(..4), Some(&b"\x7fELF"[..]), "{} for {architecture}", source.file);
            let text = String::from_utf8_lossy(&image.code);
            for kernel in source.kernels {
                assert!(text.contains(kernel), "{kernel} is not in {}", source.file);
            }
            assert!(!image.was_cached);
            let again = program::image(source, (architecture, false), Some(&cache)).unwrap();
            assert_eq!((again.was_cached, again.code), (true, image.code));
        }
        let ptx = program::image(source, (80, true), None).unwrap().code;
        assert!(ptx.ends_with(b"\0") && String::from_utf8_lossy(&ptx).contains(".target sm_80"));
    }
    std::fs::remove_dir_all(&cache).unwrap();

    let mut broken = SOURCES[0];
    broken.text = "extern \"C\" __global__ void broken() { int x = ; }";
    let said = program::image(&broken, (90, false), None).unwrap_err().to_string();
    assert!(
        said.contains("elementwise.cu does not compile for sm_90: ") && said.contains("expected an expression"),
        "{said}"
    );
}

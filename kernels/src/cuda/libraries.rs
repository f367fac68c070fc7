//! Finds CUDA's libraries; an error lists the searched places.
//!
//! The search begins with the dynamic loader (loaded libraries, `LD_LIBRARY_PATH`, the system's directories). Then come the
//! directories of `RANKSCOPE_CUDA_PATH`, the Python packages that PyTorch installs (`nvidia/*/lib`), and a CUDA toolkit. A
//! library that was found by its path stays loaded, so that later searches by its name return the same one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::ffi::library::Library;
use crate::error::{Error, Result};

/// The search for one library.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Name in messages.
    pub name: &'static str,
    /// File names, the preferred one first.
    pub files: &'static [&'static str],
    /// Whether Python packages and toolkits contain it; they do not contain the driver.
    pub is_packaged: bool,
    /// Symbols that it must have.
    pub symbols: &'static [&'static str],
    /// The oldest release that has all of them.
    pub oldest: &'static str,
    /// Installation hint.
    pub install: &'static str,
}

/// CUDA's driver.
pub const DRIVER: Spec = Spec {
    name: "the CUDA driver",
    files: &["libcuda.so", "libcuda.so.1"],
    is_packaged: false,
    symbols: &[
        "cuInit",
        "cuDriverGetVersion",
        "cuGetErrorName",
        "cuGetErrorString",
        "cuDeviceGet",
        "cuDeviceGetCount",
        "cuDeviceGetName",
        "cuDeviceGetUuid_v2",
        "cuDeviceGetPCIBusId",
        "cuDeviceGetAttribute",
        "cuDeviceTotalMem_v2",
        "cuDevicePrimaryCtxRetain",
        "cuDevicePrimaryCtxRelease_v2",
        "cuCtxSetCurrent",
        "cuCtxSynchronize",
        "cuCtxGetStreamPriorityRange",
        "cuMemGetInfo_v2",
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemHostAlloc",
        "cuMemFreeHost",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemsetD32Async",
        "cuStreamCreateWithPriority",
        "cuStreamDestroy_v2",
        "cuStreamSynchronize",
        "cuStreamWaitEvent",
        "cuStreamBeginCapture_v2",
        "cuStreamEndCapture",
        "cuEventCreate",
        "cuEventDestroy_v2",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuEventElapsedTime",
        "cuModuleLoadData",
        "cuModuleUnload",
        "cuModuleGetFunction",
        "cuLaunchKernel",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuGraphExecDestroy",
        "cuGraphDestroy",
    ],
    oldest: "driver 525 (CUDA 12.0)",
    install: "install NVIDIA's driver; `nvidia-smi` must list the device. In a container, start it with the device \
              (`docker run --gpus all`)",
};

/// cuBLAS.
pub const CUBLAS: Spec = Spec {
    name: "cuBLAS",
    files: &["libcublas.so", "libcublas.so.13", "libcublas.so.12"],
    is_packaged: true,
    symbols: &[
        "cublasCreate_v2",
        "cublasDestroy_v2",
        "cublasSetStream_v2",
        "cublasSetWorkspace_v2",
        "cublasGetVersion_v2",
        "cublasGemmEx",
    ],
    oldest: "CUDA 12.0",
    install: "install the CUDA toolkit, or `pip install nvidia-cublas` (nvidia-cublas-cu12 for a driver of CUDA 12) \
              and name its directory in LD_LIBRARY_PATH or RANKSCOPE_CUDA_PATH",
};

/// NVRTC.
pub const NVRTC: Spec = Spec {
    name: "NVRTC",
    files: &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"],
    is_packaged: true,
    symbols: &[
        "nvrtcVersion",
        "nvrtcGetErrorString",
        "nvrtcGetNumSupportedArchs",
        "nvrtcGetSupportedArchs",
        "nvrtcCreateProgram",
        "nvrtcDestroyProgram",
        "nvrtcCompileProgram",
        "nvrtcGetCUBINSize",
        "nvrtcGetCUBIN",
        "nvrtcGetPTXSize",
        "nvrtcGetPTX",
        "nvrtcGetProgramLogSize",
        "nvrtcGetProgramLog",
    ],
    oldest: "CUDA 12.0",
    install: "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` (nvidia-cuda-nvrtc-cu12 for a driver of \
              CUDA 12) and name its directory in LD_LIBRARY_PATH or RANKSCOPE_CUDA_PATH",
};

/// The variable that names directories to search, separated by colons.
pub const PATH_VARIABLE: &str = "RANKSCOPE_CUDA_PATH";

/// The surroundings of a search, which tests replace.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// The environment.
    pub env: &'a dyn EnvironmentLookup,
    /// Where toolkits are installed: `/usr/local`.
    pub toolkits: &'a Path,
}

/// Looks up a variable.
pub trait EnvironmentLookup: std::fmt::Debug {
    /// Its value, if it is set.
    fn get(&self, name: &str) -> Option<OsString>;
}

/// The process's own environment.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEnvironment;

impl EnvironmentLookup for ProcessEnvironment {
    fn get(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }
}

/// Opens a library and checks that it has all symbols.
///
/// # Errors
/// [`Error::Library`] with all searched places.
pub fn open(spec: &Spec) -> Result<Library> {
    open_in(spec, &Surroundings { env: &ProcessEnvironment, toolkits: Path::new("/usr/local") })
}

/// Paths of files with these names outside the dynamic loader's directories, the preferred one first.
pub fn find(files: &[&str]) -> Vec<PathBuf> {
    let places = directories(&Surroundings { env: &ProcessEnvironment, toolkits: Path::new("/usr/local") });
    let of_file = |file: &&str| places.iter().map(|place| place.join(file)).collect::<Vec<_>>();
    files.iter().flat_map(of_file).filter(|path| path.exists()).collect()
}

/// As [`open`], in other surroundings.
///
/// # Errors
/// As [`open`].
pub fn open_in(spec: &Spec, surroundings: &Surroundings<'_>) -> Result<Library> {
    let mut searched = vec!["the dynamic loader (LD_LIBRARY_PATH, the system's directories)".to_owned()];
    let mut refused = Vec::new();
    let by_loader = spec.files.iter().map(OsString::from);
    let places = if spec.is_packaged { directories(surroundings) } else { from_variable(surroundings) };
    let by_path: Vec<OsString> = places
        .iter()
        .flat_map(|place| spec.files.iter().map(move |file| place.join(file)))
        .filter(|path| path.exists())
        .map(PathBuf::into_os_string)
        .collect();
    for name in by_loader.chain(by_path) {
        match Library::open(&name) {
            Ok(library) => return with_symbols(spec, library, &name.to_string_lossy()),
            // A file that exists but cannot be loaded is more informative than a missing one.
            Err(why) if is_absence(&why) => {}
            Err(why) => refused.push(format!("{}: {why}", name.to_string_lossy())),
        }
    }
    searched.extend(summary(&places));
    let problem = match refused.as_slice() {
        [] => "was not found".to_owned(),
        some => format!("cannot be loaded ({})", some.join("; ")),
    };
    Err(Error::Library {
        name: spec.name,
        files: spec.files.last().map_or(String::new(), |_| spec.files.join(", ")),
        problem,
        searched: searched.join(", "),
        install: spec.install,
    })
}

/// Whether the loader's message means that the file does not exist.
fn is_absence(why: &str) -> bool {
    why.contains("cannot open shared object file: No such file or directory")
}

fn with_symbols(spec: &Spec, library: Library, path: &str) -> Result<Library> {
    let missing: Vec<&str> = spec.symbols.iter().copied().filter(|symbol| !library.has(symbol)).collect();
    let Some(first) = missing.first() else { return Ok(library) };
    let others = if missing.len() > 1 { format!(" and {} more", missing.len() - 1) } else { String::new() };
    Err(Error::Library {
        name: spec.name,
        files: path.to_owned(),
        problem: format!("is too old: it lacks {first}{others}; at least {} is needed", spec.oldest),
        searched: path.to_owned(),
        install: spec.install,
    })
}

/// A readable list of directories, with the common parent of several wheels named once.
fn summary(places: &[PathBuf]) -> Vec<String> {
    let mut shown: Vec<String> = Vec::new();
    for place in places {
        let text = place.display().to_string();
        let text = match text.split_once("/nvidia/") {
            Some((packages, _)) => format!("{packages}/nvidia/*/lib"),
            None => text,
        };
        if !shown.contains(&text) {
            shown.push(text);
        }
    }
    shown
}

fn from_variable(surroundings: &Surroundings<'_>) -> Vec<PathBuf> {
    let value = surroundings.env.get(PATH_VARIABLE).unwrap_or_default();
    std::env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect()
}

/// Directories beyond the loader's own, in order of preference.
fn directories(surroundings: &Surroundings<'_>) -> Vec<PathBuf> {
    let mut places = from_variable(surroundings);
    for packages in site_packages(surroundings) {
        places.extend(children(&packages.join("nvidia")).into_iter().map(|part| part.join("lib")));
    }
    let named = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| surroundings.env.get(name)).map(PathBuf::from);
    let mut toolkits: Vec<PathBuf> = named.collect();
    let mut installed: Vec<PathBuf> = children(surroundings.toolkits)
        .into_iter()
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cuda")))
        .collect();
    // The newest is last by name. `cuda` itself comes first, because the administrator chose it.
    installed.sort_by_key(|path| (path.file_name().is_some_and(|name| name == "cuda"), path.clone()));
    toolkits.extend(installed.into_iter().rev());
    let of_toolkit =
        |root: PathBuf| ["lib64", "targets/x86_64-linux/lib", "extras/CUPTI/lib64"].map(|sub| root.join(sub));
    places.extend(toolkits.into_iter().flat_map(of_toolkit));
    let mut unique: Vec<PathBuf> = Vec::new();
    for place in places {
        if place.is_dir() && !unique.contains(&place) {
            unique.push(place);
        }
    }
    unique
}

/// Python's package directories: of the active environment, of the `python3` on the path, of `PYTHONPATH`.
fn site_packages(surroundings: &Surroundings<'_>) -> Vec<PathBuf> {
    let env = |name: &str| surroundings.env.get(name);
    let mut found: Vec<PathBuf> = env("PYTHONPATH").iter().flat_map(std::env::split_paths).collect();
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| env(name)).map(PathBuf::from).collect();
    let path = env("PATH").unwrap_or_default();
    let python = std::env::split_paths(&path).find(|directory| directory.join("python3").exists());
    // The prefix of `prefix/bin/python3`. The link is followed second, because an environment's python links out of it.
    if let Some(directory) = python {
        prefixes.extend(directory.parent().map(Path::to_path_buf));
        let real = directory.join("python3").canonicalize().ok();
        prefixes.extend(real.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_path_buf));
    }
    prefixes.push(surroundings.toolkits.to_path_buf());
    for library in prefixes.iter().flat_map(|prefix| [prefix.join("lib"), prefix.join("lib64")]) {
        for python in children(&library) {
            if python.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")) {
                found.extend([python.join("site-packages"), python.join("dist-packages")]);
            }
        }
    }
    found
}

/// The entries of a directory in order of name; empty if it cannot be read.
fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;

    #[derive(Debug, Default)]
    struct Variables(BTreeMap<&'static str, OsString>);

    impl EnvironmentLookup for Variables {
        fn get(&self, name: &str) -> Option<OsString> {
            self.0.get(name).cloned()
        }
    }

    fn place(name: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("rankscope-libraries-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(&place).unwrap();
        place
    }

    /// A name that no loader knows.
    const ABSENT: Spec = Spec { files: &["libcublas-of-a-test.so.13"], ..CUBLAS };

    fn message(spec: &Spec, variables: Variables, toolkits: &Path) -> String {
        open_in(spec, &Surroundings { env: &variables, toolkits }).unwrap_err().to_string()
    }

    #[test]
    fn an_error_names_the_missing_library_the_searched_places_and_an_installation_hint() {
        let place = place("missing");
        let wheels = place.join("venv/lib/python3.12/site-packages/nvidia");
        fs::create_dir_all(wheels.join("cublas/lib")).unwrap();
        fs::create_dir_all(wheels.join("nccl/lib")).unwrap();
        fs::create_dir_all(place.join("cuda-12.4/lib64")).unwrap();
        let variables = Variables(BTreeMap::from([("VIRTUAL_ENV", place.join("venv").into_os_string())]));
        let said = message(&ABSENT, variables, &place);
        assert!(said.starts_with("cuBLAS (libcublas-of-a-test.so.13) was not found; searched: the dynamic"), "{said}");
        assert!(said.contains("site-packages/nvidia/*/lib"), "wheels, once: {said}");
        assert_eq!(said.matches("nvidia/*/lib").count(), 1, "{said}");
        assert!(said.contains("cuda-12.4/lib64") && said.contains("pip install nvidia-cublas"), "{said}");
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn an_error_says_why_a_library_cannot_be_loaded() {
        let place = place("damaged");
        fs::write(place.join("libcublas-of-a-test.so.13"), "not a library").unwrap();
        let variables = Variables(BTreeMap::from([(PATH_VARIABLE, place.clone().into_os_string())]));
        let said = message(&ABSENT, variables, Path::new("/nonexistent"));
        assert!(said.contains("cannot be loaded") && said.contains("file too short"), "{said}");
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn a_library_without_its_symbols_is_too_old() {
        // A library that is everywhere and has none of cuBLAS's functions.
        let old = Spec { files: &["libc.so.6"], ..CUBLAS };
        let said = message(&old, Variables::default(), Path::new("/nonexistent"));
        assert!(said.contains("is too old: it lacks cublasCreate_v2 and 5 more; at least CUDA 12.0"), "{said}");
    }

    #[test]
    fn packages_are_not_searched_for_the_driver() {
        let driver = Spec { files: &["libcuda-of-a-test.so.1"], ..DRIVER };
        let said = message(&driver, Variables::default(), Path::new("/usr"));
        assert!(
            said.contains("searched: the dynamic loader (LD_LIBRARY_PATH, the system's directories). To get"),
            "{said}"
        );
    }
}

//! Folders with libraries of NVIDIA that the loader does not search: those of the CUDA toolkit and of Python's wheels.

use std::path::PathBuf;

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The places of a CUDA toolkit.
pub(crate) fn toolkits() -> impl Iterator<Item = PathBuf> {
    [variable("CUDA_HOME"), variable("CUDA_PATH"), Some("/usr/local/cuda".into())].into_iter().flatten()
}

/// The `lib` of the active virtual environment, and these folders of the packages `nvidia` in it.
pub(crate) fn wheels(folders: &[&str]) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for prefix in [variable("VIRTUAL_ENV"), variable("CONDA_PREFIX")].into_iter().flatten() {
        directories.push(prefix.join("lib"));
        let Ok(versions) = std::fs::read_dir(prefix.join("lib")) else { continue };
        let mut packages: Vec<PathBuf> = versions.flatten().map(|entry| entry.path().join("site-packages")).collect();
        packages.sort();
        for nvidia in packages.iter().map(|path| path.join("nvidia")).filter(|path| path.is_dir()) {
            directories.extend(folders.iter().map(|folder| nvidia.join(folder)));
        }
    }
    directories
}

//! Files that exist whole or not at all: temporary name, sync, rename, sync of the directory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::Error;

/// The name a file has while it is being written. It does not end in `.parquet`, so no glob of a reader meets it; it
/// names the process, so that two of them that write the same file do not write into each other's.
pub(crate) fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    name.into()
}

/// Writes `path` through `fill`, over whatever stood there, and returns its size in bytes. On any error the temporary file is removed and `path` is as
/// it was.
///
/// # Errors
/// What `fill` returns, or [`Error::Io`].
pub(crate) fn replace(path: &Path, fill: impl FnOnce(&mut File) -> Result<(), Error>) -> Result<u64, Error> {
    publish(path, fill, |temporary| fs::rename(temporary, path))
}

/// As [`replace`], but never over another file: that one may be somebody's trace.
///
/// # Errors
/// As [`replace`]; [`Error::Io`] of kind `AlreadyExists` if `path` exists.
pub(crate) fn create(path: &Path, fill: impl FnOnce(&mut File) -> Result<(), Error>) -> Result<u64, Error> {
    publish(path, fill, |temporary| rename_to_free_name(temporary, path))
}

fn rename_to_free_name(temporary: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE) {
        // Some network file systems cannot rename so, but a second name is refused by all of them if it exists.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => link_to_free_name(temporary, path),
        renamed => Ok(renamed?),
    }
}

fn link_to_free_name(temporary: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(temporary, path) {
        Ok(()) => fs::remove_file(temporary),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // Without hard links either (FAT, some FUSE), two steps leave a moment in which another process may come in
        // between.
        Err(_) if !path.try_exists()? => fs::rename(temporary, path),
        Err(_) => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

fn publish(
    path: &Path,
    fill: impl FnOnce(&mut File) -> Result<(), Error>,
    rename: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<u64, Error> {
    let temporary = temporary_name(path);
    let io = |source| Error::Io { path: path.into(), source };
    let written = File::create(&temporary).map_err(io).and_then(|mut file| {
        fill(&mut file)?;
        file.sync_all().and_then(|()| file.metadata()).map_err(io)
    });
    let renamed = written.and_then(|metadata| rename(&temporary).map(|()| metadata.len()).map_err(io));
    if renamed.is_err() {
        // The first error is the one to report; a leftover temporary file is named so that readers ignore it.
        let _ = fs::remove_file(&temporary);
    } else if let Some(parent) = path.parent() {
        // The file is there, and whole. That it survives a loss of power is all that this adds; were its failure one of
        // the file, whoever wrote it would write its rows once more.
        let _ = File::open(parent).and_then(|directory| directory.sync_all());
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_takes_a_free_name_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let (temporary, path) = (directory.path().join("x.tmp"), directory.path().join("x"));
        fs::write(&temporary, "first").unwrap();
        link_to_free_name(&temporary, &path).unwrap();
        assert!(!temporary.exists());
        fs::write(&temporary, "second").unwrap();
        let error = link_to_free_name(&temporary, &path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
    }
}

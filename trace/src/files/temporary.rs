//! Temporary files and directories beside their targets.
//!
//! A temporary entry belongs to one writer: it is made only under a name that is free, so a link that stands there is
//! not followed, and its writer holds a lock on it. A lock ends with its process, so an entry without one is what a
//! killed writer left.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstatvfs, open};

/// The temporary entries of this process, once [`remember`] was called.
static LIVING: OnceLock<Mutex<BTreeSet<PathBuf>>> = OnceLock::new();

/// Remembers all temporary entries from now on, for [`remove_living`]. A process that forks must not: the lock may be held then.
pub fn remember() {
    LIVING.get_or_init(Mutex::default);
}

/// Removes all temporary entries of this process that it remembers, before a signal ends it. It makes none after that.
pub fn remove_living() {
    let Some(paths) = living() else { return };
    for path in &*paths {
        // Other threads may still write into a directory.
        (0..MAX_REMOVALS).take_while(|_| path.symlink_metadata().is_ok()).for_each(|_| remove(path));
    }
    std::mem::forget(paths);
}

fn living() -> Option<MutexGuard<'static, BTreeSet<PathBuf>>> {
    Some(LIVING.get()?.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Attempts to remove a directory.
const MAX_REMOVALS: usize = 100;
/// Names that are tried. More are taken only if somebody makes files with these names.
const MAX_NAMES: u32 = 1000;

/// A directory for temporary files of this process, usually in the system's place for them. Only this user may read it. It is
/// removed when this is dropped; the next process removes those that killed processes left.
#[derive(Debug)]
pub struct ScratchDirectory(Temporary);

impl ScratchDirectory {
    /// Makes an empty directory.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn create() -> io::Result<Self> {
        Self::create_in(&std::env::temp_dir())
    }

    /// Makes an empty directory in another one.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn create_in(parent: &Path) -> io::Result<Self> {
        let target = parent.join("rankscope");
        sweep(&target);
        let directory = Temporary::directory(&target)?;
        directory.file.set_permissions(Permissions::from_mode(0o700))?;
        Ok(Self(directory))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// What is free on its file system. On many nodes that is a RAM disk, so who fills it takes the memory of others.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let found = fstatvfs(&self.0.file)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

/// A file or directory under a temporary name. It is removed when this is dropped, unless it was renamed.
#[derive(Debug)]
pub(super) struct Temporary {
    path: PathBuf,
    /// Open as long as the lock is needed.
    file: File,
    renamed: bool,
}

impl Temporary {
    /// Makes an empty file beside `target`.
    pub(super) fn file(target: &Path) -> io::Result<Self> {
        Self::make(target, |path| File::options().write(true).create_new(true).open(path))
    }

    /// Makes an empty directory beside `target`.
    pub(super) fn directory(target: &Path) -> io::Result<Self> {
        // A sweep may remove the new directory before it is open, and another name is tried.
        let swept = |error: io::Error| match error.kind() {
            ErrorKind::NotFound => ErrorKind::AlreadyExists.into(),
            _ => error,
        };
        Self::make(target, |path| fs::create_dir(path).and_then(|()| File::open(path).map_err(swept)))
    }

    fn make(target: &Path, make: impl Fn(&Path) -> io::Result<File>) -> io::Result<Self> {
        for number in 0..MAX_NAMES {
            let path = temporary_name(target, number);
            let mut living = living();
            let file = match make(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made?,
            };
            // A sweep may have seen the new entry before it was locked. File systems without locks have no sweeps.
            let swept = match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => true,
                _ => file.metadata().inspect_err(|_| remove(&path))?.nlink() == 0,
            };
            if !swept {
                living.iter_mut().for_each(|paths| {
                    paths.insert(path.clone());
                });
                return Ok(Self { path, file, renamed: false });
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file_mut(&mut self) -> &mut File {
        &mut self.file
    }

    /// Takes over group and mode of the entry that it is going to replace.
    pub(super) fn resemble(&self, target: &Path) -> io::Result<()> {
        resemble(&self.file, target)
    }

    /// Leaves the name alone from now on: another writer may take it.
    pub(super) fn was_renamed(mut self) {
        self.renamed = true;
    }
}

/// Gives a file or directory group and mode of the entry that it is going to replace, so that what was private stays so. Where the group
/// cannot be given, the mode is that without its rights.
pub(super) fn resemble(file: &File, target: &Path) -> io::Result<()> {
    let replaced = match fs::metadata(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    let mut mode = replaced.mode() & 0o777;
    if file.metadata()?.gid() != replaced.gid() && fchown(file, None, Some(replaced.gid())).is_err() {
        mode &= 0o707;
    }
    file.set_permissions(Permissions::from_mode(mode))
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            remove(&self.path);
        }
        if let Some(mut paths) = living() {
            paths.remove(&self.path);
        }
    }
}

/// Removes what no reader knows. An error is ignored: a later sweep tries again.
fn remove(path: &Path) {
    let _ = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
}

/// The name that an entry has while it is being written. It does not end in `.parquet`, so no glob of a reader matches
/// it.
fn temporary_name(target: &Path, number: u32) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(format!("{MIDDLE}{}-{number}{END}", std::process::id()));
    name.into()
}

const MIDDLE: &str = ".rankscope-";
const END: &str = ".tmp";

/// Removes the temporary entries of `target` whose writers are gone. An entry that cannot be removed stays.
pub fn sweep(target: &Path) {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else { return };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        if is_temporary_name_of(&entry.file_name(), name.as_encoded_bytes()) {
            sweep_one(&entry.path());
        }
    }
}

/// Removes all temporary entries of a directory whose writers are gone.
pub fn sweep_all(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    entries.flatten().map(|entry| entry.path()).filter(|path| is_temporary(path)).for_each(|path| sweep_one(&path));
}

/// Whether a path has a temporary name.
pub fn is_temporary(path: &Path) -> bool {
    let Some(name) = path.file_name() else { return false };
    let bytes = name.as_encoded_bytes();
    let middle = memchr::memmem::rfind(bytes, MIDDLE.as_bytes());
    middle.is_some_and(|middle| is_temporary_name_of(name, &bytes[..middle]))
}

fn is_temporary_name_of(entry: &OsStr, target: &[u8]) -> bool {
    let middle = entry
        .as_encoded_bytes()
        .strip_prefix(target)
        .and_then(|rest| rest.strip_prefix(MIDDLE.as_bytes()))
        .and_then(|rest| rest.strip_suffix(END.as_bytes()));
    middle
        .is_some_and(|numbers| !numbers.is_empty() && numbers.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-'))
}

fn sweep_one(path: &Path) {
    // Neither a link nor a pipe, which would block, is one of these entries.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = open(path, flags, Mode::empty()) else { return };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        remove(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_entries_without_a_living_writer_are_swept() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("out");
        let named = |number| temporary_name(&target, number);
        let living = Temporary::file(&target).unwrap();
        fs::write(named(7), "left by a killed writer").unwrap();
        fs::create_dir(named(8)).unwrap();
        fs::write(named(8).join("part"), "left by a killed writer").unwrap();
        std::os::unix::fs::symlink("/etc/hostname", named(9)).unwrap();
        let others = ["out", "out.rankscope-x.tmp", "out.rankscope-7-0.tmp.txt", "about.rankscope-7-0.tmp"];
        others.iter().for_each(|name| fs::write(directory.path().join(name), name).unwrap());
        sweep(&target);
        assert!(living.path().exists() && !named(7).exists() && !named(8).exists() && named(9).is_symlink());
        assert!(others.iter().all(|name| directory.path().join(name).exists()));
        drop(living);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), others.len() + 1);
    }

    #[test]
    fn a_scratch_directory_is_private_and_ends_with_its_owner() {
        let scratch = ScratchDirectory::create().unwrap();
        let path = scratch.path().to_path_buf();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(path.join("member"), "text").unwrap();
        // The next one of this process, and its sweep, leave it alone.
        let other = ScratchDirectory::create().unwrap();
        assert!(other.path() != path && path.join("member").is_file());
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn a_taken_name_is_not_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let (target, victim) = (directory.path().join("out"), directory.path().join("victim"));
        fs::write(&victim, "victim").unwrap();
        std::os::unix::fs::symlink(&victim, temporary_name(&target, 0)).unwrap();
        fs::create_dir(temporary_name(&target, 1)).unwrap();
        let temporary = Temporary::file(&target).unwrap();
        assert_eq!(temporary.path(), temporary_name(&target, 2));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "victim");
    }
}

//! Files and directories that exist whole or not at all: temporary name, sync, rename, sync of the parent directory.
//!
//! | function                   | over an existing target | synced | for                              |
//! |----------------------------|-------------------------|--------|----------------------------------|
//! | [`create`]                 | no                      | yes    | shards, which are never repeated |
//! | [`replace`]                | yes                     | yes    | manifest, tables                 |
//! | [`replace_directory`]      | yes                     | no     | results of several files         |
//! | [`write_output`]           | yes                     | no     | output that a user asked for     |

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::Error;

/// The name a file has while it is being written. It does not end in `.parquet`, so no glob of a reader matches it; it
/// names the process, so two processes that write the same file do not write into each other's.
pub(crate) fn temporary_name(path: &Path) -> PathBuf {
    with_suffix(path, "tmp")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.{suffix}", std::process::id()));
    name.into()
}

/// Writes `path` through `fill`, over an existing file, and returns its size in bytes. On any error the temporary file
/// is removed and `path` is as it was.
///
/// # Errors
/// The error of `fill`, or [`Error::Io`].
pub fn replace<E: From<Error>>(path: &Path, fill: impl FnOnce(&mut File) -> Result<(), E>) -> Result<u64, E> {
    publish(path, fill, |temporary| fs::rename(temporary, path))
}

/// As [`replace`], but never over an existing file, which may be somebody's trace.
///
/// # Errors
/// As [`replace`]; [`Error::Io`] of kind `AlreadyExists` if `path` exists.
pub fn create<E: From<Error>>(path: &Path, fill: impl FnOnce(&mut File) -> Result<(), E>) -> Result<u64, E> {
    publish(path, fill, |temporary| rename_to_free_name(temporary, path))
}

/// Writes the output that a user asked for, through a buffer, and returns the value of `fill`. An existing file stays
/// until the new one is whole. A symbolic link stays a link. A device or a pipe is written to directly: a rename would
/// put a file in its place. The file is not synced, because the user can write it again.
///
/// # Errors
/// The error of `fill`, or [`Error::Io`].
pub fn write_output<T, E: From<Error>>(path: &Path, fill: impl FnOnce(&mut dyn Write) -> Result<T, E>) -> Result<T, E> {
    let io = |source| Error::Io { path: path.into(), source };
    let through = |file: File| {
        let mut out = BufWriter::new(file);
        let value = fill(&mut out)?;
        out.flush().map_err(io)?;
        Ok(value)
    };
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return through(File::options().write(true).open(path).map_err(io)?);
    }
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let temporary = temporary_name(&target);
    let written = File::create(&temporary).map_err(io).map_err(E::from).and_then(through);
    let renamed = written.and_then(|value| Ok(fs::rename(&temporary, &target).map(|()| value).map_err(io)?));
    if renamed.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    renamed
}

/// Fills a new directory beside `target` through `fill`, and puts it in the place of `target`: a reader sees the old
/// files or the new ones, never a mixture. On any error the directory at `target` is as it was.
///
/// # Errors
/// The error of `fill`, or [`Error::Io`].
pub fn replace_directory<E: From<Error>>(target: &Path, fill: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), E> {
    let fresh = temporary_name(target);
    let made = fs::create_dir_all(&fresh).map_err(|source| Error::Io { path: fresh.clone(), source });
    let replaced = made.map_err(E::from).and_then(|()| fill(&fresh)).and_then(|()| Ok(swap(&fresh, target)?));
    if replaced.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_dir_all(&fresh);
    }
    replaced
}

fn swap(fresh: &Path, target: &Path) -> Result<(), Error> {
    let old = with_suffix(target, "old");
    let rename = |from: &Path, to: &Path, blamed: &Path| {
        fs::rename(from, to).map_err(|source| Error::Io { path: blamed.into(), source })
    };
    let replaces = target.exists();
    if replaces {
        rename(target, &old, target)?;
    }
    if let Err(error) = rename(fresh, target, target) {
        if replaces {
            rename(&old, target, &old)?;
        }
        return Err(error);
    }
    match replaces {
        true => fs::remove_dir_all(&old).map_err(|source| Error::Io { path: old, source }),
        false => Ok(()),
    }
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

fn publish<E: From<Error>>(
    path: &Path,
    fill: impl FnOnce(&mut File) -> Result<(), E>,
    rename: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<u64, E> {
    let temporary = temporary_name(path);
    let io = |source| E::from(Error::Io { path: path.into(), source });
    let written = File::create(&temporary).map_err(io).and_then(|mut file| {
        fill(&mut file)?;
        file.sync_all().and_then(|()| file.metadata()).map_err(io)
    });
    let renamed = written.and_then(|metadata| rename(&temporary).map(|()| metadata.len()).map_err(io));
    if renamed.is_err() {
        // The first error is the one to report; readers ignore a leftover temporary file by its name.
        let _ = fs::remove_file(&temporary);
    } else if let Some(parent) = path.parent() {
        // The file is there, and whole. The sync only lets it survive a loss of power. An error here is ignored: the
        // caller would take it for an error of the file, and write the rows a second time.
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

    #[test]
    fn output_is_whole_or_absent_and_links_and_devices_stay() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("out"), directory.path().join("link"));
        let write = |path: &Path, text: &'static str| {
            write_output(path, |out| {
                out.write_all(text.as_bytes()).map_err(|source| Error::Io { path: path.into(), source })
            })
        };
        write(&file, "first").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, "second").unwrap();
        assert!(link.is_symlink());
        write(Path::new("/dev/null"), "anything").unwrap();
        let refused = write_output(&file, |_| Err::<(), _>(Error::NotARun { path: file.clone(), why: "test".into() }));
        assert!(refused.is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "second");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "no temporary file is left");
    }

    #[test]
    fn a_pipe_is_written_through_and_stays_a_pipe() {
        use std::io::Read;
        use std::os::unix::fs::FileTypeExt;

        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR, 0)
            .unwrap();
        // Both ends are open before the write, so that a writer that replaces the pipe fails the test and does not hang it.
        let mut end = File::options().read(true).write(true).open(&pipe).unwrap();
        write_output(&pipe, |out| out.write_all(b"text").map_err(|source| Error::Io { path: pipe.clone(), source }))
            .unwrap();
        let kind = fs::symlink_metadata(&pipe).unwrap().file_type();
        assert!(kind.is_fifo(), "{kind:?}");
        let mut text = [0; 4];
        end.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"text");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_directory_is_replaced_as_a_whole_or_stays() {
        let parent = tempfile::tempdir().unwrap();
        let target = parent.path().join("analysis");
        let fill = |name: &'static str| {
            move |fresh: &Path| {
                fs::write(fresh.join(name), name).map_err(|source| Error::Io { path: fresh.into(), source })
            }
        };
        let names = || {
            let mut names: Vec<_> = fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        for name in ["first", "second"] {
            replace_directory(&target, fill(name)).unwrap();
            assert_eq!(names(), [name]);
        }
        let fails = |fresh: &Path| {
            fill("third")(fresh)?;
            Err(Error::NotARun { path: fresh.into(), why: "test".into() })
        };
        assert!(replace_directory(&target, fails).is_err());
        assert_eq!(names(), ["second"]);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1, "no temporary directory is left");
    }
}

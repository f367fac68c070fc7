//! Files and directories that exist whole or not at all: temporary name, sync, rename, sync of the parent directory.
//!
//! | function              | over an existing target       | for                              |
//! |-----------------------|-------------------------------|----------------------------------|
//! | [`create`]            | no                            | shards, which are never repeated |
//! | [`replace`]           | yes                           | manifest, tables                 |
//! | [`write_output`]      | yes                           | output that a user asked for     |
//! | [`create_directory`]  | if it is an empty directory   | an ingested run                  |
//! | [`replace_files`]     | yes, all files or none        | files among those of others      |
//! | [`replace_directory`] | if the caller's check permits | results of several files         |

mod temporary;

pub use temporary::{ScratchDirectory, is_temporary, remember, remove_living, sweep, sweep_all};

use std::ffi::OsString;
use std::fs::{self, File, FileType};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, OFlags, RenameFlags, StatFs, fstatfs, renameat_with, statfs};
use rustix::io::Errno;

use crate::Error;
use crate::url::is_url;
use temporary::{Temporary, resemble};

/// Writes `path` through `fill`, over an existing file, and returns its size in bytes. On any error the temporary file
/// is removed and `path` is as it was.
///
/// # Errors
/// The error of `fill`, or [`Error::Io`].
pub fn replace<E: From<Error>>(path: &Path, fill: impl FnOnce(&mut File) -> Result<(), E>) -> Result<u64, E> {
    publish(path, fill, |temporary| fs::rename(temporary, path)).map(|((), bytes)| bytes)
}

/// As [`replace`], but never over an existing file, which may be somebody's trace.
///
/// # Errors
/// As [`replace`]; [`Error::Io`] of kind `AlreadyExists` if `path` exists.
pub fn create<E: From<Error>>(path: &Path, fill: impl FnOnce(&mut File) -> Result<(), E>) -> Result<u64, E> {
    publish(path, fill, |temporary| rename_to_free_name(temporary, path)).map(|((), bytes)| bytes)
}

/// Writes the output that a user asked for, through a buffer, and returns the value of `fill`. An existing file stays
/// until the new one is whole. A symbolic link stays a link, as with a shell's `>`. A device or a pipe is written to
/// directly: a rename would put a file in its place. Temporary files that killed writers of `path` left are removed.
///
/// # Errors
/// The error of `fill`, or [`Error::Io`].
pub fn write_output<T, E: From<Error>>(path: &Path, fill: impl FnOnce(&mut dyn Write) -> Result<T, E>) -> Result<T, E> {
    let io = |source| Error::Io { path: path.into(), source };
    let through = |file: &mut File| {
        let mut out = BufWriter::new(file);
        let value = fill(&mut out)?;
        out.flush().map_err(io)?;
        Ok(value)
    };
    let target = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            return through(&mut File::options().write(true).open(path).map_err(io)?);
        }
        Ok(_) => fs::canonicalize(path).map_err(io)?,
        Err(error) if error.kind() == ErrorKind::NotFound => path.into(),
        Err(error) => return Err(io(error).into()),
    };
    sweep(&target);
    publish(&target, through, |temporary| fs::rename(temporary, &target)).map(|(value, _)| value)
}

/// Fills a new directory through `fill`, gives it the name `target`, and returns the value of `fill`. On any error
/// `target` is as it was. Of two processes with one target, one gets an error.
///
/// # Errors
/// [`Error::Occupied`] if `target` exists and is not an empty directory, the error of `fill`, or [`Error::Io`].
pub fn create_directory<T, E: From<Error>>(target: &Path, fill: impl FnOnce(&Path) -> Result<T, E>) -> Result<T, E> {
    let io = |source| Error::Io { path: target.into(), source };
    let inside = target.join("new");
    sweep(target);
    sweep(&inside);
    let exists = match fs::read_dir(target).map(|mut entries| entries.next().is_none()) {
        Ok(true) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Ok(false) => return Err(Error::Occupied { path: target.into(), why: "it is not empty".into() }.into()),
        Err(error) => return Err(io(error).into()),
    };
    make_parent(target)?;
    if !exists {
        let temporary = Temporary::directory(target).map_err(io)?;
        let value = fill(temporary.path())?;
        rename_to_free_name(temporary.path(), target).map_err(io)?;
        temporary.was_renamed();
        sync_parent(target);
        return Ok(value);
    }
    let target = &fs::canonicalize(target).map_err(io)?;
    if let Some(temporary) = renamable(target).map_err(io)? {
        let value = fill(temporary.path())?;
        // The system refuses a directory that is no longer empty.
        fs::rename(temporary.path(), target).map_err(io)?;
        temporary.was_renamed();
        sync_parent(target);
        return Ok(value);
    }
    let temporary = Temporary::directory(&inside).map_err(io)?;
    let value = fill(temporary.path())?;
    move_entries(temporary.path(), target).map_err(io)?;
    sync_parent(target);
    Ok(value)
}

/// Fills a temporary directory inside of `directory` through `fill`, then moves its files to `directory`, over existing
/// ones, and returns the value of `fill`. After an error, all files of `directory` are as they were. A process that is
/// killed while it moves them leaves some new and some old ones, each of them whole.
///
/// # Errors
/// The error of `fill`, or [`Error::Io`].
pub fn replace_files<T, E: From<Error>>(directory: &Path, fill: impl FnOnce(&Path) -> Result<T, E>) -> Result<T, E> {
    let io = |source| Error::Io { path: directory.into(), source };
    // Readers of a directory of traces pass over hidden entries.
    let inside = directory.join(".new");
    fs::create_dir_all(directory).map_err(io)?;
    sweep(&inside);
    let temporary = Temporary::directory(&inside).map_err(io)?;
    let value = fill(temporary.path())?;
    let names =
        fs::read_dir(temporary.path()).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    let mut names: Vec<OsString> = names.map_err(io)?;
    names.sort();
    let mut moved: Vec<Moved> = Vec::new();
    for name in names {
        let target = directory.join(&name);
        match move_over(temporary.path().join(name), &target) {
            Ok(one) => moved.push(one),
            Err(source) => {
                moved.into_iter().rev().for_each(Moved::undo);
                return Err(Error::Io { path: target, source }.into());
            }
        }
    }
    sync_parent(&inside);
    Ok(value)
}

/// A new file in its place.
struct Moved {
    /// The temporary name, which the old file has now.
    temporary: PathBuf,
    target: PathBuf,
    /// There was an old file.
    replaced: bool,
}

impl Moved {
    /// A file that cannot be moved back stays. It is whole.
    fn undo(self) {
        let Self { temporary, target, replaced } = self;
        let _ = if replaced { exchange(&temporary, &target) } else { fs::rename(&target, &temporary) };
    }
}

/// Gives a file the name `target`, after it is on the disk. An existing file then has the temporary name. A symbolic link stays a link.
fn move_over(temporary: PathBuf, target: &Path) -> io::Result<Moved> {
    let file = File::open(&temporary)?;
    file.sync_all()?;
    let real = match fs::metadata(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            rename_to_free_name(&temporary, target)?;
            return Ok(Moved { temporary, target: target.into(), replaced: false });
        }
        Ok(metadata) if !metadata.is_file() => return Err(ErrorKind::AlreadyExists.into()),
        metadata => metadata.and_then(|_| fs::canonicalize(target))?,
    };
    resemble(&file, &real)?;
    exchange(&temporary, &real)?;
    Ok(Moved { temporary, target: real, replaced: true })
}

/// A temporary directory that can take the place of an empty directory in one step, with its permissions. A mount point
/// keeps its place, and the parent may belong to another user: then `None`.
fn renamable(target: &Path) -> io::Result<Option<Temporary>> {
    let metadata = fs::metadata(target)?;
    let Ok(temporary) = Temporary::directory(target) else { return Ok(None) };
    if fs::metadata(temporary.path())?.dev() != metadata.dev() {
        return Ok(None);
    }
    temporary.resemble(target)?;
    Ok(Some(temporary))
}

/// Asks again while another process makes or replaces what is asked for.
fn retried<T>(mut ask: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..ATTEMPTS {
        match ask() {
            Err(Error::Io { source, .. })
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => {}
            done => return done,
        }
    }
    ask()
}

/// A process meets others with the same target at most so often.
const ATTEMPTS: usize = 100;

/// Fills a new directory beside `target` through `fill`, and puts it in the place of `target`: a reader sees the old
/// files or the new ones, never a mixture. `foreign` returns the reason for which an existing directory must stay. On
/// any error the directory at `target` is as it was. Of two processes with one target, the last one wins.
///
/// # Errors
/// [`Error::Occupied`] if `target` must stay or is not a directory, the error of `fill`, or [`Error::Io`].
pub fn replace_directory<E: From<Error>>(
    target: &Path,
    foreign: impl Fn(&Path) -> io::Result<Option<String>>,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let io = |source| Error::Io { path: target.into(), source };
    let occupied = |why: String| Err(Error::Occupied { path: target.into(), why });
    let examined = || match fs::symlink_metadata(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io(error)),
        Ok(metadata) if !metadata.is_dir() => occupied("it is not a directory".into()),
        Ok(_) => foreign(target).map_err(io)?.map_or(Ok(true), occupied),
    };
    let check = || retried(examined);
    check()?;
    make_parent(target)?;
    sweep(target);
    let temporary = Temporary::directory(target).map_err(io)?;
    temporary.resemble(target).map_err(io)?;
    fill(temporary.path())?;
    let put = || {
        // A file may have been put into the old directory in the meantime.
        if !check()? {
            return rename_to_free_name(temporary.path(), target).map(|()| true).map_err(io);
        }
        // The old directory then has the temporary name, and is removed with it.
        exchange(temporary.path(), target).map(|()| false).map_err(io)
    };
    if retried(put)? {
        temporary.was_renamed();
    }
    sync_parent(target);
    Ok(())
}

/// File systems in which the kernel makes files up, by the numbers of `linux/magic.h`: proc, sysfs, cgroup and cgroup2, debugfs, tracefs,
/// securityfs, selinuxfs, bpf, configfs, pstore, efivarfs, devpts, mqueue, fusectl, binfmt_misc, rpc_pipefs, nsfs.
const OF_KERNEL: [u32; 18] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xf97c_ff8c,
    0xcafe_4a11,
    0x6265_6570,
    0x6165_676c,
    0xde5e_81e4,
    0x1cd1,
    0x1980_0202,
    0x6573_5543,
    0x4249_4e4d,
    0x6759_6969,
    0x6e73_6673,
];

/// Whether a path is of a file system in which the kernel makes files up, such as `/proc`.
///
/// # Errors
/// The error of the operating system.
pub(crate) fn is_of_kernel(path: &Path) -> io::Result<bool> {
    Ok(is_kernels(&statfs(path)?))
}

fn is_kernels(found: &StatFs) -> bool {
    OF_KERNEL.contains(&(found.f_type as u32))
}

/// Opens a file to read it. A pipe, a socket or a device is refused: opening or reading it may block for ever. So is a file
/// of the kernel, such
/// as `/proc/kmsg`, which may also have no end.
///
/// # Errors
/// The error of the operating system; `InvalidInput` if it is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Without the flag, opening a pipe waits for its writer. It changes nothing for a regular file.
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    let kind = file.metadata()?.file_type();
    let what = match kind.is_file() {
        true if is_kernels(&fstatfs(&file)?) => "a file of the kernel",
        true => return Ok(file),
        false => kind_name(kind),
    };
    Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {what}, not a regular file")))
}

fn kind_name(kind: FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a pipe (a trace in a pipe is read from standard input, as `-`)",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}

fn refuse_url(path: &Path) -> Result<(), Error> {
    if is_url(path) {
        let source = io::Error::new(ErrorKind::Unsupported, "nothing is written to a URL; name a directory");
        return Err(Error::Io { path: path.into(), source });
    }
    Ok(())
}

/// Makes the directory in which `path` lies.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn make_parent(path: &Path) -> Result<(), Error> {
    refuse_url(path)?;
    match path.parent() {
        Some(parent) => fs::create_dir_all(parent).map_err(|source| Error::Io { path: parent.into(), source }),
        None => Ok(()),
    }
}

fn publish<T, E: From<Error>>(
    path: &Path,
    fill: impl FnOnce(&mut File) -> Result<T, E>,
    rename: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(T, u64), E> {
    refuse_url(path)?;
    let io = |source| Error::Io { path: path.into(), source };
    let mut temporary = Temporary::file(path).map_err(io)?;
    temporary.resemble(path).map_err(io)?;
    let value = fill(temporary.file_mut())?;
    let file = temporary.file_mut();
    let bytes = file.sync_all().and_then(|()| file.metadata()).map_err(io)?.len();
    rename(temporary.path()).map_err(io)?;
    temporary.was_renamed();
    sync_parent(path);
    Ok((value, bytes))
}

/// The sync lets a new name survive a loss of power. An error here is ignored: the file is there, and whole, and the
/// caller would take the error for one of the file and write the rows a second time.
fn sync_parent(path: &Path) {
    if let Some(parent) = path.parent() {
        let _ = File::open(parent).and_then(|directory| directory.sync_all());
    }
}

/// Exchanges two directories or two files; the old one then has the temporary name. Where the file system cannot do that in one
/// step, a moment without `target` remains.
fn exchange(temporary: &Path, target: &Path) -> io::Result<()> {
    match renameat_with(CWD, temporary, CWD, target, RenameFlags::EXCHANGE) {
        Err(error) if is_unsupported(error) => {
            let mut old = temporary.as_os_str().to_owned();
            old.push(".old");
            let old = Path::new(&old);
            fs::rename(target, old)?;
            match fs::rename(temporary, target) {
                Ok(()) => fs::rename(old, temporary),
                Err(error) => fs::rename(old, target).and(Err(error)),
            }
        }
        exchanged => Ok(exchanged?),
    }
}

/// Moves the entries of a directory, files last: a manifest makes a run of the tables beside it. After an error, those
/// that were moved are moved back.
fn move_entries(from: &Path, to: &Path) -> io::Result<()> {
    let entries =
        fs::read_dir(from)?.map(|entry| entry.and_then(|entry| Ok((entry.file_type()?.is_file(), entry.file_name()))));
    let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    for (at, (_, name)) in entries.iter().enumerate() {
        if let Err(error) = rename_to_free_name(&from.join(name), &to.join(name)) {
            // An entry that cannot be moved back stays. It is whole, and no manifest names it.
            entries[..at].iter().for_each(|(_, name)| drop(fs::rename(to.join(name), from.join(name))));
            return Err(error);
        }
    }
    Ok(())
}

fn is_unsupported(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

fn rename_to_free_name(temporary: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE) {
        // Some network file systems cannot rename so, but a second name is refused by all of them if it exists.
        Err(error) if is_unsupported(error) => link_to_free_name(temporary, path),
        renamed => Ok(renamed?),
    }
}

fn link_to_free_name(temporary: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(temporary, path) {
        Ok(()) => fs::remove_file(temporary),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
        // Directories have no hard links, nor has any file of FAT and some FUSE systems. Two steps leave a moment in
        // which another process may come in between.
        Err(_) if !path.try_exists()? => fs::rename(temporary, path),
        Err(_) => Err(ErrorKind::AlreadyExists.into()),
    }
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
    fn what_replaces_a_private_entry_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let mode = |name: &str| fs::metadata(at(name)).unwrap().mode() & 0o777;
        let set = |name: &str, mode| fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        let written = |file: &Path| fs::write(file, "new").map_err(|source| Error::Io { path: file.into(), source });
        fs::write(at("report"), "old").unwrap();
        fs::create_dir(at("analysis")).unwrap();
        fs::create_dir(at("pages")).unwrap();
        fs::write(at("pages/a"), "old").unwrap();
        [("report", 0o600), ("analysis", 0o700), ("pages/a", 0o640)].iter().for_each(|(name, mode)| set(name, *mode));
        write_output(&at("report"), |out| {
            out.write_all(b"new").map_err(|source| Error::Io { path: at("report"), source })
        })
        .unwrap();
        replace_directory(&at("analysis"), |_| Ok(None), |fresh| written(&fresh.join("table"))).unwrap();
        replace_files(&at("pages"), |fresh| written(&fresh.join("a"))).unwrap();
        assert_eq!([mode("report"), mode("analysis"), mode("pages/a")], [0o600, 0o700, 0o640]);
        assert_eq!(fs::read_to_string(at("pages/a")).unwrap(), "new");
    }

    #[test]
    fn files_are_replaced_and_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("pages");
        let fill = |fresh: &Path, text: &str| {
            let written = ["a", "b"].iter().try_for_each(|name| fs::write(fresh.join(name), text));
            written.map_err(|source| Error::Io { path: fresh.into(), source })
        };
        replace_files(&target, |fresh| fill(fresh, "first")).unwrap();
        fs::write(target.join("other"), "other").unwrap();
        let fails = |fresh: &Path| {
            fill(fresh, "second")?;
            Err::<(), _>(Error::NotARun { path: fresh.into(), why: "test".into() })
        };
        assert!(replace_files(&target, fails).is_err());
        let texts = || ["a", "b", "other"].map(|name| fs::read_to_string(target.join(name)).unwrap());
        assert_eq!(texts(), ["first", "first", "other"]);
        replace_files(&target, |fresh| fill(fresh, "third")).unwrap();
        assert_eq!(texts(), ["third", "third", "other"]);
        assert_eq!(fs::read_dir(&target).unwrap().count(), 3, "no temporary directory is left");
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

    // An export of ranks 0 to 2 over one of ranks 0 and 1. Then another one, in whose way a directory stands.
    /// Invariant (files): An export of several ranks replaces all files or none.
    #[test]
    fn files_of_all_ranks_are_replaced_together() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let write = |text: &'static str, names: &'static [&'static str]| {
            let fill = |fresh: &Path| -> Result<(), Error> {
                names.iter().for_each(|name| fs::write(fresh.join(name), text).unwrap());
                Ok(())
            };
            replace_files(&out, fill)
        };
        let texts = || {
            let mut all: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path()).collect();
            all.sort();
            let text = |path: &PathBuf| fs::read_to_string(path).unwrap_or_else(|_| "directory".into());
            all.iter().map(text).collect::<Vec<_>>()
        };
        write("first", &["rank0", "rank1"]).unwrap();
        write("second", &["rank0", "rank1", "rank2"]).unwrap();
        assert_eq!(texts(), ["second"; 3], "no temporary directory is left");
        fs::create_dir_all(out.join("rank4/inside")).unwrap();
        assert!(write("third", &["rank0", "rank1", "rank3", "rank4"]).is_err());
        assert_eq!(texts(), ["second", "second", "second", "directory"]);
        assert!(out.join("rank4/inside").is_dir());
        let fails = |fresh: &Path| {
            fs::write(fresh.join("rank0"), "fourth").unwrap();
            Err::<(), _>(Error::NotARun { path: fresh.into(), why: "test".into() })
        };
        assert!(replace_files(&out, fails).is_err());
        assert_eq!(texts(), ["second", "second", "second", "directory"]);
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
            replace_directory(&target, |_| Ok(None), fill(name)).unwrap();
            assert_eq!(names(), [name]);
        }
        let fails = |fresh: &Path| {
            fill("third")(fresh)?;
            Err(Error::NotARun { path: fresh.into(), why: "test".into() })
        };
        assert!(replace_directory(&target, |_| Ok(None), fails).is_err());
        assert_eq!(names(), ["second"]);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1, "no temporary directory is left");
    }
}

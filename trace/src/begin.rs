//! The beginning of a run: its directory, with the manifest as the first file.

use std::fs::{self, File, FileType};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::keys::MANIFEST_FILE;
use crate::{Error, Manifest, files, rank_tables};

impl Manifest {
    /// Begins the run `run`: writes its `run.json` into a new or empty directory. A run that began there, recorded nothing
    /// and has ended is removed first, for example after its disk failed. The new file is locked as long as the returned
    /// value is open, so that another process knows that this run has not ended.
    ///
    /// # Errors
    /// [`Error::Occupied`] if the directory holds anything else; [`Error::Io`], of kind `AlreadyExists` if another process
    /// began a run there in the meantime; [`Error::LongManifest`].
    pub fn begin(&self, run: &Path) -> Result<File, Error> {
        let path = run.join(MANIFEST_FILE);
        let io = |source| Error::Io { path: path.clone(), source };
        let text = self.text(&path)?;
        files::sweep(&path);
        remove_unfinished(run)?;
        fs::create_dir_all(run).map_err(|source| Error::Io { path: run.into(), source })?;
        let mut held = None;
        files::create(&path, |file| {
            // The new file is locked from the start, and the lock belongs to every clone of the handle.
            held = Some(file.try_clone().map_err(io)?);
            file.write_all(&text).map_err(io)
        })?;
        held.ok_or_else(|| io(ErrorKind::NotFound.into()))
    }
}

/// Removes a run that recorded nothing and has ended. A directory that is empty or does not exist stays as it is.
fn remove_unfinished(run: &Path) -> Result<(), Error> {
    let io = |source| Error::Io { path: run.into(), source };
    let occupied = |why: &str| Err(Error::Occupied { path: run.into(), why: why.into() });
    let entries = match entries(run) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => return occupied("it is not a directory"),
        entries => entries.map_err(io)?,
    };
    if entries.is_empty() {
        return Ok(());
    }
    let tables: Vec<&PathBuf> =
        entries.iter().filter(|(path, kind)| is_table(path, *kind)).map(|(path, _)| path).collect();
    let manifest = run.join(MANIFEST_FILE);
    if !entries.iter().all(|(path, kind)| is_table(path, *kind) || (*path == manifest && kind.is_file())) {
        return occupied("it is not empty");
    }
    for table in &tables {
        if !holds_only_rests(table).map_err(io)? {
            return occupied("it holds a run");
        }
    }
    // The lock is held until the old files are gone.
    let Some(_locked) = lock(&manifest).map_err(io)? else { return occupied("it holds a run that may be in progress") };
    // Of a file that is no manifest, nothing says that rankscope wrote it.
    Manifest::read(run)?;
    for table in tables {
        files::sweep_all(table);
        // The system refuses a directory that is not empty: a writer there is alive.
        fs::remove_dir(table).map_err(io)?;
    }
    fs::remove_file(&manifest).map_err(io)
}

fn entries(directory: &Path) -> io::Result<Vec<(PathBuf, FileType)>> {
    fs::read_dir(directory)?.map(|entry| entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))).collect()
}

fn is_table(path: &Path, kind: FileType) -> bool {
    kind.is_dir() && rank_tables().iter().any(|table| path.file_name().is_some_and(|name| name == table.name))
}

/// Whether a directory is empty but for files that were never finished.
fn holds_only_rests(directory: &Path) -> io::Result<bool> {
    Ok(entries(directory)?.iter().all(|(path, _)| files::is_temporary(path)))
}

/// The manifest, locked; `None` if the run's first process has it locked, or where there are no locks.
fn lock(manifest: &Path) -> io::Result<Option<File>> {
    let file = match File::options().read(true).write(true).open(manifest) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    // Another process may have begun a run between the opening and the lock.
    let same = fs::metadata(manifest)?.ino() == file.metadata()?.ino();
    Ok(same.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(run_id: &str) -> Manifest {
        Manifest {
            schema_version: crate::SCHEMA_VERSION,
            run_id: run_id.into(),
            world_size: 2,
            created_utc_ns: 1,
            tool: "test".into(),
            command: Vec::new(),
            config: serde_json::Map::new(),
        }
    }

    /// A run that ended before it recorded anything, with the rest of a part on a disk that failed.
    fn unfinished(run: &Path) {
        drop(manifest("old").begin(run).unwrap());
        fs::create_dir_all(run.join("ranks")).unwrap();
        fs::write(run.join("ranks/rank-00000-0000.parquet.rankscope-1-0.tmp"), "PAR1").unwrap();
        fs::create_dir(run.join("events")).unwrap();
    }

    /// Invariant (files): A run that recorded nothing may begin again.
    #[test]
    fn a_run_that_recorded_nothing_and_has_ended_begins_again() {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path().join("run");
        unfinished(&run);
        let held = manifest("new").begin(&run).unwrap();
        assert_eq!(Manifest::read(&run).unwrap().run_id, "new");
        assert_eq!(fs::read_dir(&run).unwrap().count(), 1, "the old files are gone");
        // The new run is in progress.
        let error = manifest("third").begin(&run).unwrap_err();
        assert!(matches!(&error, Error::Occupied { why, .. } if why.contains("in progress")), "{error}");
        drop(held);
        drop(manifest("third").begin(&run).unwrap());
        assert_eq!(Manifest::read(&run).unwrap().run_id, "third");
    }

    /// Invariant (files): A run that begins again removes no file of another program.
    #[test]
    fn anything_else_in_the_directory_stays() {
        for (name, text) in [
            ("notes.txt", "mine"),
            ("ranks/rank-00000-0000.parquet", "PAR1"),
            ("ranks/notes.rankscope-tmp", "mine"),
            ("other/ranks", "mine"),
            ("run.json", "{\"name\": \"of another program\"}"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let run = directory.path();
            unfinished(run);
            fs::create_dir_all(run.join(name).parent().unwrap()).unwrap();
            fs::write(run.join(name), text).unwrap();
            assert!(manifest("new").begin(run).is_err(), "{name}");
            assert_eq!(fs::read_to_string(run.join(name)).unwrap(), text);
            assert!(run.join("ranks/rank-00000-0000.parquet.rankscope-1-0.tmp").exists(), "{name}");
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "mine").unwrap();
        assert!(matches!(manifest("new").begin(&file), Err(Error::Occupied { .. })));
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    }

    #[test]
    fn of_two_processes_one_begins_the_run() {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path().join("run");
        unfinished(&run);
        let begun: Vec<Result<File, Error>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|number| {
                    let run = &run;
                    scope.spawn(move || manifest(&number.to_string()).begin(run))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let begun: Vec<usize> = (0..8).filter(|at| begun[*at].is_ok()).collect();
        assert_eq!(begun.len(), 1);
        assert_eq!(Manifest::read(&run).unwrap().run_id, begun[0].to_string());
    }
}

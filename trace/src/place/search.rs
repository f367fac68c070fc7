//! The directories that are searched for the files of a job.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::files::is_of_kernel;
use crate::url::{canonical, is_url};

/// The directories of a search. Each is searched once. A link does not lead out of the directory that was given, because a link to `/`
/// would make every file of the machine one of the job.
#[derive(Debug, Default)]
pub struct Search {
    given: PathBuf,
    seen: BTreeSet<PathBuf>,
}

/// What is done with a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is searched.
    Search,
    /// It was searched before, under another name.
    Seen,
    /// It is left out, for this reason.
    LeftOut(String),
}

const OF_KERNEL: &str = "it is of a file system of the kernel, as /proc is, which holds no recordings";

impl Search {
    /// Begins in a directory that was given, or in the one that a given link leads to. False if it was searched before.
    ///
    /// # Errors
    /// The error of the file system; `InvalidInput` for a directory of the kernel.
    pub fn begin(&mut self, directory: &Path) -> io::Result<bool> {
        self.given = canonical(directory)?;
        match self.enter(directory)? {
            Step::Search => Ok(true),
            Step::Seen => Ok(false),
            Step::LeftOut(why) => Err(io::Error::new(ErrorKind::InvalidInput, why)),
        }
    }

    /// Decides about a directory in one that is searched.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn enter(&mut self, directory: &Path) -> io::Result<Step> {
        let path = canonical(directory)?;
        if !path.starts_with(&self.given) {
            let why = format!(
                "it is a link to {}, outside of the given directory, and is not followed; name it",
                path.display()
            );
            return Ok(Step::LeftOut(why));
        }
        if !is_url(&path) && is_of_kernel(&path)? {
            return Ok(Step::LeftOut(OF_KERNEL.into()));
        }
        Ok(if self.seen.insert(path) { Step::Search } else { Step::Seen })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_lead_neither_outside_nor_twice_to_one_directory() {
        let dir = tempfile::tempdir().unwrap();
        let given = dir.path().join("given");
        fs::create_dir_all(given.join("inside")).unwrap();
        fs::create_dir_all(dir.path().join("outside")).unwrap();
        symlink(dir.path().join("outside"), given.join("out")).unwrap();
        symlink(&given, dir.path().join("link")).unwrap();
        symlink("inside", given.join("again")).unwrap();
        let mut search = Search::default();
        assert!(search.begin(&dir.path().join("link")).unwrap(), "a given link is followed");
        assert_eq!(search.enter(&given.join("inside")).unwrap(), Step::Search);
        assert_eq!(search.enter(&given.join("again")).unwrap(), Step::Seen);
        let left_out = search.enter(&given.join("out")).unwrap();
        assert!(
            matches!(&left_out, Step::LeftOut(why) if why.contains("outside of the given directory")),
            "{left_out:?}"
        );
        assert!(search.begin(&dir.path().join("outside")).unwrap(), "it is searched if it is named");
    }

    #[test]
    fn directories_of_the_kernel_are_refused() {
        let error = Search::default().begin(Path::new("/proc/self")).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::InvalidInput, OF_KERNEL.to_string()));
    }
}

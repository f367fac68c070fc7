//! Which files may be traces: files that were named, and those in directories, archives and standard input.

use std::path::{Component, Path, PathBuf};

use trace::place::{self, Entry, Kind, Search, Step};
use trace::{OmissionRow, Text};

use crate::Error;
use crate::read::archive::{Spool, archive_kind, unpack};
use crate::read::names::natural_order;

/// Directories inside directories that are searched.
const MAX_DEPTH: usize = 8;
/// Files that are looked at.
const MAX_FILES: usize = 1 << 16;
/// The name of standard input, as an argument.
const STANDARD_INPUT: &str = "-";

/// A file that may be a trace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    /// Its name in messages, with the directories below what all given paths have in common. A member of an archive has
    /// the name of the archive before its own.
    pub(crate) name: Text,
    /// The file to read.
    pub(crate) path: PathBuf,
    /// Its path in errors: that of the file, or the name of what is in a temporary file.
    pub(crate) shown: PathBuf,
    /// The caller named the file itself, not its directory or archive.
    pub(crate) named: bool,
}

/// The files of some paths.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) candidates: Vec<Candidate>,
    /// Names of files that are no traces.
    pub(crate) others: Vec<Text>,
    /// Files and directories that could not be read.
    pub(crate) omissions: Vec<OmissionRow>,
    /// The members of archives, as files.
    pub(crate) spool: Spool,
    search: Search,
    full: bool,
}

/// Finds the files in `paths`.
///
/// # Errors
/// [`Error::Io`] if a path cannot be opened or listed, or an archive cannot be unpacked.
pub(crate) fn find(paths: &[PathBuf]) -> Result<Found, Error> {
    let mut found = Found::default();
    let base = common_directory(paths)?;
    for path in paths {
        let io = |source| Error::Io { path: path.clone(), source };
        if path.as_os_str() == STANDARD_INPUT {
            let spooled = found.spool.standard_input().map_err(io)?;
            found.file(spooled, "standard input".into(), PathBuf::from("standard input"), true)?;
            continue;
        }
        let name = path.strip_prefix(&base).unwrap_or(path);
        if place::kind(path).map_err(io)? == Kind::Directory {
            if found.search.begin(path).map_err(io)? {
                found.directory(path, name, 0).map_err(io)?;
            }
        } else {
            found.file(path.clone(), slashed(name), path.clone(), true)?;
        }
    }
    found.candidates.sort_by(|a, b| natural_order(&a.name, &b.name).then_with(|| a.cmp(b)));
    found.candidates.dedup_by(|a, b| a.path == b.path);
    found.others.sort();
    Ok(found)
}

impl Found {
    fn file(&mut self, path: PathBuf, name: Text, shown: PathBuf, named: bool) -> Result<(), Error> {
        if self.candidates.len() + self.others.len() >= MAX_FILES {
            if !self.full {
                self.full = true;
                let why = format!("there are more than {MAX_FILES} files");
                self.omissions.push(OmissionRow::lost("files", why));
            }
            return Ok(());
        }
        let io = |source| Error::Io { path: shown.clone(), source };
        match archive_kind(&path) {
            Ok(None) => self.candidates.push(Candidate { name, path, shown, named }),
            Ok(Some(kind)) => {
                let unpacked = unpack(&path, kind, &mut self.spool, MAX_FILES).map_err(io)?;
                let inside = |member: &Text| Text::from(format!("{name}/{member}"));
                self.others.extend(unpacked.others.iter().map(inside));
                let candidate = |(member, path): &(Text, PathBuf)| {
                    let shown = shown.join(&**member);
                    Candidate { name: inside(member), path: path.clone(), shown, named: false }
                };
                self.candidates.extend(unpacked.members.iter().map(candidate));
                if let Some(why) = unpacked.stopped {
                    self.unreadable(name, "rest of the archive", why);
                }
            }
            Err(source) if named => return Err(io(source)),
            Err(source) => self.unreadable(name, "file", source.to_string()),
        }
        Ok(())
    }

    /// Searches a directory. Hidden files, directories of runs and the files of TensorBoard are no traces.
    fn directory(&mut self, path: &Path, name: &Path, depth: usize) -> std::io::Result<()> {
        for Entry { path: entry, is_directory } in place::entries(path)? {
            if self.full {
                break;
            }
            let Some(own) = entry.file_name() else { continue };
            let name = name.join(own);
            if own.to_string_lossy().starts_with('.') {
                continue;
            }
            if is_directory {
                if let Err(error) = self.subdirectory(&entry, &name, depth) {
                    self.unreadable(slashed(&name), "directory", error.to_string());
                }
            } else if let Err(error) = self.file(entry.clone(), slashed(&name), entry, false) {
                self.unreadable(slashed(&name), "file", error.reason());
            }
        }
        Ok(())
    }

    fn subdirectory(&mut self, path: &Path, name: &Path, depth: usize) -> std::io::Result<()> {
        if place::is_file(&path.join(trace::MANIFEST_FILE))? {
            self.others.push(slashed(name));
        } else if depth == MAX_DEPTH {
            let why = format!("it lies more than {MAX_DEPTH} directories deep and is not searched; name it");
            self.left_out(name, why);
        } else {
            match self.search.enter(path)? {
                Step::Search => self.directory(path, name, depth + 1)?,
                Step::Seen => {}
                Step::LeftOut(why) => self.left_out(name, why),
            }
        }
        Ok(())
    }

    fn left_out(&mut self, directory: &Path, why: String) {
        self.omissions.push(OmissionRow::left_out("directory", why).file(slashed(directory)));
    }

    fn unreadable(&mut self, name: Text, what: &str, why: String) {
        self.omissions.push(OmissionRow::lost(what, why).file(name));
    }
}

/// The directory that all paths are in; a single directory is its own.
fn common_directory(paths: &[PathBuf]) -> Result<PathBuf, Error> {
    if let [only] = paths
        && only.as_os_str() != STANDARD_INPUT
        && place::kind(only).map_err(|source| Error::Io { path: only.clone(), source })? == Kind::Directory
    {
        return Ok(only.clone());
    }
    let mut common: Option<Vec<Component<'_>>> = None;
    for path in paths.iter().filter(|path| path.as_os_str() != STANDARD_INPUT) {
        let parent: Vec<Component<'_>> = path.parent().unwrap_or(Path::new("")).components().collect();
        common = Some(match common {
            None => parent,
            Some(common) => common.into_iter().zip(parent).take_while(|(a, b)| a == b).map(|(a, _)| a).collect(),
        });
    }
    Ok(common.unwrap_or_default().into_iter().collect())
}

fn slashed(path: &Path) -> Text {
    path.to_string_lossy().into()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(paths: &[PathBuf]) -> Vec<String> {
        find(paths).unwrap().candidates.iter().map(|candidate| candidate.name.to_string()).collect()
    }

    #[test]
    fn directories_are_searched_once() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("rank_1/plugins")).unwrap();
        fs::create_dir_all(root.join("old_run")).unwrap();
        for file in ["rank_1/plugins/a.json", "b.json", ".hidden", "old_run/run.json"] {
            fs::write(root.join(file), "{}").unwrap();
        }
        std::os::unix::fs::symlink(root, root.join("rank_1/loop")).unwrap();
        let found = find(&[root.to_path_buf()]).unwrap();
        assert_eq!(names(&[root.to_path_buf()]), ["b.json", "rank_1/plugins/a.json"]);
        assert_eq!((found.others, found.omissions), (vec!["old_run".into()], vec![]));
        assert_eq!(names(&[root.join("rank_1/plugins"), root.join("b.json")]), ["b.json", "rank_1/plugins/a.json"]);
        assert_eq!(names(&[root.join("b.json")]), ["b.json"]);
    }

    /// Invariant (input): A link leads a search of directories to files, not out of the given directory. One that is not
    /// followed is listed.
    #[test]
    fn links_lead_to_files_and_not_out_of_the_given_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (given, other) = (dir.path().join("given"), dir.path().join("other"));
        fs::create_dir_all(&given).unwrap();
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join("a.json"), "{}").unwrap();
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, given.join(name)).unwrap();
        link(&other.join("a.json"), "linked.json");
        link(Path::new("/"), "data");
        link(&other, "more");
        let listed =
            |found: Found| found.omissions.iter().map(|o| format!("{} {:?}", &*o.kind, o.file)).collect::<Vec<_>>();
        assert_eq!(names(std::slice::from_ref(&given)), ["linked.json"]);
        let outside = ["left_out Some(\"data\")", "left_out Some(\"more\")"];
        assert_eq!(listed(find(std::slice::from_ref(&given)).unwrap()), outside);
        assert_eq!(names(&[given.join("more")]), ["a.json"], "a given link is followed");
        link(Path::new("/proc/self/maps"), "maps.json");
        assert_eq!(
            listed(find(std::slice::from_ref(&given)).unwrap()),
            [outside[0], "lost Some(\"maps.json\")", outside[1]]
        );
        assert!(find(&["/proc/self".into()]).unwrap_err().to_string().contains("a file system of the kernel"));
    }

    #[test]
    fn the_depth_of_directories_has_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d/".repeat(MAX_DEPTH + 1));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("a.json"), "{}").unwrap();
        let found = find(&[dir.path().to_path_buf()]).unwrap();
        assert_eq!((found.candidates.len(), found.omissions.len()), (0, 1));
        assert!(found.omissions[0].why.contains("more than 8 directories deep"), "{:?}", found.omissions);
    }
}

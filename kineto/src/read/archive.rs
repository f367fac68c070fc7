//! Members of archives (zip, tar, tar.gz, tar.zst) and standard input, as temporary files.
//!
//! An archive is untrusted: the names of its members are data and never become paths, links are not followed, and the
//! bytes that it may unpack to have a bound.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trace::Text;
use trace::files::ScratchDirectory;
use trace::place;

use crate::bytes::input::{Input, inflate_limit_bytes};
use crate::read::dump_begin::may_be_dump;
use crate::read::formats::is_trace_name;

/// Members that are looked at.
const MAX_MEMBERS: usize = 1 << 20;
/// The longest name of a member.
const MAX_NAME_BYTES: u64 = 4096;
/// Standard input has no size that could bound it.
const MAX_STANDARD_INPUT_BYTES: u64 = 64 << 30;
/// Bytes that are copied at once.
const COPY_BYTES: usize = 256 << 10;

/// Temporary files; removed with the last clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spool {
    directory: Option<Arc<ScratchDirectory>>,
    files: usize,
}

impl PartialEq for Spool {
    /// Only the files matter, and their paths are unique.
    fn eq(&self, other: &Self) -> bool {
        let path = |spool: &Self| spool.directory.as_ref().map(|directory| directory.path().to_path_buf());
        path(self) == path(other)
    }
}

impl Spool {
    fn directory(&mut self) -> io::Result<Arc<ScratchDirectory>> {
        let directory = match &self.directory {
            Some(directory) => Arc::clone(directory),
            None => Arc::new(ScratchDirectory::create()?),
        };
        self.directory = Some(Arc::clone(&directory));
        Ok(directory)
    }

    /// The most bytes that may be added now: half of what is free.
    fn room_bytes(&mut self) -> io::Result<u64> {
        Ok(self.directory()?.free_bytes()? / 2)
    }

    fn create(&mut self) -> io::Result<(PathBuf, File)> {
        let number = self.files.to_string();
        let path = self.directory()?.path().join(number);
        self.files += 1;
        let file = File::create_new(&path)?;
        Ok((path, file))
    }

    /// Copies standard input into a file.
    pub(crate) fn standard_input(&mut self) -> io::Result<PathBuf> {
        let (path, mut file) = self.create()?;
        let most = self.room_bytes()?.min(MAX_STANDARD_INPUT_BYTES);
        let mut input = io::stdin().lock().take(most);
        // Between two files the kernel would copy, and `io::copy` does not repeat a kernel's copy that a signal
        // interrupts.
        let mut output = BufWriter::with_capacity(COPY_BYTES, &mut file as &mut dyn Write);
        let copied = io::copy(&mut input, &mut output)?;
        output.flush()?;
        if copied == most {
            return Err(io::Error::other(format!(
                "it has {most} bytes or more, and temporary files have no room for more"
            )));
        }
        Ok(path)
    }
}

/// Kinds of archives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArchiveKind {
    Zip,
    /// Compressed with gzip, zstd or not at all.
    Tar,
}

/// The kind of an archive, by its content; `None` if the file is no archive.
pub(crate) fn archive_kind(path: &Path) -> io::Result<Option<ArchiveKind>> {
    let mut input = Input::open(path)?;
    let mut head = [0; 512];
    let got = input.fill(&mut head);
    input.file_error.check()?;
    Ok(match &head[..got] {
        [b'P', b'K', 3 | 5, 4 | 6, ..] => Some(ArchiveKind::Zip),
        head if head.len() == 512 && &head[257..262] == b"ustar" => Some(ArchiveKind::Tar),
        _ => None,
    })
}

/// The members of an archive.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Unpacked {
    /// Members that may be traces or dumps: their names, and the files with their bytes.
    pub(crate) members: Vec<(Text, PathBuf)>,
    /// Names of the other members.
    pub(crate) others: Vec<Text>,
    /// Why the rest was not unpacked.
    pub(crate) stopped: Option<String>,
}

/// Unpacks the members that may be traces or dumps of the Flight Recorder, at most `max_files`.
///
/// # Errors
/// The archive cannot be opened, or a temporary file cannot be written.
pub(crate) fn unpack(path: &Path, kind: ArchiveKind, spool: &mut Spool, max_files: usize) -> io::Result<Unpacked> {
    let size_bytes = place::open(path)?.size_bytes()?;
    let (by_size, by_room) = (inflate_limit_bytes(size_bytes), spool.room_bytes()?);
    let too_long = match by_room < by_size {
        true => format!("{by_room} bytes, half of what was free in the directory of temporary files (TMPDIR)"),
        false => "1 GiB + 256 × its own size".into(),
    };
    let left_bytes = by_size.min(by_room);
    let mut unpacking = Unpacking { out: Unpacked::default(), spool, left_bytes, too_long, max_files };
    match kind {
        ArchiveKind::Zip => unpacking.zip(path)?,
        ArchiveKind::Tar => unpacking.tar(path)?,
    }
    Ok(unpacking.out)
}

struct Unpacking<'a> {
    out: Unpacked,
    spool: &'a mut Spool,
    /// Bytes that the archive may still unpack to.
    left_bytes: u64,
    /// What the archive would exceed.
    too_long: String,
    max_files: usize,
}

impl Unpacking<'_> {
    fn stop(&mut self, why: impl Into<String>) {
        self.out.stopped = Some(why.into());
    }

    fn zip(&mut self, path: &Path) -> io::Result<()> {
        let mut archive = zip::ZipArchive::new(BufReader::new(place::open(path)?))?;
        for at in 0..archive.len() {
            if at == MAX_MEMBERS {
                self.stop(format!("it has more than {MAX_MEMBERS} members"));
            }
            if self.out.stopped.is_some() {
                break;
            }
            match archive.by_index(at) {
                Ok(member) if !member.is_file() => {}
                Ok(mut member) => {
                    let name = member_name(member.name_raw());
                    self.member(name, &mut member)?;
                }
                Err(error) => self.stop(format!("member {at}: {error}")),
            }
        }
        Ok(())
    }

    fn tar(&mut self, path: &Path) -> io::Result<()> {
        let mut archive = tar::Archive::new(Input::open(path)?);
        let mut long_name = None;
        // Raw entries: the crate reads a long name as a whole, however long it is.
        for (at, entry) in archive.entries()?.raw(true).enumerate() {
            if at == MAX_MEMBERS {
                self.stop(format!("it has more than {MAX_MEMBERS} members"));
            }
            if self.out.stopped.is_some() {
                break;
            }
            let mut entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.stop(error.to_string());
                    break;
                }
            };
            let kind = entry.header().entry_type();
            if kind.is_gnu_longname() || kind.is_pax_local_extensions() {
                let mut text = Vec::new();
                if let Err(error) = entry.take(MAX_NAME_BYTES).read_to_end(&mut text) {
                    self.stop(error.to_string());
                }
                long_name = if kind.is_gnu_longname() { Some(text) } else { pax_path(&text) };
            } else if kind.is_file() || kind.is_contiguous() {
                let name = long_name.take().unwrap_or_else(|| entry.path_bytes().into_owned());
                self.member(member_name(&name), &mut entry)?;
            } else {
                long_name = None;
            }
        }
        Ok(())
    }

    /// Copies a member that may be a trace or a dump into a file. Damage ends the copy and the archive, and is reported.
    fn member(&mut self, name: Text, reader: &mut dyn Read) -> io::Result<()> {
        let mut block = vec![0; 256 << 10];
        let mut filled = 0;
        let mut file: Option<File> = None;
        loop {
            match reader.read(&mut block[filled..]) {
                Ok(0) => break,
                Ok(got) => filled += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.stop(format!("{name}: {error}"));
                    break;
                }
            }
            if filled < block.len() && file.is_none() {
                continue;
            }
            if file.is_none() && !self.accept(&name, &block[..filled], &mut file)? {
                return Ok(());
            }
            self.left_bytes = self.left_bytes.saturating_sub(filled as u64);
            if self.left_bytes == 0 {
                self.stop(format!("{name}: the archive unpacks to more than {}", self.too_long));
                break;
            }
            write_all(&mut file, &block[..filled])?;
            filled = 0;
        }
        if file.is_some() || self.accept(&name, &block[..filled], &mut file)? {
            write_all(&mut file, &block[..filled])?;
        }
        Ok(())
    }

    /// Opens a file for a member whose first bytes may be those of a trace or of a dump; false if they may not.
    fn accept(&mut self, name: &Text, head: &[u8], file: &mut Option<File>) -> io::Result<bool> {
        if self.out.members.len() + self.out.others.len() >= self.max_files {
            self.stop(format!("it has more than {} files", self.max_files));
            return Ok(false);
        }
        if !may_be_trace(name, head) && !may_be_dump(name, head) {
            self.out.others.push(name.clone());
            return Ok(false);
        }
        let (path, created) = self.spool.create()?;
        self.out.members.push((name.clone(), path));
        *file = Some(created);
        Ok(true)
    }
}

fn write_all(file: &mut Option<File>, bytes: &[u8]) -> io::Result<()> {
    file.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
}

/// Whether the first bytes are those of JSON or compressed, or the name is that of JSON.
fn may_be_trace(name: &str, head: &[u8]) -> bool {
    let compressed = head.starts_with(&[0x1f, 0x8b]) || head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    compressed || matches!(head.trim_ascii_start().first(), Some(b'{' | b'[')) || is_trace_name(name)
}

/// A name for messages: no control characters, and no part that leads upwards.
fn member_name(bytes: &[u8]) -> Text {
    let bytes = &bytes[..bytes.len().min(MAX_NAME_BYTES as usize)];
    let text = String::from_utf8_lossy(bytes);
    let text: String =
        text.trim_end_matches('\0').chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    let parts: Vec<&str> = text.split(['/', '\\']).filter(|part| !matches!(*part, "" | "." | "..")).collect();
    parts.join("/").into()
}

/// The value of `path` in the records `LENGTH KEY=VALUE\n` of a pax header.
fn pax_path(text: &[u8]) -> Option<Vec<u8>> {
    let mut lines = text.split(|byte| *byte == b'\n');
    lines.find_map(|line| {
        let at = line.iter().position(|byte| *byte == b' ')?;
        line[at + 1..].strip_prefix(b"path=").map(<[u8]>::to_vec)
    })
}

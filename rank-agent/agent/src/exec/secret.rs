//! The secret of a job whose ranks run on several hosts: a file in the directory of the run, which the hosts share.
//!
//! Rank 0 writes it before the ranks meet and removes it afterwards. Only the user may read it, and a rank reads no file of another
//! user, so a stranger on the network neither meets the ranks nor is met by them.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use crate::Error;
use crate::fabric::Stop;
use crate::fabric::sockets::{Token, random};

/// Name of the file.
const SECRET_FILE: &str = ".rankscope-secret";
/// Its length in bytes.
const SECRET_BYTES: usize = 32;
/// Time until the file is looked for again. A network file system is asked each time.
pub(super) const AGAIN: Duration = Duration::from_millis(200);

/// The secret that rank 0 has left. It is removed when this is dropped.
pub(super) struct Left {
    path: PathBuf,
    token: Token,
}

impl Left {
    /// Leaves a new secret in `out`, which is made if it does not exist.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn new(out: &Path) -> Result<Self, Error> {
        let path = out.join(SECRET_FILE);
        let secret: [u8; SECRET_BYTES] = random()?;
        let write = || {
            fs::create_dir_all(out)?;
            // What a job that was killed has left. A new file has the right owner and mode, whatever was there.
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?.write_all(&secret)
        };
        write().map_err(|source| Error::Io { path: path.clone(), source })?;
        Ok(Self { path, token: Token::new(secret) })
    }

    pub(super) fn token(&self) -> &Token {
        &self.token
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        // The run is valid with it, and nobody else can read it.
        let _ = fs::remove_file(&self.path);
    }
}

/// The secret that rank 0 leaves in `out`, once it is there.
///
/// # Errors
/// [`Error::NoSecretFile`] if it is not there in time or belongs to another user; the error of `stop`.
pub(super) fn find_secret(out: &Path, until: Instant, stop: &Stop) -> Result<Token, Error> {
    loop {
        // Reading the directory makes a network file system forget that the file was missing.
        let _ = fs::read_dir(out).map(Iterator::count);
        match read(&out.join(SECRET_FILE)) {
            Ok(token) => return Ok(token),
            Err(why) if Instant::now() >= until => {
                return Err(Error::NoSecretFile { path: out.join(SECRET_FILE), why });
            }
            Err(_) => {}
        }
        stop.check()?;
        std::thread::sleep(AGAIN);
    }
}

fn read(path: &Path) -> Result<Token, String> {
    let text = |error: std::io::Error| error.to_string();
    // A link may lead to a file of another program, and a pipe would wait.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file: File = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path).map_err(text)?;
    let found = file.metadata().map_err(text)?;
    if !found.is_file() || found.uid() != geteuid().as_raw() || found.mode() & 0o077 != 0 {
        return Err("it is not a file that only this user can access".into());
    }
    let mut secret = Vec::new();
    file.take(SECRET_BYTES as u64 + 1).read_to_end(&mut secret).map_err(text)?;
    match secret.len() {
        SECRET_BYTES => Ok(Token::new(secret)),
        length => Err(format!("it has {length} bytes instead of {SECRET_BYTES}")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn found(out: &Path) -> Result<Token, Error> {
        find_secret(out, Instant::now(), &Stop::default())
    }

    /// Invariant (recorder): The secret of a job is read by its user only, and no run keeps it.
    #[test]
    fn the_secret_is_private_and_does_not_stay() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("runs/run");
        assert!(found(&out).is_err());
        let left = Left::new(&out).unwrap();
        let path = out.join(SECRET_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(&found(&out).unwrap() == left.token());
        let again = Left::new(&out).unwrap();
        assert!(again.token() != left.token(), "that of a killed job is replaced");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = found(&out).unwrap_err().to_string();
        assert!(error.contains("only this user can access"), "{error}");
        drop(again);
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
        drop(left);
    }

    #[test]
    fn a_link_or_a_part_is_no_secret() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path();
        let path = out.join(SECRET_FILE);
        fs::write(out.join("other"), [1; SECRET_BYTES]).unwrap();
        fs::set_permissions(out.join("other"), fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(out.join("other"), &path).unwrap();
        assert!(found(out).is_err());
        fs::remove_file(&path).unwrap();
        fs::copy(out.join("other"), &path).unwrap();
        found(out).unwrap();
        for length in [0, SECRET_BYTES - 1, SECRET_BYTES + 1] {
            fs::write(&path, vec![1; length]).unwrap();
            assert!(found(out).unwrap_err().to_string().contains("instead of 32"));
        }
    }
}

//! The place of a file, without allocation.

use std::ffi::{CStr, c_char, c_int};

use libc::AT_FDCWD;

/// PATH_MAX, twice: a directory and a name in it.
const MAX_BYTES: usize = 2 * 4096;

/// An absolute path. Links and `..` in it are not resolved. Empty if it is unknown.
pub(super) struct Place {
    bytes: [u8; MAX_BYTES],
    length: usize,
}

impl Place {
    const UNKNOWN: Self = Self { bytes: [0; MAX_BYTES], length: 0 };

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(super) fn is_below(&self, directory: &[u8]) -> bool {
        self.bytes().strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
    }

    /// The place of an open file.
    pub(super) fn of_file(file: c_int) -> Self {
        let Ok(mut number) = u32::try_from(file) else { return Self::UNKNOWN };
        // The digits of the number before a zero byte, from the last.
        let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
        let (mut digits, mut count) = ([0; 10], 0);
        loop {
            digits[count] = b'0' + (number % 10) as u8;
            (number, count) = (number / 10, count + 1);
            if number == 0 {
                break;
            }
        }
        for (at, digit) in digits[..count].iter().rev().enumerate() {
            link["/proc/self/fd/".len() + at] = *digit;
        }
        Self::of_link(&link)
    }

    fn of_link(link: &[u8]) -> Self {
        let mut place = Self::UNKNOWN;
        // SAFETY: the text ends with a zero, and the result has room for half of its bytes.
        let length = unsafe {
            libc::syscall(libc::SYS_readlinkat, AT_FDCWD, link.as_ptr(), place.bytes.as_mut_ptr(), MAX_BYTES / 2)
        };
        place.length = usize::try_from(length).unwrap_or(0);
        place
    }

    /// The place of a path, as the C library's functions take it.
    pub(super) fn of_path(directory: c_int, path: *const c_char) -> Self {
        if path.is_null() {
            return Self::UNKNOWN;
        }
        // SAFETY: the caller's path ends with a zero.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        let mut place = match path.first() {
            Some(b'/') => return Self::UNKNOWN.joined(path),
            _ if directory == AT_FDCWD => Self::of_link(b"/proc/self/cwd\0"),
            _ => Self::of_file(directory),
        };
        // An empty path is that of the directory itself.
        if !path.is_empty() && place.length > 0 {
            place = place.joined(b"/").joined(path);
        }
        place
    }

    fn joined(mut self, part: &[u8]) -> Self {
        let taken = part.len().min(MAX_BYTES - self.length);
        self.bytes[self.length..self.length + taken].copy_from_slice(&part[..taken]);
        self.length += taken;
        self
    }
}

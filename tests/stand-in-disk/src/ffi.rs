//! The C library's functions on files, replaced for the whole process. Nothing here allocates or locks after
//! `start`: the program may call from a signal handler or from a child between fork and exec.

mod place;

use std::env;
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use libc::{AT_FDCWD, EINTR, EIO, ENOSPC, iovec, mode_t, off64_t, size_t, ssize_t};

use self::place::Place;
use crate::{REPORT_BYTES, TEXT_BYTES};

/// The settings; null before [`start`] and without the variables.
static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(null_mut());

struct Settings {
    directory: Vec<u8>,
    kind: Kind,
    number: u64,
    report: *mut u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Once,
    Lasting,
    Short,
    Interrupted,
}

/// The outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    Failed,
    Short,
}

impl Settings {
    /// From the variables, and the report, which all processes of the command share.
    fn read() -> Option<Self> {
        let fault = env::var("STAND_IN_DISK_FAULT").ok()?;
        let (kind, number) = fault.split_once(' ')?;
        let kind = match kind {
            "once" => Kind::Once,
            "lasting" => Kind::Lasting,
            "short" => Kind::Short,
            "interrupted" => Kind::Interrupted,
            _ => return None,
        };
        let report = std::fs::File::options().read(true).write(true).open(env::var_os("STAND_IN_DISK_REPORT")?).ok()?;
        let file = std::os::fd::AsRawFd::as_raw_fd(&report);
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of an open file.
        let report = unsafe { libc::mmap(null_mut(), REPORT_BYTES, access, shared, file, 0) };
        let directory = env::var_os("STAND_IN_DISK_DIRECTORY")?.as_bytes().to_vec();
        let number = number.parse().ok()?;
        (report != libc::MAP_FAILED).then_some(Self { directory, kind, number, report: report.cast() })
    }

    fn counter(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the mapping is aligned to a page, is never unmapped and begins with two numbers.
        unsafe { &*self.report.cast::<AtomicU64>().add(index) }
    }

    fn describe(&self, function: &str, place: &Place) {
        let text = function.bytes().chain([b' ']).chain(place.bytes().iter().copied()).take(TEXT_BYTES - 1);
        for (at, byte) in text.enumerate() {
            // SAFETY: the mapping has this many bytes behind the two numbers.
            unsafe { self.report.add(16 + at).write_volatile(byte) };
        }
    }

    fn fate(&self, function: &str, place: &Place, moves_bytes: bool) -> Fate {
        let counts = moves_bytes || matches!(self.kind, Kind::Once | Kind::Lasting);
        if !counts || !place.is_below(&self.directory) {
            return Fate::Done;
        }
        let number = self.counter(0).fetch_add(1, Ordering::Relaxed) + 1;
        let fails = self.number != 0 && (number == self.number || (number > self.number && self.kind == Kind::Lasting));
        if !fails {
            return Fate::Done;
        }
        self.counter(1).fetch_add(1, Ordering::Relaxed);
        if number == self.number {
            self.describe(function, place);
        }
        if self.kind == Kind::Short { Fate::Short } else { Fate::Failed }
    }

    fn error(&self, writes: bool) -> c_int {
        match self.kind {
            Kind::Interrupted => EINTR,
            _ if writes => ENOSPC,
            _ => EIO,
        }
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs when the library is loaded, before the program.
extern "C" fn start() {
    if let Some(settings) = Settings::read() {
        SETTINGS.store(Box::into_raw(Box::new(settings)), Ordering::Release);
    }
}

fn settings() -> Option<&'static Settings> {
    // SAFETY: the pointer is null or that of a value that is never freed.
    unsafe { SETTINGS.load(Ordering::Acquire).as_ref() }
}

fn errno() -> *mut c_int {
    // SAFETY: the function has no preconditions.
    unsafe { libc::__errno_location() }
}

/// Calls `perform` unless the call fails.
fn guarded(function: &str, place: impl FnOnce() -> Place, perform: impl FnOnce() -> c_long) -> c_long {
    match fate(function, place, false) {
        Fate::Done | Fate::Short => perform(),
        Fate::Failed => -1,
    }
}

/// Calls `perform` with the number of bytes that may be transferred, unless the call fails.
fn transfer(function: &str, file: c_int, bytes: usize, perform: impl FnOnce(usize) -> c_long) -> ssize_t {
    let moved = match fate(function, || Place::of_file(file), true) {
        Fate::Done => perform(bytes),
        // No byte would be the end of the file.
        Fate::Short => perform(bytes.div_ceil(2)),
        Fate::Failed => -1,
    };
    moved as ssize_t
}

/// The fate of a call. For one that fails, errno is set, else it is kept.
fn fate(function: &str, place: impl FnOnce() -> Place, moves_bytes: bool) -> Fate {
    let Some(settings) = settings() else { return Fate::Done };
    // SAFETY: the C library's errno of this thread is always valid.
    let before = unsafe { *errno() };
    let fate = settings.fate(function, &place(), moves_bytes);
    let writes = ["write", "ftruncate"].contains(&function);
    // SAFETY: as above.
    unsafe { *errno() = if fate == Fate::Failed { settings.error(writes) } else { before } };
    fate
}

/// A system call; sets errno.
macro_rules! system_call {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: the kernel checks its arguments, which are those of the caller.
        unsafe { libc::syscall(libc::$number $(, $argument)*) }
    };
}

// SAFETY of the names below: no other object of the program defines them, and the signatures are those of the C library.
// `open` is declared with `...` there; a third argument is passed in the same way.

#[unsafe(no_mangle)]
extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    openat64(AT_FDCWD, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    openat64(AT_FDCWD, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    openat64(directory, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let perform = || system_call!(SYS_openat, directory, path, flags, mode);
    guarded("open", || Place::of_path(directory, path), perform) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = openat64(AT_FDCWD, path, flags, 0);
    // SAFETY: the descriptor is that of a directory, and the result owns it.
    if file < 0 { null_mut() } else { unsafe { libc::fdopendir(file) } }
}

#[unsafe(no_mangle)]
extern "C" fn readdir64(directory: *mut libc::DIR) -> *mut libc::dirent64 {
    type ReadDir = unsafe extern "C" fn(*mut libc::DIR) -> *mut libc::dirent64;
    // SAFETY: the caller's directory is open.
    let file = unsafe { libc::dirfd(directory) };
    if fate("readdir", || Place::of_file(file), false) == Fate::Failed {
        return null_mut();
    }
    // SAFETY: the name is that of a function with this signature.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"readdir64".as_ptr());
        std::mem::transmute::<*mut c_void, ReadDir>(next)(directory)
    }
}

#[unsafe(no_mangle)]
extern "C" fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    type RealPath = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char;
    if fate("realpath", || Place::of_path(AT_FDCWD, path), false) == Fate::Failed {
        return null_mut();
    }
    // SAFETY: the name is that of a function with this signature.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"realpath".as_ptr());
        std::mem::transmute::<*mut c_void, RealPath>(next)(path, resolved)
    }
}

#[unsafe(no_mangle)]
extern "C" fn read(file: c_int, bytes: *mut c_void, length: size_t) -> ssize_t {
    transfer("read", file, length, |length| system_call!(SYS_read, file, bytes, length))
}

#[unsafe(no_mangle)]
extern "C" fn pread64(file: c_int, bytes: *mut c_void, length: size_t, at: off64_t) -> ssize_t {
    transfer("read", file, length, |length| system_call!(SYS_pread64, file, bytes, length, at))
}

#[unsafe(no_mangle)]
extern "C" fn readv(file: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    transfer("read", file, count as usize, |count| system_call!(SYS_readv, file, parts, count))
}

#[unsafe(no_mangle)]
extern "C" fn write(file: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    transfer("write", file, length, |length| system_call!(SYS_write, file, bytes, length))
}

#[unsafe(no_mangle)]
extern "C" fn pwrite64(file: c_int, bytes: *const c_void, length: size_t, at: off64_t) -> ssize_t {
    transfer("write", file, length, |length| system_call!(SYS_pwrite64, file, bytes, length, at))
}

#[unsafe(no_mangle)]
extern "C" fn writev(file: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    transfer("write", file, count as usize, |count| system_call!(SYS_writev, file, parts, count))
}

#[unsafe(no_mangle)]
extern "C" fn copy_file_range(
    from: c_int,
    from_at: *mut off64_t,
    to: c_int,
    to_at: *mut off64_t,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    let perform = |length: usize| system_call!(SYS_copy_file_range, from, from_at, to, to_at, length, flags);
    transfer("write", to, length, perform)
}

#[unsafe(no_mangle)]
extern "C" fn sendfile64(to: c_int, from: c_int, at: *mut off64_t, length: size_t) -> ssize_t {
    transfer("write", to, length, |length| system_call!(SYS_sendfile, to, from, at, length))
}

#[unsafe(no_mangle)]
extern "C" fn mmap64(
    address: *mut c_void,
    length: size_t,
    access: c_int,
    flags: c_int,
    file: c_int,
    at: off64_t,
) -> *mut c_void {
    let perform = || system_call!(SYS_mmap, address, length, access, flags, file, at);
    guarded("mmap", || Place::of_file(file), perform) as *mut c_void
}

#[unsafe(no_mangle)]
extern "C" fn fsync(file: c_int) -> c_int {
    guarded("fsync", || Place::of_file(file), || system_call!(SYS_fsync, file)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(file: c_int) -> c_int {
    guarded("fdatasync", || Place::of_file(file), || system_call!(SYS_fdatasync, file)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn ftruncate64(file: c_int, length: off64_t) -> c_int {
    guarded("ftruncate", || Place::of_file(file), || system_call!(SYS_ftruncate, file, length)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    renameat2(AT_FDCWD, from, AT_FDCWD, to, 0)
}

#[unsafe(no_mangle)]
extern "C" fn renameat(from_in: c_int, from: *const c_char, to_in: c_int, to: *const c_char) -> c_int {
    renameat2(from_in, from, to_in, to, 0)
}

#[unsafe(no_mangle)]
extern "C" fn renameat2(from_in: c_int, from: *const c_char, to_in: c_int, to: *const c_char, flags: c_uint) -> c_int {
    let perform = || system_call!(SYS_renameat2, from_in, from, to_in, to, flags);
    guarded("rename", || Place::of_path(to_in, to), perform) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn linkat(from_in: c_int, from: *const c_char, to_in: c_int, to: *const c_char, flags: c_int) -> c_int {
    let perform = || system_call!(SYS_linkat, from_in, from, to_in, to, flags);
    guarded("link", || Place::of_path(to_in, to), perform) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn unlink(path: *const c_char) -> c_int {
    unlinkat(AT_FDCWD, path, 0)
}

#[unsafe(no_mangle)]
extern "C" fn rmdir(path: *const c_char) -> c_int {
    unlinkat(AT_FDCWD, path, libc::AT_REMOVEDIR)
}

#[unsafe(no_mangle)]
extern "C" fn unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
    let perform = || system_call!(SYS_unlinkat, directory, path, flags);
    guarded("unlink", || Place::of_path(directory, path), perform) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    let perform = || system_call!(SYS_mkdirat, AT_FDCWD, path, mode);
    guarded("mkdir", || Place::of_path(AT_FDCWD, path), perform) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn statx(directory: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut c_void) -> c_int {
    let perform = || system_call!(SYS_statx, directory, path, flags, mask, to);
    guarded("stat", || Place::of_path(directory, path), perform) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn stat64(path: *const c_char, to: *mut c_void) -> c_int {
    fstatat64(AT_FDCWD, path, to, 0)
}

#[unsafe(no_mangle)]
extern "C" fn lstat64(path: *const c_char, to: *mut c_void) -> c_int {
    fstatat64(AT_FDCWD, path, to, libc::AT_SYMLINK_NOFOLLOW)
}

#[unsafe(no_mangle)]
extern "C" fn fstat64(file: c_int, to: *mut c_void) -> c_int {
    guarded("stat", || Place::of_file(file), || system_call!(SYS_fstat, file, to)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn fstatat64(directory: c_int, path: *const c_char, to: *mut c_void, flags: c_int) -> c_int {
    let perform = || system_call!(SYS_newfstatat, directory, path, to, flags);
    guarded("stat", || Place::of_path(directory, path), perform) as c_int
}

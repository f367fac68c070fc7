//! Compiles the kernels' sources for the present device, once per machine.
//!
//! NVRTC's output is cached in `$XDG_CACHE_HOME/rankscope` or `~/.cache/rankscope`; the file's name depends on source,
//! architecture and compiler. A file is written under a temporary name and renamed, and holds its length and checksum, so
//! that a reader never takes an incomplete file for a complete one. Without a cache the kernels are compiled at every start,
//! which takes about a second.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use twox_hash::XxHash3_64;

use super::ffi::nvrtc;
use crate::error::Result;

/// A file of CUDA C and the kernels in it.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// File name in the compiler's messages.
    pub file: &'static str,
    /// Text of the file.
    pub text: &'static str,
    /// Names of its kernels.
    pub kernels: &'static [&'static str],
}

/// All sources.
pub const SOURCES: [Source; 3] = [
    Source {
        file: "elementwise.cu",
        text: include_str!("source/elementwise.cu"),
        kernels: &["bias_relu", "bias_add", "fill", "to_bf16", "bucket_pack", "bucket_unpack", "sgd_momentum"],
    },
    Source {
        file: "reduce.cu",
        text: include_str!("source/reduce.cu"),
        kernels: &["column_sums", "sum_partials", "cross_entropy_rows", "mean_loss"],
    },
    Source {
        file: "training.cu",
        text: include_str!("source/training.cu"),
        kernels: &["cluster_batch", "add_checksum", "injected_delay", "end_step"],
    },
];

/// Compiled code for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// A cubin or PTX.
    pub code: Vec<u8>,
    /// Whether it came from the cache.
    pub was_cached: bool,
}

/// The architecture to compile for on a device of `capability` (such as 90): its own if the compiler supports it; else the
/// newest older one as PTX, which the driver translates (`true`).
pub fn target(capability: u32, known: &[u32]) -> Option<(u32, bool)> {
    if known.contains(&capability) {
        return Some((capability, false));
    }
    known.iter().copied().filter(|architecture| *architecture < capability).max().map(|newest| (newest, true))
}

/// Returns the compiled source, from the cache or from the compiler.
///
/// # Errors
/// The compiler's error. A cache that cannot be read or written is not an error.
pub fn image(source: &Source, (architecture, portable): (u32, bool), cache: Option<&Path>) -> Result<Image> {
    let (major, minor) = nvrtc::version()?;
    let options = nvrtc::options(architecture, portable).join(" ");
    let key = format!("{}\0{}\0{options}\0{major}.{minor}", source.file, source.text);
    let file = cache.map(|cache| {
        let kind = if portable { "ptx" } else { "cubin" };
        cache.join(format!("{}-{:016x}-sm_{architecture}.{kind}", source.file, XxHash3_64::oneshot(key.as_bytes())))
    });
    if let Some(code) = file.as_deref().and_then(read) {
        return Ok(Image { code, was_cached: true });
    }
    let code = nvrtc::compile(source.file, source.text, architecture, portable)?;
    if let Some(file) = file {
        write(&file, &code);
    }
    Ok(Image { code, was_cached: false })
}

/// The directory of the cache.
pub fn cache_directory(env: &dyn Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    let set = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache"))).map(|cache| cache.join("rankscope"))
}

const MAGIC: &[u8; 8] = b"RSKERNEL";

/// The code in a file of the cache; `None` if it is absent, cut or damaged.
fn read(file: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(file).ok()?;
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (sum, code) = rest.split_first_chunk::<8>()?;
    let is_whole = magic == MAGIC
        && u64::from_le_bytes(*length) == code.len() as u64
        && u64::from_le_bytes(*sum) == XxHash3_64::oneshot(code)
        && !code.is_empty();
    is_whole.then(|| code.to_vec())
}

/// Caches code for the next start. After an error the next start compiles again.
fn write(file: &Path, code: &[u8]) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let Some(directory) = file.parent() else { return };
    let temporary = file.with_extension(format!("{}-{number}.tmp", std::process::id()));
    let mut bytes = Vec::with_capacity(24 + code.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(code.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&XxHash3_64::oneshot(code).to_le_bytes());
    bytes.extend_from_slice(code);
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(&temporary, &bytes))
        .and_then(|()| std::fs::rename(&temporary, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_in_its_source_and_listed() {
        for source in SOURCES {
            let declared: Vec<&str> = source
                .text
                .split("extern \"C\" __global__ void ")
                .skip(1)
                .filter_map(|rest| rest.split('(').next())
                .collect();
            assert_eq!(declared, source.kernels, "{}", source.file);
        }
    }

    #[test]
    fn the_target_is_the_device_or_an_older_architecture() {
        assert_eq!(target(90, &[75, 80, 90, 100]), Some((90, false)));
        assert_eq!(target(86, &[75, 80, 90]), Some((80, true)));
        assert_eq!(target(121, &[75, 80, 90]), Some((90, true)));
        assert_eq!(target(70, &[75, 80, 90]), None);
    }

    #[test]
    fn the_cache_follows_its_variables() {
        let at = |cache: &str, home: &str| {
            cache_directory(&|name| match name {
                "XDG_CACHE_HOME" => Some(cache.into()),
                "HOME" => Some(home.into()),
                _ => None,
            })
        };
        assert_eq!(at("/c", "/h"), Some("/c/rankscope".into()));
        assert_eq!(at("", "/h"), Some("/h/.cache/rankscope".into()));
        assert_eq!(at("", ""), None);
    }

    #[test]
    fn an_incomplete_cache_file_is_not_used() {
        let directory = std::env::temp_dir().join(format!("rankscope-cache-{}", std::process::id()));
        let file = directory.join("a.cubin");
        assert_eq!(read(&file), None);
        write(&file, b"machine code");
        assert_eq!(read(&file).as_deref(), Some(&b"machine code"[..]));
        let whole = std::fs::read(&file).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&file, &whole[..cut]).unwrap();
            assert_eq!(read(&file), None, "cut at {cut}");
        }
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 1;
            std::fs::write(&file, &damaged).unwrap();
            assert_eq!(read(&file), None, "damaged at {place}");
        }
        // With several writers the file is always complete.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..50).for_each(|_| write(&file, b"machine code")));
            }
        });
        assert_eq!(read(&file).as_deref(), Some(&b"machine code"[..]));
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "no temporary file is left");
        std::fs::remove_dir_all(&directory).unwrap();
        // A directory that cannot be created is not an error.
        write(Path::new("/proc/none/a.cubin"), b"machine code");
    }
}

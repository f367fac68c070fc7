//! `rankscope doctor`: what `exec` would record on this machine, what it would not, and what to do about that.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agent::console;
use agent::exec::doctor::{Check, Found, checks};
use clap::Args;
use sources::{cupti, nccl};
use trace::files::ScratchDirectory;
use trace::terminal::{self, Form};

/// Say what `exec` would record on this machine, and what not
///
/// Looks for the library that records, the NVIDIA driver, CUPTI and NCCL, other tools in their place, the directory of `ctl`, the launcher,
/// the clock and the disk. Run it where the program runs: on a node of the job, in its container and virtual environment.
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub(crate) struct Arguments {
    /// Directory into which runs will be written
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

const AFTER: &str = "\
Examples:
  rankscope doctor
  srun --nodes 1 rankscope doctor --out /scratch/runs

Exit codes: 0 all is recorded; 1 something is not, and the line says what to do; 2 usage.";

/// Least free room for a run.
const LEAST_BYTES: u64 = 1 << 30;
/// Clock sources that are read without a call of the kernel: of x86-64, of virtual machines by KVM and Hyper-V, of aarch64
/// (linux drivers/clocksource, arch/x86/kernel).
const FAST_CLOCKS: [&str; 4] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];
const DRIVER: &str = "/proc/driver/nvidia";
const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Prints a line for each check and returns the exit code.
pub(crate) fn main(arguments: &Arguments, program: &'static str) -> ExitCode {
    let mut all = checks();
    all.extend([driver(Path::new(DRIVER)), cupti(), nccl(), clock(Path::new(CLOCK)), disk(&arguments.out)]);
    let width = all.iter().map(|check| check.what.len()).max().unwrap_or(0);
    let mut text = format!("{program} {}\n", env!("CARGO_PKG_VERSION"));
    for Check { what, found } in &all {
        let sign = match found {
            Found::Well(_) => "ok",
            Found::Remark(_) => "--",
            Found::Lacking(_) => "NO",
        };
        text.push_str(&format!("  {sign}  {what:width$}  {}\n", terminal::line(found.said())));
    }
    let is_well = !all.iter().any(|check| matches!(check.found, Found::Lacking(_)));
    match console::print_output(text.as_bytes(), Form::Text) {
        Ok(()) => ExitCode::from(u8::from(!is_well)),
        Err(error) => console::fail(program, &error, None),
    }
}

/// The driver, and the devices that it shows.
fn driver(root: &Path) -> Check {
    let version = fs::read_to_string(root.join("version")).ok();
    let version =
        version.as_deref().and_then(|text| text.lines().next()).map(|line| line.trim_start_matches("NVRM version: "));
    let found = match version {
        None => Err("there is no NVIDIA driver here, so CUDA and NCCL are not recorded; for PyTorch on the CPU, use rankscope.torch".into()),
        Some(version) => {
            let devices = fs::read_dir(root.join("gpus")).into_iter().flatten().flatten();
            let mut models: Vec<String> = devices.filter_map(|device| model(&device.path())).collect();
            models.sort();
            match models.len() {
                0 => Err(format!("{version}, but it shows no device here")),
                count => {
                    models.dedup();
                    Ok(format!("{version}; {count} × {}", models.join(", ")))
                }
            }
        }
    };
    Check { what: "driver", found: Found::of(found) }
}

fn model(device: &Path) -> Option<String> {
    let text = fs::read_to_string(device.join("information")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
    Some(line.trim().to_string())
}

/// The static command has no loader for the libraries of others.
const CANNOT_LOOK: &str = "the static command cannot look for it; ask the wheel's or the usual command";

fn cupti() -> Check {
    if cfg!(target_env = "musl") {
        return Check { what: "CUPTI", found: Found::Remark(CANNOT_LOOK.into()) };
    }
    let said = |(path, version): (PathBuf, String)| format!("{version}, {}", path.display());
    let found = cupti::find().map(said).map_err(|error| format!("kernels and copies are not recorded: {error}"));
    Check { what: "CUPTI", found: Found::of(found) }
}

fn nccl() -> Check {
    if cfg!(target_env = "musl") {
        return Check { what: "NCCL", found: Found::Remark(CANNOT_LOOK.into()) };
    }
    let found = match nccl::find() {
        Ok(nccl::Found { path, version: (major, minor, patch) }) => {
            let said = format!("{major}.{minor}.{patch}, {}", path.display());
            // The plugin interface that rankscope knows begins with 2.26.
            if (major, minor) >= (2, 26) {
                Ok(said)
            } else {
                Err(format!("{said}: collectives are not recorded; NCCL 2.26 or newer is needed"))
            }
        }
        Err(tried) => {
            let tried: Vec<String> = tried.iter().map(|path| path.display().to_string()).collect();
            Err(format!(
                "not found (tried {}): collectives are recorded only if the program brings its own NCCL; activate its environment and \
                 look again",
                tried.join(", ")
            ))
        }
    };
    Check { what: "NCCL", found: Found::of(found) }
}

fn clock(source: &Path) -> Check {
    let found = match fs::read_to_string(source) {
        Ok(name) if FAST_CLOCKS.contains(&name.trim()) => Found::Well(name.trim().into()),
        Ok(name) => Found::Remark(format!(
            "{}: the kernel is called for each timestamp, which costs the program more than with {}",
            name.trim(),
            FAST_CLOCKS[0]
        )),
        Err(error) => Found::Remark(format!("its source is not known: {}: {error}", source.display())),
    };
    Check { what: "clock", found }
}

fn disk(out: &Path) -> Check {
    let found = match room(out) {
        Err(error) => Found::Lacking(format!("{}: {error}", out.display())),
        Ok(bytes) => {
            let said = format!("{}: {:.1} GB are free", out.display(), bytes as f64 / 1e9);
            match bytes < LEAST_BYTES {
                true => Found::Remark(format!("{said}; rows that find no room are lost, and counted")),
                false => Found::Well(said),
            }
        }
    };
    Check { what: "disk", found }
}

/// The free bytes of a directory in which a file can be made, or of the first parent that exists.
fn room(out: &Path) -> std::io::Result<u64> {
    let out = if out.as_os_str().is_empty() { Path::new(".") } else { out };
    if let (false, Some(parent)) = (out.exists(), out.parent()) {
        return room(parent);
    }
    ScratchDirectory::create_in(out)?.free_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_the_driver_are_counted_by_model() {
        let root = tempfile::tempdir().unwrap();
        assert!(driver(root.path()).found.said().contains("no NVIDIA driver"));
        fs::write(root.path().join("version"), "NVRM version: NVIDIA UNIX 580.82\nGCC version: 12\n").unwrap();
        assert_eq!(driver(root.path()).found, Found::Lacking("NVIDIA UNIX 580.82, but it shows no device here".into()));
        for device in ["0000:01:00.0", "0000:02:00.0"] {
            let device = root.path().join("gpus").join(device);
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("information"), "Model: \t\t NVIDIA H200\nIRQ:   \t\t 1\n").unwrap();
        }
        assert_eq!(driver(root.path()).found, Found::Well("NVIDIA UNIX 580.82; 2 × NVIDIA H200".into()));
    }

    #[test]
    fn a_slow_clock_and_a_missing_directory_are_said() {
        let root = tempfile::tempdir().unwrap();
        let source = root.path().join("source");
        assert!(clock(&source).found.said().contains("not known"));
        fs::write(&source, "hpet\n").unwrap();
        assert!(matches!(clock(&source).found, Found::Remark(said) if said.contains("hpet")));
        fs::write(&source, "tsc\n").unwrap();
        assert_eq!(clock(&source).found, Found::Well("tsc".into()));
        assert!(disk(&root.path().join("runs/new")).found.said().contains("GB are free"));
        assert!(matches!(disk(&source.join("inside")).found, Found::Lacking(_)));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing is left");
    }
}

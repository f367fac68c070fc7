//! What cargo would compile, read without compiling.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// What launch/quickstart builds.
const COMMANDS: [&str; 4] = ["rankscope", "aggregator", "rankscope-inject", "rank-agent"];

/// The crates of a build with their features, one a line.
fn crates_of(packages: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--offline", "--edges", "normal,build", "--prefix", "none", "--no-dedupe"])
        .args(["--format", "{p} with {f}"])
        .args(packages.iter().flat_map(|package| ["-p", *package]))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect()
}

/// Cargo compiles a crate again for other features, and then all crates above it.
#[test]
fn a_build_of_one_command_compiles_no_crate_again() {
    let of_all = crates_of(&COMMANDS);
    assert!(of_all.iter().any(|name| name.starts_with("parquet ")), "{of_all:#?}");
    for command in COMMANDS {
        let other: Vec<String> = crates_of(&[command]).difference(&of_all).cloned().collect();
        assert!(
            other.is_empty(),
            "{command} alone has other features; trace/Cargo.toml says how to align them: {other:#?}"
        );
    }
}

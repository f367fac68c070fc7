//! Imports point one way, between crates and between the folders of each crate, and files form no circle but those that are listed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use rankscope_tests::layers::{self, Modules, Room, read_sources};
use rankscope_tests::rooms::{CIRCLES, CRATES, DEV_OF_ONE, DEV_ONLY, FOLDERS};

/// Dependencies of ours that the table does not allow, as sentences, whatever their kind (plain, dev, build, optional,
/// renamed, per target).
fn forbidden_imports(metadata: &serde_json::Value, root: &Path, crates: &[Room<'_>]) -> Vec<String> {
    let packages = metadata["packages"].as_array().unwrap();
    let allowed: BTreeMap<&str, &[&str]> = crates.iter().copied().collect();
    let mut wrong = Vec::new();
    for package in packages {
        let folder = relative(root, Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap());
        let Some(may) = allowed.get(folder.as_str()) else {
            wrong.push(format!("{folder} is in no room: add it to rooms::CRATES"));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            // A crate of ours has a path, whatever its name is here.
            let Some(path) = dependency["path"].as_str() else { continue };
            let other = relative(root, Path::new(path));
            let kind = dependency["kind"].as_str().unwrap_or("plain");
            let of_one = || DEV_OF_ONE.contains(&(folder.as_str(), other.as_str()));
            let dev_only = kind == "dev" && (DEV_ONLY.contains(&other.as_str()) && folder != "trace" || of_one());
            if !may.contains(&other.as_str()) && !dev_only {
                wrong.push(format!("{folder} imports {other} ({kind} dependency)"));
            }
        }
    }
    wrong
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn metadata() -> serde_json::Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(workspace_root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The modules of every crate of the table.
fn modules() -> Vec<(&'static str, Modules)> {
    let mut found = Vec::new();
    for (name, _) in CRATES {
        let src = workspace_root().join(name).join("src");
        assert!(src.is_dir(), "{name} has no src: take it out of rooms::CRATES");
        found.push((*name, Modules::parse(&read_sources(&src).unwrap())));
    }
    found
}

/// Arrows against the table of the crate's folders.
fn back_arrows(name: &str, modules: &Modules) -> Vec<String> {
    let Some((_, rooms)) = FOLDERS.iter().find(|(crate_name, _)| *crate_name == name) else { return Vec::new() };
    let there: BTreeSet<&str> = modules.modules.iter().filter_map(|m| Some(m.first()?.as_str())).collect();
    let missing: Vec<&str> = rooms.iter().map(|(room, _)| *room).filter(|room| !there.contains(room)).collect();
    let mut wrong = modules.back_arrows(rooms);
    wrong.extend(missing.iter().map(|room| format!("{room} of the table does not exist")));
    wrong
}

/// Invariant (code): Imports point one way, between crates and between the folders of a crate.
#[test]
fn imports_point_one_way() {
    assert_eq!(forbidden_imports(&metadata(), &workspace_root(), CRATES), Vec::<String>::new());
    for (name, modules) in modules() {
        let wrong = back_arrows(name, &modules);
        assert!(wrong.is_empty(), "{name}: {wrong:#?}");
    }
}

/// Invariant (code): Files of a crate do not import each other in circles, a parent and its child included, beyond those that are listed.
#[test]
fn files_do_not_import_each_other_in_circles() {
    let (mut found, mut shown) = (Vec::new(), Vec::new());
    for (name, modules) in modules() {
        for circle in modules.components() {
            let members: Vec<String> = circle.modules.iter().map(|module| layers::shown(module)).collect();
            found.push((name.to_string(), members.join(", ")));
            shown.push(format!("{name}: {circle}"));
        }
    }
    let listed: Vec<(String, String)> = CIRCLES.iter().map(|(name, of)| (name.to_string(), of.to_string())).collect();
    let new = found.iter().zip(&shown).filter(|(circle, _)| !listed.contains(circle));
    let new: Vec<&String> = new.map(|(_, shown)| shown).collect();
    let gone: Vec<_> = listed.iter().filter(|circle| !found.contains(circle)).collect();
    println!("{} circles of files", found.len());
    assert!(new.is_empty() && gone.is_empty(), "new: {new:#?}\nnot there any more: {gone:#?}");
}

#[test]
fn the_rule_catches_every_form_of_a_forbidden_import() {
    let text = r#"{"packages": [
        {"manifest_path": "/r/trace/Cargo.toml", "dependencies": [
            {"name": "rankscope-recorder", "path": "/r/rank-agent/recorder", "kind": null, "rename": "r", "optional": true}]},
        {"manifest_path": "/r/rank-agent/recorder/Cargo.toml", "dependencies": [
            {"name": "trace", "path": "/r/trace", "kind": null},
            {"name": "fixtures", "path": "/r/fixtures", "kind": "dev"},
            {"name": "aggregator", "path": "/r/aggregator", "kind": "dev"}]},
        {"manifest_path": "/r/aggregator/Cargo.toml", "dependencies": [
            {"name": "rank-agent", "path": "/r/rank-agent", "kind": "build"},
            {"name": "fixtures", "path": "/r/fixtures", "kind": null},
            {"name": "rayon", "kind": null}]},
        {"manifest_path": "/r/rank-agent/Cargo.toml", "dependencies": [
            {"name": "trace", "path": "/r/trace", "kind": null}]},
        {"manifest_path": "/r/attic/Cargo.toml", "dependencies": []}
    ]}"#;
    let expected = [
        "trace imports rank-agent/recorder (plain dependency)",
        "rank-agent/recorder imports aggregator (dev dependency)",
        "aggregator imports rank-agent (build dependency)",
        "aggregator imports fixtures (plain dependency)",
        "attic is in no room: add it to rooms::CRATES",
    ];
    assert_eq!(forbidden_imports(&serde_json::from_str(text).unwrap(), Path::new("/r"), CRATES), expected);
}

/// Invariant (code): Only the feature `mpi` needs MPI.
///
/// Crates that must build and run with no MPI, no libclang and no GPU do not have MPI's bindings in their graph.
#[test]
fn only_the_mpi_feature_brings_mpi() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let tree = |folder: &str, flags: &[&str]| {
        let output = Command::new(&cargo)
            .args(["tree", "--locked", "--offline", "--edges", "normal,build,dev", "--prefix", "none"])
            .args(flags)
            .current_dir(workspace_root().join(folder))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for (folder, _) in CRATES.iter().filter(|(folder, _)| !matches!(*folder, "rank-agent" | "rank-agent/mpi" | "tests"))
    {
        assert!(!tree(folder, &[]).contains("mpi-sys"), "{folder} needs MPI");
    }
    assert!(!tree("rank-agent", &["--no-default-features"]).contains("mpi-sys"));
    assert!(tree("rank-agent", &[]).contains("mpi-sys"), "the test above looks for the wrong name");
}

//! Imports point one way, whatever the kind of the dependency (plain, dev, build, optional, renamed, per target).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What each room may import of ours. A room that is not listed is an error: say here where it stands.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("trace", &[]),
    ("kernels", &[]),
    ("launch", &[]),
    ("recorder", &["trace"]),
    ("rank-agent", &["trace", "recorder", "kernels", "launch"]),
    ("inject", &["trace", "recorder"]),
    ("aggregator", &["trace", "launch"]),
    ("rankscope-examples", &["trace", "recorder"]),
    ("stand-in-cupti", &[]),
    ("stand-in-plugin", &[]),
    (
        "rankscope-tests",
        &[
            "trace",
            "kernels",
            "launch",
            "recorder",
            "inject",
            "rank-agent",
            "aggregator",
            "stand-in-cupti",
            "stand-in-plugin",
        ],
    ),
];

/// `(package, package)` pairs that break the rule, as sentences.
fn forbidden_imports(metadata: &serde_json::Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().unwrap();
    let members: Vec<&str> = packages.iter().map(|p| p["name"].as_str().unwrap()).collect();
    let allowed: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let Some(may) = allowed.get(name) else {
            wrong.push(format!("{name} is in no room: add it to MAY_IMPORT"));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            // `name` is the package's name also where the dependency is renamed.
            let other = dependency["name"].as_str().unwrap();
            if members.contains(&other) && !may.contains(&other) {
                let kind = dependency["kind"].as_str().unwrap_or("plain");
                wrong.push(format!("{name} imports {other} ({kind} dependency)"));
            }
        }
    }
    wrong
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

#[test]
fn imports_point_one_way() {
    assert_eq!(forbidden_imports(&metadata()), Vec::<String>::new());
}

#[test]
fn the_rule_catches_every_form_of_a_forbidden_import() {
    let text = r#"{"packages": [
        {"name": "trace", "dependencies": [{"name": "recorder", "kind": null, "rename": "r", "optional": true}]},
        {"name": "recorder", "dependencies": [{"name": "trace", "kind": null}, {"name": "aggregator", "kind": "dev"}]},
        {"name": "aggregator", "dependencies": [{"name": "rank-agent", "kind": "build"}, {"name": "rayon", "kind": null}]},
        {"name": "rank-agent", "dependencies": [{"name": "trace", "kind": null}]},
        {"name": "attic", "dependencies": []}
    ]}"#;
    let expected = [
        "trace imports recorder (plain dependency)",
        "recorder imports aggregator (dev dependency)",
        "aggregator imports rank-agent (build dependency)",
        "attic is in no room: add it to MAY_IMPORT",
    ];
    assert_eq!(forbidden_imports(&serde_json::from_str(text).unwrap()), expected);
}

/// What must build and run with no MPI, no libclang and no GPU does not have MPI's bindings in its graph.
#[test]
fn only_the_mpi_feature_brings_mpi() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let tree = |package: &str, flags: &[&str]| {
        let output = Command::new(&cargo)
            .args(["tree", "--locked", "--offline", "--edges", "normal,build,dev", "--prefix", "none", "--package"])
            .arg(package)
            .args(flags)
            .current_dir(workspace_root())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for package in ["trace", "kernels", "launch", "recorder", "aggregator"] {
        assert!(!tree(package, &[]).contains("mpi-sys"), "{package} needs MPI");
    }
    assert!(!tree("rank-agent", &["--no-default-features"]).contains("mpi-sys"));
    assert!(tree("rank-agent", &[]).contains("mpi-sys"), "the test above looks for the wrong name");
}

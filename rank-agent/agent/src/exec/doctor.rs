//! Checks of what `exec` needs on this machine. Nothing is recorded.

use std::path::PathBuf;

use launch::Identity;

use super::endpoint;
use super::environment::{Environment, ExecContext, find_library};
use super::switch::NcclDetail;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// All is well.
    Well(String),
    /// It is recorded, but the user should know this.
    Remark(String),
    /// Something will not be recorded: why, and what to do.
    Lacking(String),
}

impl Found {
    /// A result whose error is why something will not be recorded.
    pub fn of(found: Result<String, String>) -> Self {
        found.map_or_else(Self::Lacking, Self::Well)
    }

    /// The text that the user reads.
    pub fn said(&self) -> &str {
        match self {
            Self::Well(said) | Self::Remark(said) | Self::Lacking(said) => said,
        }
    }
}

/// One thing that a recording needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The thing, in a word or two.
    pub what: &'static str,
    /// The result.
    pub found: Found,
}

/// Looks at what `exec` itself needs: the library that records, other tools that have taken its place, the directory of `ctl`, and the
/// launcher.
pub fn checks() -> Vec<Check> {
    let library = find_library(std::env::var_os("RANKSCOPE_INJECT_LIB"), std::env::current_exe().ok().as_deref());
    let recording = recorder::Options::new(PathBuf::new(), "doctor", 0, 1);
    let context = ExecContext { recording: &recording, detail: NcclDetail::Coll, library: &library };
    let problems = Environment::new(&context, &|name| std::env::var_os(name)).problems;
    // Without the library, that is the only problem.
    let (of_library, of_tools) = match &library {
        Ok(path) => (Ok(path.display().to_string()), problems),
        Err(_) => (Err(problems.join("; ")), Vec::new()),
    };
    let tools = if of_tools.is_empty() { Ok("no other tool takes its place".into()) } else { Err(of_tools.join("; ")) };
    let ctl = endpoint::home().map(|path| path.display().to_string());
    let ctl = ctl.map_err(|why| format!("recording cannot be switched by `ctl`: {why}"));
    let launcher = Identity::from_env(&|name| std::env::var(name).ok()).map(|identity| {
        format!("rank {} of {}, {}", identity.rank, identity.world_size, identity.launcher.described())
    });
    vec![
        Check { what: "library", found: Found::of(of_library) },
        Check { what: "other tools", found: Found::of(tools) },
        Check { what: "ctl", found: ctl.map_or_else(Found::Remark, Found::Well) },
        Check { what: "launcher", found: Found::of(launcher.map_err(|error| error.to_string())) },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_looked_at_once() {
        let whats: Vec<&str> = checks().iter().map(|check| check.what).collect();
        assert_eq!(whats, ["library", "other tools", "ctl", "launcher"]);
    }
}

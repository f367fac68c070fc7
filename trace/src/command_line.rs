//! The command line of this process, as messages and manifests show it.

use std::borrow::Cow;
use std::ffi::OsString;
use std::sync::OnceLock;

static GIVEN: OnceLock<Vec<OsString>> = OnceLock::new();

/// Sets the command line, program first, where another program runs the command: of an interpreter, the system knows only
/// its own arguments. The first call counts.
pub fn set(arguments: Vec<OsString>) {
    let _ = GIVEN.set(arguments);
}

/// As [`get`], as text.
pub fn texts() -> Vec<String> {
    get().into_iter().map(|argument| argument.to_string_lossy().into_owned()).collect()
}

/// The program's name and the names of its options, without values, which may be secret.
pub fn without_values<'a>(words: impl Iterator<Item = Cow<'a, str>>) -> Vec<String> {
    let name_of = |word: Cow<'_, str>| {
        let name = word.split('=').next().unwrap_or_default();
        match name.strip_prefix('-')?.chars().next() {
            Some('-') => Some(name.to_owned()),
            // A value may follow without a space.
            Some(letter) => Some(format!("-{letter}")),
            None => None,
        }
    };
    let mut words = words;
    words.next().map(Cow::into_owned).into_iter().chain(words.filter_map(name_of)).collect()
}

/// The command line, program first.
pub fn get() -> Vec<OsString> {
    GIVEN.get().cloned().unwrap_or_else(|| std::env::args_os().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_program_are_not_shown() {
        let words =
            ["python", "-u", "train.py", "--api-key=KEY", "--token", "SECRET", "-pSECRET", "-", "--", "KEY=SECRET"];
        let shown = without_values(words.into_iter().map(Cow::Borrowed));
        assert_eq!(shown, ["python", "-u", "--api-key", "--token", "-p", "--"]);
        assert_eq!(without_values(std::iter::empty()), [""; 0]);
    }
}
